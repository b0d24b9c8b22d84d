"""Significance tests of the difference between the scores of two settings, over seeds and sentences.

The score of a setting is the mean over its runs (seeds), which are all scored on the same resampled sentences. In every
resample, a score is computed from counts that are summed over sentences, never as an average over sentences. The main
interval and its p-value cover seeds and sentences. The other interval and p-value treat the runs as fixed. The page
docs/methods/significance.md explains which sources of variance they cover.

Letters in shapes: R resamples, C resamples in a chunk, N sentences, S runs (seeds) of a setting, K counts from which a
score is computed, M pairings of a run of the first setting with a run of the second setting.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlprune.statistics.permutation import tail
from mtlprune.statistics.resamples import CHUNK, SUMS, Resampled, System, percentiles, resampled_scores, summing
from mtlprune.statistics.standard_errors import CONSTANT, Floats, StandardError

BOOTSTRAP, SWAPS = (0,), (1,)
"""Spawn keys of the streams of random numbers from which resamples and swaps are drawn."""
MAX_PAIRINGS = 100
"""If two systems have more pairings of runs than this number, ``_pairings`` chooses some of them evenly."""


@dataclass(frozen=True)
class Difference:
    """The difference between the mean scores of two settings, with intervals and tests."""

    delta: float
    """The mean score of the first setting minus that of the second setting, in points."""
    low: float
    """Lower end of the 95 % interval over sentences, a percentile bootstrap with fixed runs. NaN if all resamples give
    the same difference."""
    high: float
    """Upper end of the same interval."""
    effect: float
    """Cohen's d over sentences: delta divided by the standard deviation of the sentences' jackknife pseudo-values. NaN
    if this standard deviation is 0."""
    p: float
    """Two-sided p-value over sentences by approximate randomisation, without correction. It is exact if all swaps could
    be enumerated."""
    floor: float
    """The smallest value that ``p`` can take."""
    exact: bool
    """Whether all swaps were enumerated."""
    sentences: int
    """Number of sentences N."""
    differing: int
    """Number of sentences for which not all runs of the two settings have the same counts."""
    seeds: tuple[int, int]
    """Numbers of runs of the first and of the second setting."""
    wide_low: float
    """Lower end of the main 95 % interval, over seeds *and* sentences. NaN if a setting has fewer than two runs, or if
    no error can be estimated."""
    wide_high: float
    """Upper end of the main interval."""
    wide_p: float
    """Two-sided p-value by the distribution of the main interval, without correction. NaN if the interval is NaN."""
    wide_error: StandardError
    """The standard error of delta over seeds and sentences."""
    detectable: float
    """Minimum detectable effect in points, over seeds and sentences, or over sentences only if a setting has one run.
    NaN if no error can be estimated."""
    paired: bool
    """Whether both settings have the same seeds and are therefore compared seed by seed."""

    @property
    def has_seeds(self) -> bool:
        """Whether each setting has two runs or more."""
        return min(self.seeds) > 1

    @property
    def unknown(self) -> str:
        """The reason why no interval exists, or "" if an interval exists.

        The interval covers seeds and sentences, or sentences only if a setting has one run.
        """
        return self.wide_error.unknown if self.has_seeds else CONSTANT if math.isnan(self.low) else ""

    def equivalence_p(self, margin: float) -> float:
        """Compute the p-value of an equivalence test over seeds and sentences: the larger p of two one-sided tests.

        Below 0.05, the true difference is smaller than ``margin`` points in either direction. NaN if a setting has
        fewer than two runs, or if no error can be estimated.
        """
        return self.wide_error.upper_tail(margin - abs(self.delta))


def differences(
    systems: Sequence[System], pairs: Sequence[tuple[int, int]], resamples: int = 10_000, seed: int = 0
) -> list[Difference]:
    """Test the first system of each pair against the second.

    The result of a pair depends only on its two systems, ``resamples`` and ``seed``, not on the other pairs.

    Args:
        systems: the systems, which may have different sentences.
        pairs: pairs of indices in ``systems``. Both systems of a pair have the same sentences in the same order.
        resamples: number of resamples R.
        seed: seed of the resamples.

    Returns:
        The difference of each pair, in the order of ``pairs``.
    """
    tested = {}
    for sentences in {systems[first].counts.shape[1] for first, _ in pairs}:
        here = sorted({place for pair in pairs for place in pair if systems[place].counts.shape[1] == sentences})
        within = [pair for pair in pairs if systems[pair[0]].counts.shape[1] == sentences]
        resampled = resampled_scores([systems[place] for place in here], resamples, seed, stream=BOOTSTRAP)
        scores = dict(zip(here, resampled, strict=True))
        swapped = _swapped_differences({place: systems[place] for place in here}, within, sentences, resamples, seed)
        for a, b in within:
            tested[a, b] = _difference(systems[a], systems[b], scores[a], scores[b], swapped[a, b], resamples)
    return [tested[pair] for pair in pairs]


def _difference(
    first: System, second: System, first_scores: Resampled, second_scores: Resampled, swapped: Floats, resamples: int
) -> Difference:
    """Test the difference of two systems.

    Args:
        first: the first system.
        second: the second system.
        first_scores: scores of the first system, on all and on resampled sentences.
        second_scores: scores of the second system.
        swapped: (R,) differences after random swaps of sentences.
        resamples: number of resamples R.
    """
    observed = [first_scores.observed, second_scores.observed]
    booted = [first_scores.booted, second_scores.booted]
    delta = float(observed[0].mean() - observed[1].mean())
    all_counts = np.concatenate([first.counts, second.counts])
    differing = np.flatnonzero((all_counts != all_counts[:1]).any((0, 2)))  # where swapping changes anything
    exact = 2 ** min(len(differing), 60) <= resamples
    if exact:
        swapped = _enumerated(first, second, differing)
    error = _error(first, second, observed, booted)
    wide = error.half_width()
    delta_draws = booted[0].mean(1) - booted[1].mean(1)
    low, high = percentiles(delta_draws)
    seen_by = error if min(map(len, observed)) > 1 else StandardError.of([np.full(1, delta)], [delta_draws[:, None]])
    return Difference(
        delta=delta,
        low=low,
        high=high,
        effect=_effect(delta, first, second),
        p=tail(abs(delta), np.abs(swapped), enumerated=exact),
        floor=min(1.0, 2 / len(swapped)) if exact else 1 / (1 + resamples),
        exact=exact,
        sentences=first.counts.shape[1],
        differing=len(differing),
        seeds=(len(first.counts), len(second.counts)),
        wide_low=delta - wide,
        wide_high=delta + wide,
        wide_p=error.two_sided(delta),
        wide_error=error,
        detectable=seen_by.detectable(),
        paired=_paired(first, second),
    )


def _error(first: System, second: System, scores: Sequence[Floats], booted: Sequence[Floats]) -> StandardError:
    """Estimate the standard error of the difference of means over seeds and sentences.

    Systems with the same seeds are compared seed by seed. Otherwise their runs are two independent groups.
    """
    if min(map(len, scores)) < 2:
        return StandardError((), (), (), math.nan, "there are fewer than two seeds")
    if _paired(first, second):
        return StandardError.of([scores[0] - scores[1]], [booted[0] - booted[1]])
    return StandardError.of([scores[0], -scores[1]], [booted[0], -booted[1]])


# --- resampling ------------------------------------------------------------------------------------------------------


def _swapped_differences(
    systems: Mapping[int, System], pairs: Sequence[tuple[int, int]], sentences: int, resamples: int, seed: int
) -> dict[tuple[int, int], Floats]:
    """Compute the differences (R,) of each pair of systems after random swaps of sentences between the two.

    The counts of all systems form one matrix, so that a chunk costs one matrix product, (C, N) by (N, ΣSK).
    """
    summed, dtype = summing(systems, sentences)
    generator = np.random.default_rng(np.random.SeedSequence([seed, sentences], spawn_key=SWAPS))
    step = max(1, SUMS // sum(system.totals.size for system in systems.values()))
    swapped: dict[tuple[int, int], list[Floats]] = {pair: [] for pair in pairs}
    for start in range(0, resamples, size := max(1, CHUNK // sentences)):
        chunk = 2 * generator.integers(0, 2, (min(size, resamples - start), sentences), dtype=np.int8) - 1  # (C, N)
        for signs in (chunk[row : row + step] for row in range(0, len(chunk), step)):
            signed = summed(signs.T.astype(dtype, order="C"))
            for a, b in pairs:
                swapped[a, b].append(_swapped(systems[a], systems[b], signed[a], signed[b]))
    return {pair: np.concatenate(parts) for pair, parts in swapped.items()}


def _paired(first: System, second: System) -> bool:
    return bool(first.seeds) and first.seeds == second.seeds


def _swapped(first: System, second: System, signed_a: ArrayLike, signed_b: ArrayLike) -> Floats:
    """Compute the difference of two systems after swapping the sentences with sign −1 between them: (C,).

    Each run of the first system is paired with runs of the second system, and all runs occur equally often in the
    pairings. Without swapped sentences, the mean over pairings is the difference of the means. The systems may
    therefore have different seeds and different numbers of runs.

    Args:
        first: the first system.
        second: the second system.
        signed_a: (S, K, C) counts of the first system, multiplied by the signs and summed over sentences.
        signed_b: (S, K, C) the same of the second system.
    """
    runs_of_first, runs_of_second = _pairings(len(first.counts), len(second.counts))
    a, b = (np.asarray(signed, np.float64) for signed in (signed_a, signed_b))
    stay_a, stay_b = ((side.totals[..., None] + sums) / 2 for side, sums in ((first, a), (second, b)))  # (S, K, C)
    move_a, move_b = stay_a - a, stay_b - b
    first_sums, second_sums = (
        stay_a[runs_of_first] + move_b[runs_of_second],
        move_a[runs_of_first] + stay_b[runs_of_second],
    )  # (M, K, C)
    return (first.scores(np.moveaxis(first_sums, 1, -1)) - second.scores(np.moveaxis(second_sums, 1, -1))).mean(0)


@functools.cache
def _pairings(first: int, second: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return M pairings of a run of the first and a run of the second system, as two arrays of run numbers (M,).

    All pairings are used if there are ``MAX_PAIRINGS`` or fewer. Otherwise the number of pairings is the largest
    multiple of lcm(first, second) up to ``MAX_PAIRINGS``, or the least common multiple itself if it is larger. In both
    cases all runs of a system occur equally often.

    Args:
        first: number of runs of the first system.
        second: number of runs of the second system.
    """
    once = math.lcm(first, second)
    rounds = min(first * second, max(once, MAX_PAIRINGS // once * once))
    turn = np.arange(rounds)
    return turn % first, (turn + turn // once) % second


def _enumerated(first: System, second: System, differing: NDArray[np.intp]) -> Floats:
    """Compute the differences after all possible swaps of the m sentences for which counts differ: (2^m,)."""
    number = len(differing)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=number))).reshape(2**number, number)
    signed = []
    for system in (first, second):
        fixed = np.delete(system.counts, differing, axis=1).sum(1)  # (S, K)
        signed.append(fixed[..., None] + np.einsum("cm,smk->skc", signs, system.counts[:, differing]))
    return _swapped(first, second, *signed)


def _effect(delta: float, first: System, second: System) -> float:
    """Compute Cohen's d from the jackknife pseudo-values of sentences.

    If the score is a mean over sentences, the pseudo-values are the differences on the sentences.
    """
    without = [system.scores(system.counts.sum(1, keepdims=True) - system.counts).mean(0) for system in (first, second)]
    number = first.counts.shape[1]
    pseudo = number * delta - (number - 1) * (without[0] - without[1])  # (N,)
    deviation = float(pseudo.std(ddof=1)) if number > 1 else 0.0
    return delta / deviation if deviation > 1e-12 else math.nan


# --- seeds alone, several tests --------------------------------------------------------------------------------------


def sign_flip(values: ArrayLike) -> float:
    """Compute the two-sided p-value of a sign-flip test that the mean of n differences, one for each seed, is 0.

    The test enumerates all 2ⁿ flips of signs, so that p cannot be smaller than 2 / 2ⁿ.
    """
    observed = np.asarray(values, dtype=np.float64)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(observed))))
    reached = np.abs(signs @ observed) >= abs(observed.sum()) - 1e-9
    return float(reached.mean())


def holm(p_values: ArrayLike) -> Floats:
    """Correct p-values for their number by the step-down method of Holm (1979); NaN stays NaN and is not counted."""
    values = np.asarray(p_values, dtype=np.float64)
    corrected = np.full_like(values, math.nan)
    defined = np.flatnonzero(~np.isnan(values))
    order = defined[np.argsort(values[defined], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return corrected
