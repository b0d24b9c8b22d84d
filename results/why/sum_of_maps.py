"""Test whether the heads that matter to one task are those of a non-negative sum of the other tasks (PLAN.md, 5).

    python results/why/sum_of_maps.py results/claims/gradients > results/why/sum-of-maps.md

The importance of heads for a task (target) on one half of the sentences is fitted by a sum of the importance for the
other tasks on the other half, with weights of at least 0 and without a constant. R² is the mean over joint runs and
both ways to assign the halves. The control permutes the heads of the target within layers, by the same permutation in
all runs. The table of planted maps comes first: every map is noise, and the target also has a common part, which is the
mean of the other maps and contributes the given share of the variance.

Letters in shapes: S runs, H heads in order of layers, A heads per layer.
"""

import sys

import numpy as np
from scipy.optimize import nnls

from mtlprune import read_results
from mtlprune.figures.grid import number
from mtlprune.statistics.significance import holm

TASKS = ("pos", "ner", "dep", "con", "srl")
HALVES = ("half 1", "half 2")
PERMUTATIONS, PLANTED_MAPS, PLANTED_PERMUTATIONS = 1999, 200, 99


def read_maps(folder: str) -> np.ndarray:
    """Read the relative importance of heads: (halves, tasks, S, layers, A)."""
    frame = read_results(folder)["gradients"].frames["heads"]
    frame = frame[(frame["measure"] == "relative") & frame["mode"].isin(HALVES) & frame["task"].isin(TASKS)]
    cube = frame.set_index(["mode", "task", "seed", "layer", "head"])["value"].unstack(["seed", "layer", "head"])
    sizes = [len(level) for level in cube.columns.levels]
    order = [(half, task) for half in HALVES for task in TASKS]
    return cube.sort_index(axis=1).loc[order].to_numpy().reshape(len(HALVES), len(TASKS), *sizes)


def r_squared(target: np.ndarray, others: np.ndarray) -> float:
    """Return R² of a non-negative sum of ``others`` (tasks, H) that is fitted to ``target`` (H,)."""
    _, residual = nnls(others.T, target)
    return 1 - residual**2 / float(((target - target.mean()) ** 2).sum())


def fit_and_test(
    maps: np.ndarray, task: int, permutations: int, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Return R² of the sum that is fitted to a task, the mean R² of the control, and the one-sided p-value.

    Args:
        maps: (halves, tasks, S, layers, A).
    """
    _, tasks, runs, layers, heads = maps.shape
    places = np.arange(layers * heads).reshape(layers, heads)
    drawn = generator.permuted(np.broadcast_to(places, (permutations, layers, heads)), axis=-1)
    orders = np.concatenate([places[None], drawn]).reshape(-1, layers * heads)
    flat = maps.reshape(2, tasks, runs, -1)
    others = [other for other in range(tasks) if other != task]
    fits = [(flat[half, task, run], flat[1 - half, others, run]) for half in (0, 1) for run in range(runs)]
    values = np.array([np.mean([r_squared(target[order], sums) for target, sums in fits]) for order in orders])
    return float(values[0]), float(values[1:].mean()), float((values >= values[0] - 1e-12).mean())


def draw_planted(shape: tuple[int, ...], share: float, generator: np.random.Generator) -> np.ndarray:
    """Draw maps in which the last task shares this part of its variance with the mean of the others."""
    _, tasks, *size = shape
    maps = np.broadcast_to(generator.gamma(2.0, size=(1, tasks, *size)), shape).copy()
    common = maps[:, :-1].mean(1)
    common = (common - common.mean()) / common.std() * maps[:, -1].std() + maps[:, -1].mean()
    maps[:, -1] = np.sqrt(share) * common + np.sqrt(1 - share) * maps[:, -1]
    return maps * generator.gamma(20.0, 1 / 20, size=shape)  # noise by which the halves differ


def main(folder: str) -> None:
    """Print the table of planted maps, and a row for each task."""
    maps, generator = read_maps(folder), np.random.default_rng(0)
    print("# Is the importance of heads for one task a sum of the other tasks' importance?\n")
    print("[Experiment 5](secondary.md) explains the fit. In planted maps one task is partly a mean of the others.")
    print("\n## Planted maps\n\n| common part | maps with p < 0.05 |\n|--:|--:|")
    for share in (0.0, 0.1, 0.3):
        drawn = [draw_planted(maps.shape, share, generator) for _ in range(PLANTED_MAPS)]
        found = [fit_and_test(each, -1 % len(TASKS), PLANTED_PERMUTATIONS, generator)[2] < 0.05 for each in drawn]
        print(f"| {100 * share:.0f} % | {sum(found)} of {PLANTED_MAPS} |")
    rows = [fit_and_test(maps, task, PERMUTATIONS, generator) for task in range(len(TASKS))]
    print("\n## Joint runs\n\n| task | R² | R² with permuted heads | p (Holm) |\n|:--|--:|--:|--:|")
    for task, (value, control, _), p in zip(TASKS, rows, holm([row[2] for row in rows]), strict=True):
        print(f"| {task.upper()} | {number(value, 2)} | {number(control, 2)} | {p:.4f} |")


if __name__ == "__main__":
    main(sys.argv[1])
