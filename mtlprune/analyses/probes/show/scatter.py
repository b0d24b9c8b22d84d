"""Best layer against accuracy, a dot a label: where an encoder keeps what (He and Choi 2021, Figure 3).

drawing = scatter(panel, column, raw=False, setting="minilm, ewt5")
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mtlprune.analyses.probes.show.columns import ProbeColumn, ProbePanel
from mtlprune.analyses.probes.show.results import TITLES, LabelResult
from mtlprune.reports.axes import (
    ABOVE,
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
from mtlprune.reports.drawing import Dot, Drawing, Line, Shape, Text, text_width
from mtlprune.reports.legends import DARK, PALE, SMALL, SOFT
from mtlprune.reports.maps import MARGIN

LEAST, MOST = 2.5, 6.0
"""Radii of dots: of one item, and of the most frequent label."""
_EMPTY, _LEAD, _PAD = 26, 18, 12
"""Widths: of a layer without a label, from dots to labels, after them."""
_HEIGHT = 400
_AXIS = 44


@dataclass(frozen=True)
class _Mark:
    label: str
    result: LabelResult
    value: float

    @property
    def beyond(self) -> bool:
        return self.result.gain > 0


def scatter(panel: ProbePanel, column: ProbeColumn, raw: bool, setting: str) -> Drawing:
    """Each label at the layer of its chosen head; the height is the gain over the best control, or the accuracy.

    Of an encoder with several seeds the first is shown, since a head cannot be averaged over seeds.
    Labels stand beside their dots, spread so that none overlaps (probe_axes.spread), with a line to the dot.
    """
    seed, results = next(iter(column.seeds.items()))
    layers = next(iter(results.values())).heads.shape[0]
    every = list(_marks(panel, results, raw))
    sure = [mark.value for mark in every if mark.label not in panel.few] or [mark.value for mark in every] or [0.0]
    bounds = scale_for(sure, 0, 1, zero=not raw)  # few items stretch no axis
    marks = [mark for mark in every if bounds.low <= mark.value <= bounds.high]
    off = [mark for mark in every if mark not in marks]
    by_layer = [[mark for mark in marks if mark.result.layer == layer] for layer in range(1, layers + 1)]
    widths = [_width(marks) for marks in by_layer]
    left = MARGIN + 20 + int(text_width("+100", SMALL)) + 8
    height = max(_HEIGHT, *(ROW * len(marks) + 4 for marks in by_layer))
    right = left + sum(widths)
    edge = 0 if raw else text_width("best control", LABEL) + 8
    inner = max(right + edge - MARGIN, 480)
    lines = _subtitle(panel, column, seed, results, every, raw, setting)
    if off:
        told = ", ".join(f"{mark.label} {mark.value:.0f}" if raw else f"{mark.label} {mark.value:+.0f}" for mark in off)
        lines.append(f"Few items, and beyond the axis: {told}.")
    head = titles(_title(panel, column, raw), lines, inner)
    top = head.bottom + 16
    scale = Scale(bounds.low, bounds.high, top, height)
    name = "accuracy (%)" if raw else "accuracy minus best control (points)"
    shapes = [*head.shapes, *value_axis(scale, left, right, name, not raw, "best control")]
    x = float(left)
    for layer, (here, width) in enumerate(zip(by_layer, widths, strict=True), 1):
        shapes.append(Line(x, top, x, top + height, 1, PALE))
        shapes.append(Text(x + width / 2, top + height + 18, str(layer), SMALL, DARK, "middle"))
        shapes += _layer(here, x, scale, panel)
        x += width
    shapes.append(Line(x, top, x, top + height, 1, PALE))
    shapes.append(Text((left + right) / 2, top + height + 36, "layer of the best head", SMALL, SOFT, "middle"))
    return Drawing(
        round(inner + 2 * MARGIN), round(top + height + _AXIS + MARGIN - 8), _title(panel, column, raw), tuple(shapes)
    )


def _marks(panel: ProbePanel, results: dict[str, LabelResult], raw: bool) -> Iterator[_Mark]:
    for label in panel.labels:
        if label in results:
            value = results[label].accuracy if raw else results[label].gain
            if not math.isnan(value):
                yield _Mark(label, results[label], value)


def _width(marks: Sequence[_Mark]) -> float:
    words = [text_width(shown(mark.label), LABEL) for mark in marks]
    return math.ceil(2 * MOST + _LEAD + max(words) + _PAD) if words else _EMPTY


def _layer(marks: Sequence[_Mark], x: float, scale: Scale, panel: ProbePanel) -> list[Shape]:
    """Dots under each other, labels to their right; rare labels last, so that frequent dots do not hide them."""
    ordered = sorted(marks, key=lambda mark: (-mark.value, mark.label))
    places = spread(
        [scale.y(mark.value) for mark in ordered], ROW, scale.top + ROW / 2, scale.top + scale.height - ROW / 2
    )
    centre = x + MOST + 5
    beside = centre + MOST + _LEAD - 5
    most = max(panel.items.values())
    lines: list[Shape] = []
    words: list[Shape] = []
    for mark, place in zip(ordered, places, strict=True):
        few = mark.label in panel.few
        lines.append(Line(centre, scale.y(mark.value), beside - 3, place, 0.75, (196, 196, 200)))
        words += beside_label(beside, place, mark.label, SOFT if few else DARK)
    dots = [
        Dot(
            centre,
            scale.y(mark.value),
            max(LEAST, MOST * math.sqrt(mark.result.items / most)),
            ABOVE if mark.beyond else FAINT,
            mark.label in panel.few,
            _told(mark),
        )
        for mark in sorted(ordered, key=lambda mark: -mark.result.items)
    ]
    return [*lines, *dots, *words]


def _told(mark: _Mark) -> str:
    found = mark.result
    controls = ", ".join(f"{TITLES[name]} {value:.1f}" for name, value in found.controls.items())
    beside = f"; {controls}" if controls else ""
    return (
        f"{mark.label}: layer {found.layer}, head {found.head}, {found.accuracy:.1f} % of {found.items} items{beside}"
    )


def _title(panel: ProbePanel, column: ProbeColumn, raw: bool) -> str:
    return f"{panel.task.upper()}, {column.title}: best layer and {'accuracy' if raw else 'gain over the best control'}"


def _subtitle(
    panel: ProbePanel,
    column: ProbeColumn,
    seed: int,
    results: dict[str, LabelResult],
    marks: Sequence[_Mark],
    raw: bool,
    setting: str,
) -> list[str]:
    chosen = (
        "head chosen on dev, reported on test"
        if panel.mode == "sound"
        else "head chosen on the items it is reported on"
    )
    lines = [
        f"{setting}; {panel.mode}: {chosen}{f'; seed {seed} of {len(column.seeds)}' if len(column.seeds) > 1 else ''}."
    ]
    controlled = [mark for mark in marks if not math.isnan(mark.result.gain) and mark.label not in panel.few]
    beyond = sum(mark.beyond for mark in controlled)
    many = "labels with enough items" if any(mark.label in panel.few for mark in marks) else "labels"
    key = f"Blue: beyond every control ({beyond} of {len(controlled)} {many}); grey: not. " if controlled else ""
    ring = "Ring: few test items. " if any(mark.label in panel.few for mark in marks) else ""
    lines.append(f"{key}{ring}Area of dots: test items.")
    lines += root_line(panel, results)
    without = [label for label in panel.labels if label in results and math.isnan(results[label].gain)]
    if without and not raw:
        lines.append(f"Not drawn, since no control was probed: {', '.join(without)}.")
    return lines


def root_line(panel: ProbePanel, results: dict[str, LabelResult]) -> list[str]:
    """The label that is reported apart, in words."""
    if panel.root is None or panel.root not in results:
        return []
    found = results[panel.root]
    beside = "" if math.isnan(found.gain) else f", {found.gain:+.1f} over its best control"
    return [
        f"{panel.root}, found by attention to the first special token, stands apart: "
        f"{found.accuracy:.1f} %{beside} (layer {found.layer}, head {found.head})."
    ]
