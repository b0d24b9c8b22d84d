"""The frames of an analysis, its tables and its figures, as the file frames.yaml beside its record declares them.

The declaration says what a row of each frame is of (keys), what each column means, and how a table shows a frame. It is
the one source of the check of a Result's columns, the captions of tables, docs/reference/frames.md, and what `mtlprune
analyze NAME --help` prints.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from mtlprune.io.block import Block
from mtlprune.io.files import reading
from mtlprune.io.plugins import PluginError
from mtlprune.io.strict import parse_yaml

if TYPE_CHECKING:
    import pandas as pd

    from mtlprune.runs.results import Result

FILE = "frames.yaml"
_CONTRAST = ("estimate", "low", "high", "p", "p_holm", "detectable", "n", "verdict")
"""The columns of a frame of contrasts (`mtlprune.statistics.contrast`)."""


class TableDeclaration(Block):
    """A table of a frame: its words, with braces for what depends on a Result, and which columns it shows under which
    headings."""

    title: str = ""
    caption: str = ""
    texts: int = Field(default=1, ge=0, description="The first so many columns are words, the others numbers.")
    columns: dict[str, str | tuple[str, int | str]] = Field(
        description="Heading → a column shown as it is, or a column and how: digits, p, percent, or a format string."
    )


class FigureDeclaration(Block):
    """The words of a figure, with braces for what depends on a Result."""

    title: str
    alt: str = Field(description="What it shows, in words for those who do not see it; its caption, too.")
    explained: list[str] = Field(default=[], description="Sentences below the title.")
    frame: str = Field(default="", description="A Result without rows of this frame has no such figure.")


class FrameDeclaration(Block):
    """A frame: what a row of it is of, and what its columns mean. A meaning that is left out is that of all frames."""

    meaning: str
    keys: dict[str, str | None] = {}
    columns: dict[str, str | None] = {}
    further: str = Field(default="", description="What further columns hold, whose names come with the data.")
    contrast: str = Field(default="", description="What the estimate of a frame of contrasts is; it has CONTRAST.")
    figure: str = Field(default="", description="The figure that draws it.")

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Name, "key" or "column", and meaning of each column."""
        shared = meanings()
        contrast = {name: self.contrast if name == "estimate" else None for name in _CONTRAST if self.contrast}
        for kind, names in (("key", self.keys), ("column", {**contrast, **self.columns})):
            yield from ((name, kind, meaning or shared[name]) for name, meaning in names.items())
        if self.further:
            yield "…", "column", self.further


class Declaration(Block):
    """The content of frames.yaml."""

    frames: dict[str, FrameDeclaration] = {}
    tables: dict[str, TableDeclaration] = {}
    figures: dict[str, FigureDeclaration] = {}

    def check(self, result: Result) -> None:
        """Refuse a Result with a frame or a column that is not declared. Raises ValueError, because an analysis wrote
        what nobody can read, which is no mistake of a user."""
        for name, frame in result.frames.items():
            if name not in self.frames:
                raise ValueError(f"{result.analysis}: frame {name} is not declared in {FILE}")
            unknown = set(frame.columns) - {column for column, *_ in self.frames[name].rows()}
            if unknown and not self.frames[name].further:
                raise ValueError(
                    f"{result.analysis}: frame {name}: columns {', '.join(sorted(unknown))} are not declared in {FILE}"
                )


class TableRows(NamedTuple):
    """Rows of a table that an analysis declares, and what stands in the braces of its declared words."""

    rows: pd.DataFrame
    words: Mapping[str, Any]


@functools.cache
def declaration(package: str) -> Declaration:
    """The declaration of the analysis of a package, by the package's name. Raises PluginError: its file is missing or
    damaged, which may be one of an installed package."""
    path = Path(str(files(package) / FILE))
    with reading(
        path, PluginError, "declare the frames of the analysis in this file (docs/guides/adding_an_analysis.md)"
    ):
        return Declaration.model_validate(parse_yaml(path.read_text(encoding="utf-8")))


@functools.cache
def meanings() -> dict[str, str]:
    """Meanings of the columns that mean the same in every frame."""
    content: dict[str, str] = parse_yaml((files(__package__) / "columns.yaml").read_text(encoding="utf-8"))
    return content
