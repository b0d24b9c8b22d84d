"""Two labels side by side: how many heads they share, and how many they would by chance.

Letters: n labels, S seeds, L layers, A heads a layer, P permutations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.claims.claimants import Claimant
from mtlprune.statistics.agreement import Spread, jaccard, overlap_coefficient, pearson, spread
from mtlprune.statistics.permutation import (
    corrected,
    hypergeometric_p,
    layered_hypergeometric_p,
    permuted,
    shared_moments,
    shared_null,
    tail,
)


@dataclass(frozen=True)
class Sharing:
    """Open heads that two runs share, averaged over pairs of runs, beside chance within layers."""

    heads: float
    expected: float
    """Mean over all permutations of heads within layers; exact."""
    z: float
    """(heads − expected) / standard deviation over all such permutations; exact. NaN where that is 0."""
    p: float
    """Share of permutations that reach ``heads`` or more. NaN where all give the same, or there were none."""


@dataclass(frozen=True)
class BySeed:
    """Open heads that runs of different single tasks share, apart for equal and for unequal seeds.

    Runs with equal seeds see their batches in the same order, so only unequal ones are strangers to each other: a
    difference between the two is not the tasks' doing.
    """

    equal: float
    """NaN where no two runs of different tasks have the same seed."""
    unequal: float
    """NaN where all have the same seed."""
    unequal_expected: float = math.nan
    """Mean of ``unequal`` over all permutations of heads within layers; exact."""
    unequal_p: float = math.nan
    """As Sharing.p, of pairs of unequal seeds only; NaN where there are none, or no permutation changes anything."""


UNDEFINED = Sharing(math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class ClaimedByBoth:
    """Heads that two labels both claim (each by the majority of its seeds), beside chance."""

    heads: int
    expected_uniform: float
    """Where heads fall anywhere."""
    p_hypergeometric: float
    q_hypergeometric: float
    """Benjamini-Hochberg over the pairs."""
    expected_layers: float
    """Where heads fall anywhere within their layers."""
    p_layers: float
    """Exact: a sum of hypergeometric numbers, one a layer."""


@dataclass(frozen=True)
class Pair:
    """Two labels."""

    first: str
    second: str
    pearson: float
    """Of mean gates."""
    jaccard: Spread
    """Over pairs of a seed of the first and a seed of the second."""
    overlap_coefficient: Spread
    sharing: Sharing
    q: float
    """sharing.p after Benjamini-Hochberg over the pairs."""
    claimed: ClaimedByBoth


def compare_pairs(claimants: Sequence[Claimant], null: NDArray[np.float64]) -> list[Pair]:
    """Every two labels.

    Args:
        null: (P, n, n) of shared_null over the same labels.
    """
    found = []
    for (i, one), (j, other) in itertools.combinations(enumerate(claimants), 2):
        seeds = [(a, b) for a in one.open for b in other.open]
        found.append(
            Pair(
                one.label,
                other.label,
                pearson(one.gates.mean(0).ravel(), other.gates.mean(0).ravel()),
                spread(jaccard(a, b) for a, b in seeds),
                spread(overlap_coefficient(a, b) for a, b in seeds),
                _sharing([(one.times, other.times, len(seeds))], null[:, i, j] / len(seeds)),
                math.nan,
                _claimed_by_both(one.claimed, other.claimed),
            )
        )
    q = corrected([pair.sharing.p for pair in found])
    plain = corrected([pair.claimed.p_hypergeometric for pair in found])
    return [
        replace(pair, q=float(mine), claimed=replace(pair.claimed, q_hypergeometric=float(theirs)))
        for pair, mine, theirs in zip(found, q, plain, strict=True)
    ]


def share_by_seed(claimants: Sequence[Claimant], permutations: int, generator: np.random.Generator) -> BySeed:
    """Mean over pairs of runs of different labels, every pair of labels with equal weight.

    Under the null of ``unequal`` the heads of every label are permuted within layers, all its seeds together.
    """
    if len(claimants) < 2:
        return BySeed(math.nan, math.nan)
    most = max(len(claimant.claims) for claimant in claimants)
    opened = np.zeros((len(claimants), most, *claimants[0].claimed.shape), dtype=np.float32)  # (n, k, L, A)
    for place, claimant in enumerate(claimants):
        opened[place, : len(claimant.claims)] = claimant.open
    weights: dict[bool, list[tuple[int, int, NDArray[np.float64]]]] = {True: [], False: []}
    for (i, one), (j, other) in itertools.combinations(enumerate(claimants), 2):
        same = np.array([[a.seed == b.seed for b in other.claims] for a in one.claims])
        for kind, used in ((True, same), (False, ~same)):
            if used.any():
                weights[kind].append((i, j, used / used.sum()))
    flat = opened.reshape(len(claimants), most, -1)
    by_layer = opened.sum(3).astype(np.float64)
    equal, unequal = (_weighed(flat[None], weights[kind])[0] for kind in (True, False))
    if math.isnan(unequal):
        return BySeed(float(equal), math.nan)
    expected = float(_weighed(by_layer[None], weights[False])[0] / opened.shape[3])
    chunks = permuted(opened, permutations, generator)
    null = np.concatenate([np.empty(0), *(_weighed(chunk, weights[False]) for chunk in chunks)])
    flatly = len(null) and np.ptp(null) < 1e-6  # the same whatever the permutation
    return BySeed(float(equal), float(unequal), expected, math.nan if flatly else tail(float(unequal), null).p)


def _weighed(
    vectors: NDArray[np.floating], pairs: Sequence[tuple[int, int, NDArray[np.float64]]]
) -> NDArray[np.float64]:
    """(C, n, k, H) → (C,): the mean over pairs of labels of Σ over pairs of their runs of weight · shared heads."""
    if not pairs:
        return np.full(len(vectors), math.nan)
    found = [
        ((vectors[:, i, : len(w)] @ vectors[:, j, : w.shape[1]].swapaxes(1, 2)) * w).sum((1, 2)) for i, j, w in pairs
    ]
    return np.asarray(np.mean(found, axis=0), dtype=np.float64)


def share_over_pairs(claimants: Sequence[Claimant], null: NDArray[np.float64]) -> Sharing:
    """The heads that two labels share, averaged over all pairs of labels, pairs of seeds first.

    Args:
        null: (P, n, n) of shared_null over the same labels.
    """
    if len(claimants) < 2:
        return UNDEFINED
    seeds = np.array([len(claimant.claims) for claimant in claimants])
    first, second = np.triu_indices(len(claimants), 1)
    scaled = (null / np.outer(seeds, seeds))[:, first, second]  # (P, pairs)
    sides = [
        (one.times, other.times, len(one.claims) * len(other.claims))
        for one, other in itertools.combinations(claimants, 2)
    ]
    return _sharing(sides, scaled.mean(1))


def share_within(claimant: Claimant, permutations: int, generator: np.random.Generator) -> Sharing:
    """The heads that two seeds of one label share; unlike between labels, every seed is permuted by itself."""
    seeds = claimant.open.astype(np.int64)  # (S, L, A)
    if len(seeds) < 2:
        return UNDEFINED
    first, second = np.triu_indices(len(seeds), 1)
    null = shared_null(seeds, permutations, generator)[:, first, second]
    return _sharing([(one, other, 1) for one, other in itertools.combinations(seeds, 2)], null.mean(1))


def _sharing(sides: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]], null: NDArray[np.floating]) -> Sharing:
    """The mean of Σ one·other / weight over the sides, beside its null (P,) and exact moments.

    Under permutation the numbers that two different pairs share are uncorrelated, even where the pairs have a label in
    common (whatever its permutation, the other label's spreads evenly over it), so that their variances add up.
    """
    observed = [float((one * other).sum()) / weight for one, other, weight in sides]
    moments = [(mean / weight, sd / weight) for mean, sd, weight in ((*shared_moments(a, b), w) for a, b, w in sides)]
    heads, expected = float(np.mean(observed)), float(np.mean([mean for mean, _ in moments]))
    sd = math.sqrt(sum(sd**2 for _, sd in moments)) / len(sides)
    if sd == 0:
        return Sharing(heads, expected, math.nan, math.nan)
    return Sharing(heads, expected, (heads - expected) / sd, tail(heads, null).p)


def _claimed_by_both(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> ClaimedByBoth:
    layers, heads = one.shape
    first, second, both = int(one.sum()), int(other.sum()), int((one & other).sum())
    by_layer = one.sum(1), other.sum(1)
    return ClaimedByBoth(
        both,
        first * second / (layers * heads),
        hypergeometric_p(first, second, layers * heads, both),
        math.nan,
        float((by_layer[0] * by_layer[1]).sum() / heads),
        layered_hypergeometric_p(*by_layer, heads, both),
    )
