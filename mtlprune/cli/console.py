"""The terminal, and how scores look on it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from mtlprune.errors import printable_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def rank() -> int:
    """Which of the processes that torchrun started this is; 0 where it started none."""
    return int(os.environ.get("RANK", 0)) if int(os.environ.get("WORLD_SIZE", 1)) > 1 else 0


def console(stderr: bool = False) -> Console:
    """The terminal; into files and pipes, lines are as long as they need to be. Of several processes one speaks."""
    from mtlprune.cli.plain_console import PlainConsole

    quiet = rank() > 0
    made = PlainConsole(stderr=stderr, highlight=False, markup=False, quiet=quiet)
    if made.is_terminal:
        return made
    return PlainConsole(stderr=stderr, highlight=False, markup=False, width=240, quiet=quiet)


def say(text: object, nl: bool = True) -> None:
    """Print text as it is, but for signs that steer a terminal."""
    typer.echo(printable_lines(str(text)), nl=nl)


@contextlib.contextmanager
def shown_log(terminal: Console) -> Iterator[None]:
    """Print what the library logs meanwhile, a line each."""
    log = logging.getLogger("mtlprune")
    lines, level = _Lines(terminal), log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(level)


class _Lines(logging.Handler):
    def __init__(self, terminal: Console) -> None:
        super().__init__()
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        self.terminal.print(f"{mark}{record.getMessage()}", soft_wrap=True)


def scores_table(
    scores: Mapping[str, Mapping[str, float]],
    names: Mapping[str, str],
    title: str,
    decoders: Mapping[str, Mapping[str, Any]],
) -> Table:
    """All scores of each task in percent, *the* score of each first and in bold."""
    from rich.table import Table

    from mtlprune.scores import name_of

    table = Table(title=title, title_justify="left")
    table.add_column("task")
    table.add_column("score")
    table.add_column("%", justify="right")
    for task, values in scores.items():
        main = names[task]
        table.add_row(task, name_of(task, main, decoders), f"{values[main]:.2f}", style="bold")
        rest = [(name, value) for name, value in values.items() if name != main]
        for name, value in rest:
            table.add_row("", name, f"{value:.2f}")
        table.add_section()
    return table
