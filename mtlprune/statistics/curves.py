"""The break of a training curve: the point of its largest acceleration (Chen et al. 2024).

    find_break(steps, uas)                       # slopes between neighbouring points on a logarithmic axis
    find_break(steps, loss, falling=True)        # a falling curve
    find_break(even_steps, uas, axis="linear")   # as published

Chen et al. define the break as argmax_t [f(t + Δ) − f(t)] − [f(t) − f(t − Δ)] with a constant Δ.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

MIN_POINTS = 3
"""Fewest points of a curve that can have a break."""
_ROUNDING = 1e-9  # changes of slope that are smaller than this share of the largest slope count as rounding errors


def find_break(
    steps: ArrayLike, values: ArrayLike, falling: bool = False, axis: Literal["log", "linear"] = "log"
) -> float | None:
    """Find the step of the largest acceleration of a curve.

    The function compares the slopes on both sides of each point, so that points need not be evenly spaced. With even
    spacing this is the published formula divided by Δ.

    Args:
        steps: three steps or more in increasing order, above 0 for a logarithmic axis.
        values: the finite value at each step.
        falling: whether to search a falling curve for its drop, by using −f.
        axis: scale on which slopes are computed.

    Returns:
        The step (the first of several with equal acceleration), or None if the curve never bends upwards.
    """
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64) * (-1 if falling else 1)
    x = np.log(x) if axis == "log" else x
    slopes = np.diff(y) / np.diff(x)
    bends = np.diff(slopes)
    # The slopes contain the rounding errors of the values, which are proportional to the values.
    noise = _ROUNDING * (np.abs(slopes).max() + np.abs(y).max() / (x[-1] - x[0]))
    highest = float(bends.max())
    if highest <= noise:
        return None
    point = 1 + int(np.flatnonzero(bends >= highest - noise)[0])
    return round(float(np.exp(x[point]) if axis == "log" else x[point]), 6)
