"""Plots of the page's own: curves over training and differences with intervals, in the colours of its style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtlprune.reports.page.html import Html, element

Point = tuple[float, float]
HUES = 8
"""Colours of the style sheet, s0 to s7."""


@dataclass(frozen=True)
class Look:
    """How a series is drawn: the number of its colour, and whether dashed."""

    hue: int
    dashed: bool = False

    @property
    def name(self) -> str:
        """Its classes in the style sheet."""
        return f"s{self.hue % HUES}{' dashed' if self.dashed else ''}"


@dataclass(frozen=True)
class Series:
    """One setting: a faint line a seed, and their mean."""

    name: str
    look: Look
    seeds: Sequence[Sequence[Point]]

    def mean(self) -> list[Point]:
        """Over the seeds that have the x."""
        values: dict[float, list[float]] = {}
        for points in self.seeds:
            for x, y in points:
                values.setdefault(x, []).append(y)
        return [(x, sum(ys) / len(ys)) for x, ys in sorted(values.items())]


@dataclass(frozen=True)
class Interval:
    """One difference: where it lies, between which bounds it may, and what is said of it."""

    name: str
    look: Look
    value: float
    low: float
    high: float
    sure: bool
    told: str


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two bounds: multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def curves(title: str, alt: str, series: Sequence[Series], x: str, floor: float | None = None) -> Html:
    """A small panel: x, which counts, to the right, values upwards; numbers stand in tooltips of the dots."""
    width, height, left, right, top, bottom = 320, 208, 40, 10, 26, 30
    points = [point for one in series for seed in one.seeds for point in seed]
    lows, highs = [y for _, y in points], [px for px, _ in points]
    least, most = min(lows) if floor is None else min(floor, *lows), max(lows)
    pad = (most - least) * 0.06 or 1.0
    y_low, y_high = least - (pad if floor is None else 0), most + pad
    x_low, x_high = min(highs), max(highs)
    x_high = x_high if x_high > x_low else x_low + 1

    def at(point: Point) -> Point:
        px = left + (point[0] - x_low) / (x_high - x_low) * (width - left - right)
        return round(px, 1), round(top + (y_high - point[1]) / (y_high - y_low) * (height - top - bottom), 1)

    parts = [element("text", title, x=left, y=14, class_="name")]
    for value in ticks(y_low, y_high, 5):
        y = at((x_low, value))[1]
        parts.append(element("line", x1=left, y1=y, x2=width - right, y2=y, class_="grid"))
        parts.append(element("text", f"{value:g}".replace("-", "−"), x=left - 6, y=y + 3.5, class_="tick end"))
    for value in (tick for tick in ticks(x_low, x_high, 6) if tick == round(tick)):
        parts.append(element("text", f"{value:g}", x=at((value, 0))[0], y=height - bottom + 15, class_="tick middle"))
    parts.append(element("text", x, x=width - right, y=height - 3, class_="tick end"))
    for one in series:
        if len(one.seeds) > 1:
            parts += [_path([at(point) for point in seed], f"{one.look.name} seed") for seed in one.seeds]
    for one in series:
        mean = one.mean()
        parts.append(_path([at(point) for point in mean], f"{one.look.name} mean"))
        for point in mean:
            px, py = at(point)
            told = f"{one.name}, {x} {point[0]:g}: {point[1]:.2f}"
            parts.append(element("circle", element("title", told), cx=px, cy=py, r=2.6, class_=one.look.name))
    box = {"viewBox": f"0 0 {width} {height}", "class_": "plot", "role": "img", "aria_label": alt}
    return element("svg", *parts, **box)


def _path(places: Sequence[Point], name: str) -> Html:
    return element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in places), class_=name)


def intervals(
    alt: str, groups: Sequence[tuple[str, Sequence[Interval]]], zero: str, unit: str = "points", compact: bool = False
) -> Html:
    """Differences below each other, a named group of rows each: a dot with its interval, full where it is significant.

    Args:
        compact: for a panel beside others.
    """
    rows = sum(len(group) for _, group in groups)
    width, left, right, top, row, gap = (320, 92, 8, 30, 15, 0) if compact else (520, 58, 12, 26, 14, 10)
    height = top + rows * row + len(groups) * gap + 30
    low, high = _bounds([one for _, group in groups for one in group])

    def at(value: float) -> float:
        inside = min(max(value, low), high)
        return round(left + (inside - low) / (high - low) * (width - left - right), 1)

    base = height - 30
    parts = []
    for value in ticks(low, high, 5 if compact else 8):
        shown = f"{value:+g}".replace("-", "−") if value else "0"
        parts.append(element("line", x1=at(value), y1=top - 6, x2=at(value), y2=base, class_="grid"))
        parts.append(element("text", shown, x=at(value), y=base + 14, class_="tick middle"))
    parts.append(element("line", x1=at(0), y1=top - 10, x2=at(0), y2=base, class_="zero"))
    parts.append(element("text", zero, x=at(0), y=12, class_="tick middle"))
    parts.append(element("text", unit, x=width - right, y=height - 3, class_="tick end"))
    y = float(top)
    for name, group in groups:
        parts.append(element("text", name, x=left - 14, y=y + len(group) * row / 2 + 3, class_="name end"))
        for one in group:
            parts.append(_interval(one, y + row / 2, at))
            y += row
        y += gap
    kind = "plot" if compact else "plot wide"
    box = {"viewBox": f"0 0 {width} {height}", "class_": kind, "role": "img", "aria_label": alt}
    return element("svg", *parts, **box)


def _bounds(held: Sequence[Interval]) -> Point:
    """Room for all values, and for intervals unless they are much wider than most: those are cut off at the edge."""
    widths = sorted(one.high - one.low for one in held if not math.isnan(one.low))
    usual = 4 * widths[len(widths) // 2] if widths else 0.0
    sides = [(one.low, one.high) for one in held if one.high - one.low <= usual]
    found = [0.0, *(one.value for one in held), *(bound for side in sides for bound in side)]
    pad = (max(found) - min(found)) * 0.05 or 1.0
    return min(found) - pad, max(found) + pad


def _interval(one: Interval, y: float, at: Callable[[float], float]) -> Html:
    marks = [element("title", one.told)]
    if not math.isnan(one.low):
        marks.append(element("line", x1=at(one.low), y1=y, x2=at(one.high), y2=y, class_="whisker"))
    marks.append(element("circle", cx=at(one.value), cy=y, r=4, class_="sure" if one.sure else "unsure"))
    return element("g", *marks, class_=one.look.name)


def legend(entries: Sequence[tuple[str, Look]]) -> Html:
    """Names beside what they look like."""
    items = [
        element("li", element("span", class_=f"swatch {look.name}", aria_hidden="true"), name) for name, look in entries
    ]
    return element("ul", *items, class_="legend")
