"""Predict a split, count per sentence, score."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from mtlprune import scores
from mtlprune.model import MultiTaskModel
from mtlprune.sentence import Sentence


@dataclass
class Evaluation:
    """Predictions of a split, per-sentence counts and the scores they sum to."""

    predictions: list[Sentence]
    counts: dict[str, list[dict[str, int] | None]]
    scores: dict[str, dict[str, float]]
    names: dict[str, str]
    """Task → the name of *the* score."""

    def main(self) -> dict[str, float]:
        """*The* score of each task that could be scored, in percent."""
        return {task: values[self.names[task]] for task, values in self.scores.items()}

    def joint(self) -> float:
        """The unweighted mean of the tasks' scores."""
        values = list(self.main().values())
        return sum(values) / len(values)


def evaluate(model: MultiTaskModel, sentences: Sequence[Sentence], precision: torch.dtype) -> Evaluation:
    """Predict every task of the model on ``sentences`` and count against their layers.

    A sentence whose layer is unknown counts nowhere in that task; a task unknown in all of them has no score.
    """
    decoders = {name: task.options.model_dump() for name, task in model.tasks.items()}  # type: ignore[union-attr, operator]
    with collector_paused():
        return count(sentences, list(model.annotate(sentences, precision)), decoders)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Python's search for cycles costs a twentieth of an evaluation, whose many small objects have none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def count(
    gold: Sequence[Sentence], predictions: list[Sentence], decoders: Mapping[str, Mapping[str, Any]]
) -> Evaluation:
    """Per-sentence counts and scores of predictions against gold sentences, in the same order.

    Args:
        decoders: task → its decoder's settings, of the tasks to count.
    """
    counts: dict[str, list[dict[str, int] | None]] = {}
    table: dict[str, dict[str, Any]] = {}
    for task in decoders:
        rows = [scores.COUNT[task](g, p) for g, p in zip(gold, predictions, strict=True)]
        known = [row for row in rows if row is not None]
        if known:
            counts[task] = rows
            table[task] = scores.score(task, known)
    names = {task: scores.main_score(task, decoders) for task in table}
    return Evaluation(predictions, counts, table, names)
