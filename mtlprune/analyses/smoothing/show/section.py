"""Over-smoothing as a part of the report page."""

from __future__ import annotations

from pathlib import Path

from mtlprune.analyses.smoothing.show.figures import drawings
from mtlprune.analyses.smoothing.show.reading import read_smoothing
from mtlprune.analyses.smoothing.show.tables import answers, setting, tables
from mtlprune.reports.sections import Figure, Paragraph, Rows, Section

CAPTIONS = {
    "layers": "Similarity of tokens by layer.",
    "sigma": "σ₁σ₂ against CosSim, a dot a sentence and layer.",
    "labels": "Share of spread between gold labels, beyond chance.",
    "heads": "λ of heads, and what closing them changes.",
    "fusion": "Weights that fusion gives layers.",
}


def section(folder: Path) -> Section:
    """The results of ``mtlprune analyze smoothing`` in a folder.

    Raises:
        RunError: there are none, or damaged ones.
    """
    content = read_smoothing(folder)
    figures = [Figure(drawing, alt, CAPTIONS[name]) for name, (drawing, alt) in drawings(content).items()]
    parts = [
        Rows(table.header, table.rows, f"{table.title}. {table.caption}", table.header[table.texts :])
        for table in tables(content)
    ]
    words = [Paragraph(line) for line in (setting(content), *answers(content), *content["notes"])]
    return Section("over-smoothing", "Over-smoothing", [*words, *figures, *parts])
