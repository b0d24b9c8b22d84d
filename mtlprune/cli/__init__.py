"""The command line: one file a verb. Heavy imports happen inside the verbs, so that --help answers at once."""

from __future__ import annotations

import sys

import typer

from mtlprune.cli import data

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Which attention heads does each task claim?")
app.add_typer(data.app, name="data", help="Build, check, show and export corpora.")


def main() -> None:
    """Entry point: users' mistakes become one sentence and exit code 2, never a traceback."""
    from mtlprune.corpora import CorpusError
    from mtlprune.sentence import SentenceError

    try:
        app()
    except (CorpusError, SentenceError) as error:
        print(f"mtlprune: {error}", file=sys.stderr)
        sys.exit(2)
