"""Measure which task helps or hurts which other task in joint training, and whether gradients predict these effects.

    mtlprune table results/claims/records/leave-one-out --split test --against MTL-5 --format json \\
        --out leave-one-out.json
    mtlprune analyze gradients runs/leave-one-out/mtl5-* --corpus data/ewt5 --sentences 500 \\
        --out results/claims/gradients
    python results/claims/leave_one_out.py leave-one-out.json results/claims/gradients

The effect of a task is the score of MTL-5 minus the score of the joint runs without the task. If it is not significant,
the table shows the minimum detectable effect. Holm's correction is over the 20 tests of each kind. The first predictor
is the mean cosine of two tasks' gradients on heads, and the second is the size of the gradient of the task that is left
out (its importance, summed over heads). The two-sided p-values of their Spearman correlations with the effects come
from all 120 permutations of the tasks of the predictor.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from mtlprune import read_results
from mtlprune.statistics.significance import holm

TASKS = ("pos", "ner", "dep", "con", "srl")


def cosines(folder: str) -> np.ndarray:
    """Read the mean cosine of two tasks' gradients over heads and joint runs: (tasks, tasks)."""
    frame = read_results(folder)["gradients"].frames["cosines"]
    means = np.full((len(TASKS), len(TASKS)), np.nan)
    for tasks, rows in frame.groupby(["task", "other"]):
        first, second = map(TASKS.index, tasks)
        means[first, second] = means[second, first] = rows["value"].mean()
    return means


def sizes(folder: str) -> np.ndarray:
    """Read the importance for the task that is left out, summed over heads, mean over joint runs: (tasks, tasks)."""
    frame = read_results(folder)["gradients"].frames["heads"]
    rows = frame[(frame["measure"] == "importance") & (frame["mode"] == "")]
    sums = rows.groupby(["task", "seed"])["value"].sum().groupby("task").mean().loc[list(TASKS)].to_numpy()
    return np.broadcast_to(sums[:, None], (len(TASKS), len(TASKS)))


def correlation(effect: np.ndarray, predictor: np.ndarray) -> tuple[float, float, float]:
    """Return Spearman's correlation, its p-value, and the smallest correlation that would have p ≤ 0.05."""
    is_measured = ~np.isnan(effect)
    orders = [np.ix_(order, order) for order in itertools.permutations(range(len(TASKS)))]
    ranks = rankdata([predictor[order][is_measured] for order in orders], axis=1)
    null = [float(value) for value in np.corrcoef(rankdata(effect[is_measured]), ranks)[0, 1:]]
    p = np.mean(np.abs(null) >= abs(null[0]) - 1e-9)
    absolute = np.sort(np.abs(null))
    # The smallest correlation that 5 % of the permutations or fewer reach would have p ≤ 0.05.
    return null[0], float(p), min(size for size in absolute if np.mean(absolute >= size - 1e-9) <= 0.05)


def read_effects(scores: str) -> tuple[dict[tuple[int, int], dict[str, Any]], np.ndarray]:
    """Read the difference of each pair of tasks, and the effects of tasks (rows) on tasks (columns) in points."""
    effect, pairs = np.full((len(TASKS), len(TASKS)), np.nan), {}
    for cell in json.loads(Path(scores).read_text())["cells"]:
        if cell["delta"] is not None:
            [left] = set(TASKS) - set(cell["tasks"])
            pair = TASKS.index(left), TASKS.index(cell["task"])
            pairs[pair], effect[pair] = cell, -cell["delta"]
    return pairs, effect


def main(scores: str, gradients: str) -> None:
    """Print a row for each pair of tasks, and the correlations of effects with the two predictors."""
    differences, effect = read_effects(scores)
    cosine = cosines(gradients)
    equal = holm([cell["equivalence_p"] for cell in differences.values()])
    print("| without | effect on | points | detectable | 95 % | p (Holm) | p, within 1 point (Holm) | cosine |")
    print("|:--|:--|--:|--:|--:|--:|--:|--:|")
    for (pair, cell), within in zip(differences.items(), equal, strict=True):
        detectable = "–" if cell["significant"] else f"{cell['detectable']:.2f}"
        print(
            f"| {TASKS[pair[0]].upper()} | {cell['task'].upper()} | {effect[pair]:+.2f} | {detectable} | "
            f"[{-cell['wide_high']:+.2f}, {-cell['wide_low']:+.2f}] | {cell['wide_p_holm']:.4f} | {within:.4f} | "
            f"{cosine[pair]:+.3f} |"
        )
    observed, p, smallest = correlation(effect, cosine)
    print(
        f"\nThe Spearman correlation of {(~np.isnan(effect)).sum()} effects with mean cosines is {observed:+.2f} (p "
        f"{p:.4f}). A correlation of {smallest:.2f} or more would have p ≤ 0.05."
    )
    size = sizes(gradients)
    observed, p, smallest = correlation(effect, size)
    print(
        f"\nThe Spearman correlation with the size of the gradient of the task that is left out is {observed:+.2f} (p "
        f"{p:.4f}). A correlation of {smallest:.2f} or more would have p ≤ 0.05. The sizes are "
        f"{', '.join(f'{value:.3f} for {task.upper()}' for task, value in zip(TASKS, size[:, 0], strict=True))}."
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
