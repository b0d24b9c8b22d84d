"""Syntactic attention on the report page."""

from __future__ import annotations

from pathlib import Path

from mtlprune.analyses.syntax.show.figures import head_map, relation_panels
from mtlprune.analyses.syntax.show.tables import names, notes, read_tree, setting, tables
from mtlprune.reports.sections import Figure, Paragraph, Section


def section(folder: Path) -> Section:
    """From the folder that ``mtlprune analyze syntax`` wrote.

    Raises:
        RunError: no result there, or a damaged one.
    """
    tree = read_tree(folder)
    called = names(tree)
    figures = [
        Figure(head_map(tree, place), f"Layers by heads: percent of words whose gold head each head of {name} finds.")
        for place, name in enumerate(called)
    ]
    compared = Figure(
        relation_panels(tree),
        "For each relation and encoder, the UAS of the best attention head beside that of the best offset.",
    )
    lead = Paragraph(
        f"Which heads attend along dependency arcs ({setting(tree)})? A head's guess for a word is the word it attends "
        "to most, or the word that attends to it most (Chen et al. 2024). Only what is beyond the best fixed offset, "
        "with a head chosen on other sentences, speaks for syntax."
    )
    rest = [Paragraph(note) for note in notes(tree)]
    return Section("syntax", "Syntactic attention", [lead, *tables(tree), compared, *figures, *rest])
