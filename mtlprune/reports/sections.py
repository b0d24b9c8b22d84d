"""What a part of the report page is made of; every source of results offers one such part.

A section says nothing of HTML: words are plain text (the page escapes them), figures are charts, tables are
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mtlprune.reports.charts import Spec
from mtlprune.reports.grid import Grid


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    words: str


@dataclass(frozen=True)
class Rows:
    """A table of plain text; columns named in ``numbers`` are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    numbers: Sequence[str] = ()


def rows_of(table: Grid) -> Rows:
    """A table with its title."""
    return Rows(table.header, table.rows, table.words(), table.header[table.texts :])


@dataclass(frozen=True)
class Figure:
    """A chart's specification, what it shows in words for those who do not see it, and its caption."""

    spec: Spec
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """One part of the page. ``key`` is its anchor: lower-case letters and dashes."""

    key: str
    title: str
    blocks: Sequence[Paragraph | Rows | Figure]
