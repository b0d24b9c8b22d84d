"""Maps of heads: rows are layers, 1 at the top, columns are heads; from plain arrays to drawings.

Letters: L layers, A heads a layer, K seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtlprune.reports import palettes
from mtlprune.reports.drawing import Box, Drawing, Shape, Text, text_width, wrapped
from mtlprune.reports.legends import DARK, LINE, PALE, SMALL, SOFT, Placed, Ramp, middle
from mtlprune.reports.palettes import Colours

MARGIN = 24
GAP = 30
"""Between the cells and the legend."""
TITLE, SUBTITLE, FIGURES = 18, 12, 10
LEAST_WIDTH = 380
"""Titles are wrapped at the width of what stands below, but no narrower than this."""


@dataclass(frozen=True)
class HeadMap:
    """What is drawn, before it has places."""

    title: str
    subtitle: tuple[str, ...]
    colours: Colours
    """(L, A, 3)."""
    numbers: Mapping[str, NDArray[np.float64]]
    """What the cells show, each (L, A): under "" where it is one number, else a seed's name → its gates."""
    legend: Ramp
    signed: bool = False
    """Whether numbers carry a sign."""
    progress: float | None = None
    """How far training is, in [0, 1]: a line below the cells."""


# -- layout ----------------------------------------------------------------------------------------------------------


def cell_pitch(layers: int, heads: int, lines: int) -> int:
    """From one cell to the next; ``lines`` of numbers stand in each."""
    plain = 28 if max(layers, heads) <= 24 else 24
    return max(plain, 30, 12 * lines + 8) if lines else plain


def layout(shown: HeadMap, values: bool = False, least_width: float = 0) -> Drawing:
    """Give everything its place.

    Args:
        values: write the numbers into the cells.
        least_width: room for titles, so that frames of one animation have the same places.
    """
    layers, heads = shown.colours.shape[:2]
    pitch = cell_pitch(layers, heads, len(shown.numbers) if values else 0)
    left = MARGIN + 20 + int(text_width(str(layers), SMALL)) + 8  # the layers' axis title and ticks
    width, height = heads * pitch + 1, layers * pitch + 1
    beside = shown.legend.place(left + width + GAP, 0, height)
    inner = max(beside.right - MARGIN, LEAST_WIDTH, int(least_width) + 1)
    titles = _titles(shown, inner)
    top = titles.bottom + 40  # the heads' axis title and ticks
    cells = _cells(shown, left, top, pitch, values)
    legend = shown.legend.place(left + width + GAP, top, height)
    bottom = max(top + height, legend.bottom)
    shapes = [*titles.shapes, *_axes(layers, heads, left, top, pitch), *cells, *legend.shapes]
    if shown.progress is not None:
        done = round(shown.progress * width)
        shapes.append(Box(left, top + height + 10, width, 4, PALE))
        shapes += [Box(left, top + height + 10, done, 4, SOFT)] if done else []
        bottom = max(bottom, top + height + 14)
    return Drawing(inner + 2 * MARGIN, bottom + MARGIN, shown.title, tuple(shapes))


def _titles(shown: HeadMap, width: int) -> Placed:
    shapes: list[Shape] = []
    y = MARGIN - 4
    for line in wrapped(shown.title, TITLE, width):
        shapes.append(Text(MARGIN, y + TITLE, line, TITLE, DARK))
        y += 24
    y += 3
    for paragraph in shown.subtitle:
        for line in wrapped(paragraph, SUBTITLE, width):
            shapes.append(Text(MARGIN, y + SUBTITLE, line, SUBTITLE, SOFT))
            y += 17
    return Placed(shapes, MARGIN + width, y)


def _axes(layers: int, heads: int, left: int, top: int, pitch: int) -> list[Shape]:
    shapes: list[Shape] = [
        Text(left + heads * pitch / 2, top - 24, "head", SMALL, SOFT, "middle"),
        Text(MARGIN + 10, top + layers * pitch / 2, "layer", SMALL, SOFT, "middle", upright=True),
    ]
    for head in range(heads):
        shapes.append(Text(left + (head + 0.5) * pitch + 0.5, top - 8, str(head + 1), SMALL, DARK, "middle"))
    for layer in range(layers):
        y = middle(top + (layer + 0.5) * pitch + 0.5, SMALL)
        shapes.append(Text(left - 8, y, str(layer + 1), SMALL, DARK, "end"))
    return shapes


def _cells(shown: HeadMap, left: int, top: int, pitch: int, values: bool) -> list[Shape]:
    layers, heads = shown.colours.shape[:2]
    shapes: list[Shape] = [Box(left, top, heads * pitch + 1, layers * pitch + 1, LINE)]
    for layer in range(layers):
        for head in range(heads):
            red, green, blue = (int(value) for value in shown.colours[layer, head])
            x, y = left + head * pitch + 1, top + layer * pitch + 1
            tooltip = f"layer {layer + 1}, head {head + 1}: {_told(shown, layer, head)}"
            shapes.append(Box(x, y, pitch - 1, pitch - 1, (red, green, blue), tooltip))
            if not values:
                continue
            for place, array in enumerate(shown.numbers.values()):
                centre = y + (pitch - 1) / 2 + (place - (len(shown.numbers) - 1) / 2) * 12
                words = figures(array[layer, head], shown.signed)
                colour = palettes.ink((red, green, blue))
                shapes.append(Text(x + (pitch - 1) / 2, middle(centre, FIGURES), words, FIGURES, colour, "middle"))
    return shapes


def _told(shown: HeadMap, layer: int, head: int) -> str:
    sign = "+" if shown.signed else ""
    parts = [(name, f"{array[layer, head]:{sign}.2f}") for name, array in shown.numbers.items()]
    return ", ".join(f"seed {name} {number}" if name else number for name, number in parts)


def figures(value: float, signed: bool) -> str:
    """Two decimals without the zero before the point; a bare 0, 1 or -1 means exactly that."""
    if value in (-1, 0, 1):
        return f"{value:+.0f}" if signed and value else f"{value:.0f}"
    rounded = f"{value:{'+' if signed else ''}.2f}"
    return rounded.replace("0.", ".", 1) if abs(value) < 0.995 else rounded[:-1]  # 1.0: nearly 1
