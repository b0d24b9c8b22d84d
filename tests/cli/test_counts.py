"""The command line stays small: commands and options, counted through every help."""

from collections.abc import Iterator
from typing import Any

import typer

from mtlprune.cli import app

FIRST_LEVEL, COMMANDS, OPTIONS = 16, 19, 105
"""The most there may be; arguments are no options, and --a/--no-a is one."""


def commands_below(command: Any) -> Iterator[Any]:
    """The command itself, or all that a group of them leads to; groups too, whose options count."""
    yield command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from commands_below(command.get_command(None, name))


def test_there_are_no_more_commands_and_options_than_these() -> None:
    root: Any = typer.main.get_command(app)
    each = list(commands_below(root))
    options = [part for command in each for part in command.params if part.param_type_name == "option"]
    commands = [command for command in each if not hasattr(command, "list_commands")]
    assert len(root.list_commands(None)) <= FIRST_LEVEL
    assert len(commands) <= COMMANDS
    assert len(options) <= OPTIONS, sorted(str(part.opts) for part in options)
