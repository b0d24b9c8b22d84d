"""Heads shared by chance: permutations of heads, within layers or over all, swaps, exact tails.

Letters: M masks, n labels, k vectors a label, L layers, A heads a layer, H = L·A, C permutations a chunk, P
permutations, K heads of which both sides of a rank test say something.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

CHUNK = 2_000_000  # random numbers drawn at a time
BURN_IN, THINNING = 20, 5
"""Rounds of trades before the first masks that are drawn of given margins, and between later ones."""


def tail(observed: float, null: NDArray[np.floating] | NDArray[np.integer]) -> float:
    """p, the share of permutations whose value, in ``null`` (P,), reaches ``observed``: (1 + reached) / (1 + P).

    It is never 0 (Phipson and Smyth 2010), and NaN without permutations; values closer than rounding are equal.
    """
    # The observed arrangement counts as one of the permutations, hence 1 + in both places: a p of 0 would claim more
    # than P permutations can show.
    reached = int((null >= observed - 1e-9 * max(1.0, abs(observed))).sum())
    return (1 + reached) / (1 + len(null)) if len(null) else math.nan


def permuted(
    values: NDArray[Any], permutations: int, generator: np.random.Generator, within_layers: bool = True
) -> Iterator[NDArray[Any]]:
    """Permute the heads of every label, each label by itself, all its k vectors by the same permutation.

    Args:
        values: (n, k, L, A).
        within_layers: heads stay in their layer, so that every vector keeps each layer's number of open heads;
            otherwise heads go anywhere (uniform).

    Yields:
        chunks (C, n, k, H), ``permutations`` in all.
    """
    labels, vectors, layers, heads = values.shape
    rows, places = (layers, heads) if within_layers else (1, layers * heads)
    flat = np.ascontiguousarray(values.reshape(labels, vectors, rows * places))
    starts = (np.arange(rows) * places)[:, None]
    size = max(1, CHUNK // max(1, labels * rows * places))
    for start in range(0, permutations, size):
        chunk = min(size, permutations - start)
        # Sorting random keys permutes all rows of a chunk at once; every row (a label's layer, or its whole encoder)
        # has keys of its own.
        keys = generator.random((chunk, labels, rows, places), dtype=np.float32)
        # Positions within a layer plus the layer's start are positions in the flat encoder. The k vectors of a label
        # share the order (axis of size 1), so that what belongs to a head moves with it.
        order = (keys.argsort(axis=-1) + starts).reshape(chunk, labels, 1, rows * places)  # (C, n, 1, H)
        yield np.take_along_axis(flat[None], np.broadcast_to(order, (chunk, labels, vectors, rows * places)), axis=-1)


def swapped(masks: NDArray[Any], samples: int, generator: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    """Draw masks with both margins of those given: every mask keeps its number of open heads in each layer, and every
    head the number of masks that open it. So what depth and one ranking of heads within layers explain is kept.

    A round pairs the masks at random in each layer, and deals the heads that only one of a pair opens out anew between
    the two; repeated, all such sets of masks become equally likely (global curveball: Carstens, Berger and Strona
    2018).

    Args:
        masks: (M, L, A) of 0 and 1.

    Yields:
        chunks (C, M, L, A), ``samples`` in all; chains go on from chunk to chunk.
    """
    start = np.asarray(masks, dtype=bool).swapaxes(0, 1)  # (L, M, A)
    half_runs = start.shape[1] // 2
    # Many short chains side by side instead of a long one: each needs a burn-in, but all of them take their trades in
    # the same few array operations.
    chains = max(1, min(samples, max(100, samples // BURN_IN), CHUNK // max(1, start.size)))
    chain_states = np.repeat(start[None], chains, axis=0)
    for sample_start in range(0, samples, chains):
        for _ in range(THINNING if sample_start else BURN_IN):
            order = generator.random((*chain_states.shape[:3], 1), dtype=np.float32).argsort(axis=2)
            # A random order of the masks, cut in half, pairs the first half with the second; with an odd number of
            # masks one pauses for a round.
            pair = order[:, :, :half_runs], order[:, :, half_runs : 2 * half_runs]
            first, second = (np.take_along_axis(chain_states, rows, axis=2) for rows in pair)
            # Heads that both open stay with both, heads that neither opens stay closed. Only those that exactly one
            # of the two opens are dealt out anew: that keeps how often each head is open over all masks.
            in_both, in_one = first & second, first ^ second
            keys = (
                generator.random(first.shape) + ~in_one
            )  # float64, so that no two are equal; heads to deal come first
            # The first of the pair gets as many heads back as it gave, so that its number of open heads in the layer
            # stays. The heads with the smallest keys among those to deal are its.
            last = (first & ~second).sum(axis=3, keepdims=True) - 1
            dealt = (keys <= np.take_along_axis(np.sort(keys, axis=3), last, axis=3)) & (last >= 0)
            np.put_along_axis(chain_states, pair[0], in_both | dealt, axis=2)
            np.put_along_axis(chain_states, pair[1], in_both | (in_one & ~dealt), axis=2)
        yield chain_states[: samples - sample_start].swapaxes(1, 2).copy()


def shared_null(times: NDArray[np.integer], permutations: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Null distribution of how many heads labels share.

    Args:
        times: (n, L, A), in how many seeds of a label a head is open.

    Returns:
        (P, n, n): Σ over heads of times_i · times_j, which is the number of shared open heads summed over all pairs of
        a seed of i and a seed of j. Whole numbers, so that ties are exact. All seeds of a label move together.
    """
    labels = len(times)
    chunks = [np.empty((0, labels, labels))]
    for chunk in permuted(times[:, None].astype(np.float32), permutations, generator):
        vectors = chunk[:, :, 0]  # (C, n, H)
        # Products of small whole numbers are exact in float32; rounding makes sure that equal counts compare equal.
        chunks.append(np.rint(vectors @ vectors.swapaxes(1, 2)).astype(np.float64))
    return np.concatenate(chunks)


def shared_moments(first: NDArray[np.integer], second: NDArray[np.integer]) -> tuple[float, float]:
    """Exact mean and standard deviation of Σ one·other (both (L, A)) when heads are permuted within layers."""
    heads = first.shape[1]
    # In a layer, Σ one·π(other) has the mean Σ one · Σ other / A and the variance SS(one) · SS(other) / (A − 1);
    # layers are permuted independently, so both add up.
    mean = float((first.sum(1) * second.sum(1)).sum() / heads)
    if heads == 1:
        return mean, 0.0
    squares = [((side - side.mean(1, keepdims=True)) ** 2).sum(1) for side in (first, second)]
    return mean, math.sqrt(float((squares[0] * squares[1]).sum()) / (heads - 1))


def hypergeometric_p(first: ArrayLike, second: ArrayLike, heads: int, shared: int) -> float:
    """Probability that random sets share so many heads or more, if they fall anywhere within layers: the exact
    counterpart of permuting one set each within layers. NaN where they always share as many.

    The number shared is a sum of independent hypergeometric numbers, one a layer; their distributions are convolved.

    Args:
        first, second: (L,), open heads a layer of either set.
        heads: A.
    """
    # The distribution of a sum of independent numbers is the convolution of their distributions; that of an empty sum
    # is 1 at 0.
    distribution = np.ones(1)
    for a, b in zip(np.asarray(first).tolist(), np.asarray(second).tolist(), strict=True):
        distribution = np.convolve(distribution, stats.hypergeom.pmf(np.arange(min(a, b) + 1), heads, a, b))
    if np.count_nonzero(distribution > 1e-15) < 2:
        return math.nan
    return float(min(1.0, distribution[shared:].sum()))


def corrected(p_values: ArrayLike) -> NDArray[np.float64]:
    """Benjamini and Hochberg (1995) over the p-values that are defined; NaN stays NaN."""
    values = np.asarray(p_values, dtype=np.float64)
    result = np.full_like(values, math.nan)
    defined = ~np.isnan(values)
    if defined.any():
        result[defined] = stats.false_discovery_control(values[defined], method="bh")
    return result


# -- Spearman's correlation with permutation tests: within the layers of an encoder, or with a third variable held --


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
    null = x[layer_orders(layers, permutations, seed)] @ y / size
    return LayeredRanks(value, tail(abs(value), np.abs(null)), len(x))


def ranks_within_layers(first: Floats, second: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Ranks within layers, centred there, of the heads that both (L, A) know: (K,), (K,) and their layers (K,)."""
    x, y, layers = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
    for layer, (first_row, second_row) in enumerate(zip(first, second, strict=True)):
        is_finite = np.isfinite(first_row) & np.isfinite(second_row)
        if is_finite.sum() > 1:
            x.append(_centred(first_row[is_finite]))
            y.append(_centred(second_row[is_finite]))
            layers.append(np.full(int(is_finite.sum()), layer, np.int64))
    return np.concatenate(x), np.concatenate(y), np.concatenate(layers)


def layer_orders(layers: NDArray[np.int64], permutations: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """(P, K) permutations of K heads that leave each in its layer; ``layers`` (K,) rise. The same for the same seed."""
    return _layer_orders(layers.astype(np.int64).tobytes(), permutations, seed)


@functools.lru_cache(maxsize=4)
def _layer_orders(layers: bytes, permutations: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    layer_of_head = np.frombuffer(layers, np.int64)
    keys = (
        np.random.default_rng(seed).random((permutations, len(layer_of_head))) + layer_of_head
    )  # a layer's keys lie below the next's
    return np.asarray(keys.argsort(axis=1), np.int64)


def rank_test(
    first: ArrayLike,
    second: ArrayLike,
    permutations: int,
    generator: np.random.Generator,
    fixed: ArrayLike | None = None,
) -> tuple[float, float]:
    """Spearman's rank correlation of (K,) and (K,), and its two-sided p by permuting the first.

    Args:
        fixed: (K,), a variable whose ranks are regressed out of both first (a partial correlation); what is left of the
            first is permuted then (Kennedy 1995), which is exact for many labels only.

    Returns:
        (NaN, NaN) where one of them does not vary, or there is nothing left to vary.
    """
    x, y = _centred(first), _centred(second)
    if fixed is not None:
        z = _centred(fixed)
        if z @ z:
            # The residuals of a regression of the ranks on the ranks of the third variable: their correlation is the
            # partial correlation.
            x, y = x - z * (x @ z) / (z @ z), y - z * (y @ z) / (z @ z)
    size = math.sqrt(float((x @ x) * (y @ y)))
    if len(x) < 3 or size <= 1e-9 * len(x) ** 3:
        return math.nan, math.nan
    value = float(x @ y) / size
    orders = generator.random((permutations, len(x)), dtype=np.float32).argsort(axis=1)
    null = x[orders] @ y / size
    return value, tail(abs(value), np.abs(null))


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's correlation of what both know; NaN for fewer than three, or where one of them does not vary."""
    stacked = np.stack([np.ravel(first), np.ravel(second)])
    x, y = stacked[:, ~np.isnan(stacked).any(0)]
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        return math.nan
    return float(stats.spearmanr(x, y).statistic)


def _centred(values: ArrayLike) -> Floats:
    ranks = np.asarray(stats.rankdata(np.asarray(values, np.float64)), np.float64)
    return ranks - ranks.mean()
