"""Contrasts: estimates of differences over seeds and sentences, with intervals, corrected p-values and verdicts.

    contrast = Contrast.of(few_heads - all_heads)         # a Resampled: one value per seed, also on resampled sentences
    contrast_frame([({"task": "pos"}, contrast), ...])    # columns task estimate low high p detectable n verdict

All tables, figures and reports read these frames, so that no two of them can differ in correction or wording. The page
docs/methods/significance.md explains which sources of variance the intervals cover.

Letters in shapes: C resamples, S runs (seeds) of a setting, D draws of each of U random sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mtlprune.statistics.permutation import tail
from mtlprune.statistics.resamples import Resampled, percentiles
from mtlprune.statistics.significance import Difference, holm
from mtlprune.statistics.standard_errors import LEVEL, Floats, StandardError

if TYPE_CHECKING:
    import pandas as pd

_NO_DRAWS: Floats = np.empty((0, 2))
SUPPORTED, NOT_SUPPORTED, UNDECIDED = "supported", "not supported", "undecided"
"""The three verdicts. *Not supported* means that the data rule out an effect of the predicted size."""


@dataclass(frozen=True)
class Contrast:
    """The estimate of a quantity over several runs, such as a difference of two settings, with error and p-value.

    Attributes:
        estimate: the mean over runs.
        error: the standard error over seeds and sentences.
        runs: the number of runs S; of two settings with different numbers the smaller one.
        low: lower end of the 95 % interval. With one run, the interval covers sentences only. NaN if no error can be
            estimated.
        high: upper end of the same interval.
        p: two-sided p-value without correction. NaN if no error can be estimated. From ``of`` it is
            also NaN for one run, unless requested.
        detectable: minimum detectable effect. NaN if no error can be estimated.
    """

    estimate: float
    error: StandardError
    runs: int
    low: float
    high: float
    p: float
    detectable: float

    @classmethod
    def of(cls, figure: Resampled, draws: Floats = _NO_DRAWS, pooled: float = 0.0, one_run: bool = False) -> Contrast:
        """Estimate a quantity from its values in several runs.

        Args:
            figure: the values on all sentences and on resampled sentences.
            draws: (U, D) contributions of each of D draws of U random sets, if the quantity is a mean over random sets.
            pooled: smallest standard deviation between seeds to assume, such as a deviation pooled over settings.
            one_run: whether to compute a p-value for a single run. Without draws it is twice the share of resamples on
                the other side of 0.
        """
        estimate, runs = float(figure.observed.mean()), len(figure.observed)
        error = StandardError.of([figure.observed], [figure.booted])
        noise = tuple(max(deviation, pooled / math.sqrt(runs)) for deviation in error.noise)
        contrast = cls._by_error(estimate, replace(error, noise=noise).with_draws(draws), runs)
        if runs < 2 and not len(draws):
            resampled = figure.booted[:, 0]
            low, high = percentiles(resampled)
            p = min(1.0, 2 * min(tail(0.0, sign * resampled) for sign in (1, -1))) if not error.unknown else math.nan
            contrast = replace(contrast, low=low, high=high, p=p)
        return contrast if runs > 1 or one_run else replace(contrast, p=math.nan)

    @classmethod
    def between(cls, difference: Difference, draws: Floats = _NO_DRAWS) -> Contrast:
        """Convert a ``Difference`` of two settings to a contrast.

        Error and p-value cover seeds and sentences, or sentences only if a setting has one run.
        """
        runs = min(difference.seeds)
        if difference.has_seeds:
            return cls._by_error(difference.delta, difference.wide_error.with_draws(draws), runs)
        sentences = difference.low, difference.high, difference.p, difference.detectable
        return cls(difference.delta, difference.wide_error, runs, *sentences)

    @classmethod
    def _by_error(cls, estimate: float, error: StandardError, runs: int) -> Contrast:
        half_width, p = error.half_width(), error.two_sided(estimate)
        return cls(estimate, error, runs, estimate - half_width, estimate + half_width, p, error.detectable())

    def p_at_most(self, bound: float) -> float:
        """Compute the one-sided p-value of the null hypothesis that the true value is ``bound`` or less.

        The result is NaN for one run, or if no error can be estimated.
        """
        return self.error.upper_tail(self.estimate - bound) if self.runs > 1 else math.nan

    def p_margin(self, margin: float) -> float:
        """Compute the p-value of an equivalence test: the larger p of two one-sided tests.

        Their null hypotheses are a true value of ``margin`` or more, and of −``margin`` or less. The result is NaN for
        one run, or if no error can be estimated.
        """
        return self.error.upper_tail(margin - abs(self.estimate)) if self.runs > 1 else math.nan

    def row(self) -> dict[str, Any]:
        """Return the columns of ``contrast_frame`` that do not depend on other rows."""
        columns = ("estimate", "low", "high", "p", "detectable")
        return {**{name: getattr(self, name) for name in columns}, "n": self.runs}


def contrast_frame(
    rows: Iterable[tuple[Mapping[str, Any], Contrast]],
    within: Sequence[str] | None = None,
    among: Callable[[pd.DataFrame], Any] = lambda frame: frame["p"].notna(),
    effect: float | None = None,
) -> pd.DataFrame:
    """Build a frame with a row for each contrast, corrected p-values and verdicts.

    Args:
        rows: each contrast with its keys and further columns.
        within: columns that define families of tests. Holm's correction is applied to the rows with the same values in
            these columns and gives the column ``p_holm``. None for no correction.
        among: function that returns which rows of the frame are counted as tests. Other rows get no ``p_holm``.
        effect: predicted effect for the verdict, as in ``verdict``.
    """
    import pandas as pd  # imported here, because parts of the report start without pandas

    frame = pd.DataFrame([{**keys, **contrast.row()} for keys, contrast in rows])
    if not len(frame):
        return frame
    return with_verdict(frame if within is None else corrected(frame, within, among(frame)), effect)


def corrected(frame: pd.DataFrame, within: Sequence[str], among: Any, p: str = "p") -> pd.DataFrame:
    """Add Holm's correction of the p-values in column ``p`` as a new column, whose name has the suffix ``_holm``.

    Args:
        frame: the frame.
        within: columns whose combinations of values define families of tests. Each family is corrected separately.
        among: mask of the rows that are counted as tests. Other rows get NaN.
        p: column of p-values.
    """
    groups = frame[among].groupby(list(within) or (lambda _: "all"), sort=False)[p]
    return frame.assign(**{f"{p}_holm": groups.transform(lambda values: holm(values.to_numpy()))})


def with_verdict(frame: pd.DataFrame, effect: float | None = None) -> pd.DataFrame:
    """Add the column ``verdict`` to a frame of contrasts, based on corrected p-values where they exist."""
    decisive = decisive_p(frame)
    ends = zip(frame["estimate"], frame["low"], frame["high"], decisive, frame["n"], strict=True)
    return frame.assign(verdict=[verdict(*row, effect) for row in ends])


def verdict(estimate: float, low: float, high: float, p: float, runs: float, effect: float | None = None) -> str:
    """Decide whether an estimate supports an effect.

    A single run is always undecided, because its interval covers sentences only. So is an estimate without an interval.

    Args:
        estimate: the estimate.
        low: lower end of its interval.
        high: upper end of its interval.
        p: its p-value.
        runs: number of runs.
        effect: predicted effect with its sign. It is supported if p < 0.05 and the estimate is at least as large, with
            the same sign. It is not supported if the interval contains only smaller effects. With None, any difference
            from 0 is supported if p < 0.05, and nothing is ruled out.

    Returns:
        ``SUPPORTED``, ``NOT_SUPPORTED`` or ``UNDECIDED``.
    """
    if not runs > 1 or math.isnan(low):
        return UNDECIDED
    # Multiplication by the sign of the predicted effect reduces both directions to a positive effect.
    sign, size = (1, 0.0) if effect is None else (math.copysign(1, effect), abs(effect))
    if p < LEVEL and (effect is None or sign * estimate >= size):
        return SUPPORTED
    return NOT_SUPPORTED if effect is not None and max(sign * low, sign * high) < size else UNDECIDED


def decisive_p(frame: pd.DataFrame) -> Any:
    """Return the corrected p-value of each row, or the uncorrected one for rows without correction."""
    return frame["p_holm"].fillna(frame["p"]) if "p_holm" in frame else frame["p"]


def only_not_shown(frame: pd.DataFrame, p: str = "p_holm") -> pd.DataFrame:
    """Set ``detectable`` to NaN in rows that are significant by column ``p``.

    If the frame has no column ``detectable``, the function adds one with NaN.
    """
    frame = frame.reindex(columns=[*dict.fromkeys([*frame, "detectable"])])
    return frame.assign(detectable=frame["detectable"].where(~(frame[p] < LEVEL)))
