"""mtlprune train --dry-run: everything that can fail before training, and what a run will cost, without training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mtlprune.cli.console import console, new_table
from mtlprune.corpora.store import load_corpus

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.config.config import Config
    from mtlprune.training.inspection import Inspection


SHOWN = 8  # unseen labels named by name


def show_plan(settings: Config) -> None:
    """Check configuration, data and encoder as training would use them, and print what it will do and cost; ends with
    "ready", or, where the corpus is missing, with how it is built."""
    from mtlprune.sweeps.times import data_missing

    path, terminal = Path(settings.data.path), console()
    if missing := data_missing(path):
        for line in [*_without_corpus(settings), *_cost(settings)]:
            terminal.print(line)
        return terminal.print(missing, style="bold")

    from mtlprune.training.inspection import inspect

    with console(stderr=True).status("checking …"):
        inspection = inspect(settings, load_corpus(path))
    terminal.print(_split_table(inspection))
    for line in [*_facts(inspection), *_cost(settings), *_plan(inspection)]:
        terminal.print(line)
    for line in [*_warnings(inspection), *_pruning_warnings(inspection)]:
        terminal.print(f"warning: {line}", style="yellow")
    terminal.print("ready", style="bold")


def _without_corpus(settings: Config) -> Iterator[str]:
    """Lines of what is known of a run before its corpus is there."""
    from mtlprune.sweeps.times import shape_of, training_sentences

    train, data = settings.train, settings.data
    yield f"parameters: encoder about {shape_of(settings.encoder.name).weights:,}; decoders by the labels of the corpus"
    if (known := training_sentences(settings)) is not None:
        sentences = min(known, data.train_sentences or known)
        each = math.ceil(sentences / train.batch_sentences)
        each *= len(settings.tasks) if train.mixing == "sampled" else 1
        of = f"{sentences:,} sentences, {train.mixing} mixing"
        yield f"updates: about {each:,} an epoch, {each * train.epochs:,} in {train.epochs} epochs ({of})"
    if text := start_and_pruning(settings):
        yield text


def _cost(settings: Config) -> Iterator[str]:
    """Lines about memory and time, by arithmetic."""
    from mtlprune.sweeps.times import CORE, GPU, rough_memory, rough_seconds

    yield f"memory: about {rough_memory(settings) / 1e9:.1f} GB"
    if (slow := rough_seconds(settings)) is not None:
        speeds = f"{CORE / 1e12:g} and {GPU / 1e12:g} TFLOP/s"
        yield f"time, roughly: {_duration(slow)} on one core, {_duration(slow * CORE / GPU)} on a GPU ({speeds})"


def _duration(seconds: float) -> str:
    number, unit = (seconds / 3600, "h") if seconds >= 3600 else (seconds / 60, "min")
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"


def _split_table(inspection: Inspection) -> Table:
    table = new_table(None, "", *(f">{split}" for split in inspection.sentences))
    rows: dict[str, dict[str, int]] = {
        "sentences": inspection.sentences,
        "words": inspection.words,
        **{
            f"sentences with {task}": {split: inspection.known[split][task] for split in inspection.sentences}
            for task in inspection.config.tasks
        },
        "longest sentence (words)": inspection.longest,
        "words that become unknown tokens": inspection.unknown_words,
        "sentences longer than the positions": inspection.windowed,
        "windows of the longest": inspection.windows,
    }
    for title, cells in rows.items():
        table.add_row(title, *(f"{cells[split]:,}" for split in inspection.sentences))
    return table


def _facts(inspection: Inspection) -> list[str]:
    train = inspection.config.train
    least, most = min(inspection.updates), max(inspection.updates)
    per_epoch = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    epochs = "1 epoch" if train.epochs == 1 else f"{train.epochs} epochs"
    parameters = ", ".join(f"{name} {number:,}" for name, number in inspection.parameters.items())
    return [
        f"precision {train.precision} on {train.device}, threads: {train.threads}",
        f"updates: {per_epoch} an epoch, {sum(inspection.updates):,} in {epochs} ({train.mixing} mixing)",
        f"parameters: {parameters}; together {sum(inspection.parameters.values()):,}",
    ]


def _warnings(inspection: Inspection) -> list[str]:
    warnings, data = [], inspection.config.data
    for task, labels in inspection.unseen.items():
        more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
        warnings.append(
            f"{task}: {len(labels)} labels of {data.dev} are not in {data.train} and can never be predicted: "
            f"{', '.join(labels[:SHOWN])}{more}"
        )
    for task, number in inspection.wide_arguments.items():
        if number:
            width = getattr(inspection.config.decoders, task).max_width
            warnings.append(
                f"{task}: {number:,} arguments of {data.train} are wider than "
                f"decoders.{task}.max_width = {width} and cannot be learnt"
            )
    for split, number in inspection.unknown_words.items():
        if number > 0.01 * inspection.words[split]:
            warnings.append(f"{split}: {number / inspection.words[split]:.1%} of the words become unknown tokens")
    return warnings


TRAVEL = 25
"""Rate times updates that gates need to come to a given number of heads (docs/gates.md)."""
CLOSED_GATE = 2.4
"""How far a logit lies below 0 where its head is closed."""


def start_and_pruning(config: Config) -> str:
    """train.start, train.freeze, treatment and pruning in words; empty where a run trains all of the encoder."""
    from mtlprune.runs.groups import pruning_title, treatment_title

    tree, train = config.model_dump(mode="json"), config.train
    begun = f"starts from {train.start}, its best epoch" if train.start else ""
    frozen = f"frozen: {' and '.join(train.freeze)}" if train.freeze else ""
    named = {"treatment": treatment_title(tree), "pruning": pruning_title(tree)}
    return "; ".join(filter(None, [begun, frozen, *(f"{key}: {title}" for key, title in named.items() if title)]))


def _plan(inspection: Inspection) -> Iterator[str]:
    """Lines that say from what a run starts, and what pruning is going to do."""
    from mtlprune.training.pruning.selectors import expected_false

    if text := start_and_pruning(inspection.config):
        yield text
    if inspection.heads is None:
        return
    settings, total = inspection.config.pruning, sum(inspection.updates)
    layers, each = inspection.heads
    yield f"heads: {layers * each} ({layers} layers × {each})"
    if settings.sets == "per_task":
        yield f"each task has gates of its own: a batch is encoded {len(inspection.config.tasks)} times"
    if settings.importance_of is not None:
        sentences = min(settings.importance_sentences, inspection.sentences[inspection.config.data.train])
        yield f"heads are chosen by the loss of {settings.importance_of} on {sentences:,} training sentences"
    if settings.method == "stable":
        bound = expected_false(settings.keep or 0, settings.threshold, layers * each)
        yield (
            f"stable: claimed are heads that {settings.threshold:g} of {settings.halves} halves of them keep; at most "
            f"{bound:.1f} false claims are expected"
        )
    if settings.method == "gates" and settings.penalty == "lambda":
        yield f"penalty lambda {settings.strength:g}: how many heads stay open is not known before"
    elif settings.method == "gates" or settings.noise:
        yield f"heads are closed by update {inspection.settled:,} of {total:,}; an epoch after it may be the best"


def _pruning_warnings(inspection: Inspection) -> Iterator[str]:
    """Rates by which gates hardly come to what was asked for."""
    settings, total = inspection.config.pruning, sum(inspection.updates)
    free = settings.penalty == "lambda"
    if settings.method == "gates" and settings.rate * total < (CLOSED_GATE if free else 0.9 * TRAVEL):
        late = "hardly any head will close" if free else f"the gates may not come to {settings.keep} heads in time"
        advice = f"take about {TRAVEL / total:.2g}, or train for more updates"
        yield f"pruning.rate: {settings.rate:g} is small for {total:,} updates; {late}; {advice}"
