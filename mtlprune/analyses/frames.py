"""Declarations of the frames (data tables), displayed tables and figures of an analysis, read from its ``frames.yaml``.

A declaration names the key columns that identify a row of each frame, explains each column, and defines how a table
displays a frame. The check of a Result's columns, the captions of tables, docs/reference/frames.md and the output of
`mtlprune analyze NAME --help` come from the declaration.
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

MEAN = "mean"
"""Value of the column ``task`` in rows with a mean over tasks. The declaration of each frame says over which tasks."""
_FILE = "frames.yaml"
_CONTRAST = ("estimate", "low", "high", "p", "p_holm", "detectable", "n", "verdict")
"""The columns that every frame of contrasts has (`mtlprune.statistics.contrast`)."""


def is_mean(row: str) -> bool:
    """Return True for the name of a row that is a mean over tasks: "mean", or "mean without" a task."""
    return row == MEAN or row.startswith(f"{MEAN} without ")


def row_title(row: str) -> str:
    """Return the title of a row: the task in capitals, or the name of the mean over tasks."""
    return row if is_mean(row) else row.upper()


class TableDeclaration(Block):
    """The declaration of a table that displays a frame: its title and caption, with braces for values that depend on
    the Result, and its columns."""

    title: str = ""
    caption: str = ""
    texts: int = Field(default=1, ge=0, description="Number of columns at the left that hold words instead of numbers.")
    columns: dict[str, str | tuple[str, int | str]] = Field(
        description="Heading → name of a column of the frame, or the name and a format: a number of decimals, `p`, "
        "`percent`, `percent.1`, `upper`, or a Python format string."
    )


class FigureDeclaration(Block):
    """The declaration of a figure: its title and explanation, with braces for values that depend on the Result, and its
    text alternative."""

    title: str
    alt: str = Field(description="Text alternative for readers who do not see the figure, and caption of the figure.")
    explained: list[str] = Field(default=[], description="Sentences below the title.")
    frame: str = Field(default="", description="Frame that the figure needs; a Result without rows has no figure.")


class FrameDeclaration(Block):
    """The declaration of a frame: the key columns that identify a row, and the meaning of each column. A column without
    a meaning has the one in ``columns.yaml``."""

    meaning: str
    keys: dict[str, str | None] = {}
    columns: dict[str, str | None] = {}
    further: str = Field(default="", description="Meaning of further columns, whose names depend on the data.")
    contrast: str = Field(
        default="", description="Meaning of the estimate, in a frame that has all columns of a contrast."
    )
    figure: str = Field(default="", description="Name of the figure that draws the frame.")

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the name of each column, "key" or "column", and the meaning of the column."""
        shared = meanings()
        contrast = {name: self.contrast if name == "estimate" else None for name in _CONTRAST if self.contrast}
        for kind, names in (("key", self.keys), ("column", {**contrast, **self.columns})):
            yield from ((name, kind, meaning or shared[name]) for name, meaning in names.items())
        if self.further:
            yield "…", "column", self.further


class Declaration(Block):
    """The content of ``frames.yaml``: the declared frames, tables and figures of an analysis by name."""

    frames: dict[str, FrameDeclaration] = {}
    tables: dict[str, TableDeclaration] = {}
    figures: dict[str, FigureDeclaration] = {}

    def check(self, result: Result) -> None:
        """Refuse a Result with a frame that is not declared, or with a column that its frame does not declare (except
        in frames with ``further`` columns).

        Raises:
            ValueError: an undeclared frame or column. This is an error in the analysis, not a mistake of the user, so
                it is no MtlpruneError.
        """
        for name, frame in result.frames.items():
            if name not in self.frames:
                raise ValueError(f"{result.analysis}: frame {name} is not declared in {_FILE}")
            unknown = set(frame.columns) - {column for column, *_ in self.frames[name].rows()}
            if unknown and not self.frames[name].further:
                raise ValueError(
                    f"{result.analysis}: frame {name}: columns {', '.join(sorted(unknown))} are not declared in {_FILE}"
                )


class TableRows(NamedTuple):
    """The rows of a declared table, and the values of the placeholders ({name}) in its title and caption."""

    rows: pd.DataFrame
    words: Mapping[str, Any]


@functools.cache
def declaration(package: str) -> Declaration:
    """Read the declaration of an analysis from ``frames.yaml`` in its package. ``package``: the package's import path.

    Raises:
        PluginError: the file is missing or damaged, which can happen in an installed package.
    """
    path = Path(str(files(package) / _FILE))
    with reading(
        path, PluginError, "declare the frames of the analysis in this file (docs/guides/adding_an_analysis.md)"
    ):
        return Declaration.model_validate(parse_yaml(path.read_text(encoding="utf-8")))


@functools.cache
def meanings() -> dict[str, str]:
    """Return the meanings of the columns that have the same meaning in every frame, from ``columns.yaml``."""
    content: dict[str, str] = parse_yaml((files(__package__) / "columns.yaml").read_text(encoding="utf-8"))
    return content
