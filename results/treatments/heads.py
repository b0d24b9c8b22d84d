"""Count the heads that the tasks of treated models share, from each task's gates on finished, frozen models (part 4).

    python results/treatments/heads.py results/treatments/heads

The measure is the number of open heads that two tasks of a model share, minus the number that layer depth explains (the
sum over layers of a · b / 12 for a and b open heads), as a mean over the ten pairs of tasks. Differences of treated
models from untreated ones are paired by seed. They have Student's 95 % interval over seeds, and the p-value of two
one-sided t tests against a difference of one head or more.
"""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtlprune.runs.claims import load_claims
from mtlprune.runs.study import read_study
from mtlprune.statistics.significance import holm

SETTINGS, SEEDS = ("none", "dispatch-stem", "distil", "protect-stem", "project-features"), (1, 2, 3)
MARGIN = 1.0


def shared_beyond_depth(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Count the shared heads of two masks (L, A), minus the number that the open heads of each layer explain."""
    return float((first & second).sum() - (first.sum(1) * second.sum(1) / first.shape[1]).sum())


def main(study: str) -> None:
    """Print a row for each setting with finished runs, and a row for each difference from untreated models."""
    means, tasks = {}, {}
    for setting in SETTINGS:
        names = [path for seed in SEEDS for path in read_study(Path(study)).paths(f"heads-{setting}-mtl5-{seed}-*")]
        if len(names) == len(SEEDS):
            models = [{claim.label.partition(":")[2]: claim.open for claim in load_claims([name])} for name in names]
            pairs = list(combinations(models[0], 2))
            shared = np.array(
                [[shared_beyond_depth(model[a], model[b]) for a, b in pairs] for model in models]
            )  # (seeds, pairs)
            means[setting], tasks[setting] = shared.mean(1), dict(zip(pairs, shared.mean(0), strict=True))
    print("| model | shared heads beyond depth, seeds 1, 2, 3 | mean | most | fewest |\n|:--|:--|--:|:--|:--|")
    for setting, values in means.items():
        ends = [f"{'–'.join(pair)} {by:.1f}" for pair, by in sorted(tasks[setting].items(), key=lambda one: one[1])]
        cells = ", ".join(f"{value:.1f}" for value in values)
        print(f"| {setting} | {cells} | {values.mean():.1f} | {ends[-1]} | {ends[0]} |")
    rows = []
    for setting, values in list(means.items())[1:]:
        difference = values - means["none"]
        test = stats.ttest_1samp(difference, 0)
        equal = stats.ttest_1samp(np.sign(difference.mean()) * difference, MARGIN, alternative="less").pvalue
        rows.append((setting, difference.mean(), *test.confidence_interval(), test.pvalue, equal))
    print("\n| difference from none | heads | 95 % | p | Holm | p, a head or more |\n|:--|--:|--:|--:|--:|--:|")
    for (setting, mean, low, high, p, equal), q in zip(rows, holm([row[4] for row in rows]), strict=True):
        print(f"| {setting} | {mean:+.2f} | [{low:+.2f}, {high:+.2f}] | {p:.4f} | {q:.4f} | {equal:.4f} |")


if __name__ == "__main__":
    main(sys.argv[1])
