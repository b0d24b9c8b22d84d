"""Similarity of gates: correlation between labels and within one, Jaccard and overlap coefficient of open sets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def pearson(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Pearson correlation of two vectors (H,); NaN where one is constant, for then it is not defined."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))


def multiple_correlation(target: NDArray[np.floating], predictors: NDArray[np.floating]) -> float:
    """Square root of the adjusted R² when ``target`` (H,) is regressed on ``others`` (p, H) and a constant.

    Source: the diagonal of the authors' matrix (stem_cell_hypothesis/en_bert_base, corelation_gate_overlap_rgb.py),
    run 3 on runs 1 and 2. An adjusted R² below 0 (no better than chance) gives 0. NaN where it is not defined: a
    constant target, no other vector, or no more heads than coefficients.
    """
    if not len(predictors) or np.ptp(target) == 0:
        return math.nan
    design = np.column_stack([np.ones(target.size), predictors.T])  # (H, p + 1)
    solution, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    free = target.size - int(rank)
    if free < 1:
        return math.nan
    residual = float(((target - design @ solution) ** 2).sum())
    total = float(((target - target.mean()) ** 2).sum())
    return math.sqrt(max(0.0, 1 - residual / total * (target.size - 1) / free))


def jaccard(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """|one ∩ other| / |one ∪ other|; NaN where both are empty."""
    union = int((first | second).sum())
    return int((first & second).sum()) / union if union else math.nan


def overlap_coefficient(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """|one ∩ other| / min(|one|, |other|) (Szymkiewicz and Simpson); NaN where one is empty."""
    smaller = min(int(first.sum()), int(second.sum()))
    return int((first & second).sum()) / smaller if smaller else math.nan


# -- Where gates vary: between layers, heads, tasks and seeds, estimated by the method of moments. Letters: T tasks,
# S_t seeds of task t, L layers, A heads a layer --


PARTS = ("layers", "heads", "tasks", "tasks_by_layers", "tasks_by_heads", "seeds")


@dataclass(frozen=True)
class Variance:
    """Variance components of gates, and their shares.

    Model: gate = layer + head within layer + task + task × layer + task × head within layer + (seed of a task: its
    level + its × layer + its × head within layer), all random effects.
    """

    components: dict[str, float]
    """Part → estimate, as it is: it can be below 0 where the true variance is near 0 (that of the seeds is a sum of
    three, each at least 0). NaN: not separable."""
    shares: dict[str, float]
    """Part → share of the sum, estimates below 0 counted as 0; NaN: not separable, or gates do not vary."""
    seeds: dict[str, float]
    """The component of the seeds by what varies between them: level (how open all is), layers, heads."""
    total: float
    """Sum of the estimates, those below 0 counted as 0."""


def decompose(gates: Sequence[NDArray[np.floating]]) -> Variance:
    """Variance components by the analysis of variance of unweighted task means (method of moments).

    Expected mean squares are solved for the components (Searle, Casella and McCulloch 1992, chapter 4). Tasks weigh the
    same; with S_t seeds the seed noise in a task's mean is divided by S_t, whose reciprocals are averaged, which keeps
    the estimates unbiased for different numbers of seeds.

    What cannot be told apart: with one task, parts of tasks are NaN and lie within layers and heads; with one seed
    each, seeds are NaN and lie within the parts of tasks; with one layer, or one head a layer, their parts are NaN.

    Args:
        gates: one array (S_t, L, A) a task; without any, all is NaN.
    """
    if not gates:
        undefined = dict.fromkeys(PARTS, math.nan)
        return Variance(undefined, undefined, dict.fromkeys(("level", "layers", "heads"), math.nan), math.nan)
    means = np.stack([task.mean(0) for task in gates])  # (T, L, A)
    tasks, layers, heads = means.shape
    free = sum(len(task) - 1 for task in gates)
    noise = float(np.mean([1 / len(task) for task in gates]))
    seeds = np.concatenate([task - task.mean(0) for task in gates])  # (ΣS, L, A)
    ms_run, ms_run_layer, ms_run_head = _squares(seeds, free)
    run = ms_run - ms_run_layer / layers if layers > 1 else ms_run - ms_run_head / heads
    run_layer = ms_run_layer - ms_run_head / heads if layers > 1 else 0.0
    if tasks > 1:
        ms_task, ms_task_layer, ms_task_head = _squares(means - means.mean(0), tasks - 1)
    # Where the between-tasks mean square is the smaller one, the estimate would be negative; it is set to 0, as if
    # tasks did not differ, and the seeds' noise is in the one mean.
    else:
        ms_task, ms_task_layer, ms_task_head = 0.0, noise * ms_run_layer, noise * ms_run_head
    task_head = ms_task_head - noise * ms_run_head
    task_layer = ms_task_layer - ms_task_head / heads - noise * run_layer if layers > 1 else 0.0
    task = ms_task - (ms_task_layer / layers if layers > 1 else ms_task_head / heads) - noise * run
    ms_head = _mean_square(means.mean(0) - means.mean((0, 2))[:, None], layers * (heads - 1))
    ms_layer = _mean_square(means.mean((0, 2)) - means.mean(), layers - 1)
    estimates = {
        "layers": ms_layer - ms_head / heads - ms_task_layer / tasks + ms_task_head / (heads * tasks),
        "heads": ms_head - ms_task_head / tasks,
        "tasks": task,
        "tasks_by_layers": task_layer,
        "tasks_by_heads": task_head,
        "seeds": run + run_layer + ms_run_head,
    }
    is_missing = {"layers": layers < 2, "heads": heads < 2, "tasks": tasks < 2, "seeds": free < 1}
    void = {part for part in PARTS if any(is_missing[word] for word in part.split("_by_"))}
    components = {part: math.nan if part in void else estimates[part] for part in PARTS}
    within_seed = {"level": run, "layers": run_layer, "heads": ms_run_head}
    if "seeds" in void:
        within_seed = dict.fromkeys(within_seed, math.nan)
    else:
        components["seeds"] = sum(max(0.0, value) for value in within_seed.values())
    positive = {part: max(0.0, value) for part, value in components.items() if part not in void}
    total = sum(positive.values())
    varies = any(np.ptp(task) > 0 for task in gates) or np.ptp(means) > 0
    shares = {part: positive[part] / total if part in positive and varies and total else math.nan for part in PARTS}
    return Variance(components, shares, within_seed, total)


def _mean_square(deviations: NDArray[np.floating], free: int) -> float:
    return float((deviations**2).sum() / free) if free > 0 else 0.0


def _squares(off: NDArray[np.floating], free: int) -> tuple[float, float, float]:
    """Mean squares of deviations (n, L, A) with so many degrees of freedom: of their means, layers' means, heads."""
    _, layers, heads = off.shape
    level = off.mean((1, 2), keepdims=True)
    by_layer = off.mean(2, keepdims=True) - level
    return (
        _mean_square(level, free),
        _mean_square(by_layer, free * (layers - 1)),
        _mean_square(off - by_layer - level, free * layers * (heads - 1)),
    )
