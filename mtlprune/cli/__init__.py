"""The command line: one file a verb. Heavy imports happen inside the verbs, so that --help answers at once."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from mtlprune.cli import (
    analyze,
    bench,
    check,
    data,
    evaluate,
    head_table,
    heads,
    maps,
    overlap,
    plot,
    predict,
    pretrain,
    prune,
    quickstart,
    report,
    runs,
    sweep,
    table,
    train,
)
from mtlprune.cli.mistakes import exit_code, is_spoken, sentence

app = typer.Typer(
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
app.command("pretrain", short_help="Pretrain a masked language model, watched.")(pretrain.pretrain)
app.command("sweep", short_help="Run what is missing of many runs from one file.")(sweep.sweep)
app.command("status", short_help="Where the cells of a sweep stand.")(sweep.status)
app.command("evaluate", short_help="Score a run on a split.")(evaluate.evaluate)
app.command("predict", short_help="Annotate sentences with every task of a run.")(predict.predict)
app.add_typer(runs.app, name="runs", help="Small records of runs, without weights.")
app.command("table", short_help="Compare runs, with tests over sentences.")(table.table)
app.command("report", short_help="One HTML page of everything.")(report.report)
app.command("maps", short_help="Pictures of the heads that runs claim.")(maps.maps)
app.command("overlap", short_help="Do tasks claim the same heads?")(overlap.overlap)
app.command("probe", short_help="What every head knows, without training.", cls=analyze.FromRecord)(lambda: None)
app.command("heads", short_help="One head, or a table of all of them.", cls=head_table.HeadsOrTable)(heads.heads)
app.add_typer(plot.app, name="plot", help="Draw what probes found.")
app.add_typer(analyze.app, name="analyze", help="Further lenses on the same heads.")
app.command("prune", short_help="Take closed heads out of a run's encoder.")(prune.prune)
app.command("bench", short_help="Speed and memory on this machine.")(bench.bench)


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
    """What can stand before a verb."""


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
