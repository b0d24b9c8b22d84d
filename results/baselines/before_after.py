"""What tuning changed: single-task and joint training at the settings before and after it, on test.

    python results/baselines/before_after.py results/ewt5-minilm/records results/baselines/records/tuned

Both trained on the same 2,000 sentences with 252 updates. Intervals are of 95 % over seeds and sentences.
"""

import sys
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtlprune.reports.scores.comparisons import compare, with_tests
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study

TASKS = ("pos", "ner", "dep", "con", "srl")
STUDIES = (("before", "none"), ("after", "72-own"))


def over_seeds(values: NDArray[np.float64]) -> str:
    """The mean of a value a seed, with its interval of 95 % by t."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{values.mean():+.2f} [{values.mean() - half:+.2f}, {values.mean() + half:+.2f}]"


def rows(label: str, study: Path, regime: str) -> tuple[list[str], NDArray[np.float64]]:
    """A line a task: mean scores of both sides, their difference, and its p over seeds and sentences; and, a value a
    seed, the mean difference of the five tasks."""
    patterns = [f"{regime}-{cell}-[0-9]*" for cell in (*TASKS, "mtl5")]
    comparison = with_tests(
        compare([RunFolder(p) for pattern in patterns for p in read_study(study).paths(pattern)], "test")
    )
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


def main(before: Path, after: Path) -> None:
    print("# Single tasks and joint training, before and after tuning\n")
    print(
        "Scores on test in percent; Δ is joint minus single-task, in points; p is corrected over five tasks (Holm).\n"
    )
    print("| task | settings | seeds | single task | joint | Δ | p |\n|:--|:--|--:|--:|--:|:--|--:|")
    sides = [rows(label, study, regime) for (label, regime), study in zip(STUDIES, (before, after), strict=True)]
    print("\n".join(line for pair in zip(*(lines for lines, _ in sides), strict=True) for line in pair))
    first, second = (changes for _, changes in sides)
    print(f"| mean of five | after minus before | {len(first)} | | | {over_seeds(second - first)} | |")
    print("\nIntervals of the mean are over seeds alone, which are paired in the last line.")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
