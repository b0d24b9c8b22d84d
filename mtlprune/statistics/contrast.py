"""Contrasts: the one place that estimates a difference over seeds and sentences, corrects it for several tests, says
what would have been detected, and gives a verdict.

    contrast = Contrast.of(few_heads - all_heads)         # Resampled: a value a seed, and the same on resamples
    contrast_frame([({"task": "pos"}, contrast), ...])    # task estimate low high p p_holm detectable n verdict

Tables, figures and the page read that frame and decide nothing themselves, so that no two of them can differ in
correction or wording. What the intervals cover stands in docs/methods/significance.md.

Letters: C resamples, S runs (seeds) of a setting, D draws of U random sets.
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
"""The three verdicts. An effect is not supported where one of the size asked for is ruled out."""


@dataclass(frozen=True)
class Contrast:
    """A figure of several runs, such as a difference of two settings, with its error over seeds and sentences.

    Attributes:
        estimate: the mean over runs.
        runs: the number of runs, S.
        low, high: ends of the 95 % interval, over sentences alone where there is one run; NaN where no error can be
            estimated.
        p: two-sided, not corrected; NaN as above, and of one run unless it was asked for.
        detectable: minimum detectable effect; NaN as above.
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
        """Estimate any figure of several runs.

        Args:
            drawn: (U, D), what each of D draws of U random sets adds to the figure, where it has such.
            pooled: standard deviation between seeds, below which that of these runs is not taken to be.
            one_run: give also one run a p, without draws by the share of resamples on the other side of 0.
        """
        estimate, runs = float(figure.observed.mean()), len(figure.observed)
        error = StandardError.of([figure.observed], [figure.booted])
        least = tuple(max(deviation, pooled / math.sqrt(runs)) for deviation in error.noise)
        contrast = cls._by_error(estimate, replace(error, noise=least).with_draws(draws), runs)
        if runs < 2 and not len(draws):
            resampled = figure.booted[:, 0]
            low, high = percentiles(resampled)
            p = min(1.0, 2 * min(tail(0.0, sign * resampled) for sign in (1, -1))) if not error.unknown else math.nan
            contrast = replace(contrast, low=low, high=high, p=p)
        return contrast if runs > 1 or one_run else replace(contrast, p=math.nan)

    @classmethod
    def between(cls, difference: Difference, draws: Floats = _NO_DRAWS) -> Contrast:
        """The difference of two settings as `differences` tests it; over sentences alone where a side has one run."""
        runs = difference.seeds[0]
        if difference.has_seeds:
            return cls._by_error(difference.delta, difference.wide_error.with_draws(draws), runs)
        sentences = difference.low, difference.high, difference.p, difference.detectable
        return cls(difference.delta, difference.wide_error, runs, *sentences)

    @classmethod
    def _by_error(cls, estimate: float, error: StandardError, runs: int) -> Contrast:
        half_width, p = error.half_width(), error.two_sided(estimate)
        return cls(estimate, error, runs, estimate - half_width, estimate + half_width, p, error.detectable())

    def p_at_most(self, bound: float) -> float:
        """p, one-sided, of a true value of ``bound`` or less; NaN where there is one run, or no error."""
        return self.error.upper_tail(self.estimate - bound) if self.runs > 1 else math.nan

    def p_margin(self, margin: float) -> float:
        """The larger p of two one-sided tests against a true value of ``margin`` or more either way; NaN as above."""
        return self.error.upper_tail(margin - abs(self.estimate)) if self.runs > 1 else math.nan

    def row(self) -> dict[str, Any]:
        """The columns of a frame of contrasts that need no other row."""
        columns = ("estimate", "low", "high", "p", "detectable")
        return {**{name: getattr(self, name) for name in columns}, "n": self.runs}


def contrast_frame(
    rows: Iterable[tuple[Mapping[str, Any], Contrast]],
    within: Sequence[str] | None = None,
    among: Callable[[pd.DataFrame], Any] = lambda frame: frame["p"].notna(),
    effect: float | None = None,
) -> pd.DataFrame:
    """A row for each contrast, with ``p_holm`` where it is asked for, and ``verdict``.

    Args:
        rows: keys and further columns of each contrast.
        within: p is corrected over the rows that have the same values in these columns; None: p is not corrected.
        among: which rows are tests that count; the others have no ``p_holm``.
        effect: size and direction of the effect that the verdict is about (`verdict`).
    """
    import pandas as pd  # the page's start needs none of it

    frame = pd.DataFrame([{**keys, **contrast.row()} for keys, contrast in rows])
    if not len(frame):
        return frame
    return with_verdict(frame if within is None else corrected(frame, within, among(frame)), effect)


def corrected(frame: pd.DataFrame, within: Sequence[str], among: Any, p: str = "p") -> pd.DataFrame:
    """A frame with ``p_holm``: Holm's correction of column ``p`` over the rows ``among`` all, apart for each
    combination of values in the columns ``within``."""
    groups = frame[among].groupby(list(within) or (lambda _: "all"), sort=False)[p]
    return frame.assign(**{f"{p}_holm": groups.transform(lambda values: holm(values.to_numpy()))})


def with_verdict(frame: pd.DataFrame, effect: float | None = None) -> pd.DataFrame:
    """A frame of contrasts with the `verdict` of each row, by p after correction where it is corrected."""
    decisive = decisive_p(frame)
    ends = zip(frame["estimate"], frame["low"], frame["high"], decisive, frame["n"], strict=True)
    return frame.assign(verdict=[verdict(*row, effect) for row in ends])


def verdict(estimate: float, low: float, high: float, p: float, runs: float, effect: float | None = None) -> str:
    """Say whether runs support an effect; one run supports nothing, because its interval is of sentences alone.

    Args:
        effect: its size, with its sign. SUPPORTED: the estimate differs from 0 (``p``) and is at least as large, on the
            same side; NOT_SUPPORTED: the interval has smaller effects only. None: any difference; none is ruled out.
    """
    if not runs > 1 or math.isnan(low):
        return UNDECIDED
    # One rule for effects of either sign: from here on the effect asked for is a large positive value.
    sign, size = (1, 0.0) if effect is None else (math.copysign(1, effect), abs(effect))
    if p < LEVEL and (effect is None or sign * estimate >= size):
        return SUPPORTED
    return NOT_SUPPORTED if effect is not None and max(sign * low, sign * high) < size else UNDECIDED


def decisive_p(frame: pd.DataFrame) -> Any:
    """p after correction; of rows that are not corrected the plain one."""
    return frame["p_holm"].fillna(frame["p"]) if "p_holm" in frame else frame["p"]


def only_not_shown(frame: pd.DataFrame, p: str = "p_holm") -> pd.DataFrame:
    """A frame with ``detectable`` only in rows whose p in column ``p`` shows nothing; NaN where it has none."""
    frame = frame.reindex(columns=[*dict.fromkeys([*frame, "detectable"])])
    return frame.assign(detectable=frame["detectable"].where(~(frame[p] < LEVEL)))
