"""``dissection.md`` and the figures beside ``dissection.json``."""

from __future__ import annotations

from pathlib import Path

from mtlprune.files import replacing
from mtlprune.reports.canvas_png import png
from mtlprune.reports.canvas_svg import svg
from mtlprune.reports.dissection_figures import drawings
from mtlprune.reports.dissection_reading import read_dissection
from mtlprune.reports.dissection_tables import answers, markdown, setting

WIDE = 900
"""Drawings wider than that (units) are written a pixel a unit, others with two."""


def write_report(folder: Path) -> str:
    """Write them from what is in the folder; return the answers, a line each.

    Raises:
        RunError: nothing is measured yet, or the disk refuses.
    """
    found = read_dissection(folder)
    for name, (drawing, _) in drawings(found).items():
        with replacing(folder / f"{name}.png") as beside:
            beside.write_bytes(png(drawing, 1 if drawing.width > WIDE else 2))
        with replacing(folder / f"{name}.svg") as beside:
            beside.write_text(svg(drawing), encoding="utf-8")
    with replacing(folder / "dissection.md") as beside:
        beside.write_text(markdown(found), encoding="utf-8")
    return "\n".join((setting(found), *answers(found)))
