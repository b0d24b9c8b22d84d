"""Maps of heads: how cone-like and how isotropic the output of each head is, a row of maps an encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtlprune.analyses.degeneration.show.reading import names
from mtlprune.reports import palettes
from mtlprune.reports.axes import titles
from mtlprune.reports.drawing import Box, Drawing, Shape, Text, text_width
from mtlprune.reports.legends import DARK, LINE, SMALL, SOFT, middle
from mtlprune.reports.maps import MARGIN

CELL = 15
COLUMNS = (("cosine", "mean cosine"), ("isoscore", "IsoScore"), ("dimension", "TwoNN"), ("cone", "share of the mean"))


def head_maps(content: Mapping[str, Any], about: str) -> Drawing | None:
    """Mean cosine, IsoScore, dimension, and the share of the last layer's mean vector."""
    shown = [(name, one) for name, one in zip(names(content), content["encoders"], strict=True) if one["heads"]]
    columns = [(key, title) for key, title in COLUMNS if any(key in h for _, one in shown for h in one["heads"])]
    limits = {key: _limit(shown, key) for key, _ in columns}
    if not shown or not any(limits.values()):
        return None
    heads = max(one["shape"][1] for _, one in shown)
    pitch = max(heads * CELL + 40, 150)
    names_width = int(max(text_width(name, SMALL) for name, _ in shown)) + 34
    inner = names_width + len(columns) * pitch
    lines = [
        f"Rows are layers (1 above), columns heads. Words of {about}. Of the share of the mean vector of the last "
        "layer, red adds to it and blue takes away. Lined: shut, gone or not measured.",
        "Darkest: " + ", ".join(f"{title} {limits[key]:.2g}" for key, title in columns) + ".",
    ]
    head = titles("How isotropic heads are", lines, inner)
    shapes: list[Shape] = list(head.shapes)
    top = head.bottom + 30
    for place, (_, title) in enumerate(columns):
        shapes.append(Text(MARGIN + names_width + place * pitch, top - 10, title, SMALL, DARK))
    for name, one in shown:
        layers = one["shape"][0]
        shapes.append(Text(MARGIN, middle(top + layers * CELL / 2, SMALL), name, SMALL, DARK))
        for place, (key, _) in enumerate(columns):
            shapes += _map(one, key, limits[key], MARGIN + names_width + place * pitch, top)
        top += layers * CELL + 22
    return Drawing(inner + 2 * MARGIN, top + MARGIN - 16, "How isotropic heads are", tuple(shapes))


def _limit(shown: list[tuple[str, Mapping[str, Any]]], key: str) -> float:
    """The size at which the colour is darkest: the 98th percentile, so that one head does not pale all others."""
    values = [abs(head.get(key, math.nan)) for _, one in shown for head in one["heads"]]
    known = [value for value in values if not math.isnan(value)]
    return float(np.quantile(known, 0.98)) if known else 0.0


def _map(one: Mapping[str, Any], key: str, limit: float, left: int, top: int) -> list[Shape]:
    layers, heads = one["shape"]
    shapes: list[Shape] = [Box(left, top, heads * CELL + 1, layers * CELL + 1, LINE)]
    for layer in (1, layers):
        shapes.append(Text(left - 5, middle(top + (layer - 0.5) * CELL, SMALL - 1), str(layer), SMALL - 1, SOFT, "end"))
    for head in one["heads"]:
        x, y = left + (head["head"] - 1) * CELL + 1, top + (head["layer"] - 1) * CELL + 1
        value = head.get(key, math.nan)
        if math.isnan(value) or head["gate"] <= 1e-3:
            shapes.append(Box(x, y, CELL - 1, CELL - 1, (255, 255, 255), f"{head['layer']}-{head['head']}: none"))
            shapes.append(Box(x + 2, y + CELL // 2 - 1, CELL - 5, 1, LINE))
            continue
        size = max(-1.0, min(1.0, value / limit)) if limit else 0.0
        colour = palettes.diverging(size) if key == "cone" else palettes.opacity(max(size, 0.0))
        red, green, blue = colour.reshape(3)
        told = f"layer {head['layer']}, head {head['head']}: {value:.4g}, gate {head['gate']:.2f}"
        shapes.append(Box(x, y, CELL - 1, CELL - 1, (int(red), int(green), int(blue)), told))
    return shapes
