"""Pictures of a dissection: μ by layer and term, shares of heads, scores of subsets, what is lost, who agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtlprune.analyses.dissection.show.cells import blues, both, cells, name_height, name_width
from mtlprune.analyses.dissection.show.reading import WHAT, about, scores_by_task, short
from mtlprune.layers import LAYERS
from mtlprune.reports import palettes
from mtlprune.reports.axes import titles
from mtlprune.reports.drawing import Box, Drawing, Line, Shape, Text, text_width
from mtlprune.reports.legends import DARK, PALE, SMALL, SOFT, middle
from mtlprune.reports.maps import MARGIN
from mtlprune.reports.palettes import Colour

TERM_COLOURS: dict[str, Colour] = {"i": (128, 128, 134), "h": (0, 114, 178), "f": (230, 159, 0), "c": (204, 121, 167)}
LONG = {"i": "input", "h": "heads", "f": "feed-forward", "c": "correction"}
BAR, GAP, HEIGHT = 18, 5, 150
LABELS = WHAT | {task: task.upper() for task in LAYERS} | {"ner": "NER tags"}
LEAST = 420
"""Width that titles have at least."""

Made = tuple[Drawing, str]


def drawings(found: Mapping[str, Any]) -> dict[str, Made]:
    """File name without ending → drawing and what it shows in words; only those that there is something for."""
    made = {"importance": _importance(found), "heads": _heads(found)}
    if any(encoder["scores"] for encoder in found["encoders"]):
        made |= {"subsets": _subsets(found), "agreement": _agreement(found)}
    if found["losses"]:
        made["losses"] = _losses(found)
    return made


def _named(subset: str) -> str:
    return subset or "none"


# -- importance --------------------------------------------------------------------------------------------------------


def _importance(found: Mapping[str, Any]) -> Made:
    encoders = found["encoders"]
    layers = max(len(encoder["mu"]) for encoder in encoders)
    pitch = layers * (BAR + GAP) + 44
    columns = min(4, len(encoders))
    inner = max(columns * pitch, LEAST)
    lines = [
        f"Mean over sub-words of {about(found)} of the importance of each term, its product with the vector by the "
        "vector's squared length, by layer (0: embeddings). The four sum to 1; one below 0 points against the vector."
    ]
    head = titles("Of what are vectors made: input, heads, feed-forward, correction", lines, inner)
    shapes: list[Shape] = list(head.shapes)
    low = min(0.0, *(sum(min(v, 0) for v in row) for encoder in encoders for row in encoder["mu"]))
    high = max(1.0, *(sum(max(v, 0) for v in row) for encoder in encoders for row in encoder["mu"]))
    bottom = head.bottom
    for place, encoder in enumerate(encoders):
        row, column = divmod(place, columns)
        left, top = MARGIN + column * pitch + 30, head.bottom + 34 + row * (HEIGHT + 62)
        shapes += _bars(encoder["mu"], short(encoder["key"], found), left, top, low, high)
        bottom = top + HEIGHT + 30
    x = float(MARGIN)
    for term, colour in TERM_COLOURS.items():
        shapes += [
            Box(round(x), bottom + 6, 12, 12, colour),
            Text(x + 17, bottom + 16, f"{term}: {LONG[term]}", SMALL, DARK),
        ]
        x += 17 + text_width(f"{term}: {LONG[term]}", SMALL) + 18
    drawing = Drawing(inner + 2 * MARGIN, bottom + 18 + MARGIN, "Of what are vectors made", tuple(shapes))
    return drawing, "Stacked bars by layer, a panel an encoder: mean importance of the four terms"


def _bars(mu: Sequence[Sequence[float]], name: str, left: int, top: int, low: float, high: float) -> list[Shape]:
    def y(value: float) -> int:
        return round(top + (high - value) / (high - low) * HEIGHT)

    right = left + len(mu) * (BAR + GAP)
    shapes: list[Shape] = [Text(left, top - 12, name, SMALL + 1, DARK)]
    for tick in (0.0, 0.5, 1.0):
        shapes.append(Line(left - 3, y(tick), right, y(tick), 1, PALE))
        shapes.append(Text(left - 7, middle(y(tick), SMALL), f"{tick:g}", SMALL, SOFT, "end"))
    for layer, values in enumerate(mu):
        x, ends = left + layer * (BAR + GAP), [0.0, 0.0]
        for value, (term, colour) in zip(values, TERM_COLOURS.items(), strict=True):
            side = int(value < 0)
            begin, ends[side] = ends[side], ends[side] + value
            upper, lower = sorted((y(begin), y(ends[side])))
            if lower > upper:
                told = f"{name}, layer {layer}, {LONG[term]}: {value:.3f}"
                shapes.append(Box(x, upper, BAR, lower - upper, colour, told))
        shapes.append(Text(x + BAR / 2, top + HEIGHT + 16, str(layer), SMALL, SOFT, "middle"))
    return shapes


# -- heads -------------------------------------------------------------------------------------------------------------


def _heads(found: Mapping[str, Any]) -> Made:
    encoders = found["encoders"]
    limit = max(abs(value) for encoder in encoders for row in encoder["heads"] for value in row) or 1.0
    side = max(len(row) for encoder in encoders for row in encoder["heads"])
    pitch = side * 27 + 46
    columns = min(3, len(encoders))
    inner = max(columns * pitch, LEAST)
    lines = [
        f"Importance of each head in vectors of the last layer, in hundredths; mean over sub-words of {about(found)}. "
        "Rows are layers (1 above), columns heads. Red: along the vector, blue: against it. Grey: shut or gone."
    ]
    head = titles("What each head has in the last layer", lines, inner)
    shapes: list[Shape] = list(head.shapes)
    top, bottom = head.bottom + 10, head.bottom
    for place, encoder in enumerate(encoders):
        column = place % columns
        if not column:
            top = bottom + 44
        left = MARGIN + column * pitch + 20
        rows, names = len(encoder["heads"]), [str(k + 1) for k in range(len(encoder["heads"][0]))]
        shapes.append(Text(left, top - 24, short(encoder["key"], found), SMALL + 1, DARK))
        drawn = cells(
            [
                [None if _shut(encoder, r, h) else v for h, v in enumerate(row)]
                for r, row in enumerate(encoder["heads"])
            ],
            [str(layer + 1) for layer in range(rows)],
            names,
            both(limit),
            lambda value: f"{100 * value:.0f}" if abs(value) >= 0.005 else "",
            left,
            top,
            (27, 20),
        )
        shapes += drawn.shapes
        bottom = max(bottom, drawn.bottom) if column else drawn.bottom
    drawing = Drawing(inner + 2 * MARGIN, bottom + MARGIN, "What each head has in the last layer", tuple(shapes))
    return drawing, "Maps of layers by heads, one an encoder: mean importance of each head in the last layer"


def _shut(encoder: Mapping[str, Any], layer: int, head: int) -> bool:
    gates = encoder["gates"]
    return head not in encoder["kept"][layer] or (gates is not None and gates[layer][head] == 0)


# -- subsets -----------------------------------------------------------------------------------------------------------


def _subsets(found: Mapping[str, Any]) -> Made:
    names = [_named(subset) for subset in found["subsets"]]
    groups = scores_by_task(found)
    widths = {task: max(len(listed) * 36, text_width(WHAT[task], SMALL + 1)) + 22 for task, listed in groups.items()}
    labels = [short(key, found) for listed in groups.values() for key, _ in listed]
    left = MARGIN + name_width(names)
    inner = max(round(left - MARGIN + sum(widths.values())), LEAST)
    lines = [
        f"Percent on {about(found)}: fresh two-layer decoders on the sum of some of the four terms of the last layer, "
        f"trained on {found['head']['train_sentences']} sentences. Colours run from the least to the most of each task."
    ]
    head = titles("What each subset of terms is worth", lines, inner)
    shapes: list[Shape] = list(head.shapes)
    top = head.bottom + 36 + name_height(labels)
    bottom, x = top, float(left)
    for task, listed in groups.items():
        rows = [[scores["score"][place] for _, scores in listed] for place in range(len(names))]
        values = [value for row in rows for value in row]
        shapes.append(Text(x, head.bottom + 24, WHAT[task], SMALL + 1, DARK))
        shown = names if x == left else [""] * len(names)
        columns = [short(key, found) for key, _ in listed]
        colour = blues(min(values), max(values))
        drawn = cells(rows, shown, columns, colour, lambda v: f"{100 * v:.1f}", round(x), top, (36, 18))
        shapes += drawn.shapes
        bottom, x = max(bottom, drawn.bottom), x + widths[task]
    drawing = Drawing(inner + 2 * MARGIN, bottom + MARGIN, "What each subset of terms is worth", tuple(shapes))
    return drawing, "A table in colours: score of each subset of terms, by task and encoder"


def _losses(found: Mapping[str, Any]) -> Made:
    names = [_named(subset) for subset in found["subsets"]]
    rows = found["losses"]
    columns = [f"{short(row['single'], found)} - {short(row['joint'], found)}" for row in rows]
    marked = [[not low <= 0 <= high for low, high in zip(row["low"], row["high"], strict=True)] for row in rows]
    limit = max(abs(value) for row in rows for value in row["difference"]) or 1.0
    left = MARGIN + name_width(names)
    inner = max(left - MARGIN + 58 * len(rows) + 4, LEAST)
    lines = [
        f"Score of the task's own encoder minus that of the joint one, in points, on the same items of {about(found)}. "
        "Red: the joint encoder has less. A star: 0 lies outside 95% of resamplings of sentences (one seed of encoders "
        "and decoders).",
    ]
    head = titles("Which term carries the loss of multi-task learning", lines, inner)
    top = head.bottom + 14 + name_height(columns)
    shapes: list[Shape] = list(head.shapes)
    values = [[row["difference"][place] for row in rows] for place in range(len(names))]
    drawn = cells(values, names, columns, both(limit), lambda value: "", left, top, (58, 20))
    shapes += drawn.shapes
    for place in range(len(names)):
        for column, row in enumerate(rows):
            value = row["difference"][place]
            words = f"{round(100 * value, 1) + 0.0:+.1f}" + ("*" if marked[column][place] else "")
            ink = palettes.ink(both(limit)(value))
            at = middle(top + place * 20 + 11, 10)
            shapes.append(Text(left + column * 58 + 29, at, words, 10, ink, "middle"))
    drawing = Drawing(inner + 2 * MARGIN, drawn.bottom + MARGIN, "Which term carries the loss", tuple(shapes))
    return drawing, "A table in colours: single-task minus joint score of each subset of terms, a column a task"


def _agreement(found: Mapping[str, Any]) -> Made:
    """Of one encoder: the first that was scored."""
    encoder = next(encoder for encoder in found["encoders"] if encoder["scores"])
    names = [_named(subset) for subset in found["subsets"]]
    size = (25, 17)
    pitch = name_width(names) + len(names) * size[0] + 26
    columns = min(2, len(encoder["scores"]))
    inner = max(columns * pitch, LEAST)
    lines = [
        f"F1 of the answers of one subset's decoder against those of another, percent: micro (the share of items that "
        f"is equal), in NER macro over tags. {short(encoder['key'], found)}, {about(found)}."
    ]
    head = titles("Which subsets of terms answer alike", lines, inner)
    shapes: list[Shape] = list(head.shapes)
    top = bottom = head.bottom
    for place, scores in enumerate(encoder["scores"]):
        column = place % columns
        if not column:
            top = bottom + 36 + name_height(names)
        left = MARGIN + column * pitch + name_width(names)
        shapes.append(Text(left, top - name_height(names) - 10, WHAT[scores["task"]], SMALL + 1, DARK))
        kind = "macro_agreement" if scores["task"] == "ner" else "micro_agreement"  # nearly every word is O
        drawn = cells(scores[kind], names, names, blues(0, 1), lambda v: f"{100 * v:.0f}", left, top, size)
        shapes += drawn.shapes
        bottom = drawn.bottom
    drawing = Drawing(inner + 2 * MARGIN, bottom + MARGIN, "Which subsets of terms answer alike", tuple(shapes))
    return drawing, "Matrices of subsets by subsets, one a task: how often their decoders answer alike"
