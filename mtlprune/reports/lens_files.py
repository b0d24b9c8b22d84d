"""The files that every lens leaves beside its results: a text, and each figure as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from mtlprune.files import replacing
from mtlprune.reports.canvas_png import png
from mtlprune.reports.canvas_svg import svg
from mtlprune.reports.drawing import Drawing

SCALE = 2
"""Pixels a unit."""


def write_lens(
    folder: Path, name: str, text: str, drawings: Mapping[str, Drawing], fine_up_to: float = math.inf
) -> None:
    """Write NAME.md and the figures, each whole or not at all.

    Args:
        fine_up_to: drawings wider than that (units) are written a pixel a unit.

    Raises:
        RunError: the disk refuses.
    """
    for figure, drawing in drawings.items():
        with replacing(folder / f"{figure}.png") as beside:
            beside.write_bytes(png(drawing, SCALE if drawing.width <= fine_up_to else 1))
        with replacing(folder / f"{figure}.svg") as beside:
            beside.write_text(svg(drawing), encoding="utf-8")
    with replacing(folder / f"{name}.md") as beside:
        beside.write_text(text, encoding="utf-8")
