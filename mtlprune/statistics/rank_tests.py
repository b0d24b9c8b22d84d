"""Spearman's correlation with permutation tests: within the layers of an encoder, or with a third variable held.

Letters: L layers, A heads a layer, K heads of which both sides say something, P permutations.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mtlprune.statistics.permutation import tail

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LayeredRanks:
    """Spearman's correlation of two measures of heads within layers."""

    value: float
    """In [−1, 1]; NaN, as is p, where one of them varies in no layer."""
    p: float
    """Two-sided, by permuting heads within layers."""
    heads: int
    """K, in layers with two or more of them; others carry nothing."""


def layered_rank_test(
    first: ArrayLike, second: ArrayLike, permutations: int, seed: tuple[int, ...], fewest: int = 2
) -> LayeredRanks:
    """Spearman's correlation within layers of (L, A) and (L, A), NaN where a head is not known.

    Values are ranked within each layer and the centred ranks of all layers pooled: depth alone moves most measures, so
    ranks over the whole encoder would say nothing. Tests with the same heads and seed share their permutations.

    Args:
        fewest: heads that must be known for a correlation.
    """
    x, y, layers = ranks_within_layers(np.asarray(first, np.float64), np.asarray(second, np.float64))
    size = math.sqrt(float((x @ x) * (y @ y)))
    if len(x) < fewest or not size:
        return LayeredRanks(math.nan, math.nan, len(x))
    value = float(x @ y) / size
    null = x[_layer_orders(layers.tobytes(), permutations, seed)] @ y / size
    return LayeredRanks(value, tail(abs(value), np.abs(null)).p, len(x))


def ranks_within_layers(first: Floats, second: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Ranks within layers, centred there, of the heads that both (L, A) know: (K,), (K,) and their layers (K,)."""
    x, y, layers = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
    for layer, (one, other) in enumerate(zip(first, second, strict=True)):
        both = np.isfinite(one) & np.isfinite(other)
        if both.sum() > 1:
            x.append(_centred(one[both]))
            y.append(_centred(other[both]))
            layers.append(np.full(int(both.sum()), layer, np.int64))
    return np.concatenate(x), np.concatenate(y), np.concatenate(layers)


@functools.lru_cache(maxsize=4)
def _layer_orders(layers: bytes, permutations: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """(P, K) permutations that leave every head in its layer; ``layers`` (K,) rise."""
    known = np.frombuffer(layers, np.int64)
    keys = np.random.default_rng(seed).random((permutations, len(known))) + known  # a layer's keys lie below the next's
    return np.asarray(keys.argsort(axis=1), np.int64)


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
