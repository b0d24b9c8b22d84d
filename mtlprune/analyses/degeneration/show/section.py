"""Degeneration as a part of the report page."""

from __future__ import annotations

from pathlib import Path

from mtlprune.analyses.degeneration.show.figures import drawings
from mtlprune.analyses.degeneration.show.reading import read_degeneration
from mtlprune.analyses.degeneration.show.tables import tables
from mtlprune.analyses.degeneration.show.words import answers, setting
from mtlprune.reports.sections import Figure, Paragraph, Rows, Section

CAPTIONS = {
    "spectrum": "Singular values by rank.",
    "projection": "Rows on their two top directions.",
    "isotropy": "Cones and isotropy by layer.",
    "heads": "Cones and isotropy of head outputs.",
    "labels": "Label weights against frequency in training.",
    "lost": "F1 of labels, joint minus single, against the change of their rows.",
}


def section(folder: Path) -> Section:
    """The results of ``mtlprune analyze degeneration`` in a folder.

    Raises:
        RunError: there are none, or damaged ones.
    """
    content = read_degeneration(folder)
    figures = [Figure(drawing, alt, CAPTIONS[name]) for name, (drawing, alt) in drawings(content).items()]
    parts = [
        Rows(table.header, table.rows, f"{table.title}. {table.caption}", table.header[table.texts :])
        for table in tables(content)
    ]
    words = [Paragraph(line) for line in (setting(content), *answers(content), *content["notes"])]
    return Section("degeneration", "Degeneration", [*words, *figures, *parts])
