"""Shared by all commands: options, printing to the terminal, and errors as one sentence without a traceback."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.errors import MtlpruneError, command, out_of_memory, printable, printable_lines, system_refusal
from mtlprune.io.files import from_here

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mtlprune.analyses.analysis import Analysis
    from mtlprune.figures.charts import Style
    from mtlprune.runs.folder import RunFolder
    from mtlprune.runs.results import Result

_PAPER_POINTS = 8
"""Font size in points of figures for a paper (option --width)."""
ADVANCED = "Further options"
"""Panel of the help with rarely needed options."""
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY.PATH=VALUE", help="Settings that override settings of the file.")
]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUNS", help="Runs, folders of seeds, sweeps (or SWEEP:CELLS), packed studies, or patterns of paths."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--corpus",
        "--data",
        metavar="DIR",
        help="Corpus with the gold labels (the corpus of the runs, if not given).",
        rich_help_panel=ADVANCED,
    ),
]
Resamples = Annotated[
    int,
    typer.Option(
        min=0, help="Number of resamples or permutations of each test (0 for no tests).", rich_help_panel=ADVANCED
    ),
]
Device = Annotated[
    str | None, typer.Option(help="Device on which the command runs, such as cpu or cuda.", rich_help_panel=ADVANCED)
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Option with which runs are submitted to Slurm, such as slurm_partition=gpu. Repeatable.",
    ),
]
Width = Annotated[
    float | None,
    typer.Option(
        metavar="CM",
        min=1,
        help="Width of figures in centimetres, such as the width of a column of a paper. Figures with this "
        "option have no titles.",
        rich_help_panel=ADVANCED,
    ),
]


def paper_style(width: float | None) -> Style:
    """Return the style of figures. Figures of a given width, in centimetres, have 8-point text and no titles."""
    from mtlprune.figures.charts import PLAIN, Style

    return PLAIN if width is None else Style(width, _PAPER_POINTS, title=False)


def chosen_formats(formats: str, formats_known: Sequence[str]) -> list[str]:
    """Split the value of ``--format`` at commas. Raises MtlpruneError for an unknown format."""
    format_names = list(dict.fromkeys(part.strip() for part in formats.split(",")))
    if unknown := [part for part in format_names if part not in formats_known]:
        raise MtlpruneError(f"--format: expected some of {', '.join(formats_known)}, found {unknown[0]!r}")
    return format_names


def seen_from_here(runs: Sequence[str | Path] | None) -> list[Path]:
    """Make paths below the working directory relative to it and leave others unchanged, as tables and reports show
    paths."""
    return [Path(from_here(str(run))) for run in runs or ()]


def named_runs(runs: Sequence[str | Path], having: str = "", left_out: list[str] | None = None) -> list[RunFolder]:
    """Open the runs that the RUNS arguments of a command stand for.

    Args:
        having: as in ``sweeps.folder.expanded``.
        left_out: as in ``sweeps.folder.expanded``.

    Raises:
        RunError: a run does not exist or is damaged.
    """
    from mtlprune.runs.folder import RunFolder
    from mtlprune.sweeps.folder import expanded

    return [RunFolder.existing(run) for run in expanded(runs, having, left_out)]


def next_command(terminal: Console, *words: object) -> None:
    """Print the command that the user may want to run next, quoted so that it can be pasted."""
    terminal.print(f"next: {command(*words)}", soft_wrap=True)


def resume_hint() -> str:
    """Return the hint that is printed after this process was stopped."""
    return f"run the same command again to continue: {command(*sys.argv[1:])}"


def console(stderr: bool = False) -> Console:
    """Return the terminal. If the output is a file or pipe, tables may be up to 240 characters wide."""
    from mtlprune.cli.terminal import PlainConsole

    terminal = PlainConsole(stderr=stderr, highlight=False, markup=False)
    if not terminal.is_terminal:
        terminal.width = 240
    return terminal


def new_table(title: str | None, *columns: str) -> Table:
    """Return an empty table. Columns whose names begin with > are right-aligned, for numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table


def say(text: object, nl: bool = True) -> None:
    """Print text to standard output, with control characters made visible."""
    typer.echo(printable_lines(str(text)), nl=nl)


_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
"""Matches a table in Markdown."""


def show_document(text: str) -> None:
    """Print Markdown, rendered on a terminal and unchanged elsewhere, so that it can be redirected to a file.

    On a terminal, tables that are too wide are left out, because truncated numbers would mislead.
    """
    terminal = console()
    if not terminal.is_terminal:
        return say(text, nl=False)

    from rich.markdown import Markdown

    left_out = f"(One table is wider than {terminal.width} characters and is left out. `--out` writes it to a file.)\n"
    terminal.print(
        Markdown(_TABLE.sub(lambda match: match[0] if _least_width(match[0]) <= terminal.width else left_out, text))
    )


def _least_width(table: str) -> int:
    """Return the smallest width of a Markdown table: the longest word of each column, and the space between columns."""
    header, _, *rows = ([cell.split() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines())
    return sum(2 + max(map(len, itertools.chain(*column)), default=0) for column in zip(header, *rows, strict=True))


def show_result(analysis: Analysis, result: Result) -> None:
    """Print the tables and findings of an analysis. On a terminal, findings come last, where they stay visible."""
    from mtlprune.reports.analyses import markdown

    show_document(markdown(analysis, result, findings_last=console().is_terminal))


def warn_unfinished(run: RunFolder, terminal: Console) -> None:
    """Print a warning if a run is not trained to its end."""
    if not run.is_finished():
        terminal.print(f"warning: {run.path} has not finished training; its best weights so far are used")


@contextlib.contextmanager
def shown_log(terminal: Console) -> Iterator[None]:
    """Print the log messages of mtlprune to a terminal while the context is active."""
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


MISTAKE, INTERRUPTED = 2, 130

_ADVICE = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "; name another place, or change the permissions"),
    errno.ENOENT: "; check the path",
    errno.EEXIST: "; a folder was expected; name another place",
    errno.ENOTDIR: "; a part of the path is a file; name another place",
    errno.EISDIR: "; a file was expected; name a file",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; free some disk space, or name another place"),
    errno.EFBIG: "; raise the limit on the size of a file (ulimit -f), or name another place",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "; raise the limit on open files (ulimit -n)"),
    errno.EAGAIN: ", such as another thread; free some memory, or raise the limit on processes (ulimit -u)",
}
"""Number of a system error → advice that is appended to its message."""


def exit_code(error: BaseException) -> int | None:
    """Return the exit code for an error: 2 if the user can correct it, 3 if training diverged, None for a bug."""
    if isinstance(error, MtlpruneError):
        return error.exit_code
    return MISTAKE if isinstance(error, OSError) or out_of_memory(error) or system_refusal(error) else None


def sentence(error: BaseException) -> str:
    """Return the message of an error as one line without control characters."""
    if out_of_memory(error):
        text = "memory ran out; make batches smaller (train.batch_tokens), free some memory, or use a larger machine"
    elif not isinstance(error, MtlpruneError) and (refused := system_refusal(error)) and refused.strerror:
        advice = _ADVICE.get(refused.errno or 0, "")
        text = f"{refused.filename or 'the system refused'}: {refused.strerror}{advice}"
    else:
        text = " ".join(str(error).splitlines())
    return printable(text)
