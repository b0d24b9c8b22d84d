"""Permutation tests for heads: null distributions of shared heads, exact tails, and rank correlations.

A *label* is what the vectors of heads belong to, such as a task or a run.

Letters in shapes: M masks, n labels, k vectors of each label, L layers, A heads in each layer, H = L · A, C
permutations in a chunk, P permutations in total, K heads for which both measures of a rank test are known.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

_CHUNK = 2_000_000
"""Number of random numbers that are drawn at a time."""
_BURN_IN, _THINNING = 20, 5
"""Rounds of trades in ``swapped`` before the first sample of a chain, and between later samples."""


def tail(observed: float, null: NDArray[np.floating] | NDArray[np.integer], enumerated: bool = False) -> float:
    """Compute the one-sided p-value of a permutation test.

    It is (1 + r) / (1 + P) if r of P permutations reach the observed value. It is never 0 (Phipson and Smyth 2010), and
    NaN if the observed value is NaN or without permutations. Values that differ only by rounding errors count as equal.

    Args:
        observed: the value of the data.
        null: (P,) its values under permutations.
        enumerated: whether ``null`` has the values of all permutations, with the observed one. Then p is r / P.
    """
    # The observed arrangement counts as one of the permutations, which gives both terms 1. Without them, p could be 0,
    # which P permutations cannot show.
    if math.isnan(observed) or not len(null):
        return math.nan
    reached = int((null >= observed - 1e-9 * max(1.0, abs(observed))).sum())
    return reached / len(null) if enumerated else (1 + reached) / (1 + len(null))


def permuted(
    values: NDArray[Any], permutations: int, generator: np.random.Generator, within_layers: bool = True
) -> Iterator[NDArray[Any]]:
    """Permute the heads of each label independently, with the same permutation for all k vectors of a label.

    Args:
        values: (n, k, L, A) vectors to permute.
        permutations: number of permutations P.
        generator: source of random numbers.
        within_layers: whether heads stay in their layer, so that the number of open heads in each layer does not
            change. Otherwise heads are permuted over the whole encoder.

    Yields:
        Chunks (C, n, k, H) with P permutations in total.
    """
    labels, vectors, layers, heads = values.shape
    rows, columns = (layers, heads) if within_layers else (1, layers * heads)
    flat = np.ascontiguousarray(values.reshape(labels, vectors, rows * columns))
    starts = (np.arange(rows) * columns)[:, None]
    size = max(1, _CHUNK // max(1, labels * rows * columns))
    for start in range(0, permutations, size):
        chunk = min(size, permutations - start)
        # Sorting random keys permutes all rows of a chunk at once, where a row is a layer of a label, or its whole
        # encoder.
        keys = generator.random((chunk, labels, rows, columns), dtype=np.float32)
        # A position within a layer plus the start of the layer is a position in the flat encoder. The axis of size 1
        # applies the same order to the k vectors of a label.
        order = (keys.argsort(axis=-1) + starts).reshape(chunk, labels, 1, rows * columns)  # (C, n, 1, H)
        yield np.take_along_axis(flat[None], np.broadcast_to(order, (chunk, labels, vectors, rows * columns)), axis=-1)


def swapped(masks: NDArray[Any], samples: int, generator: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    """Draw random masks with the same margins as the given masks.

    Every mask keeps its number of open heads in each layer, and every head keeps the number of masks in which it is
    open. The null distribution therefore includes what depth and a common ranking of heads within layers explain.

    The algorithm is the global curveball (Carstens, Berger and Strona 2018). In each round and layer it pairs the masks
    at random, and redistributes the heads that are open in exactly one mask of a pair between the two masks. After many
    rounds, all sets of masks with these margins are equally likely.

    Args:
        masks: (M, L, A) of 0 and 1.
        samples: number of sets of masks to draw.
        generator: source of random numbers.

    Yields:
        Chunks (C, M, L, A) with ``samples`` sets of masks in total. The Markov chains continue from chunk to chunk.
    """
    start = np.asarray(masks, dtype=bool).swapaxes(0, 1)  # (L, M, A)
    half_runs = start.shape[1] // 2
    # Many short chains run in parallel instead of a single long one. Each of them needs a burn-in, but the same few
    # array operations make the trades of all chains.
    chains = max(1, min(samples, max(100, samples // _BURN_IN), _CHUNK // max(1, start.size)))
    chain_states = np.repeat(start[None], chains, axis=0)
    for sample_start in range(0, samples, chains):
        for _ in range(_THINNING if sample_start else _BURN_IN):
            order = generator.random((*chain_states.shape[:3], 1), dtype=np.float32).argsort(axis=2)
            # A random order of the masks pairs its first half with its second half. With an odd number of masks, one
            # mask is left out in each round.
            pair = order[:, :, :half_runs], order[:, :, half_runs : 2 * half_runs]
            first, second = (np.take_along_axis(chain_states, rows, axis=2) for rows in pair)
            # Heads that are open in both masks or in neither do not change. Only the heads that are open in exactly one
            # of the masks are redistributed, so that the number of masks in which a head is open stays the same.
            in_both, in_one = first & second, first ^ second
            # The keys are float64, so that no two of them are equal. Keys of the heads to redistribute are the
            # smallest.
            keys = generator.random(first.shape) + ~in_one
            # The first mask of a pair gets as many of these heads as it had before, namely those with the smallest
            # keys, so that its number of open heads in the layer stays the same.
            last = (first & ~second).sum(axis=3, keepdims=True) - 1
            to_first = (keys <= np.take_along_axis(np.sort(keys, axis=3), last, axis=3)) & (last >= 0)
            np.put_along_axis(chain_states, pair[0], in_both | to_first, axis=2)
            np.put_along_axis(chain_states, pair[1], in_both | (in_one & ~to_first), axis=2)
        yield chain_states[: samples - sample_start].swapaxes(1, 2).copy()


def shared_null(times: NDArray[np.integer], permutations: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Draw the null distribution of the number of shared open heads by permuting heads within layers.

    The heads of each label are permuted independently, and all seeds of a label in the same way.

    Args:
        times: (n, L, A) number of seeds of each label in which a head is open.
        permutations: number of permutations P.
        generator: source of random numbers.

    Returns:
        (P, n, n) the sum over heads of times_i · times_j for labels i and j. This is the number of shared open heads,
        summed over all pairs of a seed of i and a seed of j. All values are whole numbers, so that ties are exact.
    """
    labels = len(times)
    chunks = [np.empty((0, labels, labels))]
    for chunk in permuted(times[:, None].astype(np.float32), permutations, generator):
        vectors = chunk[:, :, 0]  # (C, n, H)
        # Products of small whole numbers are exact in float32, and rounding ensures that equal counts compare equal.
        chunks.append(np.rint(vectors @ vectors.swapaxes(1, 2)).astype(np.float64))
    return np.concatenate(chunks)


def shared_moments(first: NDArray[np.integer], second: NDArray[np.integer]) -> tuple[float, float]:
    """Compute the exact mean and standard deviation of Σ first · second under permutations of heads within layers.

    Args:
        first: (L, A) counts.
        second: (L, A) counts.
    """
    heads = first.shape[1]
    # In a layer, Σ first · π(second) has the mean Σ first · Σ second / A and the variance SS(first) · SS(second) / (A −
    # 1), where SS is the sum of squared deviations. Layers are permuted independently, so means and variances are
    # added.
    mean = float((first.sum(1) * second.sum(1)).sum() / heads)
    if heads == 1:
        return mean, 0.0
    squares = [((side - side.mean(1, keepdims=True)) ** 2).sum(1) for side in (first, second)]
    return mean, math.sqrt(float((squares[0] * squares[1]).sum()) / (heads - 1))


def hypergeometric_p(first: ArrayLike, second: ArrayLike, heads: int, shared: int) -> float:
    """Compute the probability that two sets of heads share ``shared`` heads or more if they are random within layers.

    This is the exact counterpart of permuting two sets within layers. The number of shared heads is a sum of
    independent hypergeometric variables, one for each layer, whose distributions are convolved.

    Args:
        first: (L,) number of open heads of the first set in each layer.
        second: (L,) number of open heads of the second set in each layer.
        heads: number of heads A in each layer.
        shared: observed number of shared heads.

    Returns:
        The probability, or NaN if the number of shared heads cannot vary.
    """
    # The convolution starts with the distribution of an empty sum, which is 0 with probability 1.
    distribution = np.ones(1)
    for a, b in zip(np.asarray(first).tolist(), np.asarray(second).tolist(), strict=True):
        distribution = np.convolve(distribution, stats.hypergeom.pmf(np.arange(min(a, b) + 1), heads, a, b))
    if np.count_nonzero(distribution > 1e-15) < 2:
        return math.nan
    return float(min(1.0, distribution[shared:].sum()))


def benjamini_hochberg(p_values: ArrayLike) -> NDArray[np.float64]:
    """Correct p-values by the method of Benjamini and Hochberg (1995); NaN stays NaN and is not counted."""
    values = np.asarray(p_values, dtype=np.float64)
    result = np.full_like(values, math.nan)
    defined = ~np.isnan(values)
    if defined.any():
        result[defined] = stats.false_discovery_control(values[defined], method="bh")
    return result


# -- Spearman's correlation with permutation tests, within the layers of an encoder or given a third variable --


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LayeredRanks:
    """Spearman's correlation of two measures of heads within layers, with its p-value."""

    value: float
    """The correlation, between −1 and 1; NaN for too few heads, or if a measure does not vary within any layer."""
    p: float
    """Two-sided p-value, from permutations of heads within layers; NaN if ``value`` is NaN."""
    heads: int
    """Number of heads K, without layers that have fewer than two known heads, because these carry no information."""


def layered_rank_test(
    first: ArrayLike, second: ArrayLike, permutations: int, seed: tuple[int, ...], fewest: int = 2
) -> LayeredRanks:
    """Test Spearman's correlation of two measures of heads within layers.

    Values are ranked within each layer, and the centred ranks of all layers are pooled. Ranks over the whole encoder
    would reflect the depth of layers, which influences most measures. Tests with the same heads and seed use the same
    permutations.

    Args:
        first: (L, A) first measure, NaN for unknown heads.
        second: (L, A) second measure, NaN for unknown heads.
        permutations: number of permutations.
        seed: seed of the permutations.
        fewest: number of heads below which the result is NaN.
    """
    x, y, layers = ranks_within_layers(np.asarray(first, np.float64), np.asarray(second, np.float64))
    size = math.sqrt(float((x @ x) * (y @ y)))
    if len(x) < fewest or not size:
        return LayeredRanks(math.nan, math.nan, len(x))
    value = float(x @ y) / size
    null = x[layer_orders(layers, permutations, seed)] @ y / size
    return LayeredRanks(value, tail(abs(value), np.abs(null)), len(x))


def ranks_within_layers(first: Floats, second: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Rank two measures (L, A) within layers and centre the ranks, for heads that are known in both.

    Returns:
        The centred ranks of the first and of the second measure, (K,) each, and the layer of each head (K,). Layers
        with a single known head are left out.
    """
    x, y, layers = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
    for layer, (first_row, second_row) in enumerate(zip(first, second, strict=True)):
        is_finite = np.isfinite(first_row) & np.isfinite(second_row)
        if is_finite.sum() > 1:
            x.append(_centred(first_row[is_finite]))
            y.append(_centred(second_row[is_finite]))
            layers.append(np.full(int(is_finite.sum()), layer, np.int64))
    return np.concatenate(x), np.concatenate(y), np.concatenate(layers)


def layer_orders(layers: NDArray[np.int64], permutations: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """Draw permutations of K heads within their layers, which depend only on the arguments.

    Args:
        layers: (K,) layer of each head, sorted.
        permutations: number of permutations P.
        seed: seed of the permutations.

    Returns:
        (P, K) indices of heads.
    """
    return _layer_orders(layers.astype(np.int64).tobytes(), permutations, seed)


@functools.lru_cache(maxsize=4)
def _layer_orders(layers: bytes, permutations: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    layer_of_head = np.frombuffer(layers, np.int64)
    # The keys of a layer are below those of the next layer, so that sorting does not move heads between layers.
    keys = np.random.default_rng(seed).random((permutations, len(layer_of_head))) + layer_of_head
    return np.asarray(keys.argsort(axis=1), np.int64)


def rank_test(
    first: ArrayLike,
    second: ArrayLike,
    permutations: int,
    generator: np.random.Generator,
    fixed: ArrayLike | None = None,
) -> tuple[float, float]:
    """Compute Spearman's correlation of two variables, and its two-sided p-value by permuting the first variable.

    Args:
        first: (K,) first variable.
        second: (K,) second variable.
        permutations: number of permutations.
        generator: source of random numbers.
        fixed: (K,) a third variable for a partial correlation. Its ranks are regressed out of both variables, and the
            residuals of the first variable are permuted (Kennedy 1995), which is exact only for large K.

    Returns:
        The correlation and its p-value, or (NaN, NaN) for fewer than three values, if a value is NaN or if a variable
        (or its residuals) does not vary.
    """
    x, y = _centred(first), _centred(second)
    if fixed is not None:
        z = _centred(fixed)
        if z @ z:
            # These are the residuals of a regression on the ranks of the third variable. Their correlation is the
            # partial correlation.
            x, y = x - z * (x @ z) / (z @ z), y - z * (y @ z) / (z @ z)
    size = math.sqrt(float((x @ x) * (y @ y)))
    if len(x) < 3 or not size > 1e-9 * len(x) ** 3:  # size is NaN if a value is
        return math.nan, math.nan
    value = float(x @ y) / size
    orders = generator.random((permutations, len(x)), dtype=np.float32).argsort(axis=1)
    null = x[orders] @ y / size
    return value, tail(abs(value), np.abs(null))


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Compute Spearman's correlation over the entries that are not NaN in both arrays.

    The result is NaN for fewer than three such entries, or if one of the arrays does not vary in them.
    """
    stacked = np.stack([np.ravel(first), np.ravel(second)])
    x, y = stacked[:, ~np.isnan(stacked).any(0)]
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        return math.nan
    return float(stats.spearmanr(x, y).statistic)


def _centred(values: ArrayLike) -> Floats:
    ranks = np.asarray(stats.rankdata(np.asarray(values, np.float64)), np.float64)
    return ranks - ranks.mean()
