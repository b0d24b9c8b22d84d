"""Test whether two selections on one encoder agree more for one task than for two (PLAN.md, last note on control 2).

    python results/claims/twice.py results/claims/records/regimes:random results/claims/records/regimes:untuned

The measure is the number of heads that two selections share beyond layer depth. Pairs of selections have the same
training seed and different selection seeds. Each training seed (or each random encoder) is an observation, and
intervals are Student's. The difference is also given for each task.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from across import TASKS, masks, pairs
from scipy.stats import ttest_1samp

from mtlprune.runs.results import Result, write_result


def tables(given: str) -> np.ndarray:
    """Count the heads that two selections on one encoder share beyond depth: (training seeds, tasks, tasks)."""
    found, seeds = masks(given)
    beyond = pairs(found, found)
    rows = []
    for seed in np.unique(seeds):
        own = np.flatnonzero(seeds == seed)
        rows.append(beyond[:, :, own][:, :, :, own][:, :, ~np.eye(len(own), dtype=bool)].mean(-1))
    return np.array(rows)


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of values by training seed, and the ends of its Student's 95 % interval."""
    low, high = ttest_1samp(values, 0).confidence_interval()
    return float(values.mean()), float(low), float(high)


def main(names: list[str]) -> None:
    """Print a row for each kind of selection, and write the result results/claims/twice/twice.json."""
    rows = []
    print(f"| selections | one task | two tasks | difference | {' | '.join(task.upper() for task in TASKS)} |")
    print(f"|:--|{'--:|' * (3 + len(TASKS))}")
    for name in names:
        found = tables(name)  # (S, tasks, tasks)
        own = np.diagonal(found, axis1=1, axis2=2)  # (S, tasks)
        others = (found.sum(2) - own) / (len(TASKS) - 1)
        ends = [interval(each.mean(1)) for each in (own, others, own - others)]
        said = [f"{mean:.2f} [{low:.2f}, {high:.2f}]" for mean, low, high in ends]
        for kind, (mean, low, high) in zip(("one task", "two tasks", "difference"), ends, strict=True):
            row = {"term": name.split(":")[1], "control": kind, "n": len(found)}
            rows.append({**row, "estimate": mean, "low": low, "high": high})
        tasks = [f"{gap:.2f}" for gap in (own - others).mean(0)]
        print(f"| {' | '.join([name.split(':')[1], *said, *tasks])} |")
    about = {"encoders": [], "notes": [], "selections": names}
    write_result(Path("results/claims/twice"), Result("twice", about, {"shared": pd.DataFrame(rows)}))


if __name__ == "__main__":
    main(sys.argv[1:])
