"""A grid of coloured cells with numbers in them, named rows and upright names of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mtlprune.reports import palettes
from mtlprune.reports.drawing import Box, Shape, Text, text_width
from mtlprune.reports.legends import DARK, LINE, SMALL, Placed, middle
from mtlprune.reports.palettes import Colour

FIGURES = 10
NOTHING: Colour = (238, 238, 240)
"""Of a cell without a value."""


def name_width(names: Sequence[str]) -> int:
    """Room that names of rows take, with a gap."""
    return int(max((text_width(name, SMALL) for name in names), default=0)) + 8


def name_height(names: Sequence[str]) -> int:
    """Room that upright names of columns take, with a gap."""
    return name_width(names)


def cells(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    colour: Callable[[float], Colour],
    written: Callable[[float], str],
    left: int,
    top: int,
    size: tuple[int, int] = (34, 18),
) -> Placed:
    """Cells whose upper left corner is (left, top); names of rows stand to the left, those of columns above.

    Args:
        values: by row and column; None for a cell that has no value.
        written: what stands in a cell; nothing where it is empty.
        size: width and height of a cell.
    """
    width, height = size
    shapes: list[Shape] = [Box(left, top, len(columns) * width + 1, len(rows) * height + 1, LINE)]
    for place, name in enumerate(columns):
        shapes.append(Text(left + (place + 0.5) * width + 4.5, top - 6, name, SMALL, DARK, upright=True))
    for row, (name, line) in enumerate(zip(rows, values, strict=True)):
        y = top + row * height + 1
        shapes.append(Text(left - 7, middle(y + height / 2, SMALL), name, SMALL, DARK, "end"))
        for column, value in enumerate(line):
            x = left + column * width + 1
            fill = NOTHING if value is None else colour(value)
            words = "" if value is None else written(value)
            shapes.append(Box(x, y, width - 1, height - 1, fill, f"{name}, {columns[column]}: {words or 'nothing'}"))
            if words:
                ink = palettes.ink(fill)
                shapes.append(Text(x + (width - 1) / 2, middle(y + height / 2, FIGURES), words, FIGURES, ink, "middle"))
    return Placed(shapes, left + len(columns) * width + 1, top + len(rows) * height + 1)


def blues(low: float, high: float) -> Callable[[float], Colour]:
    """From white at ``low`` to blue at ``high``."""
    return lambda value: _mixed(palettes.WHITE, (8, 69, 148), (value - low) / (high - low) if high > low else 0.0)


def both(limit: float) -> Callable[[float], Colour]:
    """Red above 0, blue below, white at 0; full at ±``limit``."""
    return lambda value: _mixed(
        palettes.WHITE, palettes.POSITIVE if value > 0 else palettes.NEGATIVE, abs(value) / limit if limit else 0.0
    )


def _mixed(one: Colour, other: Colour, part: float) -> Colour:
    share = min(max(part, 0.0), 1.0)
    red, green, blue = np.rint(np.array(one) + share * (np.array(other, float) - one)).astype(int)
    return int(red), int(green), int(blue)
