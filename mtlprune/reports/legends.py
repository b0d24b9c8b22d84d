"""Legends of maps: what a colour means. Each gives its shapes at a place, and the room that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtlprune.reports.drawing import CAPITALS, Box, Shape, Text, text_width, wrapped
from mtlprune.reports.palettes import Colour, Colours

DARK: Colour = (28, 28, 30)
SOFT: Colour = (98, 98, 104)
LINE: Colour = (168, 168, 172)
PALE: Colour = (222, 222, 226)

WIDTH = 168
"""Room for a legend's text."""
SIZE, SMALL = 12, 11


class Placed(NamedTuple):
    """Shapes, and the right and lower ends of the room they take."""

    shapes: list[Shape]
    right: int
    bottom: int


def middle(centre: float, size: int) -> float:
    """The baseline of digits and capitals whose middle is at ``centre``."""
    return centre + CAPITALS / 2 * size


@dataclass(frozen=True)
class Ramp:
    """A bar from ``high`` (above) to ``low``, with words at some values."""

    heading: str
    colours: Callable[[NDArray[np.float64]], Colours]
    low: float
    high: float
    marks: tuple[tuple[float, str], ...]
    note: str = ""

    def place(self, x: int, y: int, room: int) -> Placed:
        """At (x, y), as high as ``room``, within limits that keep it legible."""
        heading = _paragraph(self.heading, x, y, SIZE, DARK)
        top = heading.bottom + 8
        height = min(max(room - (top - y), 96), 200)
        values = self.high + (self.low - self.high) * np.arange(height) / (height - 1)
        shapes: list[Shape] = [*heading.shapes, Box(x, top - 1, 16, height + 2, LINE)]
        for row, colour in enumerate(self.colours(values)):  # each down to the end, so that no seam shows when scaled
            shapes.append(Box(x + 1, top + row, 14, height - row, _plain(colour)))
        right = float(heading.right)
        for value, words in self.marks:
            at = top + round((self.high - value) / (self.high - self.low) * (height - 1))
            shapes.append(Box(x + 16, at, 4, 1, LINE))
            shapes.append(Text(x + 25, middle(at + 0.5, SMALL), words, SMALL, DARK))
            right = max(right, x + 25 + text_width(words, SMALL))
        below = _paragraph(self.note, x, top + height + 12, SMALL, SOFT)
        return Placed(
            [*shapes, *below.shapes], int(max(right, below.right)) + 1, below.bottom if self.note else top + height + 1
        )


def _paragraph(words: str, x: int, y: int, size: int, colour: Colour) -> Placed:
    """Wrapped lines whose first begins at height y."""
    lines = wrapped(words, size, WIDTH)
    step = size + 4
    shapes: list[Shape] = [Text(x, y + size + k * step - 2, line, size, colour) for k, line in enumerate(lines)]
    right = max((x + text_width(line, size) for line in lines), default=float(x))
    return Placed(shapes, int(right) + 1, y + len(lines) * step)


def _plain(colour: NDArray) -> Colour:
    red, green, blue = (round(float(value)) for value in colour)
    return red, green, blue
