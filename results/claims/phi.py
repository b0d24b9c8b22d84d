"""Compare how well selections of heads repeat that were made in different ways (PLAN.md, part 1).

    python results/claims/phi.py "frozen=results/claims/records/frozen:frozen" \\
        "dynamic=results/ewt5-minilm/records:gates"

The script computes Φ within each single task that all settings have, and the difference of the mean over tasks from the
first setting. Pairs of runs have different training seeds and different selection seeds (or only different training
seeds, if selections have no seeds). The jack-knife leaves out a training run with all its selections, in all settings
at once. A difference is detectable if four of five such studies would find it (two-sided test at 5 %).
"""

import sys
from pathlib import Path

import numpy as np

from mtlprune.analyses.heads.claims.stability import Runs, jackknife, phi
from mtlprune.runs.claims import RunGroup, load_claims
from mtlprune.runs.study import read_study

TASKS, MARGIN = ("pos", "ner", "dep", "con", "srl"), 0.10
"""MARGIN is the difference of Φ below which settings count as equal."""


def selections(places: str) -> dict[str, Runs]:
    """Read the runs of each task from the cells PREFIX-TASK-* of the places STUDY:PREFIX,..."""
    runs_by_task = {}
    for task in TASKS:
        parts = [place.rpartition(":") for place in places.split(",")]
        paths = [
            path for study, _, prefix in parts for path in sorted(read_study(Path(study)).paths(f"{prefix}-{task}-*"))
        ]
        if paths:
            runs_by_task[task] = Runs.of([RunGroup(task.upper(), tuple(load_claims(paths)))])
    return runs_by_task


def values(settings: list[dict[str, Runs]], left: tuple[str, int] | None = None) -> np.ndarray:
    """Compute Φ of each task, their mean, and the difference of the mean from the first setting.

    Args:
        settings: the runs by task of S settings.
        left: task and seed of a training run to leave out.

    Returns:
        (S, tasks + 2) values.
    """
    rows = []
    for setting in settings:
        cells = []
        for task, runs in setting.items():
            is_kept = np.ones(len(runs.labels), dtype=bool)
            if left is not None and left[0] == task:
                is_kept = runs.levels[:, 0] != left[1]
            selection = runs.levels[:, 1]
            unequal = runs.unequal_seeds if np.ptp(selection) else runs.levels[:, None, 0] != runs.levels[None, :, 0]
            cells.append(phi(runs, unequal, is_kept)[0, 0, 0])
        rows.append([*cells, np.mean(cells)])
    table = np.array(rows)
    return np.column_stack([table, table[:, -1] - table[0, -1]])


def main(arguments: list[str]) -> None:
    """Print a row for each setting."""
    names = [name.partition("=")[0] for name in arguments]
    settings = [selections(name.partition("=")[2]) for name in arguments]
    tasks = [task for task in TASKS if all(task in setting for setting in settings)]
    if not tasks:
        raise SystemExit(f"expected runs of one task in each, found {[list(setting) for setting in settings]}")
    settings = [{task: setting[task] for task in tasks} for setting in settings]
    units = [(task, seed) for task in tasks for seed in np.unique(settings[0][task].levels[:, 0])]
    estimates = values(settings)
    left_out = np.stack([values(settings, unit) for unit in units])
    strata = np.array([tasks.index(task) for task, _ in units])
    low, high, detectable, _ = jackknife(estimates, left_out, strata)
    print(f"| | {' | '.join(f'{task.upper()} Φ' for task in tasks)} | mean | minus {names[0]} | |")
    print(f"|:--|{'--:|' * len(tasks)}--:|--:|:--|")
    for row, name in enumerate(names):
        ends = zip(estimates[row], low[row], high[row], strict=True)
        cells = [f"{v:.2f}" + ("" if np.isnan(a) else f" [{a:.2f}, {b:.2f}]") for v, a, b in ends]
        below, above = low[row, -1], high[row, -1]
        outcome = (
            "larger" if below > 0 else "smaller" if above < 0 else f"not shown, {detectable[row, -1]:.2f} detectable"
        )
        if below > -MARGIN and above < MARGIN:
            outcome += f", less than {MARGIN:.2f} apart"
        print(f"| {' | '.join([name, *cells[:-1], *(['', ''] if row == 0 else [cells[-1], outcome])])} |")


if __name__ == "__main__":
    main(sys.argv[1:])
