"""Does fine-tuning keep the heads that a task claims? Heads shared beyond depth, within and between selections.

python results/claims/across.py results/claims/records/regimes:untuned results/claims/records/regimes:frozen

Pairs of runs of unequal training seeds. p: the share of the 120 assignments of tasks to the first selection's runs in
which runs of one task share as much more than runs of two. Last line: the differences of the first and the second
selections, their difference with an interval (jack-knife: a task's training run is left out of both at once).
"""

import itertools
import sys
from pathlib import Path

import numpy as np

from mtlprune.analyses.heads.claims.stability import jackknife
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study

TASKS = ("pos", "ner", "dep", "con", "srl")
OPEN = 1e-3


def masks(given: str) -> tuple[np.ndarray, np.ndarray]:
    """(tasks, runs, L, A): which heads are open; (runs,): training seeds, as in KIND-TASK-TRAINING-SELECTION."""
    folder, kind = given.split(":")
    paths = [sorted(read_study(Path(folder)).paths(f"{kind}-{task}-*")) for task in TASKS]
    found = [[next(iter(RunFolder(path).gates().values())) > OPEN for path in some] for some in paths]
    return np.array(found), np.array([path.name.split("-")[-3] for path in paths[0]])


def pairs(one: np.ndarray, two: np.ndarray, depth: bool = True) -> np.ndarray:
    """(tasks, tasks, runs, runs): heads that two runs share, minus those that layer depth explains."""
    both = np.einsum("islh,jtlh->ijst", 1.0 * one, 1.0 * two)
    return np.asarray(both - depth * np.einsum("isl,jtl->ijst", one.sum(-1), two.sum(-1)) / one.shape[-1])


def shares(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """(tasks, tasks): mean over unequal training seeds of shared heads minus those that layer depth explains."""
    (one, seeds), (two, others) = first, second
    return np.asarray(pairs(one, two)[:, :, seeds[:, None] != others].mean(-1))


def gap(shared: np.ndarray, seeds: np.ndarray, task: int = -1, seed: str = "") -> float:
    """One task minus two tasks, of shared heads (tasks, tasks, runs, runs), without a training run of a task."""
    tasks = np.arange(len(shared))
    kept = (tasks[:, None] != task) | (seeds != seed)  # (tasks, runs)
    counted = kept[:, None, :, None] & kept[None, :, None, :] & (seeds[:, None] != seeds)
    own = (tasks[:, None] == tasks)[..., None, None]
    return float(shared[counted & own].mean() - shared[counted & ~own].mean())


def apart(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray], depth: bool) -> str:
    """How much more the first selections' tasks differ than the second's."""
    both = [(pairs(found, found, depth), seeds) for found, seeds in (first, second)]
    units = [(task, str(seed)) for task in range(len(TASKS)) for seed in np.unique(first[1])]
    whole, *left = (gap(*both[0], *unit) - gap(*both[1], *unit) for unit in [(-1, ""), *units])
    low, high, *_ = jackknife(np.array([whole]), np.array(left)[:, None], np.array([task for task, _ in units]))
    return f"{whole:+.2f} [{low[0]:+.2f}, {high[0]:+.2f}]"


def main(first: str, second: str) -> None:
    """Print a row for each pair of selections."""
    read = {name.split(":")[1]: masks(name) for name in (first, second)}
    print("| runs of | and of | one task | two tasks | difference | p |\n|:--|:--|--:|--:|--:|--:|")
    for one, other in itertools.combinations_with_replacement(read, 2):
        found = shares(read[one], read[other])
        others = ~np.eye(len(TASKS), dtype=bool)
        orders = [found[list(order)] for order in itertools.permutations(range(len(TASKS)))]
        null = [np.trace(rows) / len(TASKS) - rows[others].mean() for rows in orders]
        within, between = np.trace(found) / len(TASKS), found[others].mean()
        p = np.mean(np.array(null) >= null[0] - 1e-9)
        print(f"| {one} | {other} | {within:.2f} | {between:.2f} | {within - between:+.2f} | {p:.4f} |")
    beyond, plain = (apart(read[first.split(":")[1]], read[second.split(":")[1]], depth) for depth in (True, False))
    print(f"\nThe difference of the first minus that of the last is {beyond}. Without taking depth out it is {plain}.")
    claimed = [(found.mean(1) > 0.5).sum(0) for found, _ in (read[first.split(":")[1]], read[second.split(":")[1]])]
    for least in (3, len(TASKS)):  # (L, A): tasks most of whose runs claim a head
        one, two = (counts >= least for counts in claimed)
        depth = (one.sum(1) * two.sum(1)).sum() / one.shape[1]
        print(
            f"{least} tasks or more claim {one.sum()} and {two.sum()} heads, {(one & two).sum()} of them in both "
            f"({depth:.1f} by layer depth)."
        )


if __name__ == "__main__":
    main(*sys.argv[1:3])
