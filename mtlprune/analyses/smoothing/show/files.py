"""``smoothing.md`` and the figures beside ``smoothing.json``."""

from __future__ import annotations

from pathlib import Path

from mtlprune.analyses.smoothing.show.figures import drawings
from mtlprune.analyses.smoothing.show.reading import read_smoothing
from mtlprune.analyses.smoothing.show.tables import answers, markdown
from mtlprune.reports.lens_files import write_lens


def write(folder: Path) -> str:
    """Write them from what is measured; return the answers, a line each.

    Raises:
        RunError: nothing is measured yet, or the disk refuses.
    """
    content = read_smoothing(folder)
    figures = {name: drawing for name, (drawing, _) in drawings(content).items()}
    write_lens(folder, "smoothing", markdown(content), figures)
    return "\n".join(answers(content))
