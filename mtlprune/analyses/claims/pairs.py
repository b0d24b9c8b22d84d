"""Two labels side by side: how many heads they share, and how many they would by chance.

Letters: n labels, S seeds, L layers, A heads a layer, P permutations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mtlprune.analyses.claims.run_groups import RunGroup
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

Row = dict[str, Any]
SHARING = ("shared", "expected", "z", "p")
"""Open heads that two runs share, averaged over pairs of runs, beside chance within layers: the mean over all
permutations of heads within layers (exact); (shared − expected) / standard deviation over all such permutations (exact;
NaN where that is 0); the share of permutations that reach ``shared`` or more (NaN where all give the same, or there
were none)."""
UNKNOWN: Row = dict.fromkeys(SHARING, math.nan)


def spreads(**figures: Spread) -> Row:
    """Columns ``NAME_mean``, ``NAME_sd``, ... of figures over pairs of seeds."""
    return {f"{name}_{key}": value for name, figure in figures.items() for key, value in vars(figure).items()}


def compare_pairs(run_groups: Sequence[RunGroup], null: NDArray[np.float64]) -> pd.DataFrame:
    """Every two labels, one row each.

    Args:
        null: (P, n, n) of shared_null over the same labels.

    Returns:
        ``encoder`` and ``other``, the labels; ``pearson`` of mean gates; ``jaccard_...`` and
        ``overlap_coefficient_...`` over pairs of a seed of either; SHARING with ``q`` (Benjamini-Hochberg over the
        pairs); and of the heads that both claim (each by the majority of its seeds) ``claimed``, how many are expected
        where heads fall anywhere (``claimed_anywhere``, with its ``p_anywhere`` and ``q_anywhere``) and where they fall
        anywhere within their layers (``claimed_layers``, with its exact ``p_layers``, of a sum of hypergeometric
        numbers, one a layer).
    """
    rows = []
    for (i, one), (j, other) in itertools.combinations(enumerate(run_groups), 2):
        seeds = [(a, b) for a in one.open for b in other.open]
        rows.append(
            {
                "encoder": one.label,
                "other": other.label,
                "pearson": pearson(one.gates.mean(0).ravel(), other.gates.mean(0).ravel()),
                **spreads(
                    jaccard=spread(jaccard(a, b) for a, b in seeds),
                    overlap_coefficient=spread(overlap_coefficient(a, b) for a, b in seeds),
                ),
                **_sharing([(one.times, other.times, len(seeds))], null[:, i, j] / len(seeds)),
                **_claimed_by_both(one.claimed, other.claimed),
            }
        )
    for p, q in (("p", "q"), ("p_anywhere", "q_anywhere")):
        for row, value in zip(rows, corrected([row[p] for row in rows]), strict=True):
            row[q] = float(value)
    return pd.DataFrame(rows)


def share_by_seed(run_groups: Sequence[RunGroup], permutations: int, generator: np.random.Generator) -> tuple[Row, Row]:
    """SHARING of runs of different single tasks, apart for equal and for unequal seeds; z is of neither.

    Runs with equal seeds see their batches in the same order, so only unequal ones are strangers to each other: a
    difference between the two is not the tasks' doing. Every pair of labels has equal weight. Under the null of unequal
    seeds the heads of every label are permuted within layers, all its seeds together; of equal ones there is none. NaN
    where there are no two runs of different tasks with equal, or with unequal, seeds.
    """
    if len(run_groups) < 2:
        return UNKNOWN, UNKNOWN
    most = max(len(run_group.claims) for run_group in run_groups)
    opened = np.zeros((len(run_groups), most, *run_groups[0].claimed.shape), dtype=np.float32)  # (n, k, L, A)
    for place, run_group in enumerate(run_groups):
        opened[place, : len(run_group.claims)] = run_group.open
    weights: dict[bool, list[tuple[int, int, NDArray[np.float64]]]] = {True: [], False: []}
    for (i, one), (j, other) in itertools.combinations(enumerate(run_groups), 2):
        same = np.array([[a.seed == b.seed for b in other.claims] for a in one.claims])
        for kind, used in ((True, same), (False, ~same)):
            if used.any():
                weights[kind].append((i, j, used / used.sum()))
    flat = opened.reshape(len(run_groups), most, -1)
    by_layer = opened.sum(3).astype(np.float64)
    equal, unequal = (float(_weighed(flat[None], weights[kind])[0]) for kind in (True, False))
    if math.isnan(unequal):
        return {**UNKNOWN, "shared": equal}, UNKNOWN
    expected = float(_weighed(by_layer[None], weights[False])[0] / opened.shape[3])
    chunks = permuted(opened, permutations, generator)
    null = np.concatenate([np.empty(0), *(_weighed(chunk, weights[False]) for chunk in chunks)])
    flatly = len(null) and np.ptp(null) < 1e-6  # the same whatever the permutation
    p = math.nan if flatly else tail(unequal, null).p
    return {**UNKNOWN, "shared": equal}, {**UNKNOWN, "shared": unequal, "expected": expected, "p": p}


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


def share_over_pairs(run_groups: Sequence[RunGroup], null: NDArray[np.float64]) -> Row:
    """The heads that two labels share, averaged over all pairs of labels, pairs of seeds first.

    Args:
        null: (P, n, n) of shared_null over the same labels.
    """
    if len(run_groups) < 2:
        return UNKNOWN
    seeds = np.array([len(run_group.claims) for run_group in run_groups])
    first, second = np.triu_indices(len(run_groups), 1)
    scaled = (null / np.outer(seeds, seeds))[:, first, second]  # (P, pairs)
    sides = [
        (one.times, other.times, len(one.claims) * len(other.claims))
        for one, other in itertools.combinations(run_groups, 2)
    ]
    return _sharing(sides, scaled.mean(1))


def share_within(run_group: RunGroup, permutations: int, generator: np.random.Generator) -> Row:
    """The heads that two seeds of one label share; unlike between labels, every seed is permuted by itself."""
    seeds = run_group.open.astype(np.int64)  # (S, L, A)
    if len(seeds) < 2:
        return UNKNOWN
    first, second = np.triu_indices(len(seeds), 1)
    null = shared_null(seeds, permutations, generator)[:, first, second]
    return _sharing([(one, other, 1) for one, other in itertools.combinations(seeds, 2)], null.mean(1))


def _sharing(sides: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]], null: NDArray[np.floating]) -> Row:
    """The mean of Σ one·other / weight over the sides, beside its null (P,) and exact moments.

    Under permutation the numbers that two different pairs share are uncorrelated, even where the pairs have a label in
    common (whatever its permutation, the other label's spreads evenly over it), so that their variances add up.
    """
    observed = [float((one * other).sum()) / weight for one, other, weight in sides]
    moments = [(mean / weight, sd / weight) for mean, sd, weight in ((*shared_moments(a, b), w) for a, b, w in sides)]
    heads, expected = float(np.mean(observed)), float(np.mean([mean for mean, _ in moments]))
    sd = math.sqrt(sum(sd**2 for _, sd in moments)) / len(sides)
    z, p = ((heads - expected) / sd, tail(heads, null).p) if sd else (math.nan, math.nan)
    return {"shared": heads, "expected": expected, "z": z, "p": p}


def _claimed_by_both(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> Row:
    layers, heads = one.shape
    first, second, both = int(one.sum()), int(other.sum()), int((one & other).sum())
    by_layer = one.sum(1), other.sum(1)
    return {
        "claimed": both,
        "claimed_layers": float((by_layer[0] * by_layer[1]).sum() / heads),
        "p_layers": layered_hypergeometric_p(*by_layer, heads, both),
        "claimed_anywhere": first * second / (layers * heads),
        "p_anywhere": hypergeometric_p(first, second, layers * heads, both),
    }
