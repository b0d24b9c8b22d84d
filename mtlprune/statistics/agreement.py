"""How alike gates are: correlation between labels and within one, Jaccard and overlap coefficient of open sets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spread:
    """A figure over pairs of seeds. The pairs are not independent: the spread describes, it is no standard error."""

    mean: float
    sd: float
    """Sample standard deviation; NaN for fewer than two."""
    least: float
    most: float
    number: int
    """Pairs of seeds for which the figure is defined."""


def spread(values: Iterable[float]) -> Spread:
    """Mean and spread of the values that are not NaN."""
    kept = np.array([value for value in values if not math.isnan(value)])
    if not kept.size:
        return Spread(math.nan, math.nan, math.nan, math.nan, 0)
    sd = float(kept.std(ddof=1)) if kept.size > 1 else math.nan
    return Spread(float(kept.mean()), sd, float(kept.min()), float(kept.max()), int(kept.size))


def pearson(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Pearson correlation of two vectors (H,); NaN where one is constant, for then it is not defined."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.clip(np.corrcoef(one, other)[0, 1], -1, 1))


def multiple_correlation(target: NDArray[np.floating], others: NDArray[np.floating]) -> float:
    """Square root of the adjusted R² when ``target`` (H,) is regressed on ``others`` (p, H) and a constant.

    Source: the diagonal of the authors' matrix (stem_cell_hypothesis/en_bert_base, corelation_gate_overlap_rgb.py),
    run 3 on runs 1 and 2. An adjusted R² below 0 (no better than chance) gives 0. NaN where it is not defined: a
    constant target, no other vector, or no more heads than coefficients.
    """
    if not len(others) or np.ptp(target) == 0:
        return math.nan
    design = np.column_stack([np.ones(target.size), others.T])  # (H, p + 1)
    solution, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    free = target.size - int(rank)
    if free < 1:
        return math.nan
    residual = float(((target - design @ solution) ** 2).sum())
    total = float(((target - target.mean()) ** 2).sum())
    return math.sqrt(max(0.0, 1 - residual / total * (target.size - 1) / free))


@dataclass(frozen=True)
class WithinLabel:
    """How far the seeds of one label agree."""

    multiple_last: float
    """multiple_correlation of the last seed on all others: the original's statistic when there are three."""
    multiple_mean: float
    """The same averaged over which seed is the last: it does not depend on their order."""
    pearson: Spread
    jaccard: Spread
    overlap_coefficient: Spread


def within_label(gates: NDArray[np.floating], opened: NDArray[np.bool_]) -> WithinLabel:
    """Agreement of the seeds of one label; gates and open heads are (S, H)."""
    seeds = range(len(gates))
    multiple = [multiple_correlation(gates[last], np.delete(gates, last, axis=0)) for last in seeds]
    pairs = list(itertools.combinations(seeds, 2))
    return WithinLabel(
        multiple[-1],
        spread(multiple).mean,
        spread(pearson(gates[i], gates[j]) for i, j in pairs),
        spread(jaccard(opened[i], opened[j]) for i, j in pairs),
        spread(overlap_coefficient(opened[i], opened[j]) for i, j in pairs),
    )


def jaccard(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """|one ∩ other| / |one ∪ other|; NaN where both are empty."""
    union = int((one | other).sum())
    return int((one & other).sum()) / union if union else math.nan


def overlap_coefficient(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """|one ∩ other| / min(|one|, |other|) (Szymkiewicz and Simpson); NaN where one is empty."""
    smaller = min(int(one.sum()), int(other.sum()))
    return int((one & other).sum()) / smaller if smaller else math.nan
