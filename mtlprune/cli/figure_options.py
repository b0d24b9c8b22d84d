"""What every command that draws charts asks for in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

Width = Annotated[
    float | None,
    typer.Option(metavar="CM", min=1, help="Of each figure (as it comes, if not given).", show_default=False),
]
FontSize = Annotated[float, typer.Option(metavar="PT", min=4, help="Of words in figures.")]
Title = Annotated[bool, typer.Option("--title/--no-title", help="Title and explanation above figures.")]


def formats(asked: str, known: Sequence[str]) -> list[str]:
    """The parts of ``--format``. Raises ChartError at one that is not known."""
    from mtlprune.reports.charts import ChartError

    named = list(dict.fromkeys(part.strip() for part in asked.split(",")))
    if unknown := [part for part in named if part not in known]:
        raise ChartError(f"--format: expected some of {', '.join(known)}, found {unknown[0]!r}")
    return named
