"""mtlprune analyze: further lenses on the same heads, one sub-verb each."""

from __future__ import annotations

import typer

from mtlprune.cli.analyze import breaks as analyze_breaks
from mtlprune.cli.analyze import degeneration as analyze_degeneration
from mtlprune.cli.analyze import dissect as analyze_dissect
from mtlprune.cli.analyze import smoothing as analyze_smoothing
from mtlprune.cli.analyze import syntax as analyze_syntax

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def analyze() -> None:
    """Over-smoothing, exact decomposition, syntactic attention, degeneration."""


app.command("smoothing", short_help="Do token vectors grow alike, and through what?")(analyze_smoothing.smoothing)
app.command("syntax", short_help="Which heads attend along dependency arcs?")(analyze_syntax.syntax)
app.command("breaks", short_help="Where does a logged curve bend?")(analyze_breaks.breaks)
app.command("dissect", short_help="What comes from input, heads, feed-forward, rest?")(analyze_dissect.dissect)
app.command("degeneration", short_help="Cones and isotropy; rare labels.")(analyze_degeneration.degeneration)
