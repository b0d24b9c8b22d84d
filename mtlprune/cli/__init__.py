"""The command line `mtlprune`. The module of a command is imported only when the command is run, for a fast --help."""

import io
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mtlprune.cli.console import MISTAKE, exit_code, sentence
from mtlprune.errors import MtlpruneError, load_blas, memory_left

COMMANDS = {
    "Data": {
        "data": "Build, check, show and export corpora from your own files.",
    },
    "Train": {
        "train": "Train a run, or resume it; --dry-run estimates the cost.",
        "sweep": "Train the runs of a sweep from one file, or show their state.",
        "evaluate": "Score runs on a split.",
        "predict": "Annotate sentences with every task of a run.",
        "encoders": "List the families of encoders and what each family supports.",
        "bench": "Measure speed and memory on this machine.",
    },
    "Compare": {
        "quickstart": "Compare tasks on generated sentences, in a few minutes.",
        "compare": "Compare single-task with joint training, and write a report.",
        "plan": "Compute which differences a sweep can detect, before it is run.",
        "table": "Compare scores of runs, with tests over seeds and sentences.",
        "report": "Write one HTML report of everything.",
    },
    "Analyse": {
        "claims": "Compare the heads that runs claim, between tasks and seeds.",
        "analyze": "Run a probe or another analysis of heads and encoders.",
    },
    "Publish": {
        "export": "Write an encoder for Hugging Face, or remove closed heads.",
        "runs": "Pack many runs into a few small files without weights.",
    },
}
"""Panel of the help → command → one line of help. The command NAME is the function NAME, or ``app``, in the module of
this package that _FILES names, or else in the module NAME."""
_FILES = {"table": "show", "report": "show", "runs": "show"}
_PLAIN: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
"""Settings of typer with which help never cuts the names of options and wraps each paragraph as a whole."""


_ALIAS = ", --data"
"""A second name of the option --corpus, which is accepted but not listed in the help."""


class _FoldedCommand(TyperCommand):
    """A command whose help has separate lists of arguments, options and rarely needed options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, after handling two cases that click cannot: `analyze NAME --help` and `quickstart --seeds`.

        The first prints the help of one analysis, and the second raises an error that names `compare`.
        """
        if self.name == "analyze" and "--help" in args:
            from mtlprune.cli.analyze import ANALYSES, described, find, say

            if (analysis_name := next((word for word in args if word in ANALYSES), None)) is not None:
                say(described(find(analysis_name)))
                ctx.exit()
        if self.name == "quickstart" and "--seeds" in args:
            raise MtlpruneError(
                "quickstart has one seed; `mtlprune compare quickstart/corpus --seeds 1,2,3` has several"
            )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for part in self.get_params(ctx):
            default_panel = "Arguments" if part.param_type_name == "argument" else "Options"
            if (record := part.get_help_record(ctx)) is not None:
                names = record[0].replace(_ALIAS, "")
                panels.setdefault(getattr(part, "rich_help_panel", None) or default_panel, []).append(
                    (names, record[1])
                )
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CommandGroup(TyperGroup):
    """The group of all commands, which imports a command when it is needed and lists commands in panels."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: None for commands in COMMANDS.values() for name in commands}  # type: ignore[misc]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            module, holder = import_module(f"mtlprune.cli.{_FILES.get(cmd_name, cmd_name)}"), typer.Typer(**_PLAIN)
            command = getattr(module, "app", None) or getattr(module, cmd_name)
            if isinstance(command, typer.Typer):
                line = next(lines[cmd_name] for lines in COMMANDS.values() if cmd_name in lines)
                holder.add_typer(command, name=cmd_name, help=line)
            else:
                holder.command(cmd_name, cls=_FoldedCommand, help=getattr(module, "HELP", None))(command)
            self.commands[cmd_name] = typer.main.get_group(holder).commands[cmd_name]
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel, commands in COMMANDS.items():
            with formatter.section(panel):
                formatter.write_dl(list(commands.items()))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"\n{_FIRST_STEPS}\n")


_FIRST_STEPS = """\
This first example takes a few minutes:
  mtlprune quickstart

The documentation begins at docs/README.md in the repository. `mkdocs serve` shows it in a browser."""
_QUESTION = "Train one transformer on several tasks, and find the heads that each task relies on."
app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help=_QUESTION, **{**_PLAIN, "add_completion": True})


def _show_version(version_requested: bool) -> None:
    """Print the versions that a bug report needs. Torch is imported only for this."""
    if version_requested:
        import platform

        import torch

        from mtlprune import __version__

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
        typer.echo(f"mtlprune {__version__}")
        typer.echo(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.platform()}, {device}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the versions of mtlprune, Python and torch, and the device.",
        ),
    ] = False,
) -> None:
    """Accept the options before a command."""


def main() -> None:
    """Run the command line.

    Errors of users are printed as one sentence without a traceback. The exit code is then 2, or 3 if training diverged.
    """
    if sys.platform == "win32":  # we rely on locks, process groups and renaming of folders as POSIX defines them
        print(
            "mtlprune: expected Linux or macOS, found Windows; run mtlprune in the Windows Subsystem for Linux (WSL)",
            file=sys.stderr,
        )
        sys.exit(MISTAKE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # in every locale, as in files
    reserve = [bytearray(1 << 22)]  # is freed to print a message after memory ran out
    try:
        load_blas()
        app()
    except BaseException as error:  # panics of libraries in Rust do not derive from Exception
        reserve.clear()
        try:
            code, error_shown = exit_code(error), error
            if code is None and (isinstance(error, SystemExit | KeyboardInterrupt) or memory_left()):
                raise
            if code is None:  # if no memory is left, libraries raise errors of many other types
                code, error_shown = MISTAKE, MemoryError()
            print(f"mtlprune: {sentence(error_shown)}", file=sys.stderr)
        except MemoryError:
            os.write(2, b"mtlprune: memory ran out\n")
            os._exit(MISTAKE)  # an ordinary exit, or a traceback, would need more memory
        sys.exit(code)
