"""The command line: one file a verb. Heavy imports happen inside the verbs, so that --help answers at once."""

from __future__ import annotations

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
    probe,
    prune,
    quickstart,
    report,
    sweep,
    table,
    train,
)
from mtlprune.cli.mistakes import exit_code, is_spoken, sentence

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which attention heads does each task claim?",
)
app.command("quickstart")(quickstart.quickstart)
app.add_typer(data.app, name="data", help="Build, check, show and export corpora.")
app.command("check")(check.check)
app.command("train")(train.train)
app.command("pretrain")(pretrain.pretrain)
app.command("sweep")(sweep.sweep)
app.command("status")(sweep.status)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("table")(table.table)
app.command("report")(report.report)
app.command("maps")(maps.maps)
app.command("overlap")(overlap.overlap)
app.command("probe")(probe.probe)
app.command("heads", cls=head_table.HeadsOrTable)(heads.heads)
app.add_typer(plot.app, name="plot", help="Draw what probes found.")
app.add_typer(analyze.app, name="analyze", help="Further lenses on the same heads.")
app.command("prune")(prune.prune)
app.command("bench")(bench.bench)


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
    try:
        app()
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        if is_spoken(error):
            print(f"mtlprune: {sentence(error)}", file=sys.stderr)
        sys.exit(code)
