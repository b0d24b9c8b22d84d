"""The standard error of a mean over several runs, and the distribution behind its interval and p-value.

The score of a run varies with its seed, with the sentences (which all runs share), and with their interaction. The
variance between runs contains the effects of seeds and of the interaction, and is estimated from few seeds. The size of
the interaction, and the effect of sentences on all runs alike, are estimated from many sentences. Therefore the error
is the sum of a normal variable for the sentences and of a scaled t variable for each group of seeds (Behrens and
Fisher). The variance of a t variable is never assumed to be below the variance of the interaction, which is called
*noise* here.

Letters in shapes: C resamples, S runs (seeds) of a group, Q points of a quadrature.
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
"""Significance level of all tests; intervals cover 1 − LEVEL."""
_POWER = 0.8
"""Share of studies that find a detectable effect."""
CONSTANT = "resampling the sentences does not change it"
"""Value of ``StandardError.unknown`` if all resamples give the same estimate."""
ROUNDING = 1e-9
"""Largest difference between resamples or seeds that counts as a rounding error."""
_POINTS = 48
"""Number of quadrature points Q. With 48 points, results agree with scipy's t distribution to three digits for one
degree of freedom, and to six digits for more."""


@functools.cache
def seen_at(free: float, known_by: float) -> float:
    """Compute the true effect that 80 % of studies find at the two-sided level 0.05, in units of a standard error.

    The result averages over the unknown true variance, of which the standard error is an estimate, and over the
    estimates of the variance that the studies will have.

    Args:
        free: degrees of freedom with which each study estimates its variance; infinite for a known variance.
        known_by: degrees of freedom with which the given standard error was estimated; infinite if it is known.
    """
    (truth, weights), (estimate, chances) = (_variance_ratios(degrees) for degrees in (known_by, free))
    needed = stats.t.isf(LEVEL / 2, free) * np.sqrt(estimate)

    def short(size: float) -> float:
        return _POWER - float(weights @ special.ndtr(size * np.sqrt(truth)[:, None] - needed) @ chances)

    return float(optimize.brentq(short, 0.0, 1e4))


def detectable(error: ArrayLike, free: ArrayLike = math.inf) -> Floats:
    """Compute the minimum detectable effect: four of five studies of this size find it at the two-sided level 0.05.

    Bloom (1995) uses t(0.975, df) + t(0.8, df) standard errors, as if the standard error were known. With three seeds,
    only 60 of 100 studies then find the effect.

    Args:
        error: standard errors.
        free: degrees of freedom with which they were estimated, of the same shape; infinite for errors over sentences
            only, which count as known.

    Returns:
        The minimum detectable effects in the unit of the standard errors; NaN where ``free`` is NaN.
    """
    multiple = np.vectorize(
        lambda degrees: math.nan if math.isnan(degrees) else seen_at(degrees, degrees), otypes=[float]
    )
    return np.asarray(error) * multiple(free)


@dataclass(frozen=True)
class StandardError:
    """The standard error of a sum of means over groups of runs with independent seeds, all on the same sentences."""

    seeds: tuple[float, ...]
    """Standard error of each group's mean, from the variance between its runs."""
    free: tuple[int, ...]
    """Degrees of freedom of these standard errors, that is, number of runs − 1."""
    noise: tuple[float, ...]
    """Part of each of these standard errors that comes from the interaction of run and sentence. The true standard
    error of a group is never assumed to be smaller."""
    sentences: float
    """Standard error from the effect of sentences on all runs alike; NaN if no error can be estimated."""
    unknown: str = ""
    """The reason why no error can be estimated, or "" if it can be estimated."""

    @classmethod
    def of(cls, observed: Sequence[Floats], booted: Sequence[Floats]) -> "StandardError":
        """Estimate the parts of the error from the variance between runs and from the variance between resamples.

        The variance of runs around their mean between resamples is the noise (the interaction of run and sentence). The
        variance of the means between resamples contains a part of the noise, which is subtracted, because the variance
        between runs already contains it. A group with one run contributes no error of seeds, because its seed is
        treated as fixed.

        Args:
            observed: (S,) values of each group on all sentences. The estimate is the sum of the groups' means.
            booted: (C, S) values of each group on the same resampled sentences.
        """
        means = np.sum([group.mean(1) for group in booted], 0)
        # No error can be estimated if all means are equal up to rounding. The comparison is also false for NaN, which
        # resamples without a value give.
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
        """Compute the probability of an error of ``value`` or more; NaN if no error can be estimated."""
        return float(upper_tail(value, self.seeds, self.free, self.sentences, self.noise))

    def two_sided(self, value: float) -> float:
        """Compute the two-sided p-value of an estimate under the null hypothesis that the true value is 0."""
        return min(1.0, 2 * self.upper_tail(abs(value))) if not self.unknown else math.nan

    def half_width(self) -> float:
        """Return half of the width of the 95 % interval."""
        return self.quantile(LEVEL / 2)

    def with_draws(self, draws: Floats) -> "StandardError":
        """Add the error from random draws of sets, as a further t variable with Satterthwaite's degrees of freedom.

        Args:
            draws: (U, D) contributions of each of D draws of U sets. The estimate contains the mean over draws.
        """
        variances = draws.var(1, ddof=1) / draws.shape[1]
        if self.unknown or not len(draws) or not (total := float(variances.sum())) > ROUNDING**2:
            return self
        free = int((draws.shape[1] - 1) * total**2 / float((variances**2).sum()) + ROUNDING)
        return replace(self, seeds=(*self.seeds, math.sqrt(total)), free=(*self.free, free), noise=(*self.noise, 0.0))

    def detectable(self, number: int | None = None) -> float:
        """Compute the minimum detectable effect of a study of this size, or with ``number`` seeds in each group.

        This generalises the function ``detectable`` to an error with parts from seeds and from sentences, and agrees
        with it if one of the parts is 0. The result is NaN if no error can be estimated.
        """
        study, ends = self.of_seeds(number) if number else self, (LEVEL / 2, 1 - _POWER)
        total_error = math.hypot(*study.seeds, study.sentences) or 1.0
        # With few seeds, the variance itself is uncertain. To allow for this, the error of each group is enlarged in
        # proportion to its share of the total error.
        uncertain = [
            seed_error
            + seed_error
            * (seed_error / total_error)
            * (seen_at(free, free_of_variance or math.inf) / sum(stats.t.isf(ends, free)) - 1)
            for seed_error, free, free_of_variance in zip(study.seeds, study.free, self.free, strict=True)
        ]
        return math.fsum(map(replace(study, seeds=tuple(uncertain)).quantile, ends))

    def of_seeds(self, number: int) -> "StandardError":
        """Return the error of a study with ``number`` seeds in each group and the same variances.

        The error must not contain draws of random sets.
        """
        shrink = [math.sqrt((free + 1) / number) for free in self.free]
        seeds, noise = (
            [deviation * by for deviation, by in zip(part, shrink, strict=True)] for part in (self.seeds, self.noise)
        )
        return StandardError(tuple(seeds), (number - 1,) * len(shrink), tuple(noise), self.sentences, self.unknown)

    def quantile(self, tail: float) -> float:
        """Return the value that the error exceeds with probability ``tail``; NaN if no error can be estimated.

        Args:
            tail: a probability between LEVEL / 2 and 1 / 2.
        """
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
    """Compute P(Σ seeds · t(free) + sentences · z ≥ value), for arrays of the same shape.

    A t variable is a normal variable with a random variance, which here is never below the variance of ``noise``. Given
    these variances, the sum is normal. The mean over the variances is a quadrature with equal steps of their
    logarithms.

    Args:
        value: the values to reach.
        seeds: scale of each t variable.
        free: degrees of freedom of each t variable.
        sentences: scale of the normal variable.
        noise: smallest scale of each t variable, by default 0.
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
    """Return the Q quadrature points of χ²(free) / free and their weights, or the point 1 if ``free`` is infinite."""
    if math.isinf(free):
        return np.ones(1), np.ones(1)
    far = 1e-12
    steps = np.linspace(math.log(stats.chi2.ppf(far, free)), math.log(stats.chi2.isf(far, free)), _POINTS)
    weights = stats.chi2.pdf(np.exp(steps), free) * np.exp(steps)
    return np.exp(steps) / free, weights / weights.sum()
