"""Legends of maps: what a colour means. Each gives its shapes at a place, and the room that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtlprune.reports.drawing import CAPITALS, Box, Shape, Text, text_width, wrapped
from mtlprune.reports.palettes import Colour, Colours, ink

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


@dataclass(frozen=True)
class Subsets:
    """A row for every subset of the seeds: its colour, and which seeds use such a head."""

    seeds: tuple[str, ...]
    corners: NDArray[np.float64]
    """From palettes.corners."""
    chips: tuple[Colour, ...]
    """The colour that stands for each seed."""
    note: str

    def place(self, x: int, y: int, room: int) -> Placed:
        """At (x, y); as high as it is, whatever the ``room``."""
        heading = _paragraph("Head used by seed", x, y, SIZE, DARK)
        shapes = list(heading.shapes)
        chip = max(19, *(int(text_width(seed, SMALL)) + 9 for seed in self.seeds))
        columns = [x + 34 + k * (chip + 5) for k in range(len(self.seeds))]
        top = heading.bottom + 6
        for left, seed, colour in zip(columns, self.seeds, self.chips, strict=True):
            shapes.append(Box(left, top, chip, 18, LINE))
            shapes.append(Box(left + 1, top + 1, chip - 2, 16, colour))
            shapes.append(Text(left + chip / 2, middle(top + 9, SMALL), seed, SMALL, ink(colour), "middle"))
        top += 25
        words_at = columns[-1] + chip + 9
        for used in sorted(product((1, 0), repeat=len(self.seeds)), key=lambda u: -sum(u)):
            shapes += [Box(x, top, 24, 15, LINE), Box(x + 1, top + 1, 22, 13, _plain(self.corners[used]))]
            for left, uses in zip(columns, used, strict=True):
                shapes.append(Box(left + chip // 2 - 3, top + 4, 7, 7, DARK if uses else PALE))
            if len(set(used)) == 1:
                shapes.append(Text(words_at, middle(top + 7.5, SMALL), "all" if used[0] else "none", SMALL, SOFT))
            top += 19
        below = _paragraph(self.note, x, top + 6, SMALL, SOFT)
        right = max(heading.right, below.right, int(words_at + text_width("none", SMALL)) + 1)
        return Placed([*shapes, *below.shapes], right, below.bottom)


Legend = Ramp | Subsets


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
