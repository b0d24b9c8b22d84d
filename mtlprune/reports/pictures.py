"""Colours of gates, and what Pillow makes of them: plain pictures as a paper shows them, and animations.

Arrays in [0, 1] or [-1, 1] become 8-bit sRGB. Letters: L layers, A heads a layer, K seeds.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from mtlprune.reports.charts import DIVERGING, INK, RULE, SOFT

Colour = tuple[int, int, int]
Colours = NDArray[np.uint8]  # (..., 3)

PALETTES = ("colourblind", "rgb")
FRAME_MS, LAST_FRAME_MS = 450, 2500
"""How long a frame of an animation stays; shorter where there are many."""
_SHORTEST_MS, _WHOLE_MS = 80, 15_000

NEGATIVE, POSITIVE = (ImageColor.getrgb(end)[:3] for end in (DIVERGING[0], DIVERGING[-1]))

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


def _eight_bit(values: NDArray[np.float64]) -> Colours:
    return np.rint(values).astype(np.uint8)


def colours_mean(seeds: Sequence[str], palette: str) -> str:
    """What a colour of a map of two or three seeds means, in sentences: its caption."""
    if palette != "rgb":
        return "A head that only one seed uses shows that seed's colour; the more seeds, the darker."
    pure, others = ("pink", "the other") if len(seeds) == 2 else ("pure red", "the others")
    whose = [f"seed {seed}" for seed in seeds] + (["their mean"] if len(seeds) == 2 else [])
    channels = ", ".join(f"{colour} of {one}" for colour, one in zip(("red", "green", "blue"), whose, strict=True))
    return (
        f"A channel is 255 · (1 − z), z the gate: {channels}. So {pure} is a head that seed {seeds[0]} closed and "
        f"{others} kept; black is kept by all, white closed in all."
    )


# -- pictures ----------------------------------------------------------------------------------------------------------


def plain(colours: Colours, cell: int) -> Image.Image:
    """The cells of a map alone, as He and Choi (2021) print them: (L, A, 3) → squares of so many pixels, no words."""
    layers, heads = colours.shape[:2]
    return Image.fromarray(colours).resize((heads * cell, layers * cell), Image.Resampling.NEAREST)


def packed(picture: Image.Image) -> bytes:
    """As a PNG file."""
    held = io.BytesIO()
    picture.save(held, "PNG", optimize=True)
    return held.getvalue()


def animation(
    words: Sequence[Sequence[str]], gates: Sequence[NDArray[np.float64]], done: Sequence[float], scale: int
) -> bytes:
    """Gates over training as an endless GIF, one frame for each array; the last one stays longer.

    Args:
        words: of each frame, equally many lines; no two neighbours are equal, or Pillow would make one frame of them.
        gates: (L, A), in [0, 1], black where 1.
        done: how far training is, in [0, 1]: a line below the cells.
        scale: pixels a unit of 1/96 inch.
    """
    layers, heads = gates[0].shape
    font, cell, edge, line = ImageFont.load_default(12 * scale), 26 * scale, 16 * scale, 18 * scale
    left, top = edge + line, edge + line * (len(words[0]) + 1)
    right, bottom = left + heads * cell, top + layers * cell
    longest = max(font.getlength(text) for lines in words for text in lines)
    size = int(max(right, edge + longest)) + edge, bottom + line + edge
    frames = []
    for lines, z, share in zip(words, gates, done, strict=True):
        frame = Image.new("RGB", size, WHITE)
        frame.paste(plain(opacity(z), cell), (left, top))
        pen = ImageDraw.Draw(frame)
        for number, text in enumerate(lines):
            pen.text((edge, edge + number * line), text, SOFT if number else INK, font)
        for head in range(heads):
            pen.text((left + (head + 0.5) * cell, top - 4 * scale), str(head + 1), SOFT, font, "ms")
            for layer in range(layers):
                x, y = left + head * cell, top + layer * cell
                pen.rectangle((x, y, x + cell, y + cell), outline=RULE, width=scale)
        for layer in range(layers):
            pen.text((left - 6 * scale, top + (layer + 0.5) * cell), str(layer + 1), SOFT, font, "rm")
        pen.rectangle((left, bottom + line // 2, left + share * (right - left), bottom + line // 2 + 3 * scale), SOFT)
        frames.append(frame.convert("L"))  # 256 greys are all that it holds, so nothing is approximated
    each = min(FRAME_MS, max(_SHORTEST_MS, _WHOLE_MS // len(frames))) // 10 * 10
    times = [each] * (len(frames) - 1) + [LAST_FRAME_MS]
    held = io.BytesIO()
    rest: dict[str, object] = {"append_images": frames[1:], "duration": times, "loop": 0, "disposal": 1}
    frames[0].save(held, "GIF", save_all=True, optimize=False, **rest)
    return held.getvalue()
