"""mtlprune data: build, check, show and export corpora."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True)
