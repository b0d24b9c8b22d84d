"""What plots of probes share: places of labels that never overlap, a scale of percent, titles, axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mtlprune.reports.drawing import Box, Line, Shape, Text, text_width, wrapped
from mtlprune.reports.legends import DARK, PALE, SMALL, SOFT, Placed, middle
from mtlprune.reports.maps import MARGIN, SUBTITLE, TITLE
from mtlprune.reports.palettes import NEGATIVE, POSITIVE, WHITE, Colour

ABOVE: Colour = NEGATIVE
"""Better than the controls (blue)."""
ZERO: Colour = POSITIVE
"""The line that all is compared with."""
FAINT: Colour = (150, 150, 156)
LABEL = 10
ROW = 12
"""From one label to the next at the least."""


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near to the wanted ones as can be (least squares) that are ``gap`` apart and lie in [low, high].

    Isotonic regression by pooling adjacent violators (Ayer et al. 1955) on wanted - rank · gap, clipped to the bounds.
    The order of equal wishes is kept. ``wanted`` is rising.

    Raises:
        ValueError: there is no room for so many.
    """
    count = len(wanted)
    room = high - low - gap * (count - 1)
    if room < -1e-9:
        raise ValueError(f"{count} labels {gap:g} apart need {gap * (count - 1):g}, found room for {high - low:g}")
    pools: list[tuple[float, int]] = []  # mean and size
    for rank, place in enumerate(wanted):
        mean, size = place - rank * gap, 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean, size = (mean * size + before * more) / (size + more), size + more
        pools.append((mean, size))
    flat = [mean for mean, size in pools for _ in range(size)]
    return [min(max(place, low), low + max(room, 0)) + rank * gap for rank, place in enumerate(flat)]


def beside_label(x: float, y: float, label: str, colour: Colour) -> list[Shape]:
    """A label whose middle is at height y, on white so that no grid line runs through it."""
    words = shown(label)
    box = Box(math.floor(x) - 2, round(y) - 5, math.ceil(text_width(words, LABEL)) + 4, 11, WHITE)
    return [box, Text(x, middle(y, LABEL), words, LABEL, colour)]


@dataclass(frozen=True)
class Scale:
    """From percent to a height in a drawing."""

    low: float
    high: float
    top: float
    height: float

    def y(self, value: float) -> float:
        return self.top + (self.high - value) / (self.high - self.low) * self.height

    def ticks(self) -> list[int]:
        """Round numbers, no more than about ten."""
        step = next(step for step in (1, 2, 5, 10, 20, 50) if (self.high - self.low) / step <= 10)
        return list(range(math.ceil(self.low / step) * step, math.floor(self.high / step) * step + 1, step))


def scale_for(values: Sequence[float], top: float, height: float, zero: bool) -> Scale:
    """Bounds a little beyond the values, at multiples of five; with 0 between them where it means something."""
    held = [*values, 0.0] if zero else list(values)
    low, high = math.floor((min(held) - 1) / 5) * 5, math.ceil((max(held) + 1) / 5) * 5
    if not zero:
        low, high = max(low, 0), min(high, 100)
    return Scale(low, max(high, low + 5), top, height)


def signed(value: int) -> str:
    """A tick of an axis of differences."""
    return f"{value:+d}" if value else "0"


def shown(label: str) -> str:
    """A label as it is drawn: in quotes where nothing but punctuation would be seen."""
    return label if any(c.isalnum() or c in "$#" for c in label) else f"“{label}”"


def titles(title: str, subtitle: Sequence[str], width: float) -> Placed:
    """A heading and the lines below it, wrapped at ``width``."""
    shapes: list[Shape] = []
    y = MARGIN - 4
    for line in wrapped(title, TITLE, width):
        shapes.append(Text(MARGIN, y + TITLE, line, TITLE, DARK))
        y += 24
    y += 3
    for paragraph in subtitle:
        for line in wrapped(paragraph, SUBTITLE, width):
            shapes.append(Text(MARGIN, y + SUBTITLE, line, SUBTITLE, SOFT))
            y += 17
    return Placed(shapes, int(MARGIN + width), y)


def value_axis(scale: Scale, left: float, right: float, name: str, differences: bool, zero: str) -> list[Shape]:
    """Grid lines with their numbers to the left, the axis title, and the line at 0 where 0 means ``zero``."""
    shapes: list[Shape] = [
        Text(MARGIN + 10, scale.top + scale.height / 2, name, SMALL, SOFT, "middle", upright=True),
    ]
    for value in scale.ticks():
        y = scale.y(value)
        shapes.append(Line(left, y, right, y, 1, PALE))
        words = signed(value) if differences else str(value)
        shapes.append(Text(left - 7, middle(y, SMALL), words, SMALL, DARK, "end"))
    if differences:
        y = scale.y(0)
        shapes.append(Line(left, y, right, y, 1.5, ZERO, (6, 4)))
        shapes.append(Text(right + 6, middle(y, LABEL), zero, LABEL, ZERO))
    return shapes
