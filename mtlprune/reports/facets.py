"""Small panels side by side with axes of their own: lines or dots, and a legend; from numbers to shapes.

facets("CosSim by layer", ["..."], [Panel("raw", curves, x="layer", y="CosSim")], columns=3)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mtlprune.reports.axes import titles
from mtlprune.reports.drawing import Dot, Drawing, Line, Shape, Text, text_width
from mtlprune.reports.legends import DARK, LINE, PALE, SMALL, SOFT, middle
from mtlprune.reports.maps import MARGIN
from mtlprune.reports.palettes import Colour

HUES: tuple[Colour, ...] = (
    (28, 28, 30),
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (120, 60, 20),
    (120, 120, 126),
    (150, 20, 60),
)
"""After Okabe and Ito (2008), with black first and four darker ones behind."""
WIDTH, HEIGHT = 232, 168
"""Of a panel's inside."""
_LEFT, _BELOW, _ABOVE, _APART = 58, 44, 26, 18
DASHES = (5.0, 3.0)


@dataclass(frozen=True)
class Curve:
    """Points joined by a line, or left apart as dots."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: Colour
    dashed: bool = False
    joined: bool = True
    radius: float = 2.2


@dataclass(frozen=True)
class Panel:
    """One panel; ``marks`` are values of x with a dashed line."""

    title: str
    curves: Sequence[Curve]
    x: str
    y: str
    marks: Sequence[float] = ()
    zero: bool = False
    """Whether 0 is on the vertical axis, with a line."""
    whole: bool = False
    """Whether x counts (layers): ticks at whole numbers."""


@dataclass(frozen=True)
class Axis:
    """A linear scale from ``low`` to ``high`` on ``length``, with round ticks."""

    low: float
    high: float
    length: float
    ticks: list[float] = field(default_factory=list)

    def at(self, value: float) -> float:
        """From 0 (low) to length (high)."""
        return (value - self.low) / (self.high - self.low) * self.length


def axis(values: Sequence[float], length: float, most: int, whole: bool = False) -> Axis:
    """An axis that holds the values with a little room, and at most so many ticks at 1, 2 or 5 times a power of 10."""
    low, high = min(values), max(values)
    if high == low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    room = 0.0 if whole else 0.04 * (high - low)
    low, high = low - room, high + room
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return Axis(low, high, length, [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)])


def number(value: float, step: float) -> str:
    """A tick with as many decimals as its step needs."""
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return f"{value:.{digits}f}".replace("-0." + "0" * digits, "0." + "0" * digits)  # the typeface has no minus sign


def facets(title: str, subtitle: Sequence[str], panels: Sequence[Panel], columns: int, legend: bool = True) -> Drawing:
    """Panels row by row, below them the names of the curves.

    Raises:
        ValueError: nothing to draw.
    """
    if not any(curve.points for panel in panels for curve in panel.curves):
        raise ValueError(f"{title}: there is nothing to draw")
    columns = min(columns, len(panels))
    pitch = _LEFT + WIDTH + _APART
    inner = max(columns * pitch - _APART, 380)
    head = titles(title, subtitle, inner)
    shapes: list[Shape] = list(head.shapes)
    top = float(head.bottom + 8)
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        y = top + row * (_ABOVE + HEIGHT + _BELOW)
        shapes += _panel(panel, MARGIN + column * pitch + _LEFT, y + _ABOVE)
    bottom = top + -(-len(panels) // columns) * (_ABOVE + HEIGHT + _BELOW)
    if legend:
        named = {curve.name: curve for panel in panels for curve in panel.curves if curve.points}
        keys, bottom = _legend(list(named.values()), MARGIN, bottom + 4, inner)
        shapes += keys
    return Drawing(round(inner + 2 * MARGIN), round(bottom + MARGIN), title, tuple(shapes))


def _panel(panel: Panel, left: float, top: float) -> list[Shape]:
    points = [point for curve in panel.curves for point in curve.points]
    shapes: list[Shape] = [Text(left, top - 9, panel.title, SMALL + 1, DARK)]
    if not points:
        return [*shapes, Text(left + WIDTH / 2, top + HEIGHT / 2, "nothing to show", SMALL, SOFT, "middle")]
    across = axis([x for x, _ in points] + list(panel.marks), WIDTH, 8, panel.whole)
    up = axis([y for _, y in points] + ([0.0] if panel.zero else []), HEIGHT, 6)
    shapes += _frame(panel, across, up, left, top)
    for curve in panel.curves:
        places = [(left + across.at(x), top + HEIGHT - up.at(y)) for x, y in curve.points]
        if curve.joined:
            dashes = DASHES if curve.dashed else None
            shapes += [Line(x1, y1, x2, y2, 1.6, curve.colour, dashes) for (x1, y1), (x2, y2) in pairwise(places)]
        for (px, py), (x, y) in zip(places, curve.points, strict=True):
            told = f"{curve.name}, {panel.x} {x:g}: {y:.4g}" if curve.joined else ""
            shapes.append(Dot(round(px, 1), round(py, 1), curve.radius, curve.colour, False, told))
    return shapes


def _frame(panel: Panel, across: Axis, up: Axis, left: float, top: float) -> list[Shape]:
    shapes: list[Shape] = []
    for axis_, upright in ((up, True), (across, False)):
        step = axis_.ticks[1] - axis_.ticks[0] if len(axis_.ticks) > 1 else abs(axis_.ticks[0]) if axis_.ticks else 1
        for tick in axis_.ticks:
            words = number(tick, step or 1)
            if upright:
                y = top + HEIGHT - up.at(tick)
                shapes.append(Line(left, y, left + WIDTH, y, 1, LINE if panel.zero and abs(tick) < 1e-12 else PALE))
                shapes.append(Text(left - 6, middle(y, SMALL), words, SMALL, DARK, "end"))
            else:
                shapes.append(Text(left + across.at(tick), top + HEIGHT + 16, words, SMALL, DARK, "middle"))
    for mark in panel.marks:
        x = left + across.at(mark)
        shapes.append(Line(x, top, x, top + HEIGHT, 1.2, SOFT, DASHES))
    shapes.append(Line(left, top, left, top + HEIGHT, 1, LINE))
    shapes.append(Line(left, top + HEIGHT, left + WIDTH, top + HEIGHT, 1, LINE))
    shapes.append(Text(left + WIDTH / 2, top + HEIGHT + 32, panel.x, SMALL, SOFT, "middle"))
    shapes.append(Text(left - _LEFT + 12, top + HEIGHT / 2, panel.y, SMALL, SOFT, "middle", upright=True))
    return shapes


def _legend(curves: Sequence[Curve], left: float, top: float, width: float) -> tuple[list[Shape], float]:
    """Names beside what they look like, in as many lines as they need."""
    shapes: list[Shape] = []
    x, y = left, top + 12
    for curve in curves:
        size = 34 + text_width(curve.name, SMALL)
        if x > left and x + size > left + width:
            x, y = left, y + 18
        if curve.joined:
            shapes.append(Line(x, y - 4, x + 22, y - 4, 1.6, curve.colour, DASHES if curve.dashed else None))
        shapes.append(Dot(x + 11, y - 4, 3, curve.colour))
        shapes.append(Text(x + 28, y, curve.name, SMALL, DARK))
        x += size + 14
    return shapes, y + 4
