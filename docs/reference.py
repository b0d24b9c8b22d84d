"""Generators of the reference pages on commands, settings and analyses, which docs/generate.py writes."""

import re
from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel

from mtlprune.analyses.analysis import usable
from mtlprune.cli import COMMANDS, app
from mtlprune.config import PRESETS
from mtlprune.config.config import Config
from mtlprune.io.block import Block, explanations, is_class
from mtlprune.tasks import TASKS

MADE = "`python docs/generate.py` makes this page from the code."


def commands() -> str:
    """Return the page on commands, with arguments and options, in the order of `mtlprune --help`."""
    root: Any = typer.main.get_command(app)
    lines = ["# Commands", "", f"{MADE} `mtlprune COMMAND --help` prints the same text.", ""]
    for panel, names in COMMANDS.items():
        lines += [f"## {panel}", ""]
        for name in names:
            lines += described(root.get_command(None, name), f"mtlprune {name}")
    return "\n".join(lines).rstrip() + "\n"


def described(command: Any, called: str) -> Iterator[str]:
    """Yield the lines that describe a command and its subcommands."""
    yield from (f"### {called}", "", cell(command.help or "", " "), "")
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from described(command.get_command(None, name), f"{called} {name}")
        return
    context = command.make_context(called, [], resilient_parsing=True)
    records = [part.get_help_record(context) for part in command.get_params(context)]
    rows = [
        [f"`{names}`".replace("|", r"\|"), cell(text)] for names, text in filter(None, records) if names != "--help"
    ]
    yield from table(("argument or option", "meaning"), rows)


def settings() -> str:
    """Return the page on the settings of runs and decoders, with type, default and meaning, and on the presets."""
    lines = [
        "# Settings",
        "",
        f"{MADE} Settings are written as `key.path=value` after a command, or in a YAML file.",
        "",
    ]
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if is_class(kind) and issubclass(kind, BaseModel) and name != "decoders":
            lines += [f"## `{name}`", "", explanations(Config)[name], "", *block_table(kind, f"{name}.")]
    top = {name for name, field in Config.model_fields.items() if not is_class(field.annotation)} | {"name"}
    lines += ["## Settings without a block", "", *block_table(Config, "", top)]
    lines += [
        "## Decoders",
        "",
        "Settings of decoders are written `decoders.LAYER.SETTING`, such as `decoders.dep.dropout`.",
        "",
    ]
    for name in TASKS:
        rows = list(block_table(TASKS[name].Options, ""))
        lines += [f"### `{name}`", "", *(rows or ["This decoder has no settings.", ""])]
    return "\n".join([*lines, *presets()]).rstrip() + "\n"


def presets() -> Iterator[str]:
    """Yield the lines on the presets of the package, with the comments at the start of their files."""
    yield from ("## Presets", "", "`mtlprune train NAME` trains with the preset of this name.", "")
    rows = []
    for path in sorted(PRESETS.glob("*.yaml")):
        comment = re.match(r"(# .*\n)*", path.read_text(encoding="utf-8"))
        rows.append([f"`{path.stem}`", cell(re.sub(r"^# ", "", comment[0] if comment else "", flags=re.MULTILINE))])
    yield from table(("preset", "meaning"), rows)


def block_table(block: type[BaseModel], prefix: str, chosen: set[str] | None = None) -> Iterator[str]:
    """Yield the table of a block's settings, followed by the tables of the blocks inside it."""
    rows, texts = [], explanations(block)
    for name, field in block.model_fields.items():
        if chosen is not None and name not in chosen:
            continue
        default = "required" if field.is_required() else plain(field.get_default(call_default_factory=True))
        rows.append([f"`{prefix}{name}`", typed(field.annotation), default, cell(texts.get(name, ""))])
    yield from table(("setting", "type", "default", "meaning"), rows)
    for name, field in block.model_fields.items():
        for part in (field.annotation, *get_args(field.annotation)) if chosen is None else ():
            if is_class(part) and issubclass(part, BaseModel) and part is not block and "Heads" not in part.__name__:
                yield from block_table(part, f"{prefix}{name}.")


def typed(annotation: Any) -> str:
    """Describe a type in the words of the command line."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " ".join(f"`{part}`" for part in parts)
    if hasattr(annotation, "__metadata__"):
        return typed(parts[0])
    if origin is tuple:
        return f"list of {typed(parts[0])}"
    if origin is dict:
        return f"{typed(parts[0])} → {typed(parts[1])}"
    if parts and (origin is Union or "UnionType" in type(annotation).__name__):
        return " or ".join(typed(part) for part in parts if part is not NoneType)
    if is_class(annotation) and issubclass(annotation, BaseModel):
        return "heads" if "Heads" in annotation.__name__ else "block"
    return {str: "text", int: "whole number", float: "number", bool: "`true` `false`"}.get(annotation, "value")


def analyses() -> str:
    """Return the page on analyses: the question, the settings, and the frames of the result of each analysis."""
    lines = ["# Analyses and their frames", "", MADE, "", "`mtlprune analyze NAME RUNS SETTING=VALUE --out DIR` writes"]
    lines += [
        "`DIR/NAME.md`, figures and `DIR/NAME.json` with its frames; a frame of more than 4,000 rows is a file",
        "",
    ]
    lines[-2] += " `DIR/NAME-FRAME.parquet`. `mtlprune.read_results(DIR)` reads all of them."
    for record in usable():
        lines += [f"## `{record.name}`: {record.title}", "", cell(record.help, " "), ""]
        if record.options is not Block and record.options.model_fields:
            lines += block_table(record.options, "")
        if record.columns:
            rows = [[f"`{column.measure}`", column.title, column.meaning] for column in record.columns]
            lines += ["Columns of the table of heads:", "", *table(("measure", "title", "meaning"), rows)]
        for name, frame in record.declared.frames.items():
            rows = [[f"`{column}`", kind, cell(meaning)] for column, kind, meaning in frame.rows()]
            lines += [f"Frame `{name}`: {cell(frame.meaning)}", "", *table(("column", "kind", "meaning"), rows)]
    return "\n".join(lines).rstrip() + "\n"


def table(heads: tuple[str, ...], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table and an empty line, or nothing without rows."""
    if rows:
        yield from (f"| {' | '.join(row)} |" for row in (list(heads), ["---"] * len(heads), *rows))
        yield ""


def plain(value: Any) -> str:
    """Format a default as on the command line."""
    if value is None or value == () or value == {}:
        return "–"
    if isinstance(value, BaseModel):
        return "see below" if type(value).__name__ != "HeadsConfig" else "`all`"
    text = str(value).lower() if isinstance(value, bool) else ",".join(value) if isinstance(value, tuple) else value
    return f"`{text}`"


def listed(paragraph: str) -> str:
    """Convert a paragraph that the help does not wrap to a list of names and their meanings."""
    return "\n".join(f"- `{line.split()[0]}`: {line.split(maxsplit=1)[1]}" for line in paragraph.splitlines()[1:])


def cell(text: str, between: str = "<br>") -> str:
    """Convert a text to a table cell: on one line, with escaped pipes, and with ``between`` between paragraphs."""
    paragraphs = [
        listed(part) if part.startswith("\b") else " ".join(part.split())
        for part in re.split(r"\n\s*\n", text.replace("``", "`"))
    ]
    return (
        (between if between != " " else "\n\n")
        .join(paragraphs)
        .replace("|", r"\|")
        .replace("<", "&lt;")
        .replace("&lt;br>", "<br>")
    )
