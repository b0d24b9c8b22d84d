"""Spearman's correlation with a permutation test, a third variable held if asked."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mtlprune.statistics.permutation import tail

Floats = NDArray[np.float64]


def rank_test(
    first: ArrayLike,
    second: ArrayLike,
    permutations: int,
    generator: np.random.Generator,
    held: ArrayLike | None = None,
) -> tuple[float, float]:
    """Spearman's rank correlation of (K,) and (K,), and its two-sided p by permuting the first.

    Args:
        held: (K,), a variable whose ranks are regressed out of both first (a partial correlation); what is left of the
            first is permuted then (Kennedy 1995), which is exact for many labels only.

    Returns:
        (NaN, NaN) where one of them does not vary, or there is nothing left to vary.
    """
    x, y = _centred(first), _centred(second)
    if held is not None:
        z = _centred(held)
        if z @ z:
            x, y = x - z * (x @ z) / (z @ z), y - z * (y @ z) / (z @ z)
    size = math.sqrt(float((x @ x) * (y @ y)))
    if len(x) < 3 or size <= 1e-9 * len(x) ** 3:
        return math.nan, math.nan
    value = float(x @ y) / size
    orders = generator.random((permutations, len(x)), dtype=np.float32).argsort(axis=1)
    null = x[orders] @ y / size
    return value, tail(abs(value), np.abs(null)).p


def _centred(values: ArrayLike) -> Floats:
    ranks = np.asarray(stats.rankdata(np.asarray(values, np.float64)), np.float64)
    return ranks - ranks.mean()
