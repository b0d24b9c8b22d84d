"""Curves of pretrainings with their breaks, all runs in one figure. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from mtlprune.analyses.onset.show.reading import MEASURES, Measure, PretrainingLog
from mtlprune.reports.axes import LABEL, titles
from mtlprune.reports.drawing import Dot, Drawing, Line, Shape, Text, text_width
from mtlprune.reports.facets import HEIGHT, HUES, WIDTH, Axis, axis, number
from mtlprune.reports.legends import DARK, LINE, PALE, SMALL, SOFT, middle
from mtlprune.reports.maps import MARGIN
from mtlprune.reports.palettes import Colour

COLUMNS = 3
MOST_TICKS = 6
_LEFT, _BELOW, _ABOVE, _APART = 58, 46, 28, 22
_DASHES = (3.0, 3.0)
Point = tuple[float, float]


def figure(logs: Sequence[PretrainingLog]) -> Drawing:
    """A panel a measure, a line a run; rings mark breaks, with a dashed line down to the axis.

    The axis of updates is one of logarithms; what was measured before the first update stands at its left end.
    """
    shown = [measure for measure in MEASURES if any(log.points(measure.key) for log in logs)]
    colours = {log.name: HUES[place % len(HUES)] for place, log in enumerate(logs)}
    columns = min(COLUMNS, len(shown))
    pitch = _LEFT + WIDTH + _APART
    inner = columns * pitch - _APART
    title = "Pretraining: loss, syntactic attention, minimal pairs, dimension"
    lines = [
        "By updates, on a log axis; at its left end before the first. Ring: the curve's break, its largest "
        "acceleration (of the drop, for loss and dimension). Dashed across: what needs no learning."
    ]
    head = titles(title, lines, inner)
    shapes: list[Shape] = list(head.shapes)
    top = float(head.bottom + 6)
    across = _updates(logs)
    for place, measure in enumerate(shown):
        row, column = divmod(place, columns)
        x, y = MARGIN + column * pitch + _LEFT, top + row * (_ABOVE + HEIGHT + _BELOW) + _ABOVE
        shapes += _panel(measure, logs, colours, across, x, y)
    bottom = top + math.ceil(len(shown) / columns) * (_ABOVE + HEIGHT + _BELOW) + 8
    keys, bottom = _legend(logs, colours, bottom, inner)
    return Drawing(round(inner + 2 * MARGIN), round(bottom + MARGIN), title, (*shapes, *keys))


def _updates(logs: Sequence[PretrainingLog]) -> Axis:
    """An axis of log10 updates; ticks at 1, 2 and 5 times powers of ten, at 1 and 3 times where these are too many."""
    steps = [float(line["step"]) for log in logs for line in log.lines if line["step"] > 0] or [1.0]
    low, high = math.log10(min(steps)), math.log10(max(max(steps), 2 * min(steps)))
    low -= 0.08 * (high - low)  # room for what stands before the first update
    powers = range(math.floor(low), math.ceil(high) + 1)
    within: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [power + math.log10(factor) for power in powers for factor in factors]
        within = [tick for tick in ticks if low <= tick <= high]
        if len(within) <= MOST_TICKS:
            break
    return Axis(low, high + 0.03 * (high - low), WIDTH, within)


def _place(across: Axis, step: float) -> float:
    return across.at(math.log10(step)) if step > 0 else 0.0


def _panel(
    measure: Measure,
    logs: Sequence[PretrainingLog],
    colours: dict[str, Colour],
    across: Axis,
    left: float,
    top: float,
) -> Iterator[Shape]:
    values = [value for log in logs for _, value in log.points(measure.key)]
    base = _baseline(measure, logs)
    up = axis([*values, *([base] if base is not None else [])], HEIGHT, 6)
    yield Text(left, top - 10, measure.name, SMALL + 1, DARK)
    yield from _frame(measure, across, up, left, top)
    if base is not None:
        y = top + HEIGHT - up.at(base)
        yield Line(left, y, left + WIDTH, y, 1.2, SOFT, _DASHES, f"{measure.called}: {base:.1f}")
        yield Text(left + WIDTH - 2, y - 4, measure.called, LABEL, SOFT, "end")
    for log in logs:
        points = [(left + _place(across, x), top + HEIGHT - up.at(y)) for x, y in log.points(measure.key)]
        colour = colours[log.name]
        yield from (Line(x1, y1, x2, y2, 1.6, colour) for (x1, y1), (x2, y2) in pairwise(points))
        for (x, y), (step, value) in zip(points, log.points(measure.key), strict=True):
            yield Dot(x, y, 1.8, colour, False, f"{log.name}, update {step:g}: {value:.4g}")
    for log in logs:  # above all lines
        yield from _ring(measure, log, colours[log.name], across, up, left, top)


def _ring(
    measure: Measure, log: PretrainingLog, colour: Colour, across: Axis, up: Axis, left: float, top: float
) -> Iterator[Shape]:
    at = log.break_of(measure)
    if at is None:
        return
    step, value = min(log.points(measure.key), key=lambda point: abs(point[0] - at))
    x, y = left + _place(across, step), top + HEIGHT - up.at(value)
    yield Line(x, y + 5, x, top + HEIGHT, 1, colour, _DASHES)
    yield Dot(x, y, 5, colour, True, f"{log.name}: break at update {step:g}")


def _baseline(measure: Measure, logs: Sequence[PretrainingLog]) -> float | None:
    if not isinstance(measure.beside, str):
        return measure.beside
    found = [value for log in logs for _, value in log.points(measure.beside)]
    return max(found) if found else None


def _frame(measure: Measure, across: Axis, up: Axis, left: float, top: float) -> Iterator[Shape]:
    step = up.ticks[1] - up.ticks[0] if len(up.ticks) > 1 else 1.0
    for tick in up.ticks:
        y = top + HEIGHT - up.at(tick)
        yield Line(left, y, left + WIDTH, y, 1, PALE)
        yield Text(left - 6, middle(y, SMALL), number(tick, step), SMALL, DARK, "end")
    for tick in across.ticks:
        x = left + across.at(tick)
        yield Line(x, top + HEIGHT, x, top + HEIGHT + 4, 1, LINE)
        yield Text(x, top + HEIGHT + 16, f"{round(10**tick):,}".replace(",", " "), SMALL, DARK, "middle")
    yield Line(left, top, left, top + HEIGHT, 1, LINE)
    yield Line(left, top + HEIGHT, left + WIDTH, top + HEIGHT, 1, LINE)
    yield Text(left + WIDTH / 2, top + HEIGHT + 31, "updates", SMALL, SOFT, "middle")
    yield Text(left - _LEFT + 12, top + HEIGHT / 2, measure.unit, SMALL, SOFT, "middle", upright=True)


def _legend(
    logs: Sequence[PretrainingLog], colours: dict[str, Colour], top: float, width: float
) -> tuple[list[Shape], float]:
    shapes: list[Shape] = []
    x, y = float(MARGIN), top + 8
    for log in logs:
        until = f" until update {log.release}" if log.release is not None else ""
        # the typeface has no Greek letters and no minus sign
        words = f"{log.name}: lambda {log.strength:g}{until}" if log.strength else log.name
        size = 34 + text_width(words, SMALL)
        if x > MARGIN and x + size > MARGIN + width:
            x, y = float(MARGIN), y + 18
        shapes += [Line(x, y - 4, x + 22, y - 4, 1.6, colours[log.name]), Dot(x + 11, y - 4, 3, colours[log.name])]
        shapes.append(Text(x + 28, y, words, SMALL, DARK))
        x += size + 16
    return shapes, y + 6
