"""Do two selections on one encoder agree by task? Heads shared beyond depth (PLAN.md, last note on control 2).

python results/claims/twice.py results/claims/records/regimes:random results/claims/records/regimes:untuned

Pairs of selections of one training seed and unequal selection seeds: one task minus two tasks. Each training seed (of
random encoders: each encoder) is one observation; t interval of their mean.
"""

import sys

import numpy as np
from across import TASKS, masks
from scipy.stats import t

LEVEL = 0.975


def differences(given: str) -> np.ndarray:
    """(training seeds, 2): heads shared beyond depth within a task, and between tasks."""
    found, seeds = masks(given)
    both = np.einsum("islh,jtlh->ijst", 1.0 * found, 1.0 * found)
    beyond = both - np.einsum("isl,jtl->ijst", found.sum(-1), found.sum(-1)) / found.shape[-1]
    rows = []
    for seed in np.unique(seeds):
        own = np.flatnonzero(seeds == seed)
        table = beyond[:, :, own][:, :, :, own][:, :, ~np.eye(len(own), dtype=bool)].mean(-1)
        within = np.trace(table) / len(TASKS)
        rows.append([within, (table.sum() - np.trace(table)) / (table.size - len(TASKS))])
    return np.array(rows)


def main(names: list[str]) -> None:
    """Print a row for each kind of selection."""
    print("| selections | one task | two tasks | difference by training seed | mean |\n|:--|--:|--:|--:|--:|")
    for name in names:
        found = differences(name)
        gaps = found[:, 0] - found[:, 1]
        half = t.ppf(LEVEL, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
        each = ", ".join(f"{gap:.2f}" for gap in gaps)
        interval = f"{gaps.mean():.2f} [{gaps.mean() - half:.2f}, {gaps.mean() + half:.2f}]"
        print(f"| {name.split(':')[1]} | {found[:, 0].mean():.2f} | {found[:, 1].mean():.2f} | {each} | {interval} |")


if __name__ == "__main__":
    main(sys.argv[1:])
