"""Do claims repeat better when gates are trained for longer, or by a published schedule? (PLAN.md, end of part 1)

python results/claims/updates.py results/claims/records/updates

Φ of the three selections of one task, on runs of three training seeds, and its difference from 252 updates, mean of the
tasks. Jack-knife: one training run left out of both at once. It helps if the difference is at least 0.10 with an
interval above 0.
"""

import sys
from pathlib import Path

import numpy as np

from mtlprune.analyses.claims.stability import Runs, jackknife, phi
from mtlprune.claimed_heads import load_claims

SETTINGS = {
    **{"updates-252": "252 updates, rate 0.1", "updates-1008": "1,008 updates", "updates-4032": "4,032 updates"},
    **{"core": "schedule of The Heuristic Core, 1,008 updates", "subset": "of Differentiable Subset Pruning, 1,008"},
}
TASKS, MARGIN = ("pos", "srl"), 0.10


def main(folder: str) -> None:
    """Print a row for each setting that was run."""
    names = {
        setting: [path for task in TASKS for path in sorted(Path(folder).glob(f"{setting}-{task}-*"))]
        for setting in SETTINGS
    }
    names = {setting: paths for setting, paths in names.items() if paths}
    opened = np.stack([[load_claims([path])[0].open for path in paths] for paths in names.values()])  # (S, runs, L, A)
    each = opened.shape[1] // len(TASKS)
    tasks = np.repeat(np.arange(len(TASKS)), each)  # (runs,)

    def values(kept: np.ndarray) -> np.ndarray:
        """(S, tasks + 2): Φ of each task, their mean, its difference from the first setting."""
        found = []
        for heads in opened[:, kept]:
            runs = Runs(tasks[kept], heads.astype(float), heads.astype(float), np.zeros((kept.sum(), 3), dtype=int))
            found.append(np.diag(phi(runs, np.ones((kept.sum(), kept.sum()), dtype=bool))[0]))
        rows = np.column_stack([found, np.mean(found, axis=1)])
        return np.column_stack([rows, rows[:, -1] - rows[0, -1]])

    everything = np.ones(len(tasks), dtype=bool)
    whole = values(everything)
    left_out = np.stack([values(np.arange(len(tasks)) != run) for run in range(len(tasks))])
    low, high = jackknife(whole, left_out, tasks)
    heads = " | ".join(f"{task.upper()} Φ" for task in TASKS)
    print(f"| gates trained for | {heads} | mean | beside 252 updates | helps? |")
    print(f"|:--|{'--:|' * len(TASKS)}--:|--:|:--|")
    for place, setting in enumerate(names):
        cells = [f"{v:.2f} [{a:.2f}, {b:.2f}]" for v, a, b in zip(whole[place], low[place], high[place], strict=True)]
        helps = "yes" if whole[place, -1] >= MARGIN and low[place, -1] > 0 else "not shown"
        ends = ["", ""] if place == 0 else [cells[-1], helps]
        print(f"| {' | '.join([SETTINGS[setting], *cells[:-1], *ends])} |")


if __name__ == "__main__":
    main(sys.argv[1])
