"""Do two selections on one encoder agree by task? Heads shared beyond depth (PLAN.md, last note on control 2).

python results/claims/twice.py results/claims/records/regimes:random results/claims/records/regimes:untuned

Pairs of selections of one training seed and unequal selection seeds: one task minus two tasks. Each training seed (of
random encoders: each encoder) is one observation; t interval of their mean. The difference also task by task.
"""

import sys

import numpy as np
from across import TASKS, masks, pairs
from scipy.stats import t

LEVEL = 0.975


def tables(given: str) -> np.ndarray:
    """(training seeds, tasks, tasks): heads shared beyond depth by two selections on one encoder."""
    found, seeds = masks(given)
    beyond = pairs(found, found)
    rows = []
    for seed in np.unique(seeds):
        own = np.flatnonzero(seeds == seed)
        rows.append(beyond[:, :, own][:, :, :, own][:, :, ~np.eye(len(own), dtype=bool)].mean(-1))
    return np.array(rows)


def interval(values: np.ndarray) -> str:
    """Of a number a training seed: their mean, and t."""
    half = t.ppf(LEVEL, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():.2f} [{values.mean() - half:.2f}, {values.mean() + half:.2f}]"


def main(names: list[str]) -> None:
    """Print a row for each kind of selection."""
    print(f"| selections | one task | two tasks | difference | {' | '.join(task.upper() for task in TASKS)} |")
    print(f"|:--|{'--:|' * (3 + len(TASKS))}")
    for name in names:
        found = tables(name)  # (S, tasks, tasks)
        own = np.diagonal(found, axis1=1, axis2=2)  # (S, tasks)
        others = (found.sum(2) - own) / (len(TASKS) - 1)
        said = [interval(each.mean(1)) for each in (own, others, own - others)]
        tasks = [f"{gap:.2f}" for gap in (own - others).mean(0)]
        print(f"| {' | '.join([name.split(':')[1], *said, *tasks])} |")


if __name__ == "__main__":
    main(sys.argv[1:])
