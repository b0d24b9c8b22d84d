"""Pictures of over-smoothing: curves by layer, σ₁σ₂ against CosSim, label shares, maps of heads, fusion weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mtlprune.analyses.smoothing.show.reading import names
from mtlprune.layers import in_order
from mtlprune.reports import palettes
from mtlprune.reports.axes import titles
from mtlprune.reports.drawing import Box, Drawing, Shape, Text, text_width
from mtlprune.reports.facets import HUES, Curve, Panel, facets
from mtlprune.reports.legends import DARK, LINE, SMALL, SOFT, middle
from mtlprune.reports.maps import MARGIN
from mtlprune.reports.palettes import Colour

CURVES = {
    "cosine": ("CosSim", "CosSim"),
    "cosine_centred": ("CosSim, corpus mean removed", "CosSim"),
    "cosine_without_outliers": ("CosSim without outlier dimensions", "CosSim"),
    "relative_distance": ("relative d_M", "d_M / norm"),
    "distance": ("d_M", "d_M"),
    "ratio": ("ratio of d_M, after / before", "ratio"),
}
CELL = 15


def drawings(content: Mapping[str, Any]) -> dict[str, tuple[Drawing, str]]:
    """File name without ending → drawing and what it shows in words; only those that there is something for."""
    about = f"{content['sentences']} sentences of {content['split']} of {content['corpus']}"
    made: dict[str, tuple[Drawing, str]] = {}
    for name, draw, alt in (
        ("layers", _curves, "Lines by layer, one an encoder: CosSim, d_M and their variants"),
        ("sigma", _sigma, "Dots, one a sentence and layer: σ₁σ₂ across, CosSim upwards, a panel an encoder"),
        ("labels", _labels, "Lines by layer, a panel a task: share of spread between labels over chance"),
        ("heads", _heads, "Maps of layers by heads: λ and the effects of closing a head, a row an encoder"),
        ("fusion", _fusion, "Lines by layer, one a run: the weight that its fusion gives the layer"),
    ):
        drawing = draw(content, about)
        if drawing is not None:
            made[name] = drawing, alt
    return made


def _encoders(content: Mapping[str, Any]) -> Iterator[tuple[str, Colour, bool, Mapping[str, Any]]]:
    """Name, colour, whether heads are shut, entry."""
    for place, (name, encoder) in enumerate(zip(names(content), content["encoders"], strict=True)):
        shut = any(head["gate"] <= 1e-3 for head in encoder["heads"])
        yield name, HUES[place % len(HUES)], shut or place >= len(HUES), encoder


def _curves(content: Mapping[str, Any], about: str) -> Drawing:
    panels = []
    for key, (title, y) in CURVES.items():
        curves = [
            Curve(name, _means(encoder["layers"], key), colour, dashed)
            for name, colour, dashed, encoder in _encoders(content)
        ]
        panels.append(Panel(title, curves, "layer", y, whole=True))
    lines = [
        f"Means over {about}; layer 0 are the embeddings. Dashed: some heads shut.",
        "d_M: distance to equal token vectors. Higher CosSim, lower relative d_M: tokens are more alike.",
    ]
    return facets("How alike tokens are, layer by layer", lines, panels, 3)


def _means(rows: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(row["layer"], row[key]["mean"]) for row in rows if key in row and not math.isnan(row[key]["mean"])]


def _sigma(content: Mapping[str, Any], about: str) -> Drawing | None:
    panels = []
    for name, _, _, encoder in _encoders(content):
        if not encoder.get("points"):
            continue
        layers = encoder["shape"][0]
        curves = []
        for layer in range(1, layers + 1):
            points = [(x, y) for at, x, y in encoder["points"] if at == layer]
            curves.append(Curve(f"layer {layer}", points, _shade(layer, layers), joined=False, radius=1.6))
        panels.append(Panel(name, curves, "least deviations: sigma1 times sigma2", "CosSim after the layer", (1.0,)))
    if not panels:
        return None
    lines = [
        f"A dot a sentence and layer; a sample of {about}. Dashed: 1, above which (and with weights near 0) tokens "
        "must grow alike from layer to layer (Shi et al. 2022)."
    ]
    return facets("Deviations before LayerNorm against similarity of tokens", lines, panels, 3)


def _shade(layer: int, layers: int) -> Colour:
    """From light blue to dark red by depth, through grey."""
    ends = np.array([(86, 160, 220), (120, 120, 126), (210, 50, 75)], float)
    place = 2 * (layer - 1) / max(1, layers - 1)
    low = min(int(place), 1)
    red, green, blue = np.rint(ends[low] + (place - low) * (ends[low + 1] - ends[low])).astype(int)
    return int(red), int(green), int(blue)


def _labels(content: Mapping[str, Any], about: str) -> Drawing | None:
    panels = []
    for task in in_order(row["task"] for encoder in content["encoders"] for row in encoder["labels"]):
        curves = [
            Curve(
                name,
                [(row["layer"], row["gain"]) for row in encoder["labels"] if row["task"] == task],
                colour,
                dashed,
            )
            for name, colour, dashed, encoder in _encoders(content)
        ]
        if any(curve.points for curve in curves):
            panels.append(Panel(task.upper(), curves, "layer", "share minus chance", zero=True, whole=True))
    if not panels:
        return None
    lines = [
        f"Share of the spread of a sentence's words (squared d_M) that lies between gold labels, minus that of labels "
        f"drawn blindly. Means over {about}."
    ]
    return facets("What spread is left between labels", lines, panels, 3)


def _heads(content: Mapping[str, Any], about: str) -> Drawing | None:
    """A row an encoder: λ, the effect after the layer, the effect at the end."""
    shown = [entry for entry in _encoders(content) if entry[3]["heads"]]
    columns = (("mixing", "lambda"), ("effect", "change of log d_M after its layer"), ("effect_last", "... at the end"))
    limits = {key: _limit(shown, key) for key, _ in columns}
    if not any(limits.values()):
        return None
    heads = max(entry["shape"][1] for *_, entry in shown)
    pitch = max(heads * CELL + 40, 250)
    names_width = int(max(text_width(name, SMALL) for name, *_ in shown)) + 34
    inner = names_width + len(columns) * pitch
    lines = [
        f"Rows are layers (1 above), columns heads. {about}; effects: with the head open minus closed, over "
        f"{max(entry['closed_on'] for *_, entry in shown)} of them. Blue: open, the head brings tokens together; red: "
        "apart. Lined: shut, gone or not measured.",
        "Darkest: " + ", ".join(f"{title} {limits[key]:.2g}" for key, title in columns) + ".",
    ]
    head = titles("What heads do to the similarity of tokens", lines, inner)
    shapes: list[Shape] = list(head.shapes)
    top = head.bottom + 30
    for place, (_, title) in enumerate(columns):
        shapes.append(Text(MARGIN + names_width + place * pitch, top - 10, title, SMALL, DARK))
    for name, _, _, encoder in shown:
        layers = encoder["shape"][0]
        shapes.append(Text(MARGIN, middle(top + layers * CELL / 2, SMALL), name, SMALL, DARK))
        for place, (key, _) in enumerate(columns):
            shapes += _map(encoder, key, limits[key], MARGIN + names_width + place * pitch, top)
        top += layers * CELL + 22
    return Drawing(inner + 2 * MARGIN, top + MARGIN - 16, "What heads do to the similarity of tokens", tuple(shapes))


def _limit(shown: list[tuple[str, Colour, bool, Mapping[str, Any]]], key: str) -> float:
    """The size at which the colour is darkest: the 98th percentile, so that one head does not pale all others."""
    known = [abs(h[key]) for *_, entry in shown for h in entry["heads"] if not math.isnan(h[key])]
    return float(np.quantile(known, 0.98)) if known else 0.0


def _map(encoder: Mapping[str, Any], key: str, limit: float, left: int, top: int) -> list[Shape]:
    layers, heads = encoder["shape"]
    shapes: list[Shape] = [Box(left, top, heads * CELL + 1, layers * CELL + 1, LINE)]
    for layer in (1, layers):
        shapes.append(Text(left - 5, middle(top + (layer - 0.5) * CELL, SMALL - 1), str(layer), SMALL - 1, SOFT, "end"))
    for head in encoder["heads"]:
        x, y = left + (head["head"] - 1) * CELL + 1, top + (head["layer"] - 1) * CELL + 1
        value = head[key]
        if math.isnan(value) or (key != "mixing" and head["gate"] <= 1e-3):
            shapes.append(Box(x, y, CELL - 1, CELL - 1, (255, 255, 255), f"{head['layer']}-{head['head']}: none"))
            shapes.append(Box(x + 2, y + CELL // 2 - 1, CELL - 5, 1, LINE))
            continue
        size = max(-1.0, min(1.0, value / limit)) if limit else 0.0
        red, green, blue = (palettes.opacity(size) if key == "mixing" else palettes.diverging(size)).reshape(3)
        told = f"layer {head['layer']}, head {head['head']}: {value:.4g}, gate {head['gate']:.2f}"
        shapes.append(Box(x, y, CELL - 1, CELL - 1, (int(red), int(green), int(blue)), told))
    return shapes


def _fusion(content: Mapping[str, Any], about: str) -> Drawing | None:
    curves = [
        Curve(
            f"{name} ({encoder['fusion']['kind']})",
            [(layer, row["mean"]) for layer, row in enumerate(encoder["fusion"]["weights"], 1)],
            colour,
        )
        for name, colour, _, encoder in _encoders(content)
        if encoder.get("fusion")
    ]
    if not curves:
        return None
    lines = [f"Means over tokens of {about}."]
    return facets("How fusion weighs layers", lines, [Panel("", curves, "layer", "weight", zero=True, whole=True)], 1)
