"""What one is told about the heads of a run: before training, while it runs, and at its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtlprune.config.config import Config
    from mtlprune.runs import RunFolder
    from mtlprune.training.inspection import Inspection

TRAVEL = 25
"""Rate times updates that gates need to come to a given number of heads (docs/gates.md)."""
SHUT = 2.4
"""How far a logit lies below 0 where its head is shut."""
FAST = 0.1
"""The largest rate that was tried with success."""


def start_and_freeze(config: Config) -> str:
    """train.start and train.freeze in words; empty where a run begins from the pretrained encoder and trains it all."""
    train = config.train
    begun = [f"starts from {train.start}, its best epoch"] if train.start else []
    frozen = [f"frozen: {' and '.join(train.freeze)}"] if train.freeze else []
    return "; ".join([*begun, *frozen])


def plan(found: Inspection) -> Iterator[str]:
    """What pruning is going to do, a line each."""
    if text := start_and_freeze(found.config):
        yield text
    if found.heads is None:
        return
    settings, tasks, total = found.config.pruning, found.config.tasks, sum(found.updates)
    layers, each = found.heads
    heads = f"{layers * each} heads ({layers} layers × {each})"
    if settings.method == "importance":
        sentences = min(settings.importance_sentences, found.sentences[found.config.data.train])
        yield (
            f"pruning: {settings.keep} of {heads} kept, those that matter most to the loss of {settings.importance_of} "
            f"on {sentences:,} training sentences"
        )
    elif settings.method == "random":
        how = (
            f"as many in each layer as {settings.layers_like} has open"
            if settings.layers_like
            else (f"{settings.keep} of them, spread over the layers")
        )
        yield f"pruning: {heads}, kept at random: {how}"
    else:
        sets = "one set for all tasks" if len(tasks) > 1 else "one set"
        if settings.sets == "per_task":
            sets = f"one set a task, so {len(tasks)} encodings of a batch instead of one"
        yield f"pruning: gates on {heads}, {sets}; rate {settings.rate:g}"
        yield _penalty(found, total)


def _penalty(found: Inspection, total: int) -> str:
    settings = found.config.pruning
    if settings.penalty == "lambda":
        return f"penalty lambda {settings.strength:g}: how many heads stay open is not known before"
    goal = f"penalty {settings.penalty}: {settings.keep} heads" + (" a set" if settings.sets == "per_task" else "")
    fixed = " and those heads are fixed" if settings.penalty == "exact" else ""
    return f"{goal}; after update {found.settled:,} of {total:,} an epoch may be the best{fixed}"


def warnings(found: Inspection) -> Iterator[str]:
    """Settings that hardly do what was meant."""
    settings, total = found.config.pruning, sum(found.updates)
    if settings.method != "gates":
        return
    way = settings.rate * total
    if total >= TRAVEL / FAST:
        rate = f"take about {TRAVEL / total:.2g}"
    elif settings.rate < FAST:
        rate = f"take {FAST} and train for about {TRAVEL / FAST:.0f} updates"
    else:
        rate = f"train for about {TRAVEL / settings.rate:.0f} updates"
    if settings.penalty == "lambda" and way < SHUT:
        yield (
            f"pruning.rate: {settings.rate:g} moves a gate by at most about {way:.2g} in {total:,} updates; hardly any "
            f"head will close; {rate}"
        )
    if settings.penalty != "lambda" and way < 0.9 * TRAVEL:
        yield (
            f"pruning.rate: {settings.rate:g} is small for {total:,} updates; the gates may not come to "
            f"{settings.keep} heads in time; {rate}"
        )


def open_heads(gates: Mapping[str, Any]) -> str:
    """How many heads are open, and how many of a sample are expected to be.

    41 of 72 heads open (expected 43.2) or heads open of 72: pos 41 (expected 43.2), dep 30 (expected 31.0)
    """
    counts = {name: f"{count}{_expected(gates, name)}" for name, count in gates["open"].items()}
    total = number_of_heads(gates)
    if list(counts) == ["shared"]:
        return f"{gates['open']['shared']} of {total} heads open{_expected(gates, 'shared')}"
    return f"heads open of {total}: {', '.join(f'{name} {count}' for name, count in counts.items())}"


def open_heads_short(gates: Mapping[str, Any]) -> str:
    """The same for a line that has little room: heads 41/72 or heads pos 41 dep 30 of 72."""
    total, opened = number_of_heads(gates), gates["open"]
    if list(opened) == ["shared"]:
        return f"heads {opened['shared']}/{total}"
    return f"heads {' '.join(f'{name} {count}' for name, count in opened.items())} of {total}"


def _expected(gates: Mapping[str, Any], name: str) -> str:
    expected = gates["expected"][name]
    return "" if math.isclose(expected, gates["open"][name]) else f" (expected {expected:.1f})"


def number_of_heads(gates: Mapping[str, Any]) -> int:
    """L · A"""
    return sum(len(layer) for layer in next(iter(gates["gates"].values())))


def best_line(folder: RunFolder) -> dict[str, Any] | None:
    """The line of gates.jsonl that belongs to the run's best epoch; None in a run without gates."""
    if not folder.gates_path.is_file():
        return None
    best = folder.read_best()["joint"]["epoch"]
    found = [line for line in folder.read_gates() if line["epoch"] == best]
    return found[-1] if found else None
