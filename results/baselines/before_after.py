"""What tuning changed: single-task and joint training at the settings before and after it, on test.

    python results/baselines/before_after.py results/ewt5-minilm/records:none results/baselines/records/tuned:72-own
    python results/baselines/before_after.py results/treatments/full/records:none results/baselines/records/full:full

Each argument is a study and the beginning of its cells' names. Both sides trained on the same sentences with as many
updates. Where the second study has more seeds than the first, it is shown with the first's seeds, which the plan
compares, and with all of them. Intervals are of 95 % over seeds and sentences.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtlprune.reports.scores.comparisons import compare, with_tests
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study

TASKS = ("pos", "ner", "dep", "con", "srl")
TUNING_SEED = 100
"""Seeds above it chose settings on dev and are no result."""


def over_seeds(values: NDArray[np.float64]) -> str:
    """The mean of a value a seed, with its interval of 95 % by t."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{values.mean():+.2f} [{values.mean() - half:+.2f}, {values.mean() + half:+.2f}]"


def cells(argument: str) -> dict[int, list[RunFolder]]:
    """Seed → runs of the single tasks and of joint training in STUDY:PREFIX, for seeds that have all six."""
    study, _, regime = argument.rpartition(":")
    by_seed: dict[int, list[RunFolder]] = defaultdict(list)
    for cell in (*TASKS, "mtl5"):
        for path in read_study(Path(study)).paths(f"{regime}-{cell}-[0-9]*"):
            run = RunFolder(path)
            by_seed[run.config.train.seed].append(run)
    return {seed: runs for seed, runs in by_seed.items() if seed < TUNING_SEED and len(runs) == len(TASKS) + 1}


def rows(label: str, runs: Sequence[RunFolder]) -> tuple[list[str], NDArray[np.float64]]:
    """A line a task: mean scores of both sides, their difference, and its p over seeds and sentences; and, a value a
    seed, the mean difference of the five tasks."""
    comparison = with_tests(compare(list(runs), "test"))
    [(joint, single)] = comparison.against.items()
    lines, changes = [], []
    for task in TASKS:
        test = comparison.tests[joint, task]
        ours, other = (mean(comparison.columns[place].values(task)) for place in (single, joint))
        low, high = test.interval
        by_seed = [np.array(comparison.columns[place].values(task)) for place in (joint, single)]
        changes.append(by_seed[0] - by_seed[1])
        seeds = len(comparison.columns[joint].values(task))
        interval = f"{other - ours:+.2f} [{low:+.2f}, {high:+.2f}]"
        lines.append(
            f"| {task.upper()} | {label} | {seeds} | {ours:.2f} | {other:.2f} | {interval} | {test.wide_p_holm:.3f} |"
        )
    mean_change = np.mean(changes, axis=0)
    return [*lines, f"| mean of five | {label} | {len(mean_change)} | | | {over_seeds(mean_change)} | |"], mean_change


def main(before: str, after: str) -> None:
    print("# Single tasks and joint training, before and after tuning\n")
    print(
        "Scores on test in percent; Δ is joint minus single-task, in points; p is corrected over five tasks (Holm).\n"
    )
    print("| task | settings | seeds | single task | joint | Δ | p |\n|:--|:--|--:|--:|--:|:--|--:|")
    old, new = cells(before), cells(after)
    shared = sorted(old.keys() & new.keys())
    sides = [("before", old, shared), ("after", new, shared)]
    if len(new) > len(shared):
        sides.append(("after, all seeds", new, sorted(new)))
    shown = [rows(label, [run for seed in seeds for run in runs[seed]]) for label, runs, seeds in sides]
    print("\n".join(line for together in zip(*(lines for lines, _ in shown), strict=True) for line in together))
    print(f"| mean of five | after minus before | {len(shared)} | | | {over_seeds(shown[1][1] - shown[0][1])} | |")
    print("\nIntervals of the mean are over seeds alone, which are paired in the last line.")


if __name__ == "__main__":
    main(*sys.argv[1:3])
