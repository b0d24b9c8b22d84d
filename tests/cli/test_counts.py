"""The command line stays small: commands and options, counted through every help."""

from command_line import ROOT, every_command

FIRST_LEVEL, COMMANDS, OPTIONS = 16, 19, 105
"""The most there may be; arguments are no options, and --a/--no-a is one."""


def test_there_are_no_more_commands_and_options_than_these() -> None:
    each = [command for _, command in every_command()]
    options = [part for command in each for part in command.params if part.param_type_name == "option"]
    commands = [command for command in each if not hasattr(command, "list_commands")]
    assert len(ROOT.list_commands(None)) <= FIRST_LEVEL
    assert len(commands) <= COMMANDS
    assert len(options) <= OPTIONS, sorted(str(part.opts) for part in options)
