"""mtlprune analyze: further lenses on the same heads, one sub-verb each."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def analyze() -> None:
    """Over-smoothing, exact decomposition, syntactic attention, degeneration."""
