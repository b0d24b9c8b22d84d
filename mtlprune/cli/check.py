"""mtlprune check: everything that can fail before training, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.training.inspection import Inspection

SHOWN = 8  # unseen labels named by name


def check(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a preset.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.PATH=VALUE", help="Settings that replace the file's.", show_default=False),
    ] = None,
) -> None:
    """Check configuration, data and encoder as `train` would use them; ends with "ready" or exit code 2."""
    from mtlprune.cli.early import check_settings

    check_settings(config, overrides or ())

    from mtlprune.cli import pruning_display
    from mtlprune.cli.console import console
    from mtlprune.config.config import load_config
    from mtlprune.corpora.store import load_corpus
    from mtlprune.training.inspection import inspect

    settings = load_config(config, overrides or [])
    terminal = console()
    with console(stderr=True).status("checking …"):
        found = inspect(settings, load_corpus(Path(settings.data.path)))
    terminal.print(_split_table(found))
    for line in [*_facts(found), *pruning_display.plan(found)]:
        terminal.print(line, soft_wrap=True)
    for line in [*_warnings(found), *pruning_display.warnings(found)]:
        terminal.print(f"warning: {line}", style="yellow", soft_wrap=True)
    terminal.print("ready", style="bold")


def _split_table(found: Inspection) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("")
    for split in found.sentences:
        table.add_column(split, justify="right")
    rows: dict[str, dict[str, int]] = {
        "sentences": found.sentences,
        "words": found.words,
        **{
            f"sentences with {task}": {split: found.known[split][task] for split in found.sentences}
            for task in found.config.tasks
        },
        "longest sentence (words)": found.longest,
        "words that become unknown tokens": found.unknown_words,
        "sentences longer than the positions": found.windowed,
        "windows of the longest": found.windows,
    }
    for title, cells in rows.items():
        table.add_row(title, *(f"{cells[split]:,}" for split in found.sentences))
    return table


def _facts(found: Inspection) -> list[str]:
    train = found.config.train
    least, most = min(found.updates), max(found.updates)
    per_epoch = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    epochs = "1 epoch" if train.epochs == 1 else f"{train.epochs} epochs"
    parameters = ", ".join(f"{name} {number:,}" for name, number in found.parameters.items())
    return [
        f"precision {train.precision} on {train.device}, threads: {train.threads}",
        f"updates: {per_epoch} an epoch, {sum(found.updates):,} in {epochs} ({train.mixing} mixing)",
        f"parameters: {parameters}; together {sum(found.parameters.values()):,}",
    ]


def _warnings(found: Inspection) -> list[str]:
    warnings = []
    for task, labels in found.unseen.items():
        more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
        warnings.append(
            f"{task}: {len(labels)} labels of {found.config.data.dev} are not in {found.config.data.train} and can "
            f"never be predicted: {', '.join(labels[:SHOWN])}{more}"
        )
    if found.wide_arguments:
        width = getattr(found.config.decoders, "srl").max_width  # noqa: B009 (made from the table of tasks)
        warnings.append(
            f"srl: {found.wide_arguments:,} arguments of {found.config.data.train} are wider than "
            f"decoders.srl.max_width = {width} and cannot be learnt"
        )
    for split, number in found.unknown_words.items():
        if number > 0.01 * found.words[split]:
            warnings.append(f"{split}: {number / found.words[split]:.1%} of the words become unknown tokens")
    return warnings
