"""Do two settings differ beyond the chance of these seeds and sentences?

A score is recomputed from summed counts in every resample, never averaged over sentences; a setting's score is the mean
over its runs (seeds), which all see the same resampled sentences. The main interval and its p are over seeds and
sentences; the others hold the runs fixed. What they cover and what they do not stands in docs/significance.md.

Labels are counted by the rules of the layer's main score, so that summed over them they give its counts: POS tags,
entities, arcs by relation (right head and right relation), brackets as EVALB counts them, arguments without V.

Letters: R resamples, C of them a chunk, N sentences, S runs (seeds) of a setting, K counts a score is made of, M
meetings of a run of one setting with one of another.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from mtlprune.evaluation.scores import SCORES, argument_places, brackets, fenceposts
from mtlprune.layers import kind_of
from mtlprune.sentence import Sentence
from mtlprune.statistics.permutation import corrected, tail
from mtlprune.statistics.standard_errors import CONSTANT, LEVEL, NOTHING, Floats, StandardError

CHUNK = 4_000_000  # weights drawn at a time
SUMS = 8_000_000
"""Sums held at a time, so that memory does not grow with the number of runs."""
KEPT = 50_000_000
"""Draws that are kept from one call to the next, of two bytes each."""
FEW_SENTENCES = 0.25
"""Counts that are 0 in all but this share of the sentences (those of most labels) are summed over the others only."""
MEETINGS = 100
"""Up to ten runs a side, each meets each; of more, evenly chosen ones."""
EXACT_IN_FLOAT32 = 2**24  # whole numbers up to here

Score = Callable[[Mapping[str, Floats]], Floats]


@dataclass(frozen=True, eq=False)
class System:
    """The runs of one setting on one task.

    Attributes:
        counts: (S, N, K) whole numbers, the same sentences in the same order for every run.
        names: the K names of the counts.
        score: sums by name, each of any shape → scores of that shape (one of ``mtlprune.evaluation.scores.SCORES``).
        seeds: of the S runs, where they are known: two systems with the same ones are resampled seed by seed.
    """

    counts: NDArray[np.integer]
    names: tuple[str, ...]
    score: Score
    seeds: tuple[int, ...] = ()

    @functools.cached_property
    def totals(self) -> Floats:
        """(S, K), summed over sentences."""
        return self.counts.sum(1).astype(np.float64)

    def scores(self, sums: Floats) -> Floats:
        """(..., K) summed counts → (...) scores."""
        return self.score({name: sums[..., k] for k, name in enumerate(self.names)})


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
        """Why there is no interval, over seeds and sentences or with one run over sentences; empty where there is."""
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
    drawn = {}
    for sentences in {systems[first].counts.shape[1] for first, _ in pairs}:
        here = sorted({place for pair in pairs for place in pair if systems[place].counts.shape[1] == sentences})
        within = [pair for pair in pairs if systems[pair[0]].counts.shape[1] == sentences]
        drawn.update(_drawn({place: systems[place] for place in here}, within, sentences, resamples, seed))
    return [_difference(systems[a], systems[b], *drawn[a, b], resamples) for a, b in pairs]


def _difference(first: System, second: System, booted: Sequence[Floats], swapped: Floats, resamples: int) -> Difference:
    """Test of two systems by their scores (R, S) on resampled sentences, and differences (R,) of swapped ones."""
    scores = [system.scores(system.totals) for system in (first, second)]
    delta = float(scores[0].mean() - scores[1].mean())
    both = np.concatenate([first.counts, second.counts])
    differing = np.flatnonzero((both != both[:1]).any((0, 2)))  # where swapping changes anything
    exact = 2 ** min(len(differing), 60) <= resamples
    if exact:
        swapped = _enumerated(first, second, differing)
    reached = int((np.abs(swapped) >= abs(delta) - 1e-9).sum())
    error = _error(first, second, scores, booted)
    wide = error.half_width()
    drawn = booted[0].mean(1) - booted[1].mean(1)
    low, high = _percentiles(drawn)
    seen_by = error if min(map(len, scores)) > 1 else StandardError.of([np.full(1, delta)], [drawn[:, None]])
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
        return StandardError((), (), (), math.nan, "there are not two seeds")
    if _paired(first, second):
        return StandardError.of([scores[0] - scores[1]], [booted[0] - booted[1]])
    return StandardError.of([scores[0], -scores[1]], [booted[0], -booted[1]])


def _percentiles(booted: Floats) -> tuple[float, float]:
    """(C,) → ends of the 95 % interval; NaN where all are the same, as there is nothing to estimate an error from."""
    low, high = np.percentile(booted, [2.5, 97.5])
    return (float(low), float(high)) if np.ptp(booted) > NOTHING else (math.nan, math.nan)


# --- resampling ------------------------------------------------------------------------------------------------------


def _drawn(
    systems: Mapping[int, System], pairs: Sequence[tuple[int, int]], sentences: int, resamples: int, seed: int
) -> dict[tuple[int, int], tuple[list[Floats], Floats]]:
    """Pair → scores (R, S) of either system on bootstrapped sentences, and differences (R,) of sentences swapped.

    Counts of all systems lie side by side, so that a chunk costs two matrix products, (C, N) by (N, ΣSK).
    """
    largest = max(float(system.counts.max(initial=0)) for system in systems.values())
    exact = np.float32 if sentences * largest < EXACT_IN_FLOAT32 else np.float64
    parts = _side_by_side(systems, sentences, exact)
    scores = {place: np.empty((resamples, len(system.counts))) for place, system in systems.items()}
    swapped = {pair: np.empty(resamples) for pair in pairs}
    step = max(1, SUMS // sum(system.totals.size for system in systems.values()))
    draws = _kept if resamples * sentences <= KEPT else _draws
    done = 0
    for drawn in draws(seed, sentences, resamples):
        weights, signs = (part.T.astype(exact, order="C") for part in drawn)  # (N, C)
        for block in (slice(start, start + step) for start in range(0, weights.shape[1], step)):
            booted, signed = (_summed(parts, draws[:, block]) for draws in (weights, signs))
            here = slice(done + block.start, done + min(block.stop, weights.shape[1]))
            for place, system in systems.items():
                scores[place][here] = system.scores(np.moveaxis(booted[place], 1, -1).astype(np.float64)).T
            for a, b in pairs:
                swapped[a, b][here] = _swapped(systems[a], systems[b], signed[a], signed[b])
        done += weights.shape[1]
    return {(a, b): ([scores[a], scores[b]], swapped[a, b]) for a, b in pairs}


def _draws(seed: int, sentences: int, resamples: int) -> Iterator[tuple[NDArray[np.integer], NDArray[np.integer]]]:
    """In chunks of C resamples, how often each sentence was drawn and on which side it stands, 1 or −1; (C, N) each."""
    boot, swap = (np.random.default_rng(child) for child in np.random.SeedSequence([seed, sentences]).spawn(2))
    size = max(1, CHUNK // sentences)
    for done in range(0, resamples, size):
        rows = min(size, resamples - done)
        yield _times(boot, rows, sentences), 2 * swap.integers(0, 2, (rows, sentences), dtype=np.int8) - 1


@functools.lru_cache(maxsize=1)
def _kept(seed: int, sentences: int, resamples: int) -> list[tuple[NDArray[np.integer], NDArray[np.integer]]]:
    """The same, kept for the next call: a page tests many tables of the same sentences."""
    return [(times.astype(np.uint8), signs) for times, signs in _draws(seed, sentences, resamples)]


_Part = tuple[dict[int, System], Any, NDArray[np.floating], NDArray[np.intp]]
"""Systems, the sentences in which they count anything, the different rows (D, N) of their counts there, and which of
these rows are theirs, (ΣSK,): gold's counts are those of every run."""


def _side_by_side(systems: Mapping[int, System], sentences: int, exact: type[np.floating]) -> list[_Part]:
    """All systems in one part, but for those that count something in few sentences: each of them is one."""
    used = {place: np.flatnonzero(system.counts.any((0, 2))) for place, system in systems.items()}
    few = {place for place, rows in used.items() if len(rows) <= FEW_SENTENCES * sentences}
    many = {place: system for place, system in systems.items() if place not in few}
    groups = [({place: systems[place]}, used[place]) for place in few] + ([(many, slice(None))] if many else [])
    parts = []
    for group, rows in groups:
        tall = np.concatenate([_flat(system.counts[:, rows]) for system in group.values()], axis=1).T
        known: dict[bytes, int] = {}
        places = np.array([known.setdefault(row.tobytes(), len(known)) for row in tall])
        parts.append((group, rows, tall[np.unique(places, return_index=True)[1]].astype(exact, order="C"), places))
    return parts


def _flat(counts: NDArray[np.integer]) -> NDArray[np.integer]:
    """(S, N, K) → (N, SK)"""
    return counts.transpose(1, 0, 2).reshape(counts.shape[1], counts.shape[0] * counts.shape[2])


def _summed(parts: Sequence[_Part], draws: NDArray[Any]) -> dict[int, NDArray[Any]]:
    """(N, C) → for each system (S, K, C): its counts, summed with each sentence's weight or sign."""
    sums: dict[int, NDArray[Any]] = {}
    for group, rows, tall, places in parts:
        sums.update(zip(group, _split(group.values(), (tall @ draws[rows])[places]), strict=True))
    return sums


def _times(generator: np.random.Generator, rows: int, sentences: int) -> NDArray[np.intp]:
    """(rows, N): how often each sentence comes where as many are drawn with replacement."""
    drawn = generator.integers(0, sentences, (rows, sentences)) + sentences * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * sentences).reshape(rows, sentences)


def _paired(first: System, second: System) -> bool:
    return bool(first.seeds) and first.seeds == second.seeds


def resampled_sums(systems: Sequence[System], resamples: int, seed: int) -> Iterator[list[Floats]]:
    """Counts of every system (C, S, K), summed over sentences drawn with replacement, the same for all; in chunks."""
    sentences = systems[0].counts.shape[1]
    generator = np.random.default_rng([seed, sentences])
    tall = np.concatenate([_flat(each.counts) for each in systems], axis=1).T.astype(float)
    size = max(1, CHUNK // sentences)
    for done in range(0, resamples, size):
        rows = min(size, resamples - done)
        yield [np.moveaxis(part, -1, 0) for part in _split(systems, tall @ _times(generator, rows, sentences).T)]


class Resampled(NamedTuple):
    """A figure of each of several runs: (S,) on all sentences, (C, S) on resampled ones."""

    observed: Floats
    booted: Floats

    def __sub__(self, other: "Resampled") -> "Resampled":
        return weighted([self, other], [1, -1])


def weighted(figures: Sequence[Resampled], weights: Sequence[float] | Floats | None = None) -> Resampled:
    """The weighted sum of figures of the same runs; their mean without weights."""
    each = np.full(len(figures), 1 / len(figures)) if weights is None else weights
    observed, booted = (
        sum(w * part for w, part in zip(each, parts, strict=True)) for parts in zip(*figures, strict=True)
    )
    return Resampled(np.asarray(observed), np.asarray(booted))


def resampled_scores(
    systems: Sequence[System], resamples: int, seed: int, on_chunk: Callable[[], None] = lambda: None
) -> list[Resampled]:
    """The scores of every system, on all sentences and on resampled ones, the same for all; ``on_chunk`` is called
    after each chunk of resamples."""
    booted: list[list[Floats]] = [[] for _ in systems]
    for sums in resampled_sums(systems, resamples, seed) if systems else ():
        for parts, system, part in zip(booted, systems, sums, strict=True):
            parts.append(system.scores(part))
        on_chunk()
    return [
        Resampled(one.scores(one.totals), np.concatenate(parts)) for one, parts in zip(systems, booted, strict=True)
    ]


def over_seeds(observed: Floats, booted: Floats, one_run: bool = False) -> dict[str, float]:
    """Any figure of several runs, its mean, interval, two-sided p and minimum detectable effect over seeds and
    sentences, as of a Difference, and ``free``, the degrees of freedom of seeds; over sentences alone where there is
    one run. NaN where no error can be estimated.

    Args:
        observed: (S,), of each run on all sentences.
        booted: (C, S), of each run on resampled sentences.
        one_run: also one run has a p, by the share of resamples on the other side of 0.
    """
    delta, runs = float(observed.mean()), len(observed)
    error = StandardError.of([observed], [booted])
    least = error.detectable()
    if runs < 2:
        low, high = _percentiles(booted[:, 0])
        p = min(1.0, 2 * min(tail(0.0, sign * booted[:, 0]) for sign in (1, -1))) if one_run else math.nan
        return {"delta": delta, "low": low, "high": high, "p": p, "free": math.nan, "detectable": least}
    wide, p = error.half_width(), error.two_sided(delta)
    return {"delta": delta, "low": delta - wide, "high": delta + wide, "p": p, "free": runs - 1, "detectable": least}


def within_margin(observed: Floats, booted: Floats, margin: float) -> tuple[float, float]:
    """p, one-sided, that a figure of several runs is above −margin, and the larger p of two that it is within ±margin.

    NaN where there is one run, or no error can be estimated. The arguments are those of `over_seeds`.
    """
    if len(observed) < 2:
        return math.nan, math.nan
    error, delta = StandardError.of([observed], [booted]), float(observed.mean())
    return error.upper_tail(margin + delta), error.upper_tail(margin - abs(delta))


def ratio_over_seeds(top: tuple[Floats, Floats], bottom: tuple[Floats, Floats]) -> tuple[float, float]:
    """95 % interval of a ratio of two figures' means over the same runs (Fieller 1954): the ratios θ for which the mean
    of top − θ · bottom is not shown to differ from 0, by the p of `over_seeds`.

    NaN where the mean of ``bottom`` is not shown to differ from 0: no ratio is then excluded on some side, or only
    those between two others are.

    Args:
        top, bottom: (S,) and (C, S), as `over_seeds` takes them.
    """
    if not StandardError.of([bottom[0]], [bottom[1]]).two_sided(float(bottom[0].mean())) < LEVEL:
        return math.nan, math.nan
    ratio = float(top[0].mean() / bottom[0].mean())

    def excess(theta: float) -> float:
        apart, drawn = top[0] - theta * bottom[0], top[1] - theta * bottom[1]
        p = StandardError.of([apart], [drawn]).two_sided(float(apart.mean()))
        return (1.0 if math.isnan(p) else p) - LEVEL

    ends = []
    for sign in (-1, 1):
        step = 0.1
        while excess(ratio + sign * step) > 0:
            step *= 2
        ends.append(float(optimize.brentq(excess, ratio, ratio + sign * step, xtol=1e-5)))
    return ends[0], ends[1]


def swapped_p(first: Sequence[System], second: Sequence[System], resamples: int, seed: int) -> float:
    """Two-sided p of the mean difference of several scores, sentences swapped at random between the runs of each seed.

    Of these runs: it holds them fixed. Sentences change sides for all scores and seeds together.

    Args:
        first, second: a system for each score, all with the same sentences and seeds.
    """
    runs, sentences, _ = first[0].counts.shape
    pairs = [(a, (a.counts + b.counts).sum(1), a.counts - b.counts) for a, b in zip(first, second, strict=True)]

    def delta(signs: Floats) -> Floats:
        """(C, N) → (C,)"""
        deltas = []
        for system, both, apart in pairs:
            between = (signs @ apart.transpose(1, 0, 2).reshape(sentences, -1)).reshape(len(signs), runs, -1)
            deltas.append((system.scores((both + between) / 2) - system.scores((both - between) / 2)).mean(1))
        return np.asarray(np.mean(deltas, 0))

    observed, generator, reached = abs(float(delta(np.ones((1, sentences)))[0])), np.random.default_rng([seed, 3]), 1
    for done in range(0, resamples, size := max(1, CHUNK // sentences)):
        signs = 2 * generator.integers(0, 2, (min(size, resamples - done), sentences)) - 1
        reached += int((np.abs(delta(signs.astype(np.float64))) >= observed - 1e-9).sum())
    return reached / (1 + resamples)


def _split(systems: Iterable[System], sums: NDArray[Any]) -> list[NDArray[Any]]:
    """(ΣSK, C) → for each system (S, K, C)."""
    shapes = [system.counts.shape[::2] for system in systems]
    parts = np.split(sums, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
    return [part.reshape(*shape, -1) for part, shape in zip(parts, shapes, strict=True)]


def _swapped(first: System, second: System, signed_a: ArrayLike, signed_b: ArrayLike) -> Floats:
    """(C,): the difference after sentences of sign −1 have changed sides, for all runs at once.

    Runs of the first system meet runs of the second, each equally often; with no sentence swapped the mean over these
    meetings is the difference of the means. So seeds need not correspond, nor be equally many.

    Args:
        signed_a, signed_b: (S, K, C), counts summed with each sentence's sign.
    """
    ours, theirs = _meetings(len(first.counts), len(second.counts))
    a, b = (np.asarray(signed, np.float64) for signed in (signed_a, signed_b))
    stay_a, stay_b = ((side.totals[..., None] + sums) / 2 for side, sums in ((first, a), (second, b)))  # (S, K, C)
    move_a, move_b = stay_a - a, stay_b - b
    mine, other = stay_a[ours] + move_b[theirs], move_a[ours] + stay_b[theirs]  # (M, K, C)
    return (first.scores(np.moveaxis(mine, 1, -1)) - second.scores(np.moveaxis(other, 1, -1))).mean(0)


@functools.cache
def _meetings(first: int, second: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
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


# --- sizes -----------------------------------------------------------------------------------------------------------


def _effect(delta: float, first: System, second: System) -> float:
    """Cohen's d of the sentences' jackknife pseudo-values, which for a mean over sentences are the differences."""
    without = [system.scores(system.counts.sum(1, keepdims=True) - system.counts).mean(0) for system in (first, second)]
    number = first.counts.shape[1]
    pseudo = number * delta - (number - 1) * (without[0] - without[1])  # (N,)
    spread = float(pseudo.std(ddof=1)) if number > 1 else 0.0
    return delta / spread if spread > 1e-12 else math.nan


# --- seeds alone, several tests --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignFlip:
    """A two-sided sign-flip test over paired seeds, all flips enumerated."""

    p: float
    floor: float
    """2 / 2ⁿ: it cannot go below."""
    agreeing: int
    """Seeds whose difference has the sign of the mean."""
    seeds: int


def sign_flip(values: ArrayLike) -> SignFlip:
    """Test differences (n,), one a seed, against a mean of 0. n up to 20. Raises ValueError for more, or none."""
    observed = np.asarray(values, dtype=np.float64)
    if not 1 <= len(observed) <= 20:
        raise ValueError(f"expected 1 to 20 differences, found {len(observed)}")
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(observed))))
    reached = np.abs(signs @ observed) >= abs(observed.sum()) - 1e-9
    agreeing = int((np.sign(observed) == np.sign(observed.sum())).sum())
    return SignFlip(float(reached.mean()), min(1.0, 2 / len(signs)), agreeing, len(observed))


def only_not_shown(frame: Any, p: str = "holm") -> Any:
    """A data frame with ``detectable`` only in rows whose p in column ``p`` shows nothing; NaN where it has none."""
    frame = frame.reindex(columns=[*dict.fromkeys([*frame, "detectable"])])
    return frame.assign(detectable=frame["detectable"].where(~(frame[p] < LEVEL)))


def holm(p_values: ArrayLike) -> Floats:
    """Holm (1979): p-values corrected for their number, step by step from the smallest; NaN stays NaN, uncounted."""
    values = np.asarray(p_values, dtype=np.float64)
    corrected = np.full_like(values, math.nan)
    defined = np.flatnonzero(~np.isnan(values))
    order = defined[np.argsort(values[defined], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return corrected


# -- differences label by label ----------------------------------------------------------------------------------------


COUNTS = ("correct", "gold", "predicted")
FEW = 20
"""Labels with fewer gold items in all are marked: a few items tell little."""
Counted = dict[str, tuple[int, int, int]]
"""Label → correct, gold, predicted."""


@dataclass(frozen=True)
class LabelDifference:
    """One label: joint training minus single-task training."""

    label: str
    items: int
    """In gold."""
    joint: float
    """Mean F1 over seeds, in percent."""
    single: float
    difference: Difference
    q: float
    """difference.p after Benjamini-Hochberg over the labels of the task with enough items; NaN for those with few."""

    @property
    def few(self) -> bool:
        return self.items < FEW


def count_labels(layer: str, gold: Sentence, predicted: Sentence) -> Counted | None:
    """Counts of every label that occurs; None where gold does not know the layer.

    Raises:
        ValueError: the sentences do not have the same words, or nothing was predicted.
    """
    if gold.words != predicted.words or predicted.get(layer) is None:
        raise ValueError(
            f"sentence {gold.id!r}: gold and prediction do not have the same words, or no {layer} predicted"
        )
    if (kind := gold.kind(layer)) is None:
        return None
    items = _ITEMS[kind_of(kind)]
    mine, theirs = (Counter(items(side.get(layer), fenceposts(gold, kind))) for side in (gold, predicted))
    table: dict[str, list[int]] = {}
    for place, counter in enumerate((mine & theirs, mine, theirs)):
        for item, number in counter.items():
            table.setdefault(item[-1], [0, 0, 0])[place] += number
    return {label: (row[0], row[1], row[2]) for label, row in table.items()}


_ITEMS: dict[str, Callable[[Any, list[int]], Any]] = {
    "tags": lambda tags, _: enumerate(tags),
    "spans": lambda spans, _: set(map(tuple, spans)),
    "tree": lambda tree, _: zip(range(len(tree.heads)), *tree, strict=True),
    "brackets": brackets,
    "frames": lambda frames, _: argument_places(frames),
}
"""By kind: what the score counts, each with its label last, of a value and the fenceposts of brackets."""


def compare_counted(
    joint: Sequence[Sequence[Mapping[str, tuple[int, int, int]] | None]],
    single: Sequence[Sequence[Mapping[str, tuple[int, int, int]] | None]],
    resamples: int,
    seed: int = 0,
) -> list[LabelDifference]:
    """Every label that gold has, the most frequent first, its difference tested over sentences as tables test theirs.

    Args:
        joint, single: for each run what ``count_labels`` gives for each of the same sentences.
    """
    known = [place for place, row in enumerate(single[0]) if row is not None]
    counted = [[[run[place] or {} for place in known] for run in side] for side in (joint, single)]
    totals: Counter[str] = Counter()
    for row in counted[1][0]:
        totals.update({label: numbers[1] for label, numbers in row.items()})
    labels = sorted((label for label in totals if totals[label]), key=lambda label: (-totals[label], label))
    f1 = SCORES["spans"]["f1"]  # 2 · correct / (gold + predicted), whatever the layer
    sides = [_by_label(side, labels) for side in counted]
    systems = [System(side[place], COUNTS, f1) for place in range(len(labels)) for side in sides]
    tested = differences(systems, [(2 * k, 2 * k + 1) for k in range(len(labels))], resamples, seed)
    q = corrected([d.p if totals[label] >= FEW else float("nan") for label, d in zip(labels, tested, strict=True)])
    means = [float(np.mean(system.scores(system.totals))) for system in systems]
    return [
        LabelDifference(label, totals[label], means[2 * k], means[2 * k + 1], tested[k], float(q[k]))
        for k, label in enumerate(labels)
    ]


def _by_label(
    runs: Sequence[Sequence[Mapping[str, tuple[int, int, int]]]], labels: Sequence[str]
) -> NDArray[np.integer]:
    """(L, S, N, K): the counts of every label in every run and sentence."""
    places = {label: place for place, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(runs), len(runs[0]), len(COUNTS)), np.int32)
    for each, run in zip(counts.swapaxes(0, 1), runs, strict=True):  # (L, N, K)
        items = [(places[k], n, *row[k]) for n, row in enumerate(run) for k in row.keys() & places.keys()]
        where = np.array(items, np.int32).reshape(-1, 2 + len(COUNTS))
        each[where[:, 0], where[:, 1]] = where[:, 2:]
    return counts
