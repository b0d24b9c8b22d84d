"""The break of a curve: the point of its largest acceleration (Chen et al. 2024).

    find_break(steps, uas)                  # neighbours in the log
    find_break(steps, loss, falling=True)   # a curve that drops
    find_break(even_steps, uas, axis="linear")   # as published

break(f) = argmax_t [f(t + Δ) − f(t)] − [f(t) − f(t − Δ)]: published with an even Δ, here also with Δ to the neighbours
in the log.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

MIN_SEEDS = 3
"""Points of a curve that may have a break."""
_ROUNDING = 1e-9  # of the largest slope: a smaller bend is rounding


def find_break(
    steps: ArrayLike, values: ArrayLike, falling: bool = False, axis: Literal["log", "linear"] = "log"
) -> float | None:
    """The step of the largest acceleration, of equal ones the first; None for a line or one that only flattens out.

    Points need not be evenly spaced: slopes to both sides over the axis are compared, which is the published formula
    over Δ where they are.

    Args:
        steps: three or more, rising; above 0 for an axis of logarithms.
        values: as many, finite.
        falling: look for the drop of a falling curve: −f.
    """
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64) * (-1 if falling else 1)
    x = np.log(x) if axis == "log" else x
    slopes = np.diff(y) / np.diff(x)
    bends = np.diff(slopes)
    # values carry rounding errors of their own size, which slopes inherit
    noise = _ROUNDING * (np.abs(slopes).max() + np.abs(y).max() / (x[-1] - x[0]))
    highest = float(bends.max())
    if highest <= noise:
        return None
    place = 1 + int(np.flatnonzero(bends >= highest - noise)[0])
    return round(float(np.exp(x[place]) if axis == "log" else x[place]), 6)
