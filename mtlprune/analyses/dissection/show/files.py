"""``dissection.md`` and the figures beside ``dissection.json``."""

from __future__ import annotations

from pathlib import Path

from mtlprune.analyses.dissection.show.figures import drawings
from mtlprune.analyses.dissection.show.reading import read_dissection
from mtlprune.analyses.dissection.show.tables import answers, markdown, setting
from mtlprune.reports.lens_files import write_lens

WIDE = 900
"""Drawings wider than that (units) are written a pixel a unit, others with two."""


def write_report(folder: Path) -> str:
    """Write them from what is in the folder; return the answers, a line each.

    Raises:
        RunError: nothing is measured yet, or the disk refuses.
    """
    found = read_dissection(folder)
    figures = {name: drawing for name, (drawing, _) in drawings(found).items()}
    write_lens(folder, "dissection", markdown(found), figures, WIDE)
    return "\n".join((setting(found), *answers(found)))
