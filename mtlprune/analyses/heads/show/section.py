"""The table of heads on the report page, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtlprune.errors import printable_lines
from mtlprune.files import json_text, read_made, write_text
from mtlprune.reports.grid import Grid, markdown_document
from mtlprune.reports.sections import Paragraph, Rows, Section

SUMMARY = "heads.json"
BELOW = 0.05
SHOWN = 40
"""Correlations listed at most; all are in heads.json."""


def read_heads(folder: Path) -> dict[str, Any]:
    """What ``mtlprune heads`` wrote. Raises RunError: no such file, or a damaged one."""
    needed = ("columns", "shape", "settings", "words", "correlations", "notes")
    return read_made(folder / SUMMARY, "mtlprune heads", needed)


def section(folder: Path) -> Section:
    """From the folder that ``mtlprune heads`` wrote. Raises RunError: no result there, or a damaged one."""
    content = read_heads(folder)
    words, notes = Paragraph(lead(content)), [Paragraph(note) for note in content["notes"]]
    return Section("head-table", "Every head", [words, heads(content), *_tables(content), *notes])


def lead(content: Mapping[str, Any]) -> str:
    """What the tables are, and what the correlations come to."""
    across = [pair for pair in content["correlations"] if not pair["one_source"] and pair["p"] is not None]
    few = sum(pair["q"] < BELOW for pair in across)
    settings = content["settings"]
    said = (
        f"Of {len(across)} pairs of columns from different sources, {few} go together within layers at q < {BELOW:g} "
        f"(Spearman, {settings['permutations']} permutations of heads within layers, Benjamini and Hochberg)."
        if across
        else "There are no two sources with numbers that vary within layers, so nothing is compared between them."
    )
    return f"One row a head; probes and analyses are of {settings['of']}. {said}"


def _tables(content: Mapping[str, Any]) -> list[Rows]:
    """Correlations, of two sources and of one, and what the columns are; those without a row are left out."""
    meanings = [[one["name"], one["source"], one["meaning"]] for one in content["columns"] if one.get("meaning")]
    about = Rows(["column", "source", "what it is"], meanings, "The reduction that makes each column.")
    return [made for made in (pairs(content, False), pairs(content, True), about) if made.rows]


def heads(content: Mapping[str, Any], digits: int = 3) -> Rows:
    """One row a head, numbers first to last by source, then words."""
    layers, a_layer = content["shape"]
    numbers = [column["name"] for column in content["columns"]]
    rows = []
    for layer in range(layers):
        for head in range(a_layer):
            values = [column["values"][layer][head] for column in content["columns"]]
            words = [words[layer][head] or "–" for words in content["words"].values()]
            shown = ["–" if value is None else f"{value:.{digits}g}" for value in values]
            rows.append([str(layer + 1), str(head + 1), *shown, *words])
    return Rows(["layer", "head", *numbers, *content["words"]], rows, "All heads.", ["layer", "head", *numbers])


def pairs(content: Mapping[str, Any], one_source: bool) -> Rows:
    """Correlations below BELOW after correction; the ten closest where there is none."""
    found = [pair for pair in content["correlations"] if pair["one_source"] is one_source and pair["p"] is not None]
    clear = [pair for pair in found if pair["q"] < BELOW]
    shown = (clear or found[:10])[:SHOWN]
    rows = [
        [
            pair["first"],
            pair["second"],
            str(pair["heads"]),
            f"{pair['rho']:+.2f}",
            f"{pair['p']:.4f}",
            f"{pair['q']:.4f}",
        ]
        for pair in shown
    ]
    what = "one source (they may go together by construction)" if one_source else "different sources"
    many = f"{len(clear)} of {len(found)} pairs have" if clear else f"None of {len(found)} has"
    caption = f"Spearman's ρ within layers, columns of {what}. {many} q < {BELOW:g}; {len(rows)} shown."
    return Rows(["column", "and", "heads", "ρ", "p", "q"], rows, caption, ["heads", "ρ", "p", "q"])


@markdown_document
def markdown(content: Mapping[str, Any]) -> str:
    """heads.md."""
    blocks = ["# Every head\n", f"{lead(content)}\n"]
    for made in [*_tables(content), heads(content)]:  # 72 rows or more last
        texts = next((k for k, name in enumerate(made.columns) if name in made.numbers), len(made.columns))
        blocks += [f"{made.caption}\n", Grid(made.columns, made.rows, texts).markdown()]
    return "\n".join([*blocks, *(f"{note}\n" for note in content["notes"])])


def comma_separated(content: Mapping[str, Any]) -> str:
    """heads.csv: as in the table, with six digits; empty where nothing is known."""
    made, text = heads(content, 6), io.StringIO()
    rows = [["" if cell == "–" else cell for cell in row] for row in made.rows]
    csv.writer(text, lineterminator="\n").writerows([made.columns, *rows])
    return printable_lines(text.getvalue())


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """heads.csv, heads.md and, last, heads.json. Raises RunError: the disk refuses."""
    files = {"heads.csv": comma_separated(content), "heads.md": markdown(content), SUMMARY: json_text(content)}
    for name, text in files.items():
        write_text(folder / name, text)
