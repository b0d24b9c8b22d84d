"""Statistics with the run as the unit: do claims depend on the task, or on the seed?

The file computes the stability Φ of claims, tests whether two runs of one task share more heads than two runs of
different tasks, and splits the variance of gates by seeds. Every run has three factors: a training seed (the seed of
the finished run whose heads it selects, or its own seed if it selects while it trains), a selector seed (its own seed)
and a half of the data. Runs of one label with the same training seed belong to the same *training run* and are not
independent.

Letters for shapes: M runs, n labels, U units (training runs, or runs where stated), L layers, A heads per layer,
H = L·A heads, Q pairs of runs, R patterns of factors in which pairs differ, P labellings or samples of masks, C a chunk
of samples, B bootstrap samples.
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
"""Pairs of runs: the indices of the first runs, (Q,), and of the second runs, (Q,)."""

_FACTORS = ("training seed", "selector seed", "half of the data")
COMMON = "heads"
"""Term of the variance that all runs of a label have in common, because some heads have larger gates than others."""
OVER_TASKS = "single tasks"
"""Value that stands for a label in rows with the mean over all single tasks."""
MODES = ("plain", "layer-centred")
"""Modes of Φ. Its expectation is 0 for heads that are drawn independently from all heads (plain) or within layers."""
RELIABILITIES = (0.8, 0.9)
"""Reliabilities for which the number of runs is computed."""
_SAMPLES = 2_000  # bootstrap samples of heads


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of several groups as arrays, sorted by group.

    Attributes:
        labels: (M,), index of the label of each run.
        gates: (M, L, A), gates in [0, 1].
        open_heads: (M, L, A), 1 for open heads and 0 for closed ones.
        levels: (M, 3), a column for each of _FACTORS; equal numbers in a column mean equal seeds or halves.
    """

    labels: Ints
    gates: Floats
    open_heads: Floats
    levels: Ints

    @classmethod
    def of(cls, run_groups: Sequence[RunGroup]) -> "Runs":
        """Return all runs of the groups, in the order of the groups."""
        claims = [claim for run_group in run_groups for claim in run_group.claims]
        # Padded strings sort like numbers, and leave room for a training seed that is a path.
        columns = zip(*((f"{c.training!s:>20}", f"{c.seed:>20}", c.half) for c in claims), strict=True)
        levels = [np.unique(column, return_inverse=True)[1] for column in columns]
        labels = np.repeat(np.arange(len(run_groups)), [len(run_group.claims) for run_group in run_groups])
        open_stack = np.stack([claim.open for claim in claims]).astype(np.float64)
        return cls(labels, np.stack([claim.gates for claim in claims]), open_stack, np.stack(levels, axis=1))

    @cached_property
    def units(self) -> Ints:
        """The index of the training run of each run, (M,): runs of one label and training seed have the same index."""
        return np.unique(self.labels * len(self.labels) + self.levels[:, 0], return_inverse=True)[1]

    @cached_property
    def first_of_units(self) -> NDArray[np.intp]:
        """The index of the first run of each training run, (U,)."""
        return np.unique(self.units, return_index=True)[1]

    @property
    def unit_labels(self) -> Ints:
        """The index of the label of each training run, (U,)."""
        return self.labels[self.first_of_units]

    @cached_property
    def shared(self) -> Floats:
        """The number of open heads that each two runs share, (M, M)."""
        flat = self.open_heads.reshape(len(self.labels), -1)
        return np.asarray(flat @ flat.T)

    @cached_property
    def unequal_seeds(self) -> Mask:
        """A mask (M, M) of the pairs of runs that differ in both the training seed and the selector seed."""
        return np.asarray((self.levels[:, None, :2] != self.levels[None, :, :2]).all(2))


# -- runs of one task and of two ---------------------------------------------------------------------------------------


MEASURES_OF_SHARING = ("shared heads", "beyond depth", "beyond depth and ranking")
"""Measures by which `label_tests` compares pairs of runs."""


def label_tests(run_groups: Sequence[RunGroup], permutations: int, generator: np.random.Generator) -> pd.DataFrame:
    """Test whether two runs of one task share more heads than two runs of different tasks.

    The tests permute the labels (tasks) of training runs, so all runs whose heads were selected on one finished run
    keep the same label. There are up to six tests, for all pairs of runs and for pairs of unequal seeds, by each of
    MEASURES_OF_SHARING. Pairs of unequal seeds are tested separately only if some pairs have equal seeds. In this case
    labels are permuted only among the training runs of one seed, so that the order of batches, which runs of one seed
    have in common, cannot affect the test.

    Args:
        run_groups: groups of single tasks, in any order.
        permutations: number of random labellings. If there are no more possible labellings than this, all of them are
            enumerated. With 0, p-values are NaN, and "beyond depth and ranking" is left out.

    Returns:
        One row for each test, empty for fewer than two tasks or if no task has two runs. Columns:

        - ``pairs``: "all" or "unequal seeds".
        - ``counted``: "shared heads"; "beyond depth", which subtracts Σ over layers a·b/A, the number expected from the
          numbers a and b of open heads of the two runs in each layer; or "beyond depth and ranking", which subtracts
          the mean over random masks that keep both margins (`swapped`), so that a ranking of heads that all runs have
          in common is also accounted for.
        - ``within``, ``between``: means over pairs of runs of one task, and of two tasks.
        - ``p``: share of labellings with a difference within − between at least as large (NaN if no labelling changes
          the difference). Beyond depth and ranking, it is the larger of this p and the share of swapped masks, because
          only labellings keep runs of one finished run together, and only swaps keep the layers of every run.
        - ``least``: the smallest p that is possible with these runs.
        - ``labellings``, ``exact``: number of labellings tried, and whether they are all that exist. Otherwise they are
          drawn at random, and the observed labelling is counted in p.
        - ``nearest``, ``nearest_chance``, ``nearest_p``: share of runs whose nearest run, by the counted measure, is of
          the same task (ties count as fractions), its mean over labellings, and its p.
        - ``low``, ``high``: 95 % jackknife interval of within − between. It ignores the uncertainty of the subtracted
          expectation.
    """
    if len(run_groups) < 2 or max(len(run_group.claims) for run_group in run_groups) < 2:
        return pd.DataFrame()
    runs = Runs.of(run_groups)
    first, second = pairs = np.triu_indices(len(runs.labels), 1)
    by_layer = runs.open_heads.sum(2)
    depth = (by_layer @ by_layer.T)[pairs] / runs.open_heads.shape[2]
    kinds = list(_kinds_of_pairs(runs, runs.unequal_seeds[pairs]))
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
    """Yield the kinds of pairs that are tested.

    Yields:
        The name of the kind, a mask (Q,) of its pairs, and the blocks of training runs within which labels are
        permuted.
    """
    yield "all", np.ones_like(unequal), [np.arange(len(runs.unit_labels))]
    if unequal.any() and not unequal.all():
        seeds = runs.levels[runs.first_of_units, 0]
        yield "unequal seeds", unequal, [np.flatnonzero(seeds == seed) for seed in np.unique(seeds)]


def _swapped_gaps(
    runs: Runs, pairs: Pairs, kinds: Sequence[Mask], permutations: int, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Count shared heads in random masks with the margins of the observed ones (`swapped`).

    Args:
        kinds: masks (Q,) of the pairs of each kind.

    Returns:
        The mean number of heads that each pair of runs shares over random masks, (Q,), and the difference within −
        between of each sample for each kind, (kinds, P).
    """
    same_label = runs.labels[pairs[0]] == runs.labels[pairs[1]]
    # A weight for each pair, so that a product of weights and shared heads is the mean within minus the mean between.
    with np.errstate(invalid="ignore"):  # a kind may have no pair within a label, or none between labels
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
    """Compute one row of `label_tests` from the values of pairs, (Q,), and the labellings of training runs, (P, U)."""
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
    """Compute within − between without each unit in turn, (U,).

    The means of the remaining pairs follow from the total sum minus the sum over the pairs of the unit, so the pairs
    are not listed once for each unit.
    """
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
    """Return the weight of each pair, (Q,): the part it adds to the share of nearest runs, if both have one label.

    The share of runs whose nearest run has the same label is the sum of the weights of the pairs within labels. The
    weights do not depend on the labels, so permuting labels needs only new sums.
    """
    near = np.full((runs, runs), -np.inf)
    near[pair], near[pair[::-1]] = values, values
    best = np.isfinite(near) & (near >= near.max(1, keepdims=True) - 1e-9)
    number = best.sum(1)
    weights = best / np.maximum(number, 1)[:, None] / max(1, int((number > 0).sum()))
    return np.asarray(weights[pair] + weights[pair[::-1]])


def _gap(labels: Ints, pair: Pairs, values: Floats, near: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute three statistics of each labelling (P, M) from the values and the weights ``near`` of pairs, (Q,).

    Returns:
        The mean value over pairs of one label, the mean value over pairs of two labels, and the share of runs whose
        nearest run has the same label, (P,) each.
    """
    # The sum over pairs within a label is the quadratic form mᵀ S m of its membership m (0 or 1 for each run), with the
    # values of pairs in the upper triangle of S.
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
    """Permute the labels of units, (U,), within blocks of units.

    Returns:
        Labellings (P, U), and whether they are all distinct labellings that exist. They are enumerated if there are at
        most ``permutations`` of them, and otherwise drawn at random.
    """
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
    """Yield every distinct order of the values once, although equal values may be repeated."""
    if not values:
        yield ()
    for value in dict.fromkeys(values):
        index = values.index(value)
        yield from (
            (value, *remaining_values) for remaining_values in _arrangements([*values[:index], *values[index + 1 :]])
        )


# -- Φ -----------------------------------------------------------------------------------------------------------------


def phi(runs: Runs, used: Mask, runs_kept: Mask | None = None) -> Floats:
    """Compute the stability Φ within and between labels (Nogueira, Sechidis and Brown 2018, definition 4).

    Φ = 1 − D / E. D is half the share of heads that exactly one run of a pair opens, averaged over pairs. E is the
    expectation of D for independent masks, (a + b)/2 − a·b, where a and b are the mean shares of open heads of the two
    labels. Layer-centred Φ uses the mean of E over layers, with a and b of each layer. Within a label and over all
    pairs, Φ equals the formula of the paper, 1 − mean_h M/(M−1) p_h (1 − p_h) / (a (1 − a)), where p_h is the share of
    runs that open head h.

    Args:
        used: (M, M), mask of the pairs of runs that count. The diagonal is ignored.
        runs_kept: (M,), mask of the runs that count; all runs if not given.

    Returns:
        (2, n, n), plain and layer-centred Φ with the values within labels on the diagonals. Φ is 1 for identical masks
        and has the expectation 0 for independent masks. It is NaN without pairs, or if all heads or no heads are open.
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
    """Tabulate Φ within and between labels, its means over single tasks, and the number of runs a claim needs.

    Args:
        run_groups: groups of runs, those of single tasks first.
        single: number of groups of single tasks.

    Returns:
        A frame with the columns ``encoder`` and ``other`` (the two labels, or OVER_TASKS for the mean over single tasks
        or over their pairs); ``mode`` (one of MODES); ``control`` ("all pairs", and also "unequal seeds" if some pairs
        share a seed); ``term`` ("within", "between", or "within - between" for OVER_TASKS); ``measure`` ("phi", and for
        the term "within" also "runs for 0.8" and "runs for 0.9" by `runs_needed`); ``value`` with the ends ``low`` and
        ``high`` of its 95 % jackknife interval; and ``n``, the number of pairs of runs.
    """
    runs, labels = Runs.of(run_groups), [run_group.label for run_group in run_groups]
    first, second = np.triu_indices(len(runs.labels), 1)
    cells = [(i, j) for i in range(len(labels)) for j in range(i, len(labels))]
    names = [(labels[i], labels[j], "within" if i == j else "between") for i, j in cells]
    names += [(OVER_TASKS, OVER_TASKS, term) for term in ("within", "between", "within - between")]
    units, strata = _units(runs)
    lines: list[tuple[Any, ...]] = []
    for control, used in (("all pairs", np.ones_like(runs.unequal_seeds)), ("unequal seeds", runs.unequal_seeds)):
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
    """Append means over tasks to the Φ of the cells, (2, n, n) → (2, cells + 3).

    The three last columns are the means over each of the two lists of cells in ``sums``, and their difference.
    """
    undefined = np.full(len(phis), math.nan)
    means = [
        np.mean([phis[:, i, j] for i, j in group_of_cells], axis=0) if group_of_cells else undefined
        for group_of_cells in sums
    ]
    return np.column_stack([*(phis[:, i, j] for i, j in cells), *means, means[0] - means[1]])


def _units(runs: Runs) -> tuple[Ints, Ints]:
    """Return the units that the jackknife leaves out: training runs, or single runs of a label with one training run.

    Returns:
        The index of the unit of each run, (M,), and the index of the label of each unit, (U,).
    """
    training = [len(set(runs.units[runs.labels == label])) > 1 for label in runs.labels]
    marks = np.where(training, runs.units, len(training) + np.arange(len(training)))
    _, starts, units = np.unique(marks, return_index=True, return_inverse=True)
    return units, runs.labels[starts]


def jackknife(value: Floats, left_out: Floats, strata: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Compute jackknife intervals of statistics, with their minimum detectable effects and p-values.

    The jackknife leaves out one unit after another (Tukey 1958; for U-statistics Arvesen 1969). The variance is the sum
    over strata of (u − 1)/u Σ (θ₍ᵢ₎ − mean)², where u is the number of units of a stratum and θ₍ᵢ₎ is the statistic
    without unit i. The interval uses Student's t with Satterthwaite's degrees of freedom. The asymptotic interval of
    Nogueira, Sechidis and Brown is not used, because its coverage with three runs is half of the nominal coverage.

    Args:
        value: (...), statistics of all units.
        left_out: (U, ...), the statistics without each unit in turn.
        strata: (U,), index of the independent sample to which each unit belongs.

    Returns:
        Lower end and upper end of the 95 % interval, minimum detectable effect, and two-sided p of the hypothesis that
        the statistic is 0, (...) each. All four are NaN if a statistic is undefined without some unit, if no unit
        changes it, or if it depends on a stratum of a single unit, whose variance is unknown.
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
        error, degrees = np.where(total > 1e-12, np.sqrt(total), math.nan), total**2 / variance_sum
    half_width = stats.t.ppf(0.975, degrees) * error
    return (
        value - half_width,
        value + half_width,
        detectable(error, degrees),
        2 * stats.t.sf(np.abs(value) / error, degrees),
    )


def runs_needed(reliability: float, target_reliability: float) -> float:
    """Return the number of runs whose mean has a given reliability (Spearman 1910, Brown 1910).

    The mean of this many runs correlates by ``target_reliability`` with the mean of as many other runs. The number is
    w (1 − r) / (r (1 − w)), where r is the reliability of one run and w the target. It is at least 1, not rounded, and
    infinite for r ≤ 0.
    """
    if reliability <= 0:
        return math.inf
    # Unlike max, np.maximum keeps NaN.
    return float(np.maximum(1, target_reliability * (1 - reliability) / (reliability * (1 - target_reliability))))


# -- variance by seeds -------------------------------------------------------------------------------------------------


def variance_split(run_groups: Sequence[RunGroup], single: int, generator: np.random.Generator) -> pd.DataFrame:
    """Split the variance of each label's gates into a part common to all its runs and parts that vary with seeds.

    The model has random effects: gate = head + Σ over terms of head × term, where a term is a factor (training seed,
    selector seed or half of the data) or a product of factors. Half the mean squared difference of two runs is the sum
    of the variance components of all terms in which the two runs differ. The components are the least-squares solution
    of these equations, one for each pattern of factors in which pairs differ. For balanced runs this is the analysis of
    variance. Factors that only vary together count as one factor, and a term that the runs cannot separate from other
    terms is included in them.

    Args:
        run_groups: groups of runs, those of single tasks first.
        single: number of groups of single tasks.

    Returns:
        A frame with the columns ``encoder`` (the label, or OVER_TASKS for the mean over single tasks); ``term``
        (COMMON, a factor that varies, or a product of factors); ``measure`` ("share"); ``value``, the share of the
        variance, where negative components count as 0, with the ends ``low`` and ``high`` of its 95 % interval; and
        ``n``, the number of pairs of runs. Intervals bootstrap heads, which are independent in the model, and are NaN
        if all samples have the same share.
    """
    runs, rows = Runs.of(run_groups), []
    names = {run_group.label: [index] for index, run_group in enumerate(run_groups)}
    if single > 1:
        names[OVER_TASKS] = list(range(single))
    for name, label_indices in names.items():
        first, second = _pairs(runs, label_indices)
        if not len(first):
            continue
        factors = list(_varying_factors(runs, first, second).items())
        columns = np.stack([column for _, column in factors], axis=1)
        patterns, kind = np.unique(columns, axis=0, return_inverse=True)  # (R, factors), (Q,)
        # Main effects come first. A product of factors is a term of its own only if the patterns can separate it from
        # the terms before, that is if its column is linearly independent of theirs.
        terms: dict[str, Mask] = {}
        for size in range(1, len(factors) + 1):
            for factor_set in itertools.combinations(range(len(factors)), size):
                candidate_terms = [*terms.values(), np.asarray(patterns[:, factor_set].any(1), dtype=bool)]
                if np.linalg.matrix_rank(np.stack(candidate_terms)) == len(candidate_terms):
                    terms[" × ".join(factors[index][0] for index in factor_set)] = candidate_terms[-1]
        heads = runs.gates[0].size
        # The first row has equal weights and gives the estimate; the other rows are bootstrap samples of heads.
        weights = np.vstack([np.ones(heads), generator.multinomial(heads, np.full(heads, 1 / heads), _SAMPLES)]) / heads
        flat = runs.gates.reshape(len(runs.gates), heads)
        halved = (flat[first] - flat[second]) ** 2 / 2  # (Q, H)
        labels = runs.labels[first]
        by_kind = []  # becomes (R, H); every label has the same weight
        for number in range(len(patterns)):
            values_of_label = [
                halved[(kind == number) & (labels == label)] for label in np.unique(labels[kind == number])
            ]
            by_kind.append(np.mean([values_of_runs.mean(0) for values_of_runs in values_of_label], axis=0))
        components = weights @ np.stack(by_kind, axis=1) @ np.linalg.pinv(np.stack([*terms.values()], axis=1)).T
        explained = weights @ (flat**2).T - (weights @ flat.T) ** 2  # (B, M)
        total = np.mean([explained[:, runs.labels == label].mean(1) for label in np.unique(labels)], axis=0)
        # The variance between the heads of a run is the sum of the common part and all components.
        common = total * heads / (heads - 1) - components.sum(1)
        parts = np.maximum(np.column_stack([common, components]), 0)
        sums = parts.sum(1, keepdims=True)
        if sums[0]:
            shares = parts[sums[:, 0] > 0] / sums[sums[:, 0] > 0]
            bounds = np.quantile(shares[1:], (0.025, 0.975), axis=0)
            bounds[:, bounds[0] == bounds[1]] = math.nan  # without spread between samples, the error is unknown
            rows_of_terms = zip((COMMON, *terms), shares[0], *bounds, strict=True)
            rows += [(name, term, "share", *values, len(first)) for term, *values in rows_of_terms]
    return pd.DataFrame(rows, columns=["encoder", "term", "measure", "value", "low", "high", "n"])


def _pairs(runs: Runs, label_indices: Sequence[int]) -> Pairs:
    """Return the pairs of runs of the same label, for the labels with these indices."""
    first, second = np.triu_indices(len(runs.labels), 1)
    same_label = (runs.labels[first] == runs.labels[second]) & np.isin(runs.labels[first], label_indices)
    return first[same_label], second[same_label]


def _varying_factors(runs: Runs, first: NDArray[np.intp], second: NDArray[np.intp]) -> dict[str, Mask]:
    """Return the factors in which some pairs of runs differ.

    Returns:
        For each factor, the mask (Q,) of the pairs that differ in it. Factors that differ in exactly the same pairs are
        one entry, whose name joins theirs with "and".
    """
    factors: dict[bytes, tuple[list[str], Mask]] = {}
    for name, differ in zip(_FACTORS, (runs.levels[first] != runs.levels[second]).T, strict=True):
        if differ.any():
            factors.setdefault(differ.tobytes(), ([], differ))[0].append(name)
    return {" and ".join(names): differ for names, differ in factors.values()}


_RANDOM_METHODS = {"gates", "topk", "random"}
"""Methods and selectors that draw random numbers when they choose heads."""


def _same_noise(claims: Sequence[Claim]) -> bool:
    """Return whether several runs of a label have the same selector seed and a selector that draws random numbers."""
    settings = [claim.settings for claim in claims]
    methods = {
        setting.get(f"pruning.{'selector' if setting.get('pruning.method') == 'stable' else 'method'}")
        for setting in settings
    }
    return len(claims) > 1 and len({claim.seed for claim in claims}) == 1 and not methods.isdisjoint(_RANDOM_METHODS)


def identifiability_notes(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield a sentence for each limit that these runs set to conclusions about seeds and halves of the data."""
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
    varying = _varying_factors(runs, *_pairs(runs, range(len(run_groups))))
    constant = [name for name in _FACTORS if not any(name in names for names in varying)]
    reasons = [f"{names} only vary together" for names in varying if " and " in names]
    reasons += [f"{' and '.join(constant)} {'do' if constant[1:] else 'does'} not vary"] if constant else []
    if reasons and varying:
        yield (
            f"In the runs of a setting {', '.join(reasons)}, so the variance is not split further. Runs of several "
            "train.seed from each of several finished runs (train.start), on halves of the data, would split it."
        )
