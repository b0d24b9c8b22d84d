"""The command line as typer holds it: every command, and what it makes of words."""

from collections.abc import Iterator, Sequence
from typing import Any

import typer

from mtlprune.cli import app

ROOT: Any = typer.main.get_command(app)


def every_command(command: Any = ROOT, called: str = "mtlprune") -> Iterator[tuple[str, Any]]:
    """Name and command, groups too."""
    yield called, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from every_command(command.get_command(None, name), f"{called} {name}")


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """The parameters of a command of `mtlprune`. Raises what click raises."""
    command, rest = ROOT, list(words)
    while hasattr(command, "list_commands"):
        name = rest.pop(0)
        command = command.get_command(None, name)
        assert command is not None, f"there is no command {name}"
    parameters: dict[str, Any] = command.make_context(None, rest).params
    return parameters
