"""``degeneration.md`` and the figures beside ``degeneration.json``."""

from __future__ import annotations

from pathlib import Path

from mtlprune.analyses.degeneration.show.figures import drawings
from mtlprune.analyses.degeneration.show.reading import read_degeneration
from mtlprune.analyses.degeneration.show.words import answers, markdown
from mtlprune.reports.lens_files import write_lens


def write(folder: Path) -> str:
    """Write them from what is measured; return the answers, a line each.

    Raises:
        RunError: nothing is measured yet, or the disk refuses.
    """
    content = read_degeneration(folder)
    figures = {name: drawing for name, (drawing, _) in drawings(content).items()}
    write_lens(folder, "degeneration", markdown(content), figures)
    return "\n".join(answers(content))
