"""``smoothing.md`` and the figures beside ``smoothing.json``."""

from __future__ import annotations

from pathlib import Path

from mtlprune.reports.lens_files import write_lens
from mtlprune.reports.smoothing_figures import drawings
from mtlprune.reports.smoothing_reading import read_smoothing
from mtlprune.reports.smoothing_tables import answers, markdown


def write(folder: Path) -> str:
    """Write them from what is measured; return the answers, a line each.

    Raises:
        RunError: nothing is measured yet, or the disk refuses.
    """
    content = read_smoothing(folder)
    figures = {name: drawing for name, (drawing, _) in drawings(content).items()}
    write_lens(folder, "smoothing", markdown(content), figures)
    return "\n".join(answers(content))
