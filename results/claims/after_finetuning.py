"""Test whether fine-tuning keeps the heads that a task claims, by the heads that runs share beyond layer depth.

    python results/claims/after_finetuning.py \\
        results/claims/records/regimes:untuned results/claims/records/regimes:frozen

Each argument is a selection STUDY:KIND. The table compares pairs of runs of one task with pairs of runs of two tasks,
within and between the two selections, over pairs with different training seeds. The p-value is the share of the 120
assignments of tasks to the first selection's runs for which this difference is at least as large. The last lines
compare the differences of the two selections, with a jack-knife interval that leaves a task's training run out of both
selections at once.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

from mtlprune.analyses.heads.claims.stability import jackknife
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study

TASKS = ("pos", "ner", "dep", "con", "srl")


def masks(selection: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the open heads of a selection from its cells KIND-TASK-TRAINING-SELECTION-HASH.

    Returns:
        A mask (tasks, runs, L, A) of open heads, and the training seeds (runs,).
    """
    folder, kind = selection.split(":")
    paths = [sorted(read_study(Path(folder)).paths(f"{kind}-{task}-*")) for task in TASKS]
    open_heads = [
        [next(iter(RunFolder(path).best_gates()[1].values())) > OPEN_ABOVE for path in task_paths]
        for task_paths in paths
    ]
    return np.array(open_heads), np.array([path.name.split("-")[-3] for path in paths[0]])


def pairs(first: np.ndarray, second: np.ndarray, depth: bool = True) -> np.ndarray:
    """Count the heads that two runs share, minus those that layer depth explains if ``depth``.

    Returns:
        (tasks, tasks, runs, runs) counts for all pairs of a run in ``first`` and a run in ``second``.
    """
    shared = np.einsum("islh,jtlh->ijst", 1.0 * first, 1.0 * second)
    return np.asarray(shared - depth * np.einsum("isl,jtl->ijst", first.sum(-1), second.sum(-1)) / first.shape[-1])


def shares(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Average the shared heads beyond depth over pairs of runs with different training seeds: (tasks, tasks)."""
    (first_masks, first_seeds), (second_masks, second_seeds) = first, second
    return np.asarray(pairs(first_masks, second_masks)[:, :, first_seeds[:, None] != second_seeds].mean(-1))


def gap(shared: np.ndarray, seeds: np.ndarray, task: int = -1, seed: str = "") -> float:
    """Compute the mean number of shared heads of runs of one task minus that of runs of two tasks.

    Args:
        shared: (tasks, tasks, runs, runs) shared heads, as ``pairs`` returns them.
        seeds: (runs,) training seeds.
        task: number of the task whose training run is left out, or −1 for none.
        seed: seed of the training run that is left out.
    """
    tasks = np.arange(len(shared))
    is_kept = (tasks[:, None] != task) | (seeds != seed)  # (tasks, runs)
    is_counted = is_kept[:, None, :, None] & is_kept[None, :, None, :] & (seeds[:, None] != seeds)
    is_same_task = (tasks[:, None] == tasks)[..., None, None]
    return float(shared[is_counted & is_same_task].mean() - shared[is_counted & ~is_same_task].mean())


def gap_difference(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray], depth: bool) -> str:
    """Format the gap of the first selection minus that of the second selection, with its interval."""
    shared_heads = [(pairs(open_heads, open_heads, depth), seeds) for open_heads, seeds in (first, second)]
    units = [(task, str(seed)) for task in range(len(TASKS)) for seed in np.unique(first[1])]
    estimate, *left_out = (gap(*shared_heads[0], *unit) - gap(*shared_heads[1], *unit) for unit in [(-1, ""), *units])
    low, high, *_ = jackknife(np.array([estimate]), np.array(left_out)[:, None], np.array([task for task, _ in units]))
    return f"{estimate:+.2f} [{low[0]:+.2f}, {high[0]:+.2f}]"


def main(first: str, second: str) -> None:
    """Print a row for each pair of selections, and the comparisons of the two selections."""
    read = {name.split(":")[1]: masks(name) for name in (first, second)}
    print("| runs of | and of | one task | two tasks | difference | p |\n|:--|:--|--:|--:|--:|--:|")
    for first_name, second_name in itertools.combinations_with_replacement(read, 2):
        shared = shares(read[first_name], read[second_name])
        off_diagonal = ~np.eye(len(TASKS), dtype=bool)
        orders = [shared[list(order)] for order in itertools.permutations(range(len(TASKS)))]
        null = [np.trace(rows) / len(TASKS) - rows[off_diagonal].mean() for rows in orders]
        within, between = np.trace(shared) / len(TASKS), shared[off_diagonal].mean()
        p = np.mean(np.array(null) >= null[0] - 1e-9)
        print(f"| {first_name} | {second_name} | {within:.2f} | {between:.2f} | {within - between:+.2f} | {p:.4f} |")
    selections = [read[name.split(":")[1]] for name in (first, second)]
    beyond, plain = (gap_difference(selections[0], selections[1], depth) for depth in (True, False))
    print(f"\nThe difference of the first minus that of the last is {beyond}. Without taking depth out it is {plain}.")
    # The number of tasks most of whose runs claim a head, (L, A), for each selection.
    claim_counts = [(open_heads.mean(1) > 0.5).sum(0) for open_heads, _ in selections]
    for minimum in (3, len(TASKS)):
        one, two = (counts >= minimum for counts in claim_counts)
        depth = (one.sum(1) * two.sum(1)).sum() / one.shape[1]
        print(
            f"{minimum} tasks or more claim {one.sum()} and {two.sum()} heads, {(one & two).sum()} of them in both "
            f"({depth:.1f} by layer depth)."
        )


if __name__ == "__main__":
    main(*sys.argv[1:3])
