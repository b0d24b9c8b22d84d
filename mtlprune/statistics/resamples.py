"""Scores of several runs on bootstrap samples of the sentences, and quantities that are computed from such scores.

In every resample, a score is computed from counts that are summed over sentences, never as an average over sentences.
All runs are scored on the same resampled sentences. The page docs/methods/significance.md explains which sources of
variance the intervals cover.

Letters in shapes: C resamples, N sentences, S runs (seeds) of a setting, K counts from which a score is computed.
"""

import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from mtlprune.statistics.permutation import tail
from mtlprune.statistics.standard_errors import LEVEL, ROUNDING, Floats, StandardError

CHUNK = 4_000_000
"""Number of sentence weights that are drawn at a time."""
SUMS = 8_000_000
"""Number of sums that are held in memory at a time, so that memory does not grow with the number of runs."""
_MAX_CACHED_DRAWS = 50_000_000
"""Largest number of draws, of one byte each, that are cached between calls."""
FEW_SENTENCES = 0.25
"""If the counts of a system are nonzero in this share of the sentences or less, only these sentences are summed."""
_EXACT_IN_FLOAT32 = 2**24  # float32 represents whole numbers up to this number exactly

Score = Callable[[Mapping[str, Floats]], Floats]


@dataclass(frozen=True, eq=False)
class System:
    """The counts of all runs of one setting on one task.

    Attributes:
        counts: (S, N, K) whole numbers, or floats for a layer of numbers. All runs have the same sentences in the same
            order.
        names: names of the K counts.
        score: function from sums by name, arrays of any common shape, to scores of that shape. It is one of
            ``mtlprune.evaluation.scores.SCORES``.
        seeds: training seeds of the S runs, or () if unknown. Two systems with the same seeds are compared seed by
            seed.
    """

    counts: NDArray[np.integer] | NDArray[np.float64]
    names: tuple[str, ...]
    score: Score
    seeds: tuple[int, ...] = ()

    @functools.cached_property
    def totals(self) -> Floats:
        """The counts summed over all sentences: (S, K)."""
        return self.counts.sum(1).astype(np.float64)

    def scores(self, sums: Floats) -> Floats:
        """Compute scores from summed counts: (..., K) → (...)."""
        return self.score({name: sums[..., k] for k, name in enumerate(self.names)})


def summing(
    systems: Mapping[int, System], sentences: int
) -> tuple[Callable[[NDArray[Any]], dict[int, NDArray[Any]]], type[np.floating]]:
    """Build a function that sums every system's counts under given sentence weights.

    The counts of all systems are rows of one matrix, so that a chunk of resamples costs one matrix product, (ΣSK, N) by
    (N, C). Systems with nonzero counts in few sentences, such as those of most labels, are summed over these sentences
    only.

    Args:
        systems: the systems by number, all with the same sentences.
        sentences: number of sentences N.

    Returns:
        The function from weights or signs of sentences (N, C) to sums {number of the system: (S, K, C)}, and the dtype
        of weights with which it sums whole counts without rounding.
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
        # The counts of gold items are the same for all runs. Each distinct row is therefore multiplied only once, and
        # `row_of` distributes the sums to all rows.
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
    """Draw N sentences with replacement, and return how often each sentence is drawn in each resample: (rows, N)."""
    sentence_draws = generator.integers(0, sentences, (rows, sentences)) + sentences * np.arange(rows)[:, None]
    return np.bincount(sentence_draws.ravel(), minlength=rows * sentences).reshape(rows, sentences)


def percentiles(booted: Floats) -> tuple[float, float]:
    """Return the 95 % percentile interval of values on resamples (C,); (NaN, NaN) if all values are equal."""
    low, high = np.percentile(booted, [2.5, 97.5])
    return (float(low), float(high)) if np.ptp(booted) > ROUNDING else (math.nan, math.nan)


def _draw_times(seed: int, sentences: int, resamples: int, stream: tuple[int, ...]) -> Iterator[NDArray[np.integer]]:
    """Yield chunks of resamples: how often each sentence is drawn, (C, N)."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, sentences], spawn_key=stream))
    size = max(1, CHUNK // sentences)
    for start in range(0, resamples, size):
        yield drawn_times(generator, min(size, resamples - start), sentences)


@functools.lru_cache(maxsize=1)
def _cached_times(seed: int, sentences: int, resamples: int, stream: tuple[int, ...]) -> list[NDArray[np.integer]]:
    """Return the chunks of `_draw_times` from a cache, because a report tests many tables on the same sentences."""
    return [times.astype(np.uint8) for times in _draw_times(seed, sentences, resamples, stream)]


def resampled_sums(
    systems: Sequence[System], resamples: int, seed: int, stream: tuple[int, ...] = ()
) -> Iterator[list[Floats]]:
    """Yield chunks of resamples with the summed counts of every system, (C, S, K) each.

    Sentences are drawn with replacement, and the same draws are used for all systems.

    Args:
        systems: the systems, with the same sentences in the same order.
        resamples: number of resamples.
        seed: seed of the resamples.
        stream: the spawn key of the stream of random numbers, so that one seed yields several independent streams.
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
    """A quantity, such as a score, of each of S runs, on all sentences and on resampled sentences."""

    observed: Floats
    """(S,) values on all sentences."""
    booted: Floats
    """(C, S) values on resampled sentences."""

    def __sub__(self, subtrahend: "Resampled") -> "Resampled":
        return weighted([self, subtrahend], [1, -1])


def weighted(figures: Sequence[Resampled], weights: Sequence[float] | Floats | None = None) -> Resampled:
    """Compute the weighted sum of quantities of the same runs, or their mean without weights."""
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
    """Compute the scores of every system on all sentences and on resampled sentences, the same for all systems.

    Args:
        systems: the systems, with the same sentences in the same order.
        resamples: number of resamples C.
        seed: seed of the resamples.
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
    """Compute the pooled standard deviation between seeds of several arrays (S,); NaN if each has a single seed."""
    free = sum(len(figure) - 1 for figure in figures)
    return (
        math.sqrt(math.fsum(float(((figure - figure.mean()) ** 2).sum()) for figure in figures) / free)
        if free
        else math.nan
    )


def by_draw(figure: Resampled, draws: Sequence[Hashable]) -> Resampled:
    """Average a quantity over runs that share a random draw, because together they are one observation of the draw.

    Args:
        figure: the quantity of each run.
        draws: the draw to which each run belongs.

    Returns:
        The quantity of each draw, in order of first occurrence.
    """
    rows = [[row for row, draw_of_row in enumerate(draws) if draw_of_row == draw] for draw in dict.fromkeys(draws)]
    observed, booted = (np.stack([part[..., row].mean(-1) for row in rows], -1) for part in figure)
    return Resampled(observed, booted)


def ratio_over_seeds(top: tuple[Floats, Floats], bottom: tuple[Floats, Floats]) -> tuple[float, float]:
    """Compute the 95 % interval of a ratio of two means over the same runs (Fieller 1954).

    The interval contains the ratios θ for which the mean of top − θ · bottom does not differ significantly from 0, by
    the p-value of ``Contrast.of``.

    Args:
        top: (S,) values on all sentences and (C, S) values on resampled sentences, as in ``Resampled``.
        bottom: the same of the denominator.

    Returns:
        The ends of the interval; (NaN, NaN) if the mean of ``bottom`` does not differ significantly from 0, because
        the set of ratios is then unbounded.
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
    """Compute the two-sided p-value of a mean difference of several scores by approximate randomisation.

    Sentences are swapped at random between the two runs of each seed, for all scores and seeds together. The test
    treats the runs as fixed.

    Args:
        first: a system for each score, all with the same sentences and seeds.
        second: the systems with which they are compared, in the same order and with the same sentences and seeds.
        resamples: number of random swaps.
        seed: seed of the swaps.
    """
    runs, sentences, _ = first[0].counts.shape
    pairs = [(a, (a.counts + b.counts).sum(1), a.counts - b.counts) for a, b in zip(first, second, strict=True)]

    def delta(signs: Floats) -> Floats:
        """Compute the mean difference for signs of sentences, where −1 means swapped: (C, N) → (C,)."""
        deltas = []
        for system, sums_of_sides, differences_of_sides in pairs:
            between = (signs @ differences_of_sides.transpose(1, 0, 2).reshape(sentences, -1)).reshape(
                len(signs), runs, -1
            )
            deltas.append(
                (system.scores((sums_of_sides + between) / 2) - system.scores((sums_of_sides - between) / 2)).mean(1)
            )
        return np.asarray(np.mean(deltas, 0))

    observed, generator, null = abs(float(delta(np.ones((1, sentences)))[0])), np.random.default_rng([seed, 3]), []
    for start in range(0, resamples, size := max(1, CHUNK // sentences)):
        signs = 2 * generator.integers(0, 2, (min(size, resamples - start), sentences)) - 1
        null.append(np.abs(delta(signs.astype(np.float64))))
    return tail(observed, np.concatenate(null))
