"""Accuracy minus STL, a tick a label, a group an encoder (He and Choi 2021, Figure 4).

drawing = differences(panel, setting="minilm, ewt5")
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mtlprune.analyses.probes.show.columns import STL, ProbeColumn, ProbePanel, accuracy
from mtlprune.reports.axes import (
    FAINT,
    LABEL,
    ROW,
    Scale,
    beside_label,
    scale_for,
    shown,
    spread,
    titles,
    value_axis,
)
from mtlprune.reports.drawing import Drawing, Line, Shape, Text, text_width
from mtlprune.reports.legends import DARK, PALE, SMALL, SOFT
from mtlprune.reports.maps import MARGIN, SUBTITLE

SHORTEST, LONGEST = 5.0, 44.0
"""Of ticks: one item, and the most frequent label."""
_LEAD, _PAD, _SIDE = 20, 14, 8
_HEIGHT = 400
NAMED = 20
"""So many labels have their names beside their ticks, the most frequent ones; the others' stand in tooltips."""
_HEADER = 44
_FAR = 8


@dataclass(frozen=True)
class _Tick:
    label: str
    value: float
    length: float
    few: bool
    items: int
    named: bool


def differences(panel: ProbePanel, setting: str) -> Drawing:
    """Every encoder but STL: the mean accuracy over its seeds minus that of STL, for each label.

    Raises:
        ValueError: the panel has no STL column.
    """
    alone = panel.column(STL)
    if alone is None:
        raise ValueError(f"{panel.task}: differences need an STL column")
    groups = [(column, _ticks(panel, column, alone)) for column in panel.compared]
    left = MARGIN + 20 + int(text_width("+100", SMALL)) + 8
    widths = [_width(column, ticks) for column, ticks in groups]
    right = left + sum(widths)
    inner = max(right + text_width(STL, LABEL) + 8 - MARGIN, 480)
    name = f"{panel.task.upper()}: accuracy minus STL"
    head = titles(name, _subtitle(panel, groups, alone, setting), inner)
    top = head.bottom + _HEADER + 12
    scale = scale_for(_values(groups), top, _HEIGHT, zero=True)
    shapes = [*head.shapes, *value_axis(scale, left, right, "accuracy minus STL (points)", True, STL)]
    x = float(left)
    for (column, ticks), width in zip(groups, widths, strict=True):
        shapes.append(Line(x, top - _HEADER, x, top + _HEIGHT, 1, PALE))
        shapes += _header(column, ticks, x, top)
        shapes += _group(ticks, x, scale)
        x += width
    shapes.append(Line(x, top - _HEADER, x, top + _HEIGHT, 1, PALE))
    return Drawing(round(inner + 2 * MARGIN), round(top + _HEIGHT + MARGIN), name, tuple(shapes))


def _values(groups: Sequence[tuple[ProbeColumn, Sequence[_Tick]]]) -> list[float]:
    """What the axis must hold: a label of one item may lie a hundred points off and would press all others together."""
    every = [tick for _, ticks in groups for tick in ticks]
    return [tick.value for tick in every if not tick.few] or [tick.value for tick in every] or [0.0]


def _ticks(panel: ProbePanel, column: ProbeColumn, alone: ProbeColumn) -> list[_Tick]:
    """Highest first."""
    most = max((panel.items[label] for label in panel.labels), default=1)
    named = panel.labels[:NAMED]
    found = []
    for label in panel.labels:
        value = column.mean(label, accuracy) - alone.mean(label, accuracy)
        if not math.isnan(value):
            length = SHORTEST + (LONGEST - SHORTEST) * math.sqrt(panel.items[label] / most)
            found.append(_Tick(label, value, length, label in panel.few, panel.items[label], label in named))
    return sorted(found, key=lambda tick: (-tick.value, tick.label))


def _width(column: ProbeColumn, ticks: Sequence[_Tick]) -> float:
    words = max((text_width(shown(tick.label), LABEL) for tick in ticks if tick.named), default=0.0)
    heads = max(text_width(line, SMALL) for line in _summary(ticks)) + 2 * _SIDE
    return math.ceil(max(_SIDE + LONGEST + _LEAD + words + _PAD, heads, text_width(column.title, SUBTITLE) + 2 * _SIDE))


def _header(column: ProbeColumn, ticks: Sequence[_Tick], x: float, top: float) -> list[Shape]:
    y = top - _HEADER + SUBTITLE
    shapes: list[Shape] = [Text(x + _SIDE, y, column.title, SUBTITLE, DARK)]
    for place, line in enumerate(_summary(ticks), 1):
        shapes.append(Text(x + _SIDE, y + 2 + 13 * place, line, SMALL, SOFT))
    return shapes


def _summary(ticks: Sequence[_Tick]) -> list[str]:
    """Mean over labels and how many fall, those with few items left aside."""
    sure = [tick.value for tick in ticks if not tick.few]
    if not sure:
        return ["few items only", ""]
    below = sum(value < 0 for value in sure)
    return [f"mean {statistics.mean(sure):+.1f}", f"{below} of {len(sure)} below"]


def _group(ticks: Sequence[_Tick], x: float, scale: Scale) -> list[Shape]:
    centre, beside = x + _SIDE + LONGEST / 2, x + _SIDE + LONGEST + _LEAD
    inside = [tick for tick in ticks if scale.low <= tick.value <= scale.high]
    named = [tick for tick in inside if tick.named]
    wanted = [scale.y(tick.value) for tick in named]
    places = spread(wanted, ROW, scale.top + ROW / 2, scale.top + scale.height - ROW / 2)
    leads: list[Shape] = []
    words: list[Shape] = []
    for tick, y, place in zip(named, wanted, places, strict=True):
        leads.append(Line(centre + tick.length / 2 + 2, y, beside - 3, place, 0.75, (196, 196, 200)))
        words += beside_label(beside, place, tick.label, SOFT if tick.few else DARK)
    bars = [_bar(tick, centre, scale.y(tick.value)) for tick in sorted(inside, key=lambda tick: -tick.few)]
    return [*leads, *bars, *words]


def _bar(tick: _Tick, centre: float, y: float) -> Line:
    told = f"{tick.label}: {tick.value:+.2f} points, {tick.items} items"
    width, colour = (1.25, FAINT) if tick.few else (2.0, DARK)
    return Line(centre - tick.length / 2, y, centre + tick.length / 2, y, width, colour, None, told)


def _subtitle(
    panel: ProbePanel, groups: Sequence[tuple[ProbeColumn, Sequence[_Tick]]], alone: ProbeColumn, setting: str
) -> list[str]:
    chosen = (
        "heads chosen on dev, reported on test" if panel.mode == "sound" else "heads chosen on the items reported on"
    )
    seeds = ", ".join(f"{column.title} {len(column.seeds)}" for column in (alone, *(column for column, _ in groups)))
    lines = [
        f"{setting}; {panel.mode}: {chosen}. Means over seeds ({seeds}).",
        "Longer ticks: more test items (length grows with the square root)."
        + (f" Named: the {NAMED} most frequent of {len(panel.labels)} labels." if len(panel.labels) > NAMED else "")
        + (" Grey: few test items; they count in no mean." if panel.few & set(panel.labels) else ""),
    ]
    scale = scale_for(_values(groups), 0, 1, zero=True)
    far = [
        f"{column.title} {tick.label} {tick.value:+.0f}"
        for column, ticks in groups
        for tick in ticks
        if not scale.low <= tick.value <= scale.high
    ]
    more = f" and {len(far) - _FAR} more" if len(far) > _FAR else ""
    lines += [f"Beyond the axis (few items): {', '.join(far[:_FAR])}{more}."] if far else []
    if panel.root is not None:
        told = [
            f"{column.title} {column.mean(panel.root, accuracy) - alone.mean(panel.root, accuracy):+.1f}"
            for column, _ in groups
            if column.values(panel.root, accuracy) and alone.values(panel.root, accuracy)
        ]
        lines += (
            [f"{panel.root}, found by attention to the first special token, stands apart: {', '.join(told)}."]
            if told
            else []
        )
    return lines
