"""mtlprune analyze show: figures and Markdown of Results that are there, in the form a paper wants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="That an analysis wrote.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For the figures (DIR itself, if not given).", show_default=False)
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="png, svg, pdf, with commas between.")] = "pdf",
    width: Annotated[
        float | None,
        typer.Option(metavar="CM", min=1, help="Of each figure (as it comes, if not given).", show_default=False),
    ] = None,
    font_size: Annotated[float, typer.Option(metavar="PT", min=4, help="Of words in figures.")] = 11,
    title: Annotated[bool, typer.Option("--title/--no-title", help="Title and explanation above figures.")] = True,
) -> None:
    """Figures ANALYSIS-FIGURE and ANALYSIS.md of every Result in a folder, without measuring anything again.

    With --width and --font-size words keep their size and panels give way, so that a figure fits the column of a paper.
    """
    from mtlprune.analyses.analysis import find, results_in
    from mtlprune.cli.console import say
    from mtlprune.files import make_room
    from mtlprune.reports.analyses import write_shown
    from mtlprune.reports.charts import FORMATS, ChartError, Style

    asked = list(dict.fromkeys(kind.strip() for kind in formats.split(",")))
    if unknown := [kind for kind in asked if kind not in FORMATS]:
        raise ChartError(f"--format: expected some of {', '.join(FORMATS)}, found {unknown[0]!r}")
    found = results_in(folder)
    make_room(out or folder)
    for name, result in found.items():
        write_shown(find(name), result, out or folder, asked, Style(width, font_size, title))
    say(f"written: {out or folder}")
