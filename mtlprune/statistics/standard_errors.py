"""The standard error of a figure of several runs in its parts, and the distribution that interval and p share.

A run's score varies with its seed, with the sentences, which all runs share, and with both together. The variance
between runs holds the first and the last, and is known from few seeds; how much the last is, and what sentences do to
all runs alike, is known from many sentences. So the error is the sum of a scaled t for each group of seeds, whose
variance is never taken to be below that of the noise of run and sentence, and of a normal (Behrens and Fisher).

Letters: C resamples, S runs (seeds) of a group, Q points of a quadrature.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

Floats = NDArray[np.float64]

LEVEL = 0.05
_POWER = 0.8
"""Share of studies that show a detectable effect."""
CONSTANT = "resampling the sentences does not change it"
ROUNDING = 1e-9
"""Differences between resamples or seeds up to here are rounding."""
POINTS = 48  # Q; so many meet scipy's t to three digits with one degree of freedom, to six with more


@functools.cache
def seen_at(free: float, known_by: float) -> float:
    """The true effect that _POWER of all studies with ``free`` degrees of freedom show at two-sided LEVEL, as a
    multiple of a standard error that is itself an estimate with ``known_by`` degrees of freedom.

    Two things are averaged over: the true variance, where only an estimate is known, and the estimate that the study
    will have. Infinite: a variance that is known.
    """
    (truth, weights), (estimate, chances) = (_variance_ratios(degrees) for degrees in (known_by, free))
    needed = stats.t.isf(LEVEL / 2, free) * np.sqrt(estimate)

    def short(size: float) -> float:
        return _POWER - float(weights @ special.ndtr(size * np.sqrt(truth)[:, None] - needed) @ chances)

    return float(optimize.brentq(short, 0.0, 1e4))


def detectable(error: ArrayLike, free: ArrayLike = math.inf) -> Floats:
    """Minimum detectable effect, in the unit of the standard error: a true effect of that size is shown, at two-sided
    LEVEL, in four of five studies (_POWER) of this size.

    The error is estimated with ``free`` degrees of freedom, of the same shape, those of the seeds; infinite where only
    sentences vary, so that it is known. Bloom (1995) takes t(0.975, df) + t(0.8, df) standard errors, as if the error
    were known; of three seeds, 60 of 100 studies then show the effect.
    """
    multiple = np.vectorize(
        lambda degrees: math.nan if math.isnan(degrees) else seen_at(degrees, degrees), otypes=[float]
    )
    return np.asarray(error) * multiple(free)


@dataclass(frozen=True)
class StandardError:
    """The error of a sum of means over groups of runs with independent seeds, all on the same sentences."""

    seeds: tuple[float, ...]
    """Standard errors of each group's mean, by the variance between its runs."""
    free: tuple[int, ...]
    """Degrees of freedom of each of them, runs − 1."""
    noise: tuple[float, ...]
    """The part of each of them that is noise of run and sentence; the error is no smaller."""
    sentences: float
    """The error by sentences, alike for all runs; NaN where no error can be estimated."""
    unknown: str = ""
    """The reason that no error can be estimated."""

    @classmethod
    def of(cls, observed: Sequence[Floats], booted: Sequence[Floats]) -> "StandardError":
        """Split by the variance between runs, and by how runs vary between resamples.

        What resamples do to runs beside each other is their noise. A share of it is in the variance of the means
        between resamples, and is taken off there, as the variance between runs holds it already. A group of one run has
        no part of its own: its seed is held fixed.

        Args:
            observed: (S,) of each group, on all sentences; the figure is the sum of their means.
            booted: (C, S) of each group, on the same resampled sentences.
        """
        means = np.sum([group.mean(1) for group in booted], 0)
        # Equal means (up to rounding) have no spread that could be split; this also catches resamples without a
        # value.
        if not np.ptp(means) > ROUNDING:
            return cls((), (), (), math.nan, CONSTANT)
        groups = [(values, draws) for values, draws in zip(observed, booted, strict=True) if len(values) > 1]
        free = [len(values) - 1 for values, _ in groups]
        draw_variances = [(draws - draws.mean(1, keepdims=True)).var(0).sum() for _, draws in groups]
        noise = [
            math.sqrt(draw_variance / number / (number + 1))
            for draw_variance, number in zip(draw_variances, free, strict=True)
        ]
        seeds = [float(values.std(ddof=1)) / math.sqrt(len(values)) for values, _ in groups]
        if groups and max(*seeds, *noise) <= ROUNDING:
            return cls((), (), (), math.nan, "it is the same with every seed")
        shared = math.sqrt(max(0.0, float(means.var()) - math.fsum(deviation * deviation for deviation in noise)))
        return cls(tuple(seeds), tuple(free), tuple(noise), shared)

    def upper_tail(self, value: float) -> float:
        """Probability of an error of ``value`` or more; NaN where none can be estimated."""
        return float(upper_tail(value, self.seeds, self.free, self.sentences, self.noise))

    def two_sided(self, value: float) -> float:
        """p of a figure of that size where there is none in truth."""
        return min(1.0, 2 * self.upper_tail(abs(value))) if not self.unknown else math.nan

    def half_width(self) -> float:
        """Half of the interval of 1 − LEVEL."""
        return self.quantile(LEVEL / 2)

    def with_draws(self, draws: Floats) -> "StandardError":
        """With the error of sets that were drawn at random, as one more t (of Satterthwaite's degrees of freedom).

        Args:
            draws: (U, D), what each of D draws of U sets adds to the figure, which has the mean of the draws.
        """
        variances = draws.var(1, ddof=1) / draws.shape[1]
        if self.unknown or not len(draws) or not (total := float(variances.sum())) > ROUNDING**2:
            return self
        free = int((draws.shape[1] - 1) * total**2 / float((variances**2).sum()) + ROUNDING)
        return replace(self, seeds=(*self.seeds, math.sqrt(total)), free=(*self.free, free), noise=(*self.noise, 0.0))

    def detectable(self, number: int | None = None) -> float:
        """Minimum detectable effect of a study of this size, or with ``number`` seeds in each group: `detectable` with
        quantiles of this error, which has parts of seeds and sentences, in the place of those of t; the same where
        either part is all of it. NaN where none can be estimated."""
        study, ends = self.of_seeds(number) if number else self, (LEVEL / 2, 1 - _POWER)
        total_error = math.hypot(*study.seeds, study.sentences) or 1.0
        # With few seeds the variance itself is uncertain. Each group's error is enlarged by its part in the whole
        # error, so as to make up for that.
        uncertain = [
            seed_error
            + seed_error
            * (seed_error / total_error)
            * (seen_at(free, free_of_variance or math.inf) / sum(stats.t.isf(ends, free)) - 1)
            for seed_error, free, free_of_variance in zip(study.seeds, study.free, self.free, strict=True)
        ]
        return math.fsum(map(replace(study, seeds=tuple(uncertain)).quantile, ends))

    def of_seeds(self, number: int) -> "StandardError":
        """The error, without draws, with ``number`` seeds in each group, whose variances are those of these ones."""
        shrink = [math.sqrt((free + 1) / number) for free in self.free]
        seeds, noise = (
            [deviation * by for deviation, by in zip(part, shrink, strict=True)] for part in (self.seeds, self.noise)
        )
        return StandardError(tuple(seeds), (number - 1,) * len(shrink), tuple(noise), self.sentences, self.unknown)

    def quantile(self, tail: float) -> float:
        """The error that is reached with a probability of ``tail``, LEVEL / 2 or more; NaN where none is known."""
        if self.unknown:
            return math.nan
        parts = [
            deviation * stats.t.isf(LEVEL / 2, free) for deviation, free in zip(self.seeds, self.free, strict=True)
        ]
        upper_bound = 1.01 * (math.fsum(parts) + math.fsum([*self.noise, self.sentences]) * stats.norm.isf(LEVEL / 2))
        return float(optimize.brentq(lambda value: self.upper_tail(value) - tail, 0.0, upper_bound, rtol=1e-9))


def upper_tail(
    value: ArrayLike,
    seeds: Sequence[ArrayLike],
    free: Sequence[int],
    sentences: ArrayLike,
    noise: Sequence[ArrayLike] | None = None,
) -> Floats:
    """P(Σ seeds · t(free) + sentences · z ≥ value), for arrays of one shape.

    A t is a normal of random variance, here not below that of ``noise``; given these variances the sum is normal. The
    mean over them is taken in equal steps of their logarithms.
    """
    if not seeds:
        return np.asarray(special.ndtr(-np.asarray(value) / sentences))
    ratios, weights = _variance_ratios(free[0])
    parts = (value, sentences, *seeds, *(noise or (np.zeros_like(seed_error) for seed_error in seeds)))
    value, sentences, *errors = (np.asarray(part)[..., None] for part in parts)
    other_errors, least = errors[1 : len(seeds)], errors[len(seeds) :]
    widened = np.hypot(sentences, np.maximum(errors[0] / np.sqrt(ratios), least[0]))
    return np.asarray(upper_tail(value, other_errors, free[1:], widened, least[1:]) @ weights)


@functools.cache
def _variance_ratios(free: float) -> tuple[Floats, Floats]:
    """(Q,) values of χ²(free) / free, and their weights; 1 alone where ``free`` is infinite."""
    if math.isinf(free):
        return np.ones(1), np.ones(1)
    far = 1e-12
    steps = np.linspace(math.log(stats.chi2.ppf(far, free)), math.log(stats.chi2.isf(far, free)), POINTS)
    weights = stats.chi2.pdf(np.exp(steps), free) * np.exp(steps)
    return np.exp(steps) / free, weights / weights.sum()
