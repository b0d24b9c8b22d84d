"""mtlprune analyze show: figures and Markdown of Results that are there, in the form a paper wants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mtlprune.cli import figure_options
from mtlprune.cli.figure_options import FontSize, Title, Width


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="That an analysis wrote.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For the figures (DIR itself, if not given).", show_default=False)
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="png, svg, pdf, with commas between.")] = "pdf",
    width: Width = None,
    font_size: FontSize = 11,
    title: Title = True,
) -> None:
    """Figures ANALYSIS-FIGURE and ANALYSIS.md of every Result in a folder, without measuring anything again.

    With --width and --font-size words keep their size and panels give way, so that a figure fits the column of a paper.
    """
    from mtlprune.analyses.analysis import find, results_in
    from mtlprune.cli.console import say
    from mtlprune.files import make_room
    from mtlprune.reports.analyses import write_shown
    from mtlprune.reports.charts import FORMATS, Style

    asked = figure_options.formats(formats, FORMATS)
    found = results_in(folder)
    make_room(out or folder)
    for name, result in found.items():
        write_shown(find(name), result, out or folder, asked, Style(width, font_size, title))
    say(f"written: {out or folder}")
