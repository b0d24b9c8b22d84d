"""Predict a split, count per sentence, score."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from mtlprune import scores
from mtlprune.layers import kind_of
from mtlprune.model import MultiTaskModel, evaluation_batches
from mtlprune.runs import from_json, to_json
from mtlprune.sentence import Sentence
from mtlprune.training.parallel import ALONE, Team


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


def evaluate(
    model: MultiTaskModel, sentences: Sequence[Sentence], precision: torch.dtype, team: Team = ALONE
) -> Evaluation:
    """Predict every task of the model on ``sentences`` and count against their layers.

    A sentence whose layer is unknown counts nowhere in that task; a task unknown in all of them has no score.

    Args:
        team: processes that share the sentences out; each is given the evaluation of all.
    """
    decoders = {name: task.options.model_dump() for name, task in model.tasks.items()}  # type: ignore[union-attr, operator]
    with collector_paused():
        if team.size == 1:
            return count(sentences, list(model.annotate(sentences, precision)), decoders)
        rows = share(model, sentences, team)
        own = [sentences[row] for row in rows]
        predicted = list(model.annotate(own, precision)) if own else []
        counts = {task: _count(task, own, predicted) for task in decoders}
        return _joined(team.gather(json.dumps([rows, list(map(to_json, predicted)), counts])), len(sentences), decoders)


def share(model: MultiTaskModel, sentences: Sequence[Sentence], team: Team) -> list[int]:
    """The sentences that this process predicts: every so many batches of those that one process would form, so that
    predictions are the same to the last bit."""
    lengths = [len(pieces.ids) for pieces in model.encoder.tokenize_all([sentence.words for sentence in sentences])]
    own = list(evaluation_batches(lengths))[team.rank :: team.size]
    return sorted(row for batch in own for row in batch)


def _joined(shares: Sequence[str], sentences: int, decoders: Mapping[str, Mapping[str, Any]]) -> Evaluation:
    predictions: dict[int, Sentence] = {}
    counts: dict[str, dict[int, dict[str, int] | None]] = {task: {} for task in decoders}
    for rows, predicted, counted in map(json.loads, shares):
        predictions.update(zip(rows, map(from_json, predicted), strict=True))
        for task, found in counted.items():
            counts[task].update(zip(rows, found, strict=True))
    order = range(sentences)
    whole = {task: [found[row] for row in order] for task, found in counts.items()}
    return _scored([predictions[row] for row in order], whole, decoders)


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
    return _scored(predictions, {task: _count(task, gold, predictions) for task in decoders}, decoders)


def _count(task: str, gold: Sequence[Sentence], predictions: Sequence[Sentence]) -> list[dict[str, int] | None]:
    return [scores.count(task, g, p) for g, p in zip(gold, predictions, strict=True)]


def _scored(
    predictions: list[Sentence],
    rows_of: Mapping[str, list[dict[str, int] | None]],
    decoders: Mapping[str, Mapping[str, Any]],
) -> Evaluation:
    counts: dict[str, list[dict[str, int] | None]] = {}
    table: dict[str, dict[str, Any]] = {}
    for task, rows in rows_of.items():
        known = [row for row in rows if row is not None]
        if known:
            counts[task] = rows
            table[task] = scores.score(kind_of(task, decoders), known)
    names = {task: scores.main_score(task, decoders) for task in table}
    return Evaluation(predictions, counts, table, names)
