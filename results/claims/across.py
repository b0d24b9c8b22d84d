"""Does fine-tuning keep the heads that a task claims? Heads shared beyond depth, within and between selections.

python results/claims/across.py results/claims/records/regimes:untuned results/claims/records/regimes:frozen

Pairs of runs of unequal training seeds. p: the share of the 120 assignments of tasks to the first selection's runs in
which runs of one task share as much more than runs of two.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

from mtlprune.runs import RunFolder

TASKS = ("pos", "ner", "dep", "con", "srl")
OPEN = 1e-3


def masks(given: str) -> tuple[np.ndarray, np.ndarray]:
    """(tasks, runs, L, A): which heads are open; (runs,): training seeds, as in KIND-TASK-TRAINING-SELECTION."""
    folder, kind = given.split(":")
    paths = [sorted(Path(folder).glob(f"{kind}-{task}-*")) for task in TASKS]
    found = [[next(iter(RunFolder(path).gates().values())) > OPEN for path in some] for some in paths]
    return np.array(found), np.array([path.name.split("-")[-3] for path in paths[0]])


def shares(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """(tasks, tasks): mean over unequal training seeds of shared heads minus those that layer depth explains."""
    (one, seeds), (two, others) = first, second
    both = np.einsum("islh,jtlh->ijst", 1.0 * one, 1.0 * two)
    depth = np.einsum("isl,jtl->ijst", one.sum(-1), two.sum(-1)) / one.shape[-1]
    return np.asarray((both - depth)[:, :, seeds[:, None] != others].mean(-1))


def main(first: str, second: str) -> None:
    """Print a row for each pair of selections."""
    read = {name.split(":")[1]: masks(name) for name in (first, second)}
    print("| runs of | and of | one task | two tasks | difference | p |\n|:--|:--|--:|--:|--:|--:|")
    for one, other in itertools.combinations_with_replacement(read, 2):
        found = shares(read[one], read[other])
        apart = ~np.eye(len(TASKS), dtype=bool)
        orders = [found[list(order)] for order in itertools.permutations(range(len(TASKS)))]
        null = [np.trace(rows) / len(TASKS) - rows[apart].mean() for rows in orders]
        within, between = np.trace(found) / len(TASKS), found[apart].mean()
        p = np.mean(np.array(null) >= null[0] - 1e-9)
        print(f"| {one} | {other} | {within:.2f} | {between:.2f} | {within - between:+.2f} | {p:.4f} |")


if __name__ == "__main__":
    main(*sys.argv[1:3])
