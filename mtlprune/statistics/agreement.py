"""Measures of how similar the gates of several runs are, and variance components of gates.

Letters in shapes: H heads of an encoder, p predictors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def pearson(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Compute the Pearson correlation of two vectors (H,); NaN if one of them is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))


def multiple_correlation(target: NDArray[np.floating], predictors: NDArray[np.floating]) -> float:
    """Compute the multiple correlation: the root of the adjusted R² of a regression on predictors and a constant.

    He and Choi's code computes the diagonal of its correlation matrix in this way, with run 3 as target and runs 1 and
    2 as predictors (stem_cell_hypothesis/en_bert_base, corelation_gate_overlap_rgb.py).

    Args:
        target: (H,) the vector to predict.
        predictors: (p, H) the vectors from which it is predicted.

    Returns:
        The correlation, which is 0 if the adjusted R² is negative. NaN if it is undefined, because the target is
        constant, there are no predictors, or there are no more heads than coefficients.
    """
    if not len(predictors) or np.ptp(target) == 0:
        return math.nan
    design = np.column_stack([np.ones(target.size), predictors.T])  # (H, p + 1)
    solution, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    degrees = target.size - int(rank)
    if degrees < 1:
        return math.nan
    residual = float(((target - design @ solution) ** 2).sum())
    total = float(((target - target.mean()) ** 2).sum())
    return math.sqrt(max(0.0, 1 - residual / total * (target.size - 1) / degrees))


def jaccard(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Compute the Jaccard index |A ∩ B| / |A ∪ B| of two sets, given as masks; NaN if both sets are empty."""
    union = int((first | second).sum())
    return int((first & second).sum()) / union if union else math.nan


def overlap_coefficient(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Compute the overlap coefficient |A ∩ B| / min(|A|, |B|) (Szymkiewicz and Simpson) of two sets, given as masks.

    The result is NaN if one of the sets is empty.
    """
    smaller = min(int(first.sum()), int(second.sum()))
    return int((first & second).sum()) / smaller if smaller else math.nan


# -- Variance components: how much gates vary between layers, heads, tasks and seeds. Letters in shapes: T tasks, S_t
# seeds of task t, L layers, A heads in each layer. --


_PARTS = ("layers", "heads", "tasks", "tasks_by_layers", "tasks_by_heads", "seeds")
"""Names of the variance components, where "heads" means heads within layers and "by" means an interaction."""


@dataclass(frozen=True)
class Variance:
    """Variance components of gates, and their shares of the total variance.

    The model is gate = layer + head within layer + task + task × layer + task × head within layer + seed of the task +
    seed × layer + seed × head within layer, where all terms are random effects.
    """

    components: dict[str, float]
    """Estimate of each component: layers, heads, tasks, tasks_by_layers, tasks_by_heads and seeds. Estimates can be
    negative if the true variance is near 0, except for the seeds, whose component is a sum of three estimates with
    negative ones set to 0. NaN if a component cannot be separated from others."""
    shares: dict[str, float]
    """Share of each component in the total. NaN if the component cannot be separated from others, or if gates do not
    vary."""
    seeds: dict[str, float]
    """The three parts of the seeds' component: ``level`` (the mean of all gates), ``layers`` and ``heads``."""
    total: float
    """Sum of the components, with negative estimates set to 0."""


def decompose(gates: Sequence[NDArray[np.floating]]) -> Variance:
    """Estimate variance components by an analysis of variance of unweighted task means (method of moments).

    The equations of expected mean squares are solved for the components (Searle, Casella and McCulloch 1992, chapter
    4). All tasks have the same weight. The noise of seeds in a task's mean is divided by S_t, and the reciprocals of
    S_t are averaged over tasks, so that the estimates are unbiased for different numbers of seeds.

    Some designs cannot separate all components. With one task, the components of tasks are NaN and their variance is
    part of layers and heads. With one seed per task, the component of seeds is NaN and its variance is part of the
    tasks' components. With one layer, or one head per layer, the components of layers or heads are NaN.

    Args:
        gates: an array (S_t, L, A) for each task. Without arrays, all results are NaN.
    """
    if not gates:
        undefined = dict.fromkeys(_PARTS, math.nan)
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
    else:
        # A single task has no mean square between tasks. With these values, the estimates of interactions with tasks
        # are 0, and the noise of seeds is subtracted from the components of layers and heads.
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
    is_constant = {"layers": layers < 2, "heads": heads < 2, "tasks": tasks < 2, "seeds": free < 1}
    undefined_parts = {part for part in _PARTS if any(is_constant[factor] for factor in part.split("_by_"))}
    components = {part: math.nan if part in undefined_parts else estimates[part] for part in _PARTS}
    within_seed = {"level": run, "layers": run_layer, "heads": ms_run_head}
    if "seeds" in undefined_parts:
        within_seed = dict.fromkeys(within_seed, math.nan)
    else:
        components["seeds"] = sum(max(0.0, value) for value in within_seed.values())
    positive = {part: max(0.0, value) for part, value in components.items() if part not in undefined_parts}
    total = sum(positive.values())
    varies = any(np.ptp(task) > 0 for task in gates) or np.ptp(means) > 0
    shares = {part: positive[part] / total if part in positive and varies and total else math.nan for part in _PARTS}
    return Variance(components, shares, within_seed, total)


def _mean_square(deviations: NDArray[np.floating], free: int) -> float:
    return float((deviations**2).sum() / free) if free > 0 else 0.0


def _squares(deviations: NDArray[np.floating], free: int) -> tuple[float, float, float]:
    """Compute the mean squares of deviations (n, L, A): of their overall means, of layers, and of heads within layers.

    Args:
        deviations: the deviations from a common mean.
        free: degrees of freedom of the n rows.
    """
    _, layers, heads = deviations.shape
    level = deviations.mean((1, 2), keepdims=True)
    by_layer = deviations.mean(2, keepdims=True) - level
    return (
        _mean_square(level, free),
        _mean_square(by_layer, free * (layers - 1)),
        _mean_square(deviations - by_layer - level, free * layers * (heads - 1)),
    )
