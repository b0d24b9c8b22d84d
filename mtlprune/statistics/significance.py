"""Do two settings differ beyond the chance of these seeds and sentences?

A score is recomputed from summed counts in every resample, never averaged over sentences; a setting's score is the mean
over its runs (seeds), which all see the same resampled sentences. The main interval and its p are over seeds and
sentences; the others hold the runs fixed. What they cover and what they do not stands in docs/methods/significance.md.

Letters: R resamples, C of them a chunk, N sentences, S runs (seeds) of a setting, K counts a score is made of, M
meetings of a run of one setting with one of another.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlprune.statistics.resamples import CHUNK, SUMS, Resampled, System, percentiles, resampled_scores, summing
from mtlprune.statistics.standard_errors import CONSTANT, Floats, StandardError

BOOTSTRAP, SWAPS = (0,), (1,)
"""The streams of random numbers that resamples and swaps are drawn from."""
MEETINGS = 100
"""Up to ten runs a side, each meets each; of more, evenly chosen ones."""


@dataclass(frozen=True)
class Difference:
    """The mean score of one setting minus that of another, and what sentences (and seeds) say about it."""

    delta: float
    """In points (percent)."""
    low: float
    """Lower end of the 95 % interval over sentences: percentile bootstrap, these runs held fixed; NaN where all
    resamples give the same difference."""
    high: float
    effect: float
    """Cohen's d over sentences: delta / standard deviation of the sentences' jackknife pseudo-values; NaN if that is
    0."""
    p: float
    """Two-sided, approximate randomisation (exact where all swaps could be enumerated); not corrected."""
    floor: float
    """The smallest p that this test could have given."""
    exact: bool
    """All swaps were enumerated."""
    sentences: int
    differing: int
    """Sentences on which runs of the two settings have different counts."""
    seeds: tuple[int, int]
    """Runs of the first setting and of the second."""
    wide_low: float
    """Lower end of the main interval, 95 % over seeds *and* sentences; NaN without two seeds on either side, or where
    no error can be estimated."""
    wide_high: float
    wide_p: float
    """Two-sided, by the distribution of the interval; not corrected. NaN as above."""
    wide_error: StandardError
    """The error of delta over seeds and sentences."""
    detectable: float
    """Minimum detectable effect in points, over seeds and sentences; with one run on a side over sentences. NaN where
    no error can be estimated."""
    paired: bool
    """Both settings have the same seeds, which are compared seed by seed."""

    @property
    def has_seeds(self) -> bool:
        """True with two seeds or more on either side."""
        return min(self.seeds) > 1

    @property
    def unknown(self) -> str:
        """The reason that no interval exists (with one run on a side: over sentences alone); "" where one does."""
        return self.wide_error.unknown if self.has_seeds else CONSTANT if math.isnan(self.low) else ""

    def equivalence_p(self, margin: float) -> float:
        """The larger p of two one-sided tests against a true difference of ``margin`` points or more, either way.

        Below 0.05: the difference is smaller than the margin, whatever the seeds and sentences. NaN as above.
        """
        return self.wide_error.upper_tail(margin - abs(self.delta))


def differences(
    systems: Sequence[System], pairs: Sequence[tuple[int, int]], resamples: int = 10_000, seed: int = 0
) -> list[Difference]:
    """Test the first system of each pair against the second.

    What a pair gets depends on its own counts, ``resamples`` and ``seed`` only, not on the other pairs.

    Args:
        pairs: places in ``systems``; both systems of a pair hold the same sentences in the same order.
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
    first: System, second: System, scores: Resampled, others: Resampled, swapped: Floats, resamples: int
) -> Difference:
    """Test two systems by their scores, and by differences (R,) with sentences swapped between them."""
    observed, booted = [scores.observed, others.observed], [scores.booted, others.booted]
    delta = float(observed[0].mean() - observed[1].mean())
    all_counts = np.concatenate([first.counts, second.counts])
    differing = np.flatnonzero((all_counts != all_counts[:1]).any((0, 2)))  # where swapping changes anything
    exact = 2 ** min(len(differing), 60) <= resamples
    if exact:
        swapped = _enumerated(first, second, differing)
    reached = int((np.abs(swapped) >= abs(delta) - 1e-9).sum())
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
        p=reached / len(swapped) if exact else (1 + reached) / (1 + resamples),
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
    """The error of the difference of means: seed by seed where both systems have the same, else of two groups."""
    if min(map(len, scores)) < 2:
        return StandardError((), (), (), math.nan, "there are fewer than two seeds")
    if _paired(first, second):
        return StandardError.of([scores[0] - scores[1]], [booted[0] - booted[1]])
    return StandardError.of([scores[0], -scores[1]], [booted[0], -booted[1]])


# --- resampling ------------------------------------------------------------------------------------------------------


def _swapped_differences(
    systems: Mapping[int, System], pairs: Sequence[tuple[int, int]], sentences: int, resamples: int, seed: int
) -> dict[tuple[int, int], Floats]:
    """Swap sentences at random between the two systems of each pair: pair → differences (R,)."""
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
    """(C,): the difference after sentences of sign −1 have changed sides, for all runs at once.

    Runs of the first system meet runs of the second, each equally often; with no sentence swapped the mean over these
    meetings is the difference of the means. So seeds need not correspond, nor be equally many.

    Args:
        signed_a, signed_b: (S, K, C), counts summed with each sentence's sign.
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
    """Places (M,) of runs of two systems that meet: all, or, where that is more than MEETINGS, as many rounds of their
    least common multiple as fit, at least one. In each round every run comes equally often."""
    once = math.lcm(first, second)
    rounds = min(first * second, max(once, MEETINGS // once * once))
    turn = np.arange(rounds)
    return turn % first, (turn + turn // once) % second


def _enumerated(first: System, second: System, differing: NDArray[np.intp]) -> Floats:
    """(2^m,): the differences after each way of swapping the m sentences that differ."""
    number = len(differing)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=number))).reshape(2**number, number)
    signed = []
    for system in (first, second):
        fixed = np.delete(system.counts, differing, axis=1).sum(1)  # (S, K)
        signed.append(fixed[..., None] + np.einsum("cm,smk->skc", signs, system.counts[:, differing]))
    return _swapped(first, second, *signed)


def _effect(delta: float, first: System, second: System) -> float:
    """Cohen's d of the sentences' jackknife pseudo-values, which for a mean over sentences are the differences."""
    without = [system.scores(system.counts.sum(1, keepdims=True) - system.counts).mean(0) for system in (first, second)]
    number = first.counts.shape[1]
    pseudo = number * delta - (number - 1) * (without[0] - without[1])  # (N,)
    deviation = float(pseudo.std(ddof=1)) if number > 1 else 0.0
    return delta / deviation if deviation > 1e-12 else math.nan


# --- seeds alone, several tests --------------------------------------------------------------------------------------


def sign_flip(values: ArrayLike) -> float:
    """The two-sided p that differences (n,), one a seed, have a mean of 0: all 2ⁿ flips of their signs are tried,
    and it cannot go below 2 / 2ⁿ."""
    observed = np.asarray(values, dtype=np.float64)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(observed))))
    reached = np.abs(signs @ observed) >= abs(observed.sum()) - 1e-9
    return float(reached.mean())


def holm(p_values: ArrayLike) -> Floats:
    """Holm (1979): p-values corrected for their number, step by step from the smallest; NaN stays NaN, uncounted."""
    values = np.asarray(p_values, dtype=np.float64)
    corrected = np.full_like(values, math.nan)
    defined = np.flatnonzero(~np.isnan(values))
    order = defined[np.argsort(values[defined], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return corrected
