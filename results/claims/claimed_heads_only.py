"""Compare runs that have only the heads that their task claims with runs that have other sets of heads.

    python results/claims/claimed_heads_only.py results/claims/records/claimed-heads-only
    python results/claims/claimed_heads_only.py results/claims/records/noise \\
        gates=dynamic-TASK-own random=random-gates-TASK-own

Without further arguments, the compared sets are those of part 4a of the plan. With arguments NAME=RUNS, the first set
is compared with each of the others. Differences of test scores are paired by seed. Intervals and p-values cover seeds
and sentences, and Holm's correction is over the five tasks. The mean over the five tasks is also given without DEP (or,
with arguments, without SRL). "Below a point" is the one-sided p-value of a gain of one point or more, and "within a
point" is the p-value of a difference of one point or more in either direction. If a difference is not significant, the
table shows the minimum detectable effect without correction.
"""

import sys
from pathlib import Path

import numpy as np

from mtlprune.evaluation.scores import MAIN, SCORES, count_names
from mtlprune.figures.grid import probability
from mtlprune.layers import kind_of
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study
from mtlprune.statistics.contrast import Contrast
from mtlprune.statistics.resamples import Resampled, System, resampled_scores, weighted
from mtlprune.statistics.significance import holm
from mtlprune.statistics.standard_errors import LEVEL

TASKS, SEEDS, RESAMPLES = ("pos", "ner", "dep", "con", "srl"), (1, 2, 3), 10_000
CHOICES = ("all=none-TASK", "stable=stable-TASK", "unclaimed=unclaimed-TASK", "importance=importance-TASK-TASK")
"""The default sets of heads, as NAME=RUNS, where TASK is replaced by each task."""
PAIRS = (("stable", "unclaimed"), ("stable", "importance"), ("importance", "unclaimed"), ("stable", "all"))
"""The sets that are compared by default, where the second set is subtracted from the first."""


def systems(study: Path, choices: dict[str, str]) -> dict[tuple[str, str], System]:
    """Build the system of three runs for each set of heads and task. Counts are 0 in sentences without the layer."""
    by_choice = {}
    for choice, pattern in choices.items():
        for task in TASKS:
            kind = kind_of(task)
            names, score = count_names(kind, MAIN[kind]), SCORES[kind][MAIN[kind]]
            runs = []
            for seed in SEEDS:
                [folder] = read_study(study).paths(f"{pattern.replace('TASK', task)}-{seed}")
                counts = RunFolder(folder).read_counts("test")["counts"][task]
                runs.append(np.array([[value or 0 for value in counts[name]] for name in names]).T)
            by_choice[choice, task] = System(np.stack(runs), names, score, SEEDS)
    return by_choice


def test_scores(study: Path, choices: dict[str, str]) -> dict[tuple[str, str], Resampled]:
    """Compute the test scores of each set of heads and task, on all sentences and on resampled sentences."""
    table = systems(study, choices)
    return dict(zip(table, resampled_scores(list(table.values()), RESAMPLES, 0), strict=True))


def row(label: str, difference: Resampled, corrected: float = np.nan) -> str:
    """Format a row of the table for a difference over three seeds."""
    contrast, negated = Contrast.of(difference), Contrast.of(weighted([difference], [-1]))
    ps = (contrast.p, corrected, negated.p_at_most(-1.0), contrast.p_margin(1.0))
    between = f"[{contrast.low:+.2f}, {contrast.high:+.2f}]"
    is_significant = (contrast.p if np.isnan(corrected) else corrected) < LEVEL
    detectable = "–" if is_significant else f"{contrast.detectable:.2f}"
    return f"| {label} | {contrast.estimate:+.2f} | {between} | {' | '.join(map(probability, ps))} | {detectable} |"


def main(study: str, *selections: str) -> None:
    """Print the mean scores, and a row for each pair of sets and task."""
    choices = {name: runs for name, _, runs in (one.partition("=") for one in selections or CHOICES)}
    first, *others = choices
    left = "srl" if selections else "dep"  # the difference of this task is much larger than those of the others
    points = test_scores(Path(study), choices)
    print("| heads | " + " | ".join(task.upper() for task in TASKS) + " | mean |\n|:--|" + "--:|" * (len(TASKS) + 1))
    for choice in choices:
        means = [float(points[choice, task].observed.mean()) for task in TASKS]
        print(f"| {choice} | " + " | ".join(f"{value:.2f}" for value in [*means, float(np.mean(means))]) + " |")
    print("\n| difference | points | 95 % | p | Holm | p, below a point | p, within a point | detectable |")
    print("|:--|" + "--:|" * 7)
    for one, other in [(first, other) for other in others] if selections else PAIRS:
        differences = {task: points[one, task] - points[other, task] for task in TASKS}
        without_left = [part for task, part in differences.items() if task != left]
        print(row(f"**{one} − {other}, mean**", weighted([*differences.values()])))
        print(row(f"{one} − {other}, mean without {left.upper()}", weighted(without_left)))
        corrected = holm([Contrast.of(part).p for part in differences.values()])
        for (task, part), p in zip(differences.items(), corrected, strict=True):
            print(row(f"{one} − {other}, {task.upper()}", part, p))


if __name__ == "__main__":
    main(*sys.argv[1:])
