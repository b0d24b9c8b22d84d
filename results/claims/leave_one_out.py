"""Measure which task helps or hurts which other task in joint training, and whether gradients predict these effects.

    mtlprune table results/claims/records/leave-one-out --split test --against MTL-5 --format json \\
        --out leave-one-out.json
    mtlprune analyze gradients runs/leave-one-out/mtl5-* --corpus data/ewt5 --sentences 500 \\
        --out results/claims/gradients
    python results/claims/leave_one_out.py leave-one-out.json results/claims/gradients

The effect of a task is the score of MTL-5 minus the score of the joint runs without the task. If it is not significant,
the table shows the minimum detectable effect. Holm's correction is over the 20 tests of each kind. The predictor is the
mean cosine of two tasks' gradients on heads. The two-sided p-value of its Spearman correlation with the effects comes
from all 120 permutations of the tasks of the cosines.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

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


def main(scores: str, gradients: str) -> None:
    """Print a row for each pair of tasks, and the correlation of effects with cosines."""
    differences = [cell for cell in json.loads(Path(scores).read_text())["cells"] if cell["delta"] is not None]
    cosine, effect = cosines(gradients), np.full((len(TASKS), len(TASKS)), np.nan)
    equal = holm([cell["equivalence_p"] for cell in differences])
    print("| without | effect on | points | detectable | 95 % | p (Holm) | p, within 1 point (Holm) | cosine |")
    print("|:--|:--|--:|--:|--:|--:|--:|--:|")
    for cell, within in zip(differences, equal, strict=True):
        [left] = set(TASKS) - set(cell["tasks"])
        pair = TASKS.index(left), TASKS.index(cell["task"])
        effect[pair] = -cell["delta"]
        detectable = "–" if cell["significant"] else f"{cell['detectable']:.2f}"
        print(
            f"| {left.upper()} | {cell['task'].upper()} | {effect[pair]:+.2f} | {detectable} | "
            f"[{-cell['wide_high']:+.2f}, {-cell['wide_low']:+.2f}] | {cell['wide_p_holm']:.4f} | {within:.4f} | "
            f"{cosine[pair]:+.3f} |"
        )
    is_measured = ~np.isnan(effect)
    orders = [np.ix_(order, order) for order in itertools.permutations(range(len(TASKS)))]
    null = [float(spearmanr(effect[is_measured], cosine[order][is_measured])[0]) for order in orders]
    p = np.mean(np.abs(null) >= abs(null[0]) - 1e-9)
    sizes = np.sort(np.abs(null))
    # The smallest correlation that 5 % of the permutations or fewer reach would have p ≤ 0.05.
    smallest = min(size for size in sizes if np.mean(sizes >= size - 1e-9) <= 0.05)
    print(
        f"\nThe Spearman correlation of {is_measured.sum()} effects with mean cosines is {null[0]:+.2f} (p {p:.4f}). A "
        f"correlation of {smallest:.2f} or more would have p ≤ 0.05."
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
