"""Predict a split, count per sentence, score."""

from __future__ import annotations

from collections.abc import Sequence
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

    def main(self) -> dict[str, float]:
        """*The* score of each task that could be scored, in percent."""
        return {task: values[scores.MAIN[task]] for task, values in self.scores.items()}

    def joint(self) -> float:
        """The unweighted mean of the tasks' scores."""
        values = list(self.main().values())
        return sum(values) / len(values)


def evaluate(model: MultiTaskModel, sentences: Sequence[Sentence], precision: torch.dtype) -> Evaluation:
    """Predict every task of the model on ``sentences`` and count against their layers.

    A sentence whose layer is unknown counts nowhere in that task; a task unknown in all of them has no score.
    """
    return count(sentences, list(model.annotate(sentences, precision)), list(model.tasks))


def count(gold: Sequence[Sentence], predictions: list[Sentence], tasks: Sequence[str]) -> Evaluation:
    """Per-sentence counts and scores of predictions against gold sentences, in the same order."""
    counts: dict[str, list[dict[str, int] | None]] = {}
    table: dict[str, dict[str, Any]] = {}
    for task in tasks:
        rows = [scores.COUNT[task](g, p) for g, p in zip(gold, predictions, strict=True)]
        known = [row for row in rows if row is not None]
        if known:
            counts[task] = rows
            table[task] = scores.score(task, known)
    return Evaluation(predictions, counts, table)
