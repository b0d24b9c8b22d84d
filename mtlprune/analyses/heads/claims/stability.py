"""The run as the unit: are claims the task's, or the seed's? Stability, runs of one task against two, variance by seed.

A run has a training seed (of the finished run that its heads were chosen on; its own where there is none), a selector
seed (its own) and a half of the data. Runs of one label with one training seed are one training run.

Letters: M runs, n labels, U training runs, L layers, A heads a layer, H = L·A, Q pairs of runs, R ways in which pairs
differ, K terms, P labellings, B bootstrap samples.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import factorial, prod
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from mtlprune.runs.claims import Claim, RunGroup
from mtlprune.statistics.permutation import swapped
from mtlprune.statistics.standard_errors import detectable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]
"""(Q,) and (Q,): places of the runs of pairs."""

_FACTORS = ("training seed", "selector seed", "half of the data")
COMMON = "heads"  # term of the variance: heads that all runs of a label have in common
OVER_TASKS = "single tasks"  # in the place of a label: the mean over all single-task labels
MODES = ("plain", "layer-centred")
RELIABILITIES = (0.8, 0.9)
_SAMPLES = 2_000  # bootstrap samples of heads


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of some labels as arrays, label by label.

    Attributes:
        labels: (M,), places of labels.
        gates, open_heads: (M, L, A); ``open_heads`` is 0 or 1.
        levels: (M, 3), one column of each of _FACTORS; equal numbers are equal seeds, or halves.
    """

    labels: Ints
    gates: Floats
    open_heads: Floats
    levels: Ints

    @classmethod
    def of(cls, run_groups: Sequence[RunGroup]) -> "Runs":
        """All runs of the groups, in their order."""
        claims = [claim for run_group in run_groups for claim in run_group.claims]
        columns = zip(*((f"{c.training!s:>20}", f"{c.seed:>20}", c.half) for c in claims), strict=True)  # in order
        levels = [np.unique(column, return_inverse=True)[1] for column in columns]
        labels = np.repeat(np.arange(len(run_groups)), [len(run_group.claims) for run_group in run_groups])
        open_stack = np.stack([claim.open for claim in claims]).astype(np.float64)
        return cls(labels, np.stack([claim.gates for claim in claims]), open_stack, np.stack(levels, axis=1))

    @cached_property
    def units(self) -> Ints:
        """(M,): the training run of each run, numbered by label and training seed."""
        return np.unique(self.labels * len(self.labels) + self.levels[:, 0], return_inverse=True)[1]

    @cached_property
    def first_of_units(self) -> NDArray[np.intp]:
        """(U,): the first run of each training run."""
        return np.unique(self.units, return_index=True)[1]

    @property
    def unit_labels(self) -> Ints:
        """(U,): the label of each training run."""
        return self.labels[self.first_of_units]

    @cached_property
    def shared(self) -> Floats:
        """(M, M): open heads that two runs share."""
        flat = self.open_heads.reshape(len(self.labels), -1)
        return np.asarray(flat @ flat.T)

    @cached_property
    def strangers(self) -> Mask:
        """(M, M): whether two runs have neither training seed nor selector seed in common."""
        return np.asarray((self.levels[:, None, :2] != self.levels[None, :, :2]).all(2))


# -- runs of one task and of two ---------------------------------------------------------------------------------------


MEASURES_OF_SHARING = ("shared heads", "beyond depth", "beyond depth and ranking")


def label_tests(run_groups: Sequence[RunGroup], permutations: int, generator: np.random.Generator) -> pd.DataFrame:
    """Six tests: all pairs and pairs of unequal seeds, by each of COUNTED; none with one task or seed.

    Labels of training runs are permuted: runs with heads chosen on one finished run keep one label. Pairs of unequal
    seeds are tested apart only where there are equal ones, since then labels are permuted among the training runs of
    one seed: that keeps what such runs have in common (the order of their batches) out of the test.

    Args:
        run_groups: single tasks, in any order.
        permutations: all labellings are enumerated where there are no more of them; 0 leaves the tests out.

    Returns:
        ``pairs`` (of runs: all, or unequal seeds); ``counted``: "shared heads"; "beyond depth", minus Σ over layers
        a·b/A, which the open heads a and b of the two runs in each layer explain; or "beyond depth and ranking", minus
        their mean where both margins are fixed (``swapped``), which a ranking of heads that all runs have in common
        explains, too; ``within`` and ``between``, means over pairs of runs of one task and of two; ``p``, the share of
        labellings whose within − between is as large or larger (NaN where no labelling changes it, or there are none),
        beyond the ranking the larger one of it and of the share of swapped masks: only labellings keep together what
        was chosen on one finished run, and only swaps keep every run's layers; ``least``, the smallest p that is
        possible with these runs; ``labellings``, how many were tried, and whether they are all (``exact``),
        otherwise drawn at random with the observed one counted in p; ``nearest``, the share of runs whose nearest run
        by what is counted is of the same task (of several as near, their share), the mean of that over labellings and
        its p; ``low`` and ``high``, the jack-knife interval of 95 % of within − between, which takes what is explained
        as known.
    """
    if len(run_groups) < 2 or max(len(run_group.claims) for run_group in run_groups) < 2:
        return pd.DataFrame()
    runs = Runs.of(run_groups)
    first, second = pairs = np.triu_indices(len(runs.labels), 1)
    by_layer = runs.open_heads.sum(2)
    depth = (by_layer @ by_layer.T)[pairs] / runs.open_heads.shape[2]
    kinds = list(_kinds_of_pairs(runs, runs.strangers[pairs]))
    ranked, swapped_gaps = _swapped_gaps(runs, pairs, [used for _, used, _ in kinds], permutations, generator)
    explained = dict(zip(MEASURES_OF_SHARING, (np.zeros_like(depth), depth, ranked), strict=True))
    rows = []
    for (name, used, blocks), gaps in zip(kinds, swapped_gaps, strict=True):
        labellings, exact = _labellings(runs.unit_labels, blocks, permutations, generator)
        for measure in MEASURES_OF_SHARING[: 2 + (permutations > 0)]:
            beyond = (runs.shared[pairs] - explained[measure])[used]
            row = _label_test(runs, (first[used], second[used]), beyond, labellings, exact)
            if measure == MEASURES_OF_SHARING[2]:
                swaps = gaps - gaps.mean()
                row["p"] = max(row["p"], _p(row["within"] - row["between"], swaps, False))
                row["least"] = max(row["least"], 1 / (1 + len(swaps)))
            rows.append({"pairs": name, "counted": measure, **row})
    return pd.DataFrame(rows)


def _kinds_of_pairs(runs: Runs, unequal: Mask) -> Iterator[tuple[str, Mask, list[NDArray[np.intp]]]]:
    """A name, which pairs (Q,) are used, and blocks of training runs among which labels are permuted."""
    yield "all", np.ones_like(unequal), [np.arange(len(runs.unit_labels))]
    if unequal.any() and not unequal.all():
        seeds = runs.levels[runs.first_of_units, 0]
        yield "unequal seeds", unequal, [np.flatnonzero(seeds == seed) for seed in np.unique(seeds)]


def _swapped_gaps(
    runs: Runs, pairs: Pairs, kinds: Sequence[Mask], permutations: int, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """(Q,), heads that pairs of swapped masks share on average, and (kinds, P), within − between of each swap."""
    same_label = runs.labels[pairs[0]] == runs.labels[pairs[1]]
    with np.errstate(invalid="ignore"):  # where there is no pair of one kind
        weights = np.array(
            [(u & same_label) / (u & same_label).sum() - (u & ~same_label) / (u & ~same_label).sum() for u in kinds]
        )
    ranked, gaps = np.zeros(len(same_label)), np.empty((len(kinds), 0))
    for masks in swapped(runs.open_heads, permutations, generator.spawn(1)[0]):
        flat = masks.reshape(*masks.shape[:2], -1).astype(np.float64)
        products = (flat @ flat.swapaxes(1, 2))[:, pairs[0], pairs[1]]  # (C, Q)
        ranked += products.sum(0) / permutations
        gaps = np.append(gaps, weights @ products.T, axis=1)
    return ranked, gaps


def _label_test(runs: Runs, pairs: Pairs, values: Floats, labellings: Ints, exact: bool) -> dict[str, float]:
    """One row of ``label_tests`` for values (Q,) of pairs of runs, by labellings (P, U) of training runs."""
    near = _nearest(pairs, values, len(runs.labels))
    within, between, nearest = (float(part[0]) for part in _gap(runs.labels[None], pairs, values, near))
    null = _gap(labellings[:, runs.units], pairs, values, near)
    gap, gaps = within - between, null[0] - null[1]
    units, strata = _units(runs)
    left_out = _left_out(runs.labels, units, len(strata), pairs, values)
    low, high, *_ = jackknife(np.array([gap]), left_out[:, None], strata)
    return {
        **{"within": within, "between": between, "p": _p(gap, gaps, exact)},
        **{"least": _p(float(gaps.max(initial=gap)), gaps, exact), "labellings": len(labellings), "exact": exact},
        **{"nearest": nearest, "nearest_chance": float(null[2].mean()) if len(labellings) else math.nan},
        **{"nearest_p": _p(nearest, null[2], exact), "low": float(low[0]), "high": float(high[0])},
    }


def _left_out(labels: Ints, units: Ints, number: int, pairs: Pairs, values: Floats) -> Floats:
    """(U,): within − between over the pairs (Q,) without those of each unit, from sums over the unit's pairs."""
    is_within = labels[pairs[0]] == labels[pairs[1]]
    means = []
    for used in (is_within, ~is_within):
        first, second = (units[side[used]] for side in pairs)
        left = []
        for weights in (np.ones(len(first)), values[used]):
            touched = sum(np.bincount(side, weights, number) for side in (first, second))
            # A pair with both sides in the unit was counted twice.
            left.append(weights.sum() - touched + np.bincount(first, weights * (first == second), number))
        means.append(np.where(left[0] > 0, left[1] / np.maximum(left[0], 1), math.nan))
    return np.asarray(means[0] - means[1])


def _nearest(pair: Pairs, values: Floats, runs: int) -> Floats:
    """(Q,): what a pair of one label adds to the share of runs whose nearest run has their label."""
    near = np.full((runs, runs), -np.inf)
    near[pair], near[pair[::-1]] = values, values
    best = np.isfinite(near) & (near >= near.max(1, keepdims=True) - 1e-9)
    number = best.sum(1)
    weights = best / np.maximum(number, 1)[:, None] / max(1, int((number > 0).sum()))
    return np.asarray(weights[pair] + weights[pair[::-1]])


def _gap(labels: Ints, pair: Pairs, values: Floats, near: Floats) -> tuple[Floats, Floats, Floats]:
    """(P, M) labels → (P,) means of the values (Q,) over pairs of one label, and of two; share of ``_nearest``."""
    sides = np.zeros((3, labels.shape[1], labels.shape[1]))
    sides[:, pair[0], pair[1]] = np.ones_like(values), values, near
    number, inside, nearest = np.zeros((3, len(labels)))
    for label in np.unique(labels):
        is_of_label = (labels == label).astype(np.float64)  # (P, M)
        for total, side in zip((number, inside, nearest), sides, strict=True):
            total += np.einsum("pm,pm->p", is_of_label @ side, is_of_label)
    with np.errstate(divide="ignore", invalid="ignore"):
        return inside / number, (values.sum() - inside) / (len(values) - number), nearest


def _p(observed: float, null: Floats, exact: bool) -> float:
    if not len(null) or math.isnan(observed) or np.ptp(null) < 1e-9:
        return math.nan
    reached = int((null >= observed - 1e-9).sum())
    return reached / len(null) if exact else (1 + reached) / (1 + len(null))


def _labellings(
    labels: Ints, blocks: Sequence[NDArray[np.intp]], permutations: int, generator: np.random.Generator
) -> tuple[Ints, bool]:
    """(P, M): labels permuted within blocks of runs, all different ones where they are few; whether they are all."""
    number = prod(
        factorial(len(block)) // prod(factorial(int(n)) for n in np.bincount(labels[block])) for block in blocks
    )
    if number <= permutations:
        all_orders = itertools.product(*(list(_arrangements(sorted(labels[block].tolist()))) for block in blocks))
        order = np.concatenate(blocks)
        orders = np.array([list(itertools.chain(*parts)) for parts in all_orders], dtype=np.int64)
        inverse = np.empty_like(orders)
        inverse[:, order] = orders
        return inverse, True
    inverse = np.repeat(labels[None], permutations, axis=0)
    for block in blocks:
        inverse[:, block] = generator.permuted(inverse[:, block], axis=1)
    return inverse, False


def _arrangements(values: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every different order of the values, each once."""
    if not values:
        yield ()
    for value in dict.fromkeys(values):
        place = values.index(value)
        yield from (
            (value, *remaining_values) for remaining_values in _arrangements([*values[:place], *values[place + 1 :]])
        )


# -- Φ -----------------------------------------------------------------------------------------------------------------


def phi(runs: Runs, used: Mask, runs_kept: Mask | None = None) -> Floats:
    """Stability Φ within labels (diagonal) and between them (Nogueira, Sechidis and Brown 2018, definition 4).

    1 − D / E. D: mean over pairs of runs of the share of heads that one of them opens and the other does not, halved.
    E: the same expected of independent masks, (a + b)/2 − a·b, with a and b the mean shares of open heads of the two
    labels; layer-centred the mean over layers of it, with each layer's own a and b. Within a label, over all pairs,
    this is their formula: 1 − mean_h M/(M−1) p_h (1 − p_h) / (a (1 − a)), p_h the share of runs that open head h.

    Args:
        used: (M, M), pairs that count, besides a run with itself.
        runs_kept: (M,), runs that count (all, if not given).

    Returns:
        (2, n, n): plain and layer-centred; 1 for identical masks, 0 expected of independent ones. NaN where there is no
        pair, or all heads or none are open.
    """
    runs_kept = np.ones_like(runs.labels, dtype=bool) if runs_kept is None else runs_kept
    membership = ((runs.labels == np.arange(runs.labels.max() + 1)[:, None]) & runs_kept).astype(np.float64)  # (n, M)
    number = np.diag(runs.shared)
    disagreement_of_runs = (number[:, None] + number - 2 * runs.shared) / (2 * runs.open_heads[0].size)
    pairs = used & ~np.eye(len(runs_kept), dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        disagreement = membership @ (disagreement_of_runs * pairs) @ membership.T / (membership @ pairs @ membership.T)
        rates = membership @ runs.open_heads.mean(2) / membership.sum(1, keepdims=True)  # (n, L)
        mean_rates = (rates.mean(1, keepdims=True), rates)
        expected = np.stack([((r[:, None] + r) / 2 - r[:, None] * r).mean(2) for r in mean_rates])
        return np.where(expected > 0, 1 - disagreement / expected, math.nan)


def stability(run_groups: Sequence[RunGroup], single: int) -> pd.DataFrame:
    """Φ of every label and pair of labels, its mean over single tasks, and how many runs a claim needs.

    Args:
        run_groups: single tasks first; ``single``: how many are.

    Returns:
        ``encoder`` and ``other``, the labels (OVER_TASKS: the mean over single tasks, or their pairs); ``mode``
        ("plain", "layer-centred"); ``control`` ("all pairs", and where some of them share a seed also "unequal seeds");
        ``term`` ("within", "between", or "within - between" of OVER_TASKS); ``measure``: phi, and within also "runs for
        0.8" and "runs for 0.9", by Spearman-Brown (infinite where Φ ≤ 0); ``value`` with its jack-knife interval of
        95 %; ``n``, pairs of runs.
    """
    runs, labels = Runs.of(run_groups), [run_group.label for run_group in run_groups]
    first, second = np.triu_indices(len(runs.labels), 1)
    cells = [(i, j) for i in range(len(labels)) for j in range(i, len(labels))]
    names = [(labels[i], labels[j], "within" if i == j else "between") for i, j in cells]
    names += [(OVER_TASKS, OVER_TASKS, term) for term in ("within", "between", "within - between")]
    units, strata = _units(runs)
    lines: list[tuple[Any, ...]] = []
    for control, used in (("all pairs", np.ones_like(runs.strangers)), ("unequal seeds", runs.strangers)):
        pair_counts = Counter(
            zip(runs.labels[first][used[first, second]], runs.labels[second][used[first, second]], strict=True)
        )
        sums = [[cell for cell in cells if cell[1] < single and pair_counts[cell] and (cell[0] == cell[1]) is is_same]
                for is_same in (True, False)]  # fmt: skip
        sizes = [pair_counts[cell] for cell in cells] + [
            sum(pair_counts[cell] for cell in group_of_cells) for group_of_cells in sums
        ]
        full_values = _over_tasks(phi(runs, used), cells, sums)
        left_out = [_over_tasks(phi(runs, used, units != unit), cells, sums) for unit in range(len(strata))]
        low_high = jackknife(full_values, np.stack(left_out), strata)[:2]
        for mode, *rows in zip(MODES, full_values, *low_high, strict=True):
            for name, n, *values in zip(names, [*sizes, sum(sizes[-2:])], *rows, strict=True):
                key, upper_limit = (*name[:2], mode, control, name[2]), 1 if name[2] in ("within", "between") else 2
                value, low, high = np.clip(values, -upper_limit, upper_limit)
                lines.append((*key, "phi", value, low, high, n))
                for reliability in RELIABILITIES if name[2] == "within" else ():
                    needed = (runs_needed(estimate, reliability) for estimate in (value, high, low))
                    lines.append((*key, f"runs for {reliability}", *needed, n))
    columns = ["encoder", "other", "mode", "control", "term", "measure", "value", "low", "high", "n"]
    frame = pd.DataFrame(lines, columns=columns).dropna(subset="value")
    return frame.drop_duplicates([name for name in columns if name not in ("control", "value", "low", "high")])


def _over_tasks(phis: Floats, cells: Sequence[tuple[int, int]], sums: Sequence[Sequence[tuple[int, int]]]) -> Floats:
    """(2, n, n) Φ → (2, cells + 3): of the cells, means over two lists of them, and their difference."""
    undefined = np.full(len(phis), math.nan)
    means = [
        np.mean([phis[:, i, j] for i, j in group_of_cells], axis=0) if group_of_cells else undefined
        for group_of_cells in sums
    ]
    return np.column_stack([*(phis[:, i, j] for i, j in cells), *means, means[0] - means[1]])


def _units(runs: Runs) -> tuple[Ints, Ints]:
    """(M,), what a jack-knife leaves out together: a training run, or a run where its label has one training run only;
    and (U,), the label of each."""
    training = [len(set(runs.units[runs.labels == label])) > 1 for label in runs.labels]
    marks = np.where(training, runs.units, len(training) + np.arange(len(training)))
    _, starts, units = np.unique(marks, return_index=True, return_inverse=True)
    return units, runs.labels[starts]


def jackknife(value: Floats, left_out: Floats, strata: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Interval of 95 %, minimum detectable effect and p by leaving out one unit after another (Tukey 1958; of
    U-statistics Arvesen 1969).

    Variance: the sum over strata, of u units, of (u − 1)/u Σ (θ₍ᵢ₎ − mean)²; Student's t after Satterthwaite. The
    asymptotic interval of Nogueira, Sechidis and Brown covers half as often as it says with three runs.

    Args:
        value, left_out: (...) and (U, ...), statistics of all, and without each unit in turn.
        strata: (U,), to which of several independent samples a unit belongs.

    Returns:
        low, high, effect and two-sided p of 0, (...); NaN where a statistic is not defined without some unit, or the
        same without any, or depends on a stratum of one unit, of whose variance nothing is known.
    """
    total, variance_sum = np.zeros_like(value), np.zeros_like(value)
    for stratum in np.unique(strata):
        values_of_stratum = left_out[strata == stratum]
        variance = (
            (len(values_of_stratum) - 1)
            / len(values_of_stratum)
            * ((values_of_stratum - values_of_stratum.mean(0)) ** 2).sum(0)
        )
        if len(values_of_stratum) == 1:
            variance = np.where(np.abs(values_of_stratum[0] - value) > 1e-12, math.nan, variance)
        total, variance_sum = total + variance, variance_sum + variance**2 / max(1, len(values_of_stratum) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        error, free = np.where(total > 1e-12, np.sqrt(total), math.nan), total**2 / variance_sum
    half_width = stats.t.ppf(0.975, free) * error
    return value - half_width, value + half_width, detectable(error, free), 2 * stats.t.sf(np.abs(value) / error, free)


def runs_needed(reliability: float, target_reliability: float) -> float:
    """The number of runs whose mean correlates by ``target_reliability`` with the mean of as many others (Spearman
    1910, Brown 1910): w (1 − r) / (r (1 − w)), r the reliability of one; at least 1, not rounded, infinite for r ≤
    0."""
    if reliability <= 0:
        return math.inf
    return float(
        np.maximum(1, target_reliability * (1 - reliability) / (reliability * (1 - target_reliability)))
    )  # NaN of NaN


# -- variance by seeds -------------------------------------------------------------------------------------------------


def variance_split(run_groups: Sequence[RunGroup], single: int, generator: np.random.Generator) -> pd.DataFrame:
    """Shares of the variance of a label's gates: the same in all its runs, by training seed, selector seed, half.

    Random effects: gate = head + Σ over terms (factors and their products) of head × term. Half the mean square of the
    difference of two runs is the sum of the components of all terms in which they differ; means over pairs that differ
    in the same factors are solved for them (of balanced runs: the analysis of variance). Factors that only vary
    together are one; a term that the runs cannot tell from others lies in them.

    Args:
        run_groups: single tasks first; ``single``: how many are.

    Returns:
        ``encoder``, the label (OVER_TASKS: means over single tasks); ``term``: COMMON, _FACTORS that vary, products;
        ``measure`` "share", ``value`` with its interval of 95 % (bootstrap of heads, independent in the model;
        components below 0 count as 0; NaN where all samples give the same); ``n``, pairs of runs.
    """
    runs, rows = Runs.of(run_groups), []
    names = {run_group.label: [place] for place, run_group in enumerate(run_groups)}
    if single > 1:
        names[OVER_TASKS] = list(range(single))
    for name, places in names.items():
        first, second = _pairs(runs, places)
        if not len(first):
            continue
        factors = list(merged(runs, first, second).items())
        columns = np.stack([column for _, column in factors], axis=1)
        patterns, kind = np.unique(columns, axis=0, return_inverse=True)  # (R, factors), (Q,)
        terms: dict[str, Mask] = {}
        for size in range(1, len(factors) + 1):
            for factor_set in itertools.combinations(range(len(factors)), size):
                candidate_terms = [*terms.values(), np.asarray(patterns[:, factor_set].any(1), dtype=bool)]
                if np.linalg.matrix_rank(np.stack(candidate_terms)) == len(candidate_terms):
                    terms[" × ".join(factors[place][0] for place in factor_set)] = candidate_terms[-1]
        heads = runs.gates[0].size
        weights = np.vstack([np.ones(heads), generator.multinomial(heads, np.full(heads, 1 / heads), _SAMPLES)]) / heads
        flat = runs.gates.reshape(len(runs.gates), heads)
        halved = (flat[first] - flat[second]) ** 2 / 2  # (Q, H)
        labels = runs.labels[first]
        by_kind = []  # (R, H), every label with the same weight
        for number in range(len(patterns)):
            values_of_label = [
                halved[(kind == number) & (labels == label)] for label in np.unique(labels[kind == number])
            ]
            by_kind.append(np.mean([values_of_runs.mean(0) for values_of_runs in values_of_label], axis=0))
        components = weights @ np.stack(by_kind, axis=1) @ np.linalg.pinv(np.stack([*terms.values()], axis=1)).T
        explained = weights @ (flat**2).T - (weights @ flat.T) ** 2  # (B, M)
        total = np.mean([explained[:, runs.labels == label].mean(1) for label in np.unique(labels)], axis=0)
        common = total * heads / (heads - 1) - components.sum(1)
        parts = np.maximum(np.column_stack([common, components]), 0)
        sums = parts.sum(1, keepdims=True)
        if sums[0]:
            shares = parts[sums[:, 0] > 0] / sums[sums[:, 0] > 0]
            bounds = np.quantile(shares[1:], (0.025, 0.975), axis=0)
            bounds[:, bounds[0] == bounds[1]] = math.nan  # samples that all give the same tell no error
            rows_of_terms = zip((COMMON, *terms), shares[0], *bounds, strict=True)
            rows += [(name, term, "share", *values, len(first)) for term, *values in rows_of_terms]
    return pd.DataFrame(rows, columns=["encoder", "term", "measure", "value", "low", "high", "n"])


def _pairs(runs: Runs, places: Sequence[int]) -> Pairs:
    """(Q,) and (Q,): pairs of runs of one label, of these labels."""
    first, second = np.triu_indices(len(runs.labels), 1)
    same_label = (runs.labels[first] == runs.labels[second]) & np.isin(runs.labels[first], places)
    return first[same_label], second[same_label]


def merged(runs: Runs, first: NDArray[np.intp], second: NDArray[np.intp]) -> dict[str, Mask]:
    """Factors in which some of the pairs differ → (Q,), which do; those that always differ together under one name."""
    factors: dict[bytes, tuple[list[str], Mask]] = {}
    for name, differ in zip(_FACTORS, (runs.levels[first] != runs.levels[second]).T, strict=True):
        if differ.any():
            factors.setdefault(differ.tobytes(), ([], differ))[0].append(name)
    return {" and ".join(names): differ for names, differ in factors.values()}


_DRAWING = {"gates", "topk", "random"}
"""Ways to choose heads that draw random numbers."""


def _same_noise(claims: Sequence[Claim]) -> bool:
    """True where runs of one label have one selector seed, and a selector that draws by it."""
    settings = [claim.settings for claim in claims]
    by = {
        setting.get(f"pruning.{'selector' if setting.get('pruning.method') == 'stable' else 'method'}")
        for setting in settings
    }
    return len(claims) > 1 and len({claim.seed for claim in claims}) == 1 and not by.isdisjoint(_DRAWING)


def identifiability_notes(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """Sentences on what these runs cannot say of seeds and halves."""
    claims_without_start = [
        claim for run_group in run_groups for claim in run_group.claims if isinstance(claim.start, str)
    ]
    if claims_without_start:
        yield (
            f"{claims_without_start[0].start}, on which the heads of {claims_without_start[0].run} were chosen, is "
            f"missing (also for {len(claims_without_start) - 1} more runs), so its path counts as its training seed, "
            "and equal seeds of two tasks are not recognised."
        )
    if labels_with_same_noise := [run_group.label for run_group in run_groups if _same_noise(run_group.claims)]:
        yield (
            f"All runs of {', '.join(labels_with_same_noise)} have the same selector seed (train.seed), so their "
            "selectors drew the same noise and agree more than with different seeds."
        )
    runs = Runs.of(run_groups)
    varying = merged(runs, *_pairs(runs, range(len(run_groups))))
    constant = [name for name in _FACTORS if not any(name in names for names in varying)]
    reasons = [f"{names} only vary together" for names in varying if " and " in names]
    reasons += [f"{' and '.join(constant)} {'do' if constant[1:] else 'does'} not vary"] if constant else []
    if reasons and varying:
        yield (
            f"In the runs of a setting {', '.join(reasons)}, so the variance is not split further. Runs of several "
            "train.seed from each of several finished runs (train.start), on halves of the data, would split it."
        )
