"""Colours of gates: from arrays in [0, 1] or [-1, 1] to 8-bit sRGB. Pure functions on numpy arrays.

Letters: L layers, A heads a layer, K seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Colour = tuple[int, int, int]
Colours = NDArray[np.uint8]  # (..., 3)

PALETTES = ("rgb", "colourblind")

NEGATIVE: Colour = (33, 102, 172)
POSITIVE: Colour = (178, 24, 43)
"""Ends of the diverging scale: blue and red of ColorBrewer's RdBu, equally dark, told apart by colour-blind eyes."""

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)

# Colour of each subset of seeds, by [seed 1 uses it][seed 2][seed 3]. Sky blue, yellow and orange after Okabe and Ito
# (2008), mixtures as with paints; shifted until every two of the eight differ by at least 29 in CIELAB for trichromats,
# protanopes, deuteranopes and tritanopes alike (the RGB map: 8), and the more seeds, the darker.
_BLIND_SAFE = {
    (0, 0, 0): WHITE,
    (1, 0, 0): (97, 202, 244),
    (0, 1, 0): (255, 213, 0),
    (0, 0, 1): (237, 153, 67),
    (1, 1, 0): (22, 135, 93),
    (0, 1, 1): (146, 43, 6),
    (1, 0, 1): (14, 55, 142),
    (1, 1, 1): BLACK,
}


def opacity(values: ArrayLike) -> Colours:
    """Black drawn with the opacity ``values`` on white: (...) in [0, 1] → (..., 3)."""
    grey = _eight_bit(255 * (1 - np.asarray(values, float)))
    return np.stack([grey] * 3, axis=-1)


def diverging(values: ArrayLike) -> Colours:
    """(...) in [-1, 1] → (..., 3): white at 0, blue towards -1, red towards 1, straight lines between in sRGB."""
    v = np.asarray(values, float)[..., None]
    ends = np.where(v < 0, np.array(NEGATIVE), np.array(POSITIVE))
    return _eight_bit(255 + np.abs(v) * (ends - 255))


def corners(seeds: int, palette: str) -> NDArray[np.float64]:
    """Colours of heads that are fully used or not at all, for two or three seeds.

    Args:
        seeds: K, 2 or 3.
        palette: ``rgb``: seeds 1, 2, 3 darken red, green, blue (facts of He and Choi 2021, Figure 1a); with two seeds
            blue is darkened by half by either, so that black and white keep their meaning. ``colourblind``: see above.

    Returns:
        (2,) * K + (3,), indexed by whether each seed uses the head.
    """
    made = np.empty((2,) * seeds + (3,))
    for used in np.ndindex(*(2,) * seeds):
        if palette == "colourblind":
            made[used] = _BLIND_SAFE[(used[0], used[1], used[2])] if seeds == 3 else _two_blind_safe(used)
        else:
            channels = [*used, sum(used) / 2] if seeds == 2 else used
            made[used] = 255 * (1 - np.asarray(channels, float))
    return made


def _two_blind_safe(used: tuple[int, ...]) -> Colour:
    return BLACK if all(used) else _BLIND_SAFE[(used[0], 0, used[1])]


def mixed(gates: Sequence[ArrayLike], at_corners: NDArray[np.float64]) -> Colours:
    """Colours of K seeds' gates, multilinear between the corners; with ``rgb`` that is 255 · (1 - z) in each channel.

    Args:
        gates: K arrays (L, A) in [0, 1].
        at_corners: from ``corners``.

    Returns:
        (L, A, 3).
    """
    colour = at_corners[..., None, None, :]  # (2,) * K + (1, 1, 3)
    for values in gates:
        z = np.asarray(values, float)[..., None]  # (L, A, 1)
        colour = (1 - z) * colour[0] + z * colour[1]  # one axis of the cube less; the last two become (L, A)
    return _eight_bit(np.round(colour, 9))  # the same halves as 255 · (1 - z), free of the last bit's noise


def ink(background: Sequence[int]) -> Colour:
    """White where its contrast ratio on ``background`` is at least 4 (WCAG 2.1), else black: at least 5 there.

    The greater ratio would put black on strong blues and reds, where eyes find white easier.
    """
    c = np.asarray(background, float) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return WHITE if 1.05 / (luminance + 0.05) >= 4 else BLACK


def _eight_bit(values: NDArray[np.float64]) -> Colours:
    return np.rint(values).astype(np.uint8)
