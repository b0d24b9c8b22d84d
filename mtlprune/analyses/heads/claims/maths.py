"""Overlap of claims beside chance: pairs of labels, runs of one task, heads by number of tasks, single heads.

Letters: n labels or tasks, S seeds, M runs in all, L layers, A heads a layer, H = L·A, P permutations, C a chunk.
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
    corrected,
    hypergeometric_p,
    permuted,
    shared_moments,
    tail,
)

Row = dict[str, Any]
SHARING = ("shared", "expected", "z", "p")
"""Open heads that two runs share, averaged over pairs of runs, beside chance within layers: the mean over all
permutations of heads within layers (exact); (shared − expected) / standard deviation over all such permutations (exact;
NaN where that is 0); the share of permutations that reach ``shared`` or more (NaN where all give the same, or there
were none)."""
UNKNOWN: Row = dict.fromkeys(SHARING, math.nan)


def pair_statistics(**figures: Iterable[float]) -> Row:
    """Figures over pairs of seeds: ``NAME_mean``, ``_sd`` (of the sample, NaN for fewer than two), ``_least``,
    ``_most``, and ``_number``, for how many pairs the figure is defined.

    The pairs are not independent: the spread describes, it is no standard error.
    """
    parts = {"mean": "mean", "sd": "std", "least": "min", "most": "max", "number": "count"}
    series_by_name = {name: pd.Series([*values], dtype=float) for name, values in figures.items()}
    return {
        f"{name}_{part}": getattr(series, how)()
        for name, series in series_by_name.items()
        for part, how in parts.items()
    }


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
    for (i, run_group), (j, second) in itertools.combinations(enumerate(run_groups), 2):
        seeds = [(a, b) for a in run_group.open for b in second.open]
        rows.append(
            {
                "encoder": run_group.label,
                "other": second.label,
                "pearson": pearson(run_group.mean.ravel(), second.mean.ravel()),
                **pair_statistics(
                    jaccard=(jaccard(a, b) for a, b in seeds),
                    overlap_coefficient=(overlap_coefficient(a, b) for a, b in seeds),
                ),
                **_sharing([(run_group.times, second.times, len(seeds))], null[:, i, j] / len(seeds)),
                **_claimed_by_both(run_group.claimed_by_most, second.claimed_by_most),
            }
        )
    if not rows:
        return pd.DataFrame()
    pairs = pd.DataFrame(rows)
    return pairs.assign(q=corrected(pairs["p"]), q_anywhere=corrected(pairs["p_anywhere"]))


def share_by_seed(run_groups: Sequence[RunGroup], permutations: int, generator: np.random.Generator) -> tuple[Row, Row]:
    """SHARING of runs of different single tasks, apart for equal and for unequal seeds; z is of neither.

    Runs with equal seeds see their batches in the same order, so only unequal ones are strangers to each other: a
    difference between the two is not the tasks' doing. Every pair of labels has equal weight. Under the null of unequal
    seeds the heads of every label are permuted within layers, all its seeds together; of equal ones there is none. NaN
    where there are no two runs of different tasks with equal, or with unequal, seeds.
    """
    if len(run_groups) < 2:
        return UNKNOWN, UNKNOWN
    runs = Runs.of(run_groups)
    flat, by_layer = runs.open_heads.reshape(len(runs.labels), -1), runs.open_heads.sum(2)
    equal_level = runs.levels[:, None, :2] == runs.levels[None, :, :2]  # (M, M, 2)

    def products(values: NDArray[np.float64], used: NDArray[np.bool_]) -> dict[tuple[int, int], NDArray[np.float64]]:
        """(M, H) → by pair of labels (H, H): products of all heads, their mean over used pairs of the runs."""
        means = {}
        for a, b in itertools.combinations(range(len(run_groups)), 2):
            rows_of_first, rows_of_second = runs.labels == a, runs.labels == b
            if (weights := used[np.ix_(rows_of_first, rows_of_second)].astype(np.float64)).any():
                means[a, b] = values[rows_of_first].T @ (weights / weights.sum()) @ values[rows_of_second]
        return means

    def shared(products: dict[tuple[int, int], NDArray[np.float64]]) -> float:
        """The mean over pairs of labels of the heads that two runs share."""
        return float(np.mean([np.trace(product) for product in products.values()])) if products else math.nan

    strangers, shape = ~equal_level.any(2), runs.open_heads.shape[1:]
    between = products(flat, strangers)
    equal, unequal = shared(products(flat, equal_level.all(2))), shared(between)
    if math.isnan(unequal):
        return {**UNKNOWN, "shared": equal}, UNKNOWN
    expected = shared(products(by_layer, strangers)) / shape[1]
    heads = np.broadcast_to(np.arange(flat.shape[1]).reshape(shape), (len(run_groups), 1, *shape))
    null = np.zeros(0)
    for chunk in permuted(heads, permutations, generator):  # (C, n, 1, H)
        sums = sum(product[chunk[:, a, 0], chunk[:, b, 0]].sum(1) for (a, b), product in between.items())
        null = np.append(null, sums / len(between))
    flatly = len(null) and np.ptp(null) < 1e-6  # the same whatever the permutation
    p = math.nan if flatly else tail(unequal, null)
    return {**UNKNOWN, "shared": equal}, {**UNKNOWN, "shared": unequal, "expected": expected, "p": p}


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
    pairs = itertools.combinations(run_groups, 2)
    sides = [(first.times, second.times, len(first.claims) * len(second.claims)) for first, second in pairs]
    return _sharing(sides, scaled.mean(1))


def share_within(run_group: RunGroup, permutations: int, generator: np.random.Generator) -> Row:
    """The heads that two seeds of one label share; unlike between labels, every seed is permuted by itself."""
    seeds = run_group.open.astype(np.int64)  # (S, L, A)
    if len(seeds) < 2:
        return UNKNOWN
    # Σ over pairs of one·other is (|Σ one|² − Σ |one|²) / 2, so that no pair has to be kept; whole numbers are exact.
    times = [chunk.sum((1, 2)) for chunk in permuted(seeds[:, None], permutations, generator)]  # (C, H) each
    in_pairs = (np.square(np.concatenate([np.empty((0, seeds[0].size)), *times])).sum(1) - seeds.sum()) / 2
    null = in_pairs / math.comb(len(seeds), 2)
    return _sharing([(first, second, 1) for first, second in itertools.combinations(seeds, 2)], null)


def _sharing(sides: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]], null: NDArray[np.floating]) -> Row:
    """The mean of Σ one·other / weight over the sides, beside its null (P,) and exact moments.

    Under permutation the numbers that two different pairs share are uncorrelated, even where the pairs have a label in
    common (whatever its permutation, the other label's spreads evenly over it), so that their variances add up.
    """
    observed = [float((first * second).sum()) / weight for first, second, weight in sides]
    moments = [(mean / weight, sd / weight) for mean, sd, weight in ((*shared_moments(a, b), w) for a, b, w in sides)]
    heads, expected = float(np.mean(observed)), float(np.mean([mean for mean, _ in moments]))
    sd = math.sqrt(sum(sd**2 for _, sd in moments)) / len(sides)
    z, p = ((heads - expected) / sd, tail(heads, null)) if sd else (math.nan, math.nan)
    return {"shared": heads, "expected": expected, "z": z, "p": p}


def _claimed_by_both(first_set: NDArray[np.bool_], second_set: NDArray[np.bool_]) -> Row:
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
"""A stem head is claimed by so many single tasks or more."""


def claimed_by(
    claims: Sequence[NDArray[np.bool_]], permutations: int, within: np.random.Generator, uniform: np.random.Generator
) -> pd.DataFrame:
    """The number of heads claimed by ≥ k tasks, k = 1 … n, beside two nulls.

    Args:
        claims: one array (L, A) a task.
        within, uniform: generators for permutations within layers and over all heads.

    Returns:
        A row for each k: ``tasks`` (k), ``heads``, and where each task's heads fall anywhere within their layers (NULL
        ``layers``) or anywhere (``uniform``): ``NULL_expected``, exact, and the probability of so many or more
        (``NULL_more``) and of so few or fewer (``NULL_fewer``).
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
    """(P, H) tasks a head → (P, n) heads with ≥ 1 … n tasks."""
    return np.stack([(counts > k - 0.5).sum(1) for k in range(1, tasks + 1)], axis=1).astype(np.int64)


def _expected(rates: NDArray[np.floating], k: int, heads: int) -> float:
    """Expected heads with ≥ k tasks, if task i claims each of layer l with probability rates[i, l], independently."""
    return float(sum(heads * _count_distribution(layer)[k:].sum() for layer in rates.T))


def _count_distribution(probabilities: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """(n + 1,): probability that 0 … n of n independent events happen (Poisson binomial)."""
    distribution = np.ones(1)
    for p in probabilities:
        distribution = np.convolve(distribution, [1 - p, p])
    return distribution


def majority_probability(seeds: int, times: ArrayLike) -> NDArray[np.float64]:
    """Probability that a bootstrap sample of a task's seeds has a head open in more than half of them.

    Args:
        seeds: S, drawn S times with replacement.
        times: in how many of the seeds heads are open.
    """
    return np.asarray(stats.binom.sf(seeds // 2, seeds, np.asarray(times) / seeds))


def _claim_probabilities(run_groups: Sequence[RunGroup]) -> NDArray[np.float64]:
    """(n + 1, L, A): share of bootstrap samples in which exactly 0 … n tasks claim a head.

    A sample draws each task's seeds anew with replacement, tasks independently. The share over infinitely many samples
    has a closed form for a single head (binomial within a task, Poisson binomial over tasks), so none is drawn. NaN
    where no task has two seeds: resampling one seed gives itself.
    """
    times = np.stack([run_group.times for run_group in run_groups])  # (n, L, A)
    if all(len(run_group.claims) < 2 for run_group in run_groups):
        return np.full((len(times) + 1, *times.shape[1:]), math.nan)
    rates = np.stack([majority_probability(len(run_group.claims), run_group.times) for run_group in run_groups])
    return np.apply_along_axis(_count_distribution, 0, rates)


def list_heads(run_groups: Sequence[RunGroup]) -> pd.DataFrame:
    """Every head, by layer: who claims it, and whether it is a stem, exclusive or free one.

    Returns:
        ``layer`` and ``head`` from 1, ``tasks``: how many claim it, ``claimed_by``: which, ``group``: stem (STEM_TASKS
        or more), exclusive (one), free (none) or "" (in between), and ``confidence``: the share of bootstrap samples in
        which the head is in its group; NaN where it is in none, or no task has two seeds.
    """
    if not run_groups:
        return pd.DataFrame()
    claimed_heads = np.stack([run_group.claimed_by_most for run_group in run_groups])
    probabilities = _claim_probabilities(run_groups)
    rows = []
    for layer, head in np.ndindex(*claimed_heads.shape[1:]):
        labels = [c.label for c, has_head in zip(run_groups, claimed_heads[:, layer, head], strict=True) if has_head]
        shares, tasks = probabilities[:, layer, head], len(labels)
        group = "stem" if tasks >= STEM_TASKS else {0: "free", 1: "exclusive"}.get(tasks, "")
        confidence = shares[STEM_TASKS:].sum() if group == "stem" else shares[tasks] if group else math.nan
        rows.append((layer + 1, head + 1, tasks, ", ".join(labels), group, float(confidence)))
    return pd.DataFrame(rows, columns=["layer", "head", "tasks", "claimed_by", "group", "confidence"])


# -- single heads ------------------------------------------------------------------------------------------------------


def tails(open_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(L, S + 1): probability that a given head of a layer is open in 0, 1, ... S or more of S maps (S, L, A).

    Each map's open heads fall anywhere within their layer, independently of the other maps: so a head of layer l is
    open in map s with probability (open heads of the layer) / A, and their number is Poisson-binomial. Exact.
    """
    rates = open_.mean(2)  # (S, L)
    distributions = np.stack([_count_distribution(layer) for layer in rates.T])  # (L, S + 1)
    return np.minimum(np.cumsum(distributions[:, ::-1], axis=1)[:, ::-1], 1.0)


def by_maps(open_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(L, A): probability that chance opens a head in as many of the maps (S, L, A) as it is open in, or more."""
    return np.take_along_axis(tails(open_), open_.sum(0), axis=1)


def least(open_: NDArray[np.bool_]) -> float:
    """The smallest p that any head could have: open in every map that opens any of its layer, where that is rarest."""
    open_in_any = open_.any(2).sum(0)  # (L,): maps that open a head of the layer
    return float(np.take_along_axis(tails(open_), open_in_any[:, None], axis=1).min())


_CLAIMED_FROM = 0.5
"""In the table of heads a task claims a head where its mean gate reaches this."""


def claim_columns(claims: Sequence[Claim]) -> list[HeadColumn]:
    """By label the seeds with the head open and the mean gate; then how many single tasks claim it (mean gate of at
    least _CLAIMED_FROM), and mean and spread of gates over all runs (sample standard deviation; not of one run)."""
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
    single = [run_group.mean >= _CLAIMED_FROM for run_group in run_groups if not run_group.joint]
    if len(single) > 1:
        add("tasks that claim", np.sum(single, axis=0), f"single tasks whose mean gate reaches {_CLAIMED_FROM:g}")
    gates = np.array([claim.gates for claim in claims])
    add("gate mean", gates.mean(0), "mean gate over all runs")
    if len(gates) > 1:
        add("gate sd", gates.std(0, ddof=1), "sample standard deviation of gates over all runs")
    return columns


def add_pooled_rows(tests: pd.DataFrame) -> pd.DataFrame:
    """Tests of heads by claims with their column ``pooled`` (of ranks) as rows of their own, which are no tests."""
    pooled = tests[~tests["term"].str.contains(" - ")]
    pooled = pooled.assign(term=pooled["term"] + ", pooled", value=pooled["pooled"], p=math.nan, q=math.nan)
    return pd.concat([tests, pooled], ignore_index=True).drop(columns="pooled")
