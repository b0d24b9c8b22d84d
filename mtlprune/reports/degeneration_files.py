"""``degeneration.md`` and the figures beside ``degeneration.json``."""

from __future__ import annotations

from pathlib import Path

from mtlprune.files import replacing
from mtlprune.reports.canvas_png import png
from mtlprune.reports.canvas_svg import svg
from mtlprune.reports.degeneration_figures import drawings
from mtlprune.reports.degeneration_reading import read_degeneration
from mtlprune.reports.degeneration_words import answers, markdown

SCALE = 2


def write(folder: Path) -> str:
    """Write them from what is measured; return the answers, a line each.

    Raises:
        RunError: nothing is measured yet, or the disk refuses.
    """
    content = read_degeneration(folder)
    for name, (drawing, _) in drawings(content).items():
        with replacing(folder / f"{name}.png") as beside:
            beside.write_bytes(png(drawing, SCALE))
        with replacing(folder / f"{name}.svg") as beside:
            beside.write_text(svg(drawing), encoding="utf-8")
    with replacing(folder / "degeneration.md") as beside:
        beside.write_text(markdown(content), encoding="utf-8")
    return "\n".join(answers(content))
