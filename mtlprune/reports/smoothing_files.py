"""``smoothing.md`` and the figures beside ``smoothing.json``."""

from __future__ import annotations

from pathlib import Path

from mtlprune.files import replacing
from mtlprune.reports.canvas_png import png
from mtlprune.reports.canvas_svg import svg
from mtlprune.reports.smoothing_figures import drawings
from mtlprune.reports.smoothing_reading import read_smoothing
from mtlprune.reports.smoothing_tables import answers, markdown

SCALE = 2


def write(folder: Path) -> str:
    """Write them from what is measured; return the answers, a line each.

    Raises:
        RunError: nothing is measured yet, or the disk refuses.
    """
    content = read_smoothing(folder)
    for name, (drawing, _) in drawings(content).items():
        with replacing(folder / f"{name}.png") as beside:
            beside.write_bytes(png(drawing, SCALE))
        with replacing(folder / f"{name}.svg") as beside:
            beside.write_text(svg(drawing), encoding="utf-8")
    with replacing(folder / "smoothing.md") as beside:
        beside.write_text(markdown(content), encoding="utf-8")
    return "\n".join(answers(content))
