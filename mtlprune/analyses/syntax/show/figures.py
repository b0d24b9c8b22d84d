"""Pictures of syntactic attention: UAS of every head, and the best head of every relation beside an offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mtlprune.analyses.syntax.show.tables import names, setting
from mtlprune.reports import palettes
from mtlprune.reports.axes import ABOVE, FAINT, LABEL, ZERO, titles
from mtlprune.reports.drawing import Box, Dot, Drawing, Line, Shape, Text, text_width
from mtlprune.reports.legends import DARK, PALE, SMALL, SOFT, Ramp, middle
from mtlprune.reports.maps import MARGIN, HeadMap, layout

CLOSED: palettes.Colour = (214, 226, 236)
_ROW, _PANEL, _GAP = 18, 118, 28


def head_map(tree: Mapping[str, Any], place: int) -> Drawing:
    """UAS of each head in its better direction; closed and removed heads in blue-grey.

    Darkness is on the scale of all encoders of the result, so that maps can be laid side by side.
    """
    one = tree["encoders"][place]
    grids = [_array(other["heads"]["uas"]) for other in tree["encoders"]]
    top = max(10.0, *(float(np.nanmax(grid)) for grid in grids if not np.isnan(grid).all()), 10.0)
    values = grids[place] / 100
    there = ~np.isnan(values)
    colours = palettes.opacity(np.where(there, values, 0) / top * 100)
    colours[~there] = CLOSED
    best = one["uas_single"]
    found = "no head is there"
    if best["layer"] is not None:
        found = (
            f"Best: layer {best['layer']}, head {best['head']}, {best['direction']}, {best['value']:.1f} %; best "
            f"offset {tree['offset']['single']['value']:.1f} %"
        )
    steps = (top, 3 * top / 4, top / 2, top / 4, 0)
    note = "" if there.all() else "Blue-grey: closed or removed."
    legend = Ramp(
        "UAS, %", lambda v: palettes.opacity(v / top), 0.0, top, tuple((step, f"{step:.0f}") for step in steps), note
    )
    drawn = layout(
        HeadMap(
            f"{names(tree)[place]}: words whose head each attention head finds",
            (f"{setting(tree)}; the better of both directions.", found + "."),
            colours,
            {"": values},
            legend,
        )
    )
    shapes = tuple(
        replace(shape, tooltip=shape.tooltip.replace(": nan", ": closed or removed"))
        if isinstance(shape, Box)
        else shape
        for shape in drawn.shapes
    )
    return replace(drawn, shapes=shapes)


def relation_panels(tree: Mapping[str, Any]) -> Drawing:
    """A row a relation, a panel an encoder: held-out UAS of the best head (dot) and of the best offset (tick)."""
    base, called = tree["offset"]["relations"], names(tree)
    words = [f"{entry['relation']} ({entry['tokens']})" for entry in base]
    left = MARGIN + max([text_width(word, SMALL) for word in words], default=0.0) + 12
    inner = max(left + len(called) * (_PANEL + _GAP) - _GAP - MARGIN, 420)
    title = "Best attention head of each relation beside the best offset"
    lines = [
        f"{setting(tree)}; UAS in %, chosen on one half of the sentences and scored on the other.",
        "Dot: best head, blue where beyond the offset. Red tick: best offset. In brackets: words.",
    ]
    head = titles(title, lines, inner)
    top = head.bottom + 30
    height = _ROW * len(base)
    shapes: list[Shape] = list(head.shapes)
    for row, word in enumerate(words):
        shapes.append(Text(left - 10, middle(top + (row + 0.5) * _ROW, SMALL), word, SMALL, DARK, "end"))
    for place, name in enumerate(called):
        x = left + place * (_PANEL + _GAP)
        shapes.append(Text(x + _PANEL / 2, top - 12, name, SMALL, DARK, "middle"))
        shapes += _panel(tree, place, x, top, height)
    return Drawing(round(inner + 2 * MARGIN + 10), round(top + height + 28 + MARGIN), title, tuple(shapes))


def _panel(tree: Mapping[str, Any], place: int, x: float, top: float, height: float) -> list[Shape]:
    shapes: list[Shape] = []
    for value in (0, 25, 50, 75, 100):
        at = x + value / 100 * _PANEL
        shapes.append(Line(at, top, at, top + height, 1, PALE))
        if value % 50 == 0:
            shapes.append(Text(at, top + height + 14, str(value), LABEL, SOFT, "middle"))
    offsets, found = tree["offset"]["relations"], tree["encoders"][place]["relations"]
    for row, (base, one) in enumerate(zip(offsets, found, strict=True)):
        y = top + (row + 0.5) * _ROW
        low, best = base["held_out"], one["uas"]
        if low is not None:
            shapes.append(
                Line(x + low / 100 * _PANEL, y - 6, x + low / 100 * _PANEL, y + 6, 2, ZERO, tooltip=_told(base))
            )
        if best["held_out"] is None:
            continue
        at = x + best["held_out"] / 100 * _PANEL
        beyond = low is not None and best["held_out"] > low
        if low is not None:
            shapes.append(Line(x + low / 100 * _PANEL, y, at, y, 1, FAINT))
        tip = (
            f"{one['relation']}: layer {best['layer']}, head {best['head']}, {best['direction']}, "
            f"{best['held_out']:.1f} % held out"
        )
        shapes.append(Dot(at, y, 4, ABOVE if beyond else FAINT, False, tip))
    return shapes


def _told(base: Mapping[str, Any]) -> str:
    return f"{base['relation']}: offset {base['offset']:+d}, {base['held_out']:.1f} % held out"


def _array(rows: Any) -> np.ndarray:
    return np.array([[np.nan if value is None else value for value in row] for row in rows], float)
