"""The exact decomposition as a part of the report page."""

from __future__ import annotations

from pathlib import Path

from mtlprune.analyses.dissection.show.figures import drawings
from mtlprune.analyses.dissection.show.reading import read_dissection
from mtlprune.analyses.dissection.show.tables import answers, setting, tables
from mtlprune.reports.sections import Figure, Paragraph, Rows, Section

CAPTIONS = {
    "importance": "Importance of the four terms by layer.",
    "heads": "Share of each head in the last layer.",
    "subsets": "Score of each subset of terms.",
    "agreement": "How often decoders of two subsets answer alike.",
    "losses": "Single-task minus joint score by subset.",
}


def section(folder: Path) -> Section:
    """The results of ``mtlprune analyze dissect`` in a folder.

    Raises:
        RunError: there are none, or damaged ones.
    """
    found = read_dissection(folder)
    figures = [Figure(drawing, alt, CAPTIONS[name]) for name, (drawing, alt) in drawings(found).items()]
    rows = [
        Rows(
            table.grid.header,
            table.grid.rows,
            f"{table.title}{'' if table.title.endswith('?') else '.'} {table.caption}",
            table.grid.header[table.grid.texts :],
        )
        for table in tables(found)
    ]
    words = [Paragraph(line) for line in (setting(found), *answers(found), *found["refused"])]
    return Section("exact-decomposition", "Exact decomposition", [*words, *figures, *rows])
