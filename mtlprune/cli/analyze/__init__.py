"""mtlprune analyze: further analyses of the same heads, one command each; those with a record are made from it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from mtlprune.analyses import ANALYSES, COMMANDS
from mtlprune.cli.analyze.command import show


class Analyses(TyperGroup):
    """Imports a record only when somebody asks for its command."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*(name for name in ANALYSES if name not in COMMANDS), *super().list_commands(ctx)]

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in ANALYSES or name in COMMANDS:
            return super().get_command(ctx, name)
        from mtlprune.analyses.analysis import find
        from mtlprune.cli.analyze.command import command

        return command(name, find(ANALYSES[name]))


class FromRecord(TyperCommand):
    """Stands for the command of a record outside ``analyze``; the record is imported when somebody asks for it."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        from mtlprune.analyses.analysis import find
        from mtlprune.cli.analyze.command import command

        name = str(info_name)
        return command(name, find(ANALYSES[name])).make_context(name, args, parent, **extra)


app = typer.Typer(no_args_is_help=True, add_completion=False, cls=Analyses)


@app.callback()
def analyze() -> None:
    """Over-smoothing, exact decomposition, syntactic attention, degeneration."""


app.command("show", short_help="Draw what an analysis found once more, for a paper.")(show)
