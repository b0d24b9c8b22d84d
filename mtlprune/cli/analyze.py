"""mtlprune analyze: further lenses on the same heads, one sub-verb each."""

from __future__ import annotations

import typer

from mtlprune.cli import analyze_breaks, analyze_degeneration, analyze_dissect, analyze_smoothing, analyze_syntax

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def analyze() -> None:
    """Over-smoothing, exact decomposition, syntactic attention, degeneration."""


app.command("smoothing")(analyze_smoothing.smoothing)
app.command("syntax")(analyze_syntax.syntax)
app.command("breaks")(analyze_breaks.breaks)
app.command("dissect")(analyze_dissect.dissect)
app.command("degeneration")(analyze_degeneration.degeneration)
