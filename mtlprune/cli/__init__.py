"""The command line: commands are imported when somebody asks for them, so that --help answers at once."""

import io
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mtlprune.cli.console import exit_code, is_spoken, sentence

ADVANCED = "Advanced"
COMMANDS = {
    "Commands": {
        "quickstart": "The main job on generated sentences; ends with a page.",
        "data": "Bring your own files; build, check, show and export corpora.",
        "check": "What a run would need, and whether all fits.",
        "train": "Train a run, or go on with it.",
        "sweep": "Run what is missing of many runs, or show where they stand.",
        "evaluate": "Score a run on a split.",
        "predict": "Annotate sentences with every task of a run.",
        "runs": "Studies: many runs in two files, without weights.",
        "table": "Compare runs, with tests over sentences.",
        "report": "One HTML page of everything.",
        "maps": "Pictures of the heads that runs claim.",
        "claims": "Do tasks claim the same heads, and would other seeds?",
        "probe": "What every head knows, without training.",
        "heads": "A table of all heads.",
        "head": "One head, and its attention in sentences.",
        "analyze": "Further analyses on the same heads.",
        "prune": "Take closed heads out of a run's encoder.",
        "export": "A run's encoder for plain Hugging Face transformers.",
    },
    ADVANCED: {
        "encoders": "Families of encoders, and what each supports.",
        "pretrain": "Pretrain a masked language model, watched.",
        "bench": "Speed and memory on this machine.",
    },
}
"""Panel of the help → command → one line. A command is the function, or ``app``, of the module of its name here, or of
that in FILES; claims follows from the record of its analysis alone."""
FILES = {
    "table": "show",
    "maps": "show",
    "report": "show",
    "runs": "show",
    "evaluate": "predict",
    "export": "predict",
    "heads": "head",
    "prune": "head",
    "pretrain": "train",
}
PLAIN: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
"""Whole names of options at any width, and paragraphs wrapped as one."""


class CommandGroup(TyperGroup):
    """Commands in panels, each of which is imported when somebody asks for it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: None for commands in self.panels().values() for name in commands}  # type: ignore[misc]

    def panels(self) -> dict[str, dict[str, str]]:
        """Panel of the help → command → one line."""
        return COMMANDS

    def load(self, name: str) -> Any:
        """The function of a command, or the app of several."""
        if name == "claims":
            return import_module("mtlprune.cli.analyze").of_record(name)
        module = import_module(f"mtlprune.cli.{FILES.get(name, name)}")
        return getattr(module, "app", None) or getattr(module, name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            command, holder = self.load(cmd_name), typer.Typer(**PLAIN)
            if isinstance(command, typer.Typer):
                holder.add_typer(command, name=cmd_name, help=COMMANDS["Commands"][cmd_name])
            else:
                holder.command(cmd_name)(command)
            self.commands[cmd_name] = typer.main.get_group(holder).commands[cmd_name]
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel, commands in self.panels().items():
            with formatter.section(panel):
                formatter.write_dl(list(commands.items()))


app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Which attention heads does each task claim?", **PLAIN)


def _show_version(wanted: bool) -> None:
    if wanted:
        from mtlprune import __version__

        typer.echo(f"mtlprune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Read the options that stand before a command."""


def main() -> None:
    """Entry point: users' mistakes become one sentence and exit code 2 (3: training broke), never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may hold what this terminal cannot show
    try:
        app()
    except BaseException as error:  # a panic of a library in Rust is no Exception
        code = exit_code(error)
        if code is None:
            raise
        if is_spoken(error):
            print(f"mtlprune: {sentence(error)}", file=sys.stderr)
        sys.exit(code)
