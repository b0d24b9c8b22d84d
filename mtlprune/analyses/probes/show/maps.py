"""Heat maps of one label over all heads, and all labels of a task on one sheet.

drawing = heat_map(panel, column, "nsubj", raw=False, setting="minilm, ewt5")
sheet = atlas(panel, column, raw=False, setting="minilm, ewt5")

Letters: L layers, A heads a layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.probes.show.columns import ProbeColumn, ProbePanel
from mtlprune.analyses.probes.show.results import LabelResult
from mtlprune.reports import palettes
from mtlprune.reports.axes import LABEL, shown, titles
from mtlprune.reports.drawing import Box, Drawing, Shape, Text, text_width
from mtlprune.reports.legends import DARK, LINE, SOFT, Ramp
from mtlprune.reports.maps import GAP, MARGIN, HeadMap, layout
from mtlprune.reports.palettes import Colour, Colours

SPAN = 50.0
"""Gains of so many points and more have the full colour: few heads exceed it, and fainter ones can still be seen."""
_FRAME: Colour = (28, 28, 30)
_FRAME_ON_GREY: Colour = (213, 94, 0)
"""Vermilion (Okabe and Ito 2008): seen on black and on white."""
ABSENT: Colour = (255, 241, 184)
"""Of heads without a number, which are removed or closed."""
_CELL, _ROOM = 9, 22
_ACROSS = 920
"""Width that a sheet fills before it begins a new row."""


def heat_map(
    panel: ProbePanel, column: ProbeColumn, label: str, raw: bool, setting: str, values: bool = False
) -> Drawing:
    """Every head's gain over the label's best control (or its accuracy), a mean over seeds; chosen heads framed."""
    results = _results(column, label)
    numbers = _numbers(results, raw)
    mark = " (few test items)" if label in panel.few else ""
    lines = [
        f"{setting}; {panel.mode}; {panel.items[label]} test items{mark}.",
        f"Chosen: {_chosen(results)}.",
        *_controls(results),
    ]
    title = f"{panel.task.upper()} {label}, {column.title}"
    drawn = HeadMap(
        title,
        tuple(lines),
        _colours(numbers, raw),
        {"": np.round(numbers, 1)},
        _legend(raw, bool(np.isnan(numbers).any())),
        signed=not raw,
    )
    placed = layout(drawn, values)
    framed = {(result.layer, result.head) for result in results}
    cells = [shape for shape in placed.shapes if isinstance(shape, Box) and _place(shape) in framed]
    return dataclasses.replace(placed, shapes=(*placed.shapes, *(part for cell in cells for part in _frame(cell, raw))))


def atlas(panel: ProbePanel, column: ProbeColumn, raw: bool, setting: str) -> Drawing:
    """A small map for each label, the most frequent first; in each the chosen heads are framed."""
    labels = [label for label in (*panel.labels, *([panel.root] if panel.root else [])) if _results(column, label)]
    layers, heads = _results(column, labels[0])[0].heads.shape
    width, height = heads * _CELL + 1, layers * _CELL + 1
    pitch = max(width, *(math.ceil(text_width(_caption(panel, label), LABEL)) for label in labels)) + _ROOM
    across = max(1, min(len(labels), _ACROSS // pitch))
    title = f"{panel.task.upper()}, {column.title}: {'accuracy' if raw else 'gain over the best control'} of every head"
    legend_x = MARGIN + across * pitch - _ROOM + GAP
    ramp = _legend(raw, any(np.isnan(_numbers(_results(column, label), raw)).any() for label in labels))
    legend = ramp.place(legend_x, 0, 0)
    inner = legend.right - MARGIN
    head = titles(title, _sheet_lines(panel, column, setting, labels), inner)
    top = head.bottom + 10
    shapes: list[Shape] = [*head.shapes, *ramp.place(legend_x, top, 0).shapes]
    row = height + 34
    for place, label in enumerate(labels):
        x, y = MARGIN + place % across * pitch, top + place // across * row
        shapes += _small(panel, column, label, raw, x, y)
    bottom = max(top + math.ceil(len(labels) / across) * row, top + legend.bottom)
    return Drawing(inner + 2 * MARGIN, bottom + 8, title, tuple(shapes))


def _small(panel: ProbePanel, column: ProbeColumn, label: str, raw: bool, x: int, y: int) -> list[Shape]:
    results = _results(column, label)
    numbers = _numbers(results, raw)
    layers, heads = numbers.shape
    faint = label in panel.few
    shapes: list[Shape] = [Text(x, y + LABEL, _caption(panel, label), LABEL, SOFT if faint else DARK)]
    top = y + LABEL + 5
    shapes.append(Box(x, top, heads * _CELL + 1, layers * _CELL + 1, LINE))
    framed = {(result.layer, result.head) for result in results}
    for layer, head in np.ndindex(layers, heads):
        red, green, blue = (int(part) for part in _colours(numbers, raw)[layer, head])
        told = f"{label}, layer {layer + 1}, head {head + 1}: {numbers[layer, head]:.1f}"
        left, above = x + head * _CELL + 1, top + layer * _CELL + 1
        cell = Box(left, above, _CELL - 1, _CELL - 1, (red, green, blue), told)
        shapes.append(cell)
        if (layer + 1, head + 1) in framed:
            shapes += _frame(cell, raw)
    return shapes


def _caption(panel: ProbePanel, label: str) -> str:
    return f"{shown(label)}  {panel.items[label]:,}"


def _sheet_lines(panel: ProbePanel, column: ProbeColumn, setting: str, labels: Sequence[str]) -> list[str]:
    seeds = f"; mean of {len(column.seeds)} seeds" if len(column.seeds) > 1 else ""
    lines = [
        f"{setting}; {panel.mode}{seeds}. Rows are layers, 1 at the top; columns are heads. Behind each label: its "
        "test items. Framed: the head chosen for the label" + (", one a seed." if len(column.seeds) > 1 else ".")
    ]
    if panel.few & set(labels):
        lines.append("Labels in grey have few test items.")
    if panel.root in labels:
        lines.append(f"{panel.root}, last, is found by attention to the first special token.")
    return lines


def _results(column: ProbeColumn, label: str) -> list[LabelResult]:
    return [labels[label] for labels in column.seeds.values() if label in labels]


def _numbers(results: Sequence[LabelResult], raw: bool) -> NDArray[np.float64]:
    """(L, A): mean over the seeds that have the head, else NaN; without any control the accuracy stands above 0."""
    seeds = np.stack([r.heads - (0.0 if raw or math.isnan(r.control) else r.control) for r in results])
    there = ~np.isnan(seeds)
    with np.errstate(invalid="ignore"):  # a head that no seed has left is 0 / 0: no number
        return np.where(there, seeds, 0).sum(axis=0) / there.sum(axis=0)


def _colours(numbers: NDArray[np.float64], raw: bool) -> Colours:
    colours = _grey(numbers) if raw else _gains(numbers)
    colours[np.isnan(numbers)] = ABSENT
    return colours


def _grey(values: NDArray[np.float64]) -> Colours:
    return palettes.opacity(np.nan_to_num(values) / 100)


def _gains(values: NDArray[np.float64]) -> Colours:
    return palettes.diverging(-np.clip(np.nan_to_num(values) / SPAN, -1, 1))


def _legend(raw: bool, gone: bool = False) -> Ramp:
    note = "Yellow: removed or closed." if gone else ""
    if raw:
        return Ramp("Accuracy (%)", _grey, 0, 100, tuple((float(v), str(v)) for v in (100, 75, 50, 25, 0)), note)
    marks = ((SPAN, f"+{SPAN:.0f} and more"), (25.0, "+25"), (0.0, "0  as the best control"), (-25.0, "-25"))
    return Ramp("Accuracy minus best control", _gains, -SPAN, SPAN, (*marks, (-SPAN, f"-{SPAN:.0f} and less")), note)


def _chosen(results: Sequence[LabelResult]) -> str:
    each = [f"layer {r.layer}, head {r.head} ({r.accuracy:.1f} %)" for r in results]
    return "; ".join(each)


def _controls(results: Sequence[LabelResult]) -> list[str]:
    control = [r.control for r in results if not math.isnan(r.control)]
    return (
        [f"Best control: {np.mean(control):.1f} %."]
        if control
        else ["No control was probed: colours show the accuracy."]
    )


def _place(box: Box) -> tuple[int, int] | None:
    """Layer and head of a cell, from its tooltip."""
    words = box.tooltip.partition(":")[0].replace(",", "").split()
    return (int(words[1]), int(words[3])) if len(words) == 4 and words[0] == "layer" else None


def _frame(cell: Box, raw: bool) -> list[Shape]:
    colour, thick = _FRAME_ON_GREY if raw else _FRAME, 2 if cell.width > 12 or raw else 1
    x, y, width, height = cell.x - 1, cell.y - 1, cell.width + 2, cell.height + 2
    return [
        Box(x, y, width, thick, colour),
        Box(x, y + height - thick, width, thick, colour),
        Box(x, y, thick, height, colour),
        Box(x + width - thick, y, thick, height, colour),
    ]
