"""Scores of several runs on resampled sentences, and any figure made of them: its interval, p and detectable effect.

A score is recomputed from summed counts in every resample, never averaged over sentences; all runs see the same
resampled sentences. What the intervals cover and what they do not stands in docs/methods/significance.md.

Letters: C resamples, N sentences, S runs (seeds) of a setting, K counts a score is made of.
"""

import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from mtlprune.statistics.standard_errors import LEVEL, ROUNDING, Floats, StandardError

CHUNK = 4_000_000  # weights drawn at a time
SUMS = 8_000_000
"""Sums held at a time, so that memory does not grow with the number of runs."""
_MAX_CACHED_DRAWS = 50_000_000
"""Draws that are kept from one call to the next, of one byte each."""
FEW_SENTENCES = 0.25
"""Counts that are 0 in all but this share of the sentences are summed over the others only."""
_EXACT_IN_FLOAT32 = 2**24  # whole numbers up to here

Score = Callable[[Mapping[str, Floats]], Floats]


@dataclass(frozen=True, eq=False)
class System:
    """The runs of one setting on one task.

    Attributes:
        counts: (S, N, K) whole numbers (floats where the layer is of numbers), the same sentences in the same order for
            every run.
        names: the K names of the counts.
        score: sums by name, each of any shape → scores of that shape (one of ``mtlprune.evaluation.scores.SCORES``).
        seeds: of the S runs, where they are known: two systems with the same ones are resampled seed by seed.
    """

    counts: NDArray[np.integer] | NDArray[np.float64]
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


def summing(
    systems: Mapping[int, System], sentences: int
) -> tuple[Callable[[NDArray[Any]], dict[int, NDArray[Any]]], type[np.floating]]:
    """What sums the counts of systems with a weight or sign for each sentence, (N, C) → for each system (S, K, C), and
    the type of number in which it does so without rounding whole counts.

    Counts of all systems lie side by side, so that a chunk costs one matrix product, (ΣSK, N) by (N, C). Systems that
    count something in few sentences (those of most labels) are summed over these only.
    """
    largest = max(float(system.counts.max(initial=0)) for system in systems.values())
    are_counts = all(np.issubdtype(system.counts.dtype, np.integer) for system in systems.values())
    dtype = np.float32 if are_counts and sentences * largest < _EXACT_IN_FLOAT32 else np.float64
    used = {place: np.flatnonzero(system.counts.any((0, 2))) for place, system in systems.items()}
    sparse = {place: rows for place, rows in used.items() if len(rows) <= FEW_SENTENCES * sentences}
    dense = [place for place in systems if place not in sparse]
    parts = [([place], rows) for place, rows in sparse.items()] + ([(dense, slice(None))] if dense else [])
    tables = []
    for places, rows in parts:
        counts = [systems[place].counts[:, rows] for place in places]  # (S, N', K) each
        tall = np.concatenate([np.concatenate(part.transpose(0, 2, 1)) for part in counts])  # (ΣSK, N')
        # Gold's counts are those of every run: each different row is summed once, and taken where it stands.
        distinct: dict[bytes, int] = {}
        row_of = np.array([distinct.setdefault(row.tobytes(), len(distinct)) for row in tall])
        rows_once = tall[np.unique(row_of, return_index=True)[1]].astype(dtype, order="C")
        tables.append((places, rows, rows_once, row_of))

    def summed(weights: NDArray[Any]) -> dict[int, NDArray[Any]]:
        sums: dict[int, NDArray[Any]] = {}
        for places, rows, rows_once, row_of in tables:
            shapes = [systems[place].counts.shape[::2] for place in places]
            by_system = np.split((rows_once @ weights[rows])[row_of], np.cumsum([*map(math.prod, shapes)])[:-1])
            sums |= {p: part.reshape(*shape, -1) for p, shape, part in zip(places, shapes, by_system, strict=True)}
        return sums

    return summed, dtype


def drawn_times(generator: np.random.Generator, rows: int, sentences: int) -> NDArray[np.intp]:
    """(rows, N): how often each sentence comes where as many are drawn with replacement."""
    sentence_draws = generator.integers(0, sentences, (rows, sentences)) + sentences * np.arange(rows)[:, None]
    return np.bincount(sentence_draws.ravel(), minlength=rows * sentences).reshape(rows, sentences)


def percentiles(booted: Floats) -> tuple[float, float]:
    """(C,) → ends of the 95 % interval; NaN where all are the same, as there is nothing to estimate an error from."""
    low, high = np.percentile(booted, [2.5, 97.5])
    return (float(low), float(high)) if np.ptp(booted) > ROUNDING else (math.nan, math.nan)


def _draw_times(seed: int, sentences: int, resamples: int, stream: tuple[int, ...]) -> Iterator[NDArray[np.integer]]:
    """Draw chunks of C resamples: how often each sentence occurs, (C, N)."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, sentences], spawn_key=stream))
    size = max(1, CHUNK // sentences)
    for start in range(0, resamples, size):
        yield drawn_times(generator, min(size, resamples - start), sentences)


@functools.lru_cache(maxsize=1)
def _cached_times(seed: int, sentences: int, resamples: int, stream: tuple[int, ...]) -> list[NDArray[np.integer]]:
    """Keep what `_draw_times` draws for the next call, because a page tests many tables of the same sentences."""
    return [times.astype(np.uint8) for times in _draw_times(seed, sentences, resamples, stream)]


def resampled_sums(
    systems: Sequence[System], resamples: int, seed: int, stream: tuple[int, ...] = ()
) -> Iterator[list[Floats]]:
    """Sum the counts of every system over sentences drawn with replacement, the same sentences for all systems.

    Args:
        stream: which of several independent streams of random numbers of ``seed`` the sentences are drawn from.

    Yields:
        Part of the resamples: for each system its sums, (C, S, K).
    """
    sentences = systems[0].counts.shape[1]
    summed, dtype = summing(dict(enumerate(systems)), sentences)
    draw = _cached_times if resamples * sentences <= _MAX_CACHED_DRAWS else _draw_times
    rows = max(1, SUMS // sum(system.totals.size for system in systems))
    for chunk in draw(seed, sentences, resamples, stream):
        for times in (chunk[start : start + rows] for start in range(0, len(chunk), rows)):
            sums = summed(times.T.astype(dtype, order="C"))
            yield [np.moveaxis(sums[place], -1, 0).astype(np.float64) for place in range(len(systems))]


class Resampled(NamedTuple):
    """A figure of each of several runs: (S,) on all sentences, (C, S) on resampled ones."""

    observed: Floats
    booted: Floats

    def __sub__(self, subtrahend: "Resampled") -> "Resampled":
        return weighted([self, subtrahend], [1, -1])


def weighted(figures: Sequence[Resampled], weights: Sequence[float] | Floats | None = None) -> Resampled:
    """The weighted sum of figures of the same runs; their mean without weights."""
    factors = np.full(len(figures), 1 / len(figures)) if weights is None else weights
    observed, booted = (
        sum(w * part for w, part in zip(factors, parts, strict=True)) for parts in zip(*figures, strict=True)
    )
    return Resampled(np.asarray(observed), np.asarray(booted))


def resampled_scores(
    systems: Sequence[System],
    resamples: int,
    seed: int,
    on_chunk: Callable[[], None] = lambda: None,
    stream: tuple[int, ...] = (),
) -> list[Resampled]:
    """Score every system on all sentences and on resampled ones, which are the same for all systems.

    Args:
        on_chunk: called after each chunk of resamples.
        stream: as in `resampled_sums`.
    """
    booted: list[list[Floats]] = [[] for _ in systems]
    for sums in resampled_sums(systems, resamples, seed, stream) if systems else ():
        for parts, system, part in zip(booted, systems, sums, strict=True):
            parts.append(system.scores(part))
        on_chunk()
    return [
        Resampled(system.scores(system.totals), np.concatenate(parts))
        for system, parts in zip(systems, booted, strict=True)
    ]


def pooled_deviation(figures: Sequence[Floats]) -> float:
    """The standard deviation between seeds that several figures (S,) have in common; NaN where each has one seed."""
    free = sum(len(deviation) - 1 for deviation in figures)
    return (
        math.sqrt(math.fsum(float(((figure - figure.mean()) ** 2).sum()) for figure in figures) / free)
        if free
        else math.nan
    )


def by_draw(figure: Resampled, draws: Sequence[Hashable]) -> Resampled:
    """A figure of each run as one of each draw, the mean over its runs: runs that share a draw are one case of it."""
    rows = [[row for row, draw_of_row in enumerate(draws) if draw_of_row == draw] for draw in dict.fromkeys(draws)]
    observed, booted = (np.stack([part[..., row].mean(-1) for row in rows], -1) for part in figure)
    return Resampled(observed, booted)


def ratio_over_seeds(top: tuple[Floats, Floats], bottom: tuple[Floats, Floats]) -> tuple[float, float]:
    """95 % interval of a ratio of two figures' means over the same runs (Fieller 1954): the ratios θ for which the mean
    of top − θ · bottom is not shown to differ from 0, by the p of `Contrast.of`.

    NaN where the mean of ``bottom`` is not shown to differ from 0: no ratio is then excluded on some side, or only
    those between two others are.

    Args:
        top, bottom: (S,) and (C, S) each, as of a `Resampled`.
    """
    if not StandardError.of([bottom[0]], [bottom[1]]).two_sided(float(bottom[0].mean())) < LEVEL:
        return math.nan, math.nan
    ratio = float(top[0].mean() / bottom[0].mean())

    def excess(theta: float) -> float:
        excess_values, draws = top[0] - theta * bottom[0], top[1] - theta * bottom[1]
        p = StandardError.of([excess_values], [draws]).two_sided(float(excess_values.mean()))
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
        for system, sums_of_sides, differences_of_sides in pairs:
            between = (signs @ differences_of_sides.transpose(1, 0, 2).reshape(sentences, -1)).reshape(
                len(signs), runs, -1
            )
            deltas.append(
                (system.scores((sums_of_sides + between) / 2) - system.scores((sums_of_sides - between) / 2)).mean(1)
            )
        return np.asarray(np.mean(deltas, 0))

    observed, generator, reached = abs(float(delta(np.ones((1, sentences)))[0])), np.random.default_rng([seed, 3]), 1
    for start in range(0, resamples, size := max(1, CHUNK // sentences)):
        signs = 2 * generator.integers(0, 2, (min(size, resamples - start), sentences)) - 1
        reached += int((np.abs(delta(signs.astype(np.float64))) >= observed - 1e-9).sum())
    return reached / (1 + resamples)
