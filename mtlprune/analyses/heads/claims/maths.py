"""Compare the overlap of claims with chance: for pairs of labels, runs of one label, and numbers of tasks per head.

Letters for shapes: n labels or tasks, S seeds, M runs of all labels, L layers, A heads per layer, H = L·A heads,
P permutations, C a chunk of permutations.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mtlprune.analyses.analysis import HeadColumn
from mtlprune.analyses.heads.claims.stability import Runs
from mtlprune.runs.claims import Claim, RunGroup
from mtlprune.statistics.agreement import jaccard, overlap_coefficient, pearson
from mtlprune.statistics.permutation import (
    benjamini_hochberg,
    hypergeometric_p,
    permuted,
    shared_moments,
    tail,
)

Row = dict[str, Any]
SHARING = ("shared", "expected", "z", "p")
"""Columns that compare the number of open heads that two runs share with chance.

``shared`` is the mean over pairs of runs, and ``expected`` is its exact mean over all permutations of heads within
layers. ``z`` is shared − expected in exact standard deviations over these permutations (NaN if this deviation is 0).
``p`` is the `tail` probability of ``shared`` under random permutations (NaN without permutations, or if permutations
cannot change the number).
"""
_UNKNOWN: Row = dict.fromkeys(SHARING, math.nan)
"""The columns SHARING where nothing can be computed."""


def pair_statistics(**figures: Iterable[float]) -> Row:
    """Summarise statistics of pairs of seeds.

    Returns:
        For each statistic NAME: ``NAME_mean``, ``NAME_sd`` (sample standard deviation, NaN for fewer than two pairs),
        ``NAME_least``, ``NAME_most`` and ``NAME_number``, the number of pairs for which the statistic is defined. The
        pairs are not independent, so the standard deviation describes their spread, but yields no standard error.
    """
    parts = {"mean": "mean", "sd": "std", "least": "min", "most": "max", "number": "count"}
    series_by_name = {name: pd.Series([*values], dtype=float) for name, values in figures.items()}
    return {
        f"{name}_{part}": getattr(series, how)()
        for name, series in series_by_name.items()
        for part, how in parts.items()
    }


def compare_pairs(run_groups: Sequence[RunGroup], null: NDArray[np.float64]) -> pd.DataFrame:
    """Compare the open and the claimed heads of every two labels.

    Args:
        null: (P, n, n), the result of `shared_null` for the same labels.

    Returns:
        One row for each pair of labels, with the columns ``encoder`` and ``other`` (the labels); ``pearson``, the
        correlation of mean gates; ``jaccard_...`` and ``overlap_coefficient_...``, `pair_statistics` of open heads over
        pairs of a seed of one label and a seed of the other; SHARING, with ``q`` (Benjamini and Hochberg over the pairs
        of labels); and ``claimed``, the number of heads that the majority of seeds of both labels claim. Two null
        hypotheses yield expectations and p-values of ``claimed``. If heads fall anywhere: ``claimed_anywhere``,
        ``p_anywhere`` and ``q_anywhere``. If heads fall anywhere within their layers: ``claimed_layers``, and
        ``p_layers``, the exact p of a sum of hypergeometric variables, one for each layer.
    """
    rows = []
    for (i, first), (j, second) in itertools.combinations(enumerate(run_groups), 2):
        seeds = [(a, b) for a in first.open for b in second.open]
        rows.append(
            {
                "encoder": first.label,
                "other": second.label,
                "pearson": pearson(first.mean.ravel(), second.mean.ravel()),
                **pair_statistics(
                    jaccard=(jaccard(a, b) for a, b in seeds),
                    overlap_coefficient=(overlap_coefficient(a, b) for a, b in seeds),
                ),
                **_sharing([(first.times, second.times, len(seeds))], null[:, i, j] / len(seeds)),
                **_claimed_by_both(first.claimed_by_most, second.claimed_by_most),
            }
        )
    if not rows:
        return pd.DataFrame()
    pairs = pd.DataFrame(rows)
    return pairs.assign(q=benjamini_hochberg(pairs["p"]), q_anywhere=benjamini_hochberg(pairs["p_anywhere"]))


def share_by_seed(run_groups: Sequence[RunGroup], permutations: int, generator: np.random.Generator) -> tuple[Row, Row]:
    """Count the heads that runs of different single tasks share, separately for equal and for unequal seeds.

    Runs with equal seeds see their batches in the same order, so a difference between equal and unequal seeds is not
    caused by the tasks. Every pair of labels has the same weight. The null hypothesis for unequal seeds permutes the
    heads of each label within layers, in the same way for all its seeds.

    Returns:
        SHARING for pairs of runs whose training and selector seeds are both equal (only ``shared``), and for pairs in
        which both are different (without ``z``). Values are NaN if there are no such pairs.
    """
    if len(run_groups) < 2:
        return _UNKNOWN, _UNKNOWN
    runs = Runs.of(run_groups)
    flat, by_layer = runs.open_heads.reshape(len(runs.labels), -1), runs.open_heads.sum(2)
    equal_seeds = (runs.levels[:, None, :2] == runs.levels[None, :, :2]).all(2)  # (M, M): training and selector seed

    def products(values: NDArray[np.float64], used: NDArray[np.bool_]) -> dict[tuple[int, int], NDArray[np.float64]]:
        """Return for each pair of labels the mean outer product of their rows of ``values`` over used pairs of runs.

        With ``values`` (M, H) a result is (H, H), and its trace is the mean number of shared heads. Permuting the heads
        of a label permutes rows or columns of this matrix, so single runs are not needed any more.
        """
        means = {}
        for a, b in itertools.combinations(range(len(run_groups)), 2):
            rows_of_first, rows_of_second = runs.labels == a, runs.labels == b
            if (weights := used[np.ix_(rows_of_first, rows_of_second)].astype(np.float64)).any():
                means[a, b] = values[rows_of_first].T @ (weights / weights.sum()) @ values[rows_of_second]
        return means

    def shared(products: dict[tuple[int, int], NDArray[np.float64]]) -> float:
        """Return the mean over pairs of labels of the number of heads that two runs share."""
        return float(np.mean([np.trace(product) for product in products.values()])) if products else math.nan

    shape = runs.open_heads.shape[1:]
    between = products(flat, runs.unequal_seeds)
    equal, unequal = shared(products(flat, equal_seeds)), shared(between)
    if math.isnan(unequal):
        return {**_UNKNOWN, "shared": equal}, _UNKNOWN
    expected = shared(products(by_layer, runs.unequal_seeds)) / shape[1]
    heads = np.broadcast_to(np.arange(flat.shape[1]).reshape(shape), (len(run_groups), 1, *shape))
    null = np.zeros(0)
    for chunk in permuted(heads, permutations, generator):  # (C, n, 1, H)
        sums = sum(product[chunk[:, a, 0], chunk[:, b, 0]].sum(1) for (a, b), product in between.items())
        null = np.append(null, sums / len(between))
    is_constant = len(null) and np.ptp(null) < 1e-6  # permutations do not change the number
    p = math.nan if is_constant else tail(unequal, null)
    return {**_UNKNOWN, "shared": equal}, {**_UNKNOWN, "shared": unequal, "expected": expected, "p": p}


def share_over_pairs(run_groups: Sequence[RunGroup], null: NDArray[np.float64]) -> Row:
    """Return SHARING averaged over all pairs of labels; the value of a pair of labels is its mean over pairs of seeds.

    Args:
        null: (P, n, n), the result of `shared_null` for the same labels.
    """
    if len(run_groups) < 2:
        return _UNKNOWN
    seeds = np.array([len(run_group.claims) for run_group in run_groups])
    first, second = np.triu_indices(len(run_groups), 1)
    scaled = (null / np.outer(seeds, seeds))[:, first, second]  # (P, pairs)
    pairs = itertools.combinations(run_groups, 2)
    sides = [(first.times, second.times, len(first.claims) * len(second.claims)) for first, second in pairs]
    return _sharing(sides, scaled.mean(1))


def share_within(run_group: RunGroup, permutations: int, generator: np.random.Generator) -> Row:
    """Return SHARING for pairs of seeds of one label. Unlike between labels, each seed is permuted separately."""
    seeds = run_group.open.astype(np.int64)  # (S, L, A)
    if len(seeds) < 2:
        return _UNKNOWN
    # For vectors v of seeds, Σ over pairs of v·w is (|Σ v|² − Σ |v|²) / 2, so pairs need not be formed. |v|² is the
    # number of open heads, because v holds 0 and 1. Whole numbers are exact.
    times = [chunk.sum((1, 2)) for chunk in permuted(seeds[:, None], permutations, generator)]  # (C, H) each
    in_pairs = (np.square(np.concatenate([np.empty((0, seeds[0].size)), *times])).sum(1) - seeds.sum()) / 2
    null = in_pairs / math.comb(len(seeds), 2)
    return _sharing([(first, second, 1) for first, second in itertools.combinations(seeds, 2)], null)


def _sharing(sides: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]], null: NDArray[np.floating]) -> Row:
    """Return SHARING for pairs of labels or of runs.

    Under permutation, the numbers of shared heads of two different pairs are uncorrelated, even if the pairs have a
    label in common: for any fixed permutation of this label, the heads of the other one are spread evenly over its
    heads. The variances of the pairs therefore add up.

    Args:
        sides: for each pair, the counts (L, A) of its two sides and the divisor of their product, which is the number
            of pairs of seeds.
        null: (P,), the mean over pairs for each permutation.
    """
    observed = [float((first * second).sum()) / weight for first, second, weight in sides]
    moments = [(mean / weight, sd / weight) for mean, sd, weight in ((*shared_moments(a, b), w) for a, b, w in sides)]
    heads, expected = float(np.mean(observed)), float(np.mean([mean for mean, _ in moments]))
    sd = math.sqrt(sum(sd**2 for _, sd in moments)) / len(sides)
    z, p = ((heads - expected) / sd, tail(heads, null)) if sd else (math.nan, math.nan)
    return {"shared": heads, "expected": expected, "z": z, "p": p}


def _claimed_by_both(first_set: NDArray[np.bool_], second_set: NDArray[np.bool_]) -> Row:
    """Count the heads in both sets (L, A), with the expectations and p-values that `compare_pairs` describes."""
    layers, heads = first_set.shape
    first, second, shared_count = int(first_set.sum()), int(second_set.sum()), int((first_set & second_set).sum())
    by_layer = first_set.sum(1), second_set.sum(1)
    return {
        "claimed": shared_count,
        "claimed_layers": float((by_layer[0] * by_layer[1]).sum() / heads),
        "p_layers": hypergeometric_p(*by_layer, heads, shared_count),
        "claimed_anywhere": first * second / (layers * heads),
        "p_anywhere": hypergeometric_p([first], [second], layers * heads, shared_count),
    }


# -- heads by the number of tasks --------------------------------------------------------------------------------------


STEM_TASKS = 3
"""The least number of single tasks that claim a stem head."""


def claimed_by(
    claims: Sequence[NDArray[np.bool_]], permutations: int, within: np.random.Generator, uniform: np.random.Generator
) -> pd.DataFrame:
    """Count the heads that at least k tasks claim, for k = 1 … n, and compare the counts with two null hypotheses.

    Args:
        claims: for each task, the mask (L, A) of the heads that it claims.
        within, uniform: random generators for permutations within layers and over all heads.

    Returns:
        One row for each k, with the columns ``tasks`` (k) and ``heads`` (the count). The null hypothesis ``layers``
        places each task's heads at random within their layers, and ``uniform`` places them anywhere. For each of them,
        ``NULL_expected`` is the exact expectation, ``NULL_more`` the probability of this count or a larger one, and
        ``NULL_fewer`` the probability of this count or a smaller one.
    """
    if not claims:
        return pd.DataFrame()
    stacked_claims = np.stack(claims)
    tasks = len(stacked_claims)
    observed = _at_least(stacked_claims.reshape(tasks, -1).sum(0)[None], tasks)[0]
    numbers = pd.DataFrame({"tasks": np.arange(1, tasks + 1), "heads": observed})
    values = stacked_claims[:, None].astype(np.float32)
    rates = stacked_claims.mean(2)  # (n, L)
    everywhere = np.repeat(stacked_claims.mean((1, 2))[:, None], rates.shape[1], axis=1)
    for name, generator, probabilities in (("layers", within, rates), ("uniform", uniform, everywhere)):
        chunks = [np.empty((0, tasks), dtype=np.int64)]
        for chunk in permuted(values, permutations, generator, name == "layers"):
            chunks.append(_at_least(chunk[:, :, 0].sum(1), tasks))
        null = np.concatenate(chunks).T
        numbers[f"{name}_expected"] = [_expected(probabilities, k, stacked_claims.shape[2]) for k in numbers["tasks"]]
        numbers[f"{name}_more"] = [tail(x, null_of_count) for x, null_of_count in zip(observed, null, strict=True)]
        numbers[f"{name}_fewer"] = [tail(-x, -null_of_count) for x, null_of_count in zip(observed, null, strict=True)]
    return numbers


def _at_least(counts: NDArray[Any], tasks: int) -> NDArray[np.int64]:
    """Count the heads with at least 1 … n tasks, from the number of tasks of each head: (P, H) → (P, n)."""
    return np.stack([(counts > k - 0.5).sum(1) for k in range(1, tasks + 1)], axis=1).astype(np.int64)


def _expected(rates: NDArray[np.floating], k: int, heads: int) -> float:
    """Return the expected number of heads that at least k tasks claim.

    Task i claims each of the ``heads`` heads of layer l with probability ``rates[i, l]``, independently of other tasks.
    """
    return float(sum(heads * _count_distribution(layer)[k:].sum() for layer in rates.T))


def _count_distribution(probabilities: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the probabilities that 0 … n of n independent events happen, (n + 1,) (Poisson binomial distribution)."""
    distribution = np.ones(1)
    for p in probabilities:
        distribution = np.convolve(distribution, [1 - p, p])
    return distribution


def majority_probability(seeds: int, times: ArrayLike) -> NDArray[np.float64]:
    """Return the probability that a head is open in more than half of the seeds of a bootstrap sample.

    Args:
        seeds: number of seeds S of the task; a sample draws S of them with replacement.
        times: number of seeds in which each head is open, of any shape, which is also that of the result.
    """
    return np.asarray(stats.binom.sf(seeds // 2, seeds, np.asarray(times) / seeds))


def _claim_probabilities(run_groups: Sequence[RunGroup]) -> NDArray[np.float64]:
    """Return the share of bootstrap samples in which exactly 0 … n tasks claim each head, (n + 1, L, A).

    A sample draws the seeds of each task with replacement, independently for each task. No samples are drawn, because
    the share over infinitely many samples has a closed form for a single head (binomial within a task, Poisson binomial
    over tasks). Values are NaN if no task has two seeds, because resampling a single seed changes nothing.
    """
    times = np.stack([run_group.times for run_group in run_groups])  # (n, L, A)
    if all(len(run_group.claims) < 2 for run_group in run_groups):
        return np.full((len(times) + 1, *times.shape[1:]), math.nan)
    rates = np.stack([majority_probability(len(run_group.claims), run_group.times) for run_group in run_groups])
    return np.apply_along_axis(_count_distribution, 0, rates)


def list_heads(run_groups: Sequence[RunGroup]) -> pd.DataFrame:
    """List all heads with the tasks that claim them.

    Returns:
        One row for each head, ordered by layer, with the columns ``layer`` and ``head`` (counted from 1); ``tasks``,
        the number of tasks that claim the head; ``claimed_by``, their labels; ``group``, which is "stem" (STEM_TASKS or
        more tasks), "exclusive" (one), "free" (none) or "" (any other number); and ``confidence``, the share of
        bootstrap samples of seeds in which the head is in its group. The confidence is NaN if the head is in no group,
        or if no task has two seeds.
    """
    if not run_groups:
        return pd.DataFrame()
    claimed_heads = np.stack([run_group.claimed_by_most for run_group in run_groups])
    probabilities = _claim_probabilities(run_groups)
    rows = []
    for layer, head in np.ndindex(*claimed_heads.shape[1:]):
        labels = [
            c.label for c, is_claimed in zip(run_groups, claimed_heads[:, layer, head], strict=True) if is_claimed
        ]
        shares, tasks = probabilities[:, layer, head], len(labels)
        group = "stem" if tasks >= STEM_TASKS else {0: "free", 1: "exclusive"}.get(tasks, "")
        confidence = shares[STEM_TASKS:].sum() if group == "stem" else shares[tasks] if group else math.nan
        rows.append((layer + 1, head + 1, tasks, ", ".join(labels), group, float(confidence)))
    return pd.DataFrame(rows, columns=["layer", "head", "tasks", "claimed_by", "group", "confidence"])


# -- single heads ------------------------------------------------------------------------------------------------------


def _tails(open_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the probabilities that a head of a layer is open in at least 0 … S of S maps, (S, L, A) → (L, S + 1).

    Under the null hypothesis, the open heads of each map fall anywhere within their layer, independently of the other
    maps. A head of layer l is then open in map s with probability (open heads of the layer) / A, and the number of maps
    that open it has a Poisson binomial distribution, so the result is exact.
    """
    rates = open_.mean(2)  # (S, L)
    distributions = np.stack([_count_distribution(layer) for layer in rates.T])  # (L, S + 1)
    return np.minimum(np.cumsum(distributions[:, ::-1], axis=1)[:, ::-1], 1.0)


def by_maps(open_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the probability that a head is open by chance in at least as many maps as observed, (S, L, A) → (L, A).

    The null hypothesis is that of `_tails`.
    """
    return np.take_along_axis(_tails(open_), open_.sum(0), axis=1)


def least(open_: NDArray[np.bool_]) -> float:
    """Return the smallest p of `by_maps` that a head can have, given the number of open heads in each layer and map.

    A head reaches the p of its layer if it is open in every map that opens any head of this layer.
    """
    open_in_any = open_.any(2).sum(0)  # (L,): number of maps that open a head of the layer
    return float(np.take_along_axis(_tails(open_), open_in_any[:, None], axis=1).min())


def claim_columns(claims: Sequence[Claim]) -> list[HeadColumn]:
    """Return the columns that the table of heads shows of claims.

    Each label has two columns: the number of its seeds with the head open, and the mean gate. Further columns are the
    number of single tasks that claim the head in most seeds, if there are several single tasks; the mean of gates over
    all runs; and for several runs their sample standard deviation.
    """
    labels = dict.fromkeys(claim.label for claim in claims)
    run_groups = [RunGroup(label, tuple(claim for claim in claims if claim.label == label)) for label in labels]
    columns: list[HeadColumn] = []

    def add(name: str, values: NDArray[Any], meaning: str, tested: bool = True) -> None:
        columns.append(HeadColumn(name, "claims", values.astype(np.float64), tested, meaning))

    for run_group in run_groups:
        add(
            f"open {run_group.label} (of {len(run_group.claims)})",
            run_group.times,
            f"seeds of {run_group.label} with the head open",
            False,
        )
        add(f"gate {run_group.label}", run_group.mean, f"mean gate over seeds of {run_group.label}")
    single = [run_group.claimed_by_most for run_group in run_groups if not run_group.joint]
    if len(single) > 1:
        add("tasks that claim", np.sum(single, axis=0), "single tasks with the head open in most seeds")
    gates = np.array([claim.gates for claim in claims])
    add("gate mean", gates.mean(0), "mean gate over all runs")
    if len(gates) > 1:
        add("gate sd", gates.std(0, ddof=1), "sample standard deviation of gates over all runs")
    return columns


def add_pooled_rows(tests: pd.DataFrame) -> pd.DataFrame:
    """Turn the column ``pooled`` of the tests of heads by claims into rows without p-values.

    The term of a new row is that of its test with ", pooled", and its value is Spearman's correlation over all heads.
    """
    pooled = tests[~tests["term"].str.contains(" - ")]
    pooled = pooled.assign(term=pooled["term"] + ", pooled", value=pooled["pooled"], p=math.nan, q=math.nan)
    return pd.concat([tests, pooled], ignore_index=True).drop(columns="pooled")
