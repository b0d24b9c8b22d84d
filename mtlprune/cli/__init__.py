"""The command line: one file a command. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mtlprune.cli import (
    analyze,
    bench,
    check,
    data,
    evaluate,
    export,
    head,
    heads,
    maps,
    plot,
    predict,
    prune,
    quickstart,
    report,
    runs,
    sweep,
    table,
    train,
)
from mtlprune.cli.console import exit_code, is_spoken, sentence
from mtlprune.errors import MtlpruneError

RENAMED = {"status": "sweep --status"}
"""Commands of earlier releases, and what does their work now."""


class Commands(TyperGroup):
    """Lists commands in panels; says of a renamed one what it is called now."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in RENAMED:
            raise MtlpruneError(f"there is no command {cmd_name} any more; use `mtlprune {RENAMED[cmd_name]}`")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None)
            rows = panels.setdefault(panel if isinstance(panel, str) else "Commands", [])
            rows.append((name, command.get_short_help_str(formatter.width)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whole names of options at any width, and paragraphs wrapped as one
    help="Which attention heads does each task claim?",
)
app.command("quickstart", short_help="The main job on generated sentences; ends with a page.")(quickstart.quickstart)
app.add_typer(data.app, name="data", help="Build, check, show and export corpora.")
app.command("check", short_help="What a run would need, and whether all fits.")(check.check)
app.command("train", short_help="Train a run, or go on with it.")(train.train)
app.command("sweep", short_help="Run what is missing of many runs, or show where they stand.")(sweep.sweep)
app.command("evaluate", short_help="Score a run on a split.")(evaluate.evaluate)
app.command("predict", short_help="Annotate sentences with every task of a run.")(predict.predict)
app.add_typer(runs.app, name="runs", help="Small records of runs, without weights.")
app.command("table", short_help="Compare runs, with tests over sentences.")(table.table)
app.command("report", short_help="One HTML page of everything.")(report.report)
app.command("maps", short_help="Pictures of the heads that runs claim.")(maps.maps)
app.command("overlap", short_help="Do tasks claim the same heads?", cls=analyze.FromRecord)(lambda: None)
app.command("probe", short_help="What every head knows, without training.", cls=analyze.FromRecord)(lambda: None)
app.command("heads", short_help="A table of all heads.", cls=heads.HeadsCommand)(heads.heads)
app.command("head", short_help="One head, and its attention in sentences.")(head.head)
app.add_typer(plot.app, name="plot", help="Draw what probes found.")
app.add_typer(analyze.app, name="analyze", help="Further analyses on the same heads.")
app.command("prune", short_help="Take closed heads out of a run's encoder.")(prune.prune)
app.command("export", short_help="A run's encoder for plain Hugging Face transformers.")(export.export)
for name, command, words in (
    ("pretrain", train.pretrain, "Pretrain a masked language model, watched."),
    ("bench", bench.bench, "Speed and memory on this machine."),
):
    app.command(name, short_help=words, rich_help_panel="Advanced")(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from mtlprune import __version__

        typer.echo(f"mtlprune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and stop.")
    ] = False,
) -> None:
    """What can stand before a command."""


def main() -> None:
    """Entry point: users' mistakes become one sentence and exit code 2 (3: training broke), never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may hold what this terminal cannot show
    try:
        app()
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        if is_spoken(error):
            print(f"mtlprune: {sentence(error)}", file=sys.stderr)
        sys.exit(code)
