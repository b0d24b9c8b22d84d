"""What a part of the report page is made of; every source of results offers one such part.

A section says nothing of HTML: words are plain text (the page escapes them), figures are charts, tables are grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mtlprune.reports.charts import Spec
from mtlprune.reports.grid import Grid


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
    blocks: Sequence[str | Grid | Figure]
