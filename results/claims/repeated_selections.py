"""Test whether two selections on one encoder agree more for one task than for two (PLAN.md, last note on control 2).

    python results/claims/repeated_selections.py \\
        results/claims/records/regimes:random results/claims/records/regimes:untuned

The measure is the number of heads that two selections share beyond layer depth. Pairs of selections have the same
training seed and different selection seeds. Each training seed (or each random encoder) is an observation, and
intervals are Student's. The difference is also given for each task.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from after_finetuning import TASKS, masks, pairs
from scipy.stats import ttest_1samp

from mtlprune.runs.results import Result, write_result


def tables(selection: str) -> np.ndarray:
    """Count the heads that two selections on one encoder share beyond depth: (training seeds, tasks, tasks)."""
    open_heads, seeds = masks(selection)
    beyond = pairs(open_heads, open_heads)
    rows = []
    for seed in np.unique(seeds):
        runs = np.flatnonzero(seeds == seed)
        rows.append(beyond[:, :, runs][:, :, :, runs][:, :, ~np.eye(len(runs), dtype=bool)].mean(-1))
    return np.array(rows)


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of values by training seed, and the ends of its Student's 95 % interval."""
    low, high = ttest_1samp(values, 0).confidence_interval()
    return float(values.mean()), float(low), float(high)


def main(names: list[str]) -> None:
    """Print a row for each kind of selection, and write the result to results/claims/repeated-selections."""
    rows = []
    print(f"| selections | one task | two tasks | difference | {' | '.join(task.upper() for task in TASKS)} |")
    print(f"|:--|{'--:|' * (3 + len(TASKS))}")
    for name in names:
        shared = tables(name)  # (S, tasks, tasks)
        one_task = np.diagonal(shared, axis1=1, axis2=2)  # (S, tasks)
        two_tasks = (shared.sum(2) - one_task) / (len(TASKS) - 1)
        ends = [interval(each.mean(1)) for each in (one_task, two_tasks, one_task - two_tasks)]
        cells = [f"{mean:.2f} [{low:.2f}, {high:.2f}]" for mean, low, high in ends]
        for kind, (mean, low, high) in zip(("one task", "two tasks", "difference"), ends, strict=True):
            row = {"term": name.split(":")[1], "control": kind, "n": len(shared)}
            rows.append({**row, "estimate": mean, "low": low, "high": high})
        tasks = [f"{gap:.2f}" for gap in (one_task - two_tasks).mean(0)]
        print(f"| {' | '.join([name.split(':')[1], *cells, *tasks])} |")
    about = {"encoders": [], "notes": [], "selections": names}
    write_result(
        Path("results/claims/repeated-selections"), Result("repeated-selections", about, {"shared": pd.DataFrame(rows)})
    )


if __name__ == "__main__":
    main(sys.argv[1:])
