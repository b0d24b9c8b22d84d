"""Where a curve breaks: the point of its largest acceleration (Chen et al. 2024); lags between breaks of heads.

    find_break(steps, uas)                  # neighbours in the log
    find_break(steps, loss, falling=True)   # a curve that drops

break(f) = argmax_t [f(t + Δ) − f(t)] − [f(t) − f(t − Δ)].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlprune.files import RunError
from mtlprune.statistics.permutation import permuted, tail

Axis = Literal["step", "log"]
Grid = NDArray[np.float64]  # (L, A)
LEAST = 3
"""Points of a curve that may have a break."""
_ROUNDING = 1e-9  # of the largest slope: a smaller bend is rounding


class BreakError(RunError):
    """A curve has no break that could be looked for; the message says why."""


@dataclass(frozen=True)
class Break:
    """Where a curve bends most.

    Attributes:
        step: where; None for a straight line or one that only flattens out.
        bend: by how much the slope grows there, in values a step (or a factor e of the steps on a log axis).
        points: how many points the curve has.
    """

    step: float | None
    bend: float
    points: int


def find_break(
    steps: ArrayLike, values: ArrayLike, delta: float | None = None, falling: bool = False, axis: Axis = "step"
) -> Break:
    """Find the point of the largest acceleration; of equal ones the first.

    Points need not be evenly spaced: slopes to both sides are compared, which is the published formula over Δ where
    they are.

    Args:
        steps: rising.
        values: as many.
        delta: Δ, in steps (on a log axis: the difference of natural logarithms). f between two points of the log is
            taken from the straight line between them. None compares each point with its neighbours in the log.
        falling: look for the drop of a falling curve: −f.
        axis: ``log`` measures distances between logarithms of steps, for curves logged on a log schedule; a step 0 is
            left out.

    Raises:
        BreakError: fewer than three points (or no room for Δ on both sides), values that are not finite, steps that do
            not rise.
    """
    x, y = _checked(steps, values, axis)
    y = -y if falling else y
    if delta is None:
        slopes = np.diff(y) / np.diff(x)
        at, left, right = np.arange(1, len(x) - 1), slopes[:-1], slopes[1:]
    else:
        if not delta > 0:
            raise BreakError(f"expected a Δ above 0, found {delta:g}")
        at = np.flatnonzero((x - delta >= x[0] - 1e-12) & (x + delta <= x[-1] + 1e-12))
        if not len(at):
            raise BreakError(f"no point of the curve has Δ = {delta:g} on both sides: it spans {x[-1] - x[0]:g}")
        left = (y[at] - np.interp(x[at] - delta, x, y)) / delta
        right = (np.interp(x[at] + delta, x, y) - y[at]) / delta
    bends = right - left
    # values carry rounding errors of their own size, which slopes inherit
    noise = _ROUNDING * (np.abs(np.diff(y) / np.diff(x)).max() + np.abs(y).max() / (x[-1] - x[0]))
    highest = float(bends.max())
    if highest <= noise:
        return Break(None, 0.0, len(x))
    place = int(at[np.flatnonzero(bends >= highest - noise)[0]])
    return Break(round(float(np.exp(x[place])), 6) if axis == "log" else float(x[place]), highest, len(x))


def _checked(steps: ArrayLike, values: ArrayLike, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise BreakError(f"a curve has as many values as steps, found {y.shape} and {x.shape}")
    if axis == "log":
        x, y = np.log(x[x > 0]), y[x > 0]
    if len(x) < LEAST:
        raise BreakError(
            f"a break needs at least {LEAST} points, since it compares the slopes to both sides of one; found {len(x)}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise BreakError("a break needs finite numbers; some of these are infinite or not a number")
    if not (np.diff(x) > 0).all():
        raise BreakError("the steps of a curve must rise")
    return x, y


def lag_test(first: Grid, second: Grid, permutations: int, generator: np.random.Generator) -> tuple[float, float]:
    """Do a head's two breaks lie nearer to each other than those of its neighbours?

    Args:
        first, second: (L, A), steps of breaks; NaN where there is none.

    Returns:
        The mean absolute lag of the heads that break in both, and how often it is as small when the breaks of each
        layer go to other heads of the layer; NaN where no head breaks in both.
    """
    both = ~(np.isnan(first) | np.isnan(second))
    if not both.any():
        return float("nan"), float("nan")
    null = np.zeros(permutations)
    for layer, here in enumerate(both):
        if here.any():
            row = second[layer, here][None, None, None]
            parts = [part[:, 0, 0] for part in permuted(row, permutations, generator)]
            null += np.abs(np.concatenate(parts) - first[layer, here]).sum(-1)
    size = float(np.abs(second - first)[both].mean())
    return size, tail(-size, -null / both.sum()).p
