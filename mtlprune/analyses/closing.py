"""Scores of finished runs whose heads are all open, with some of them closed.

Letters for shapes: S runs (seeds), N sentences, K counts a score is made of, L layers, A heads a layer.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from mtlprune.analyses.reading import Subject
from mtlprune.encoder.gates import Gates
from mtlprune.evaluation import scores
from mtlprune.evaluation.ablations import Closed
from mtlprune.evaluation.head_masks import Mask
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence
from mtlprune.statistics.significance import Score, System
from mtlprune.tasks.base import Task
from mtlprune.training import hardware
from mtlprune.training.ablation import close_with
from mtlprune.training.evaluation import evaluate

Key = TypeVar("Key", bound=Hashable)


class WholeRun(NamedTuple):
    """A finished run with one gate set for all tasks, which is fixed to masks; ``train`` is its training split."""

    model: MultiTaskModel
    precision: torch.dtype
    train: str
    size: tuple[int, int]


def whole_run(subject: Subject, device: str, fingerprint: str = "") -> WholeRun | str:
    """A run with its decoders; why it is left out, where it has none, is of other data, or lacks heads.

    Args:
        fingerprint: of the corpus that it must have been trained on.
    """
    folder = RunFolder(subject.name)
    if not folder.config_path.is_file():
        return "an encoder without decoders has no task; name a run"
    if fingerprint and folder.read_manifest()["data"]["fingerprint"] != fingerprint:
        return "it was trained on another corpus than is read"
    model, config = subject.model(device), folder.read_config()
    places = model.encoder.places
    if model.gates or min(map(len, places.kept)) < places.heads:
        return "some of its heads are closed already; name a run whose heads are all open"
    size = places.layers, places.heads
    model.gates[SHARED] = Gates(*size).to(model.device)
    return WholeRun(model, hardware.dtype(config["train"]["precision"]), config["data"]["train"], size)


def with_task(model: MultiTaskModel, name: str) -> MultiTaskModel:
    """The same with one of its tasks alone."""
    alone = MultiTaskModel(model.encoder, {name: cast(Task, model.tasks[name])})
    alone.gates = model.gates
    return alone


def substitute(
    model: MultiTaskModel, kind: Closed, sentences: Sequence[Sentence], closed: Sequence[Mask], seed: int
) -> None:
    """Choose what closed heads contribute; `close_with` where heads are given that are going to be closed."""
    masks = [torch.from_numpy(~heads).float().to(model.device) for heads in closed]
    close_with(model, kind, sentences, masks, seed)


def count_closed(
    model: MultiTaskModel, heads: Mask, sentences: Sequence[Sentence], precision: torch.dtype
) -> dict[str, System]:
    """Task → its counts (1, N, K) with these heads closed, 0 where a sentence lacks the layer; of the tasks whose layer
    some sentence has."""
    cast(Gates, model.gates[SHARED]).fix(torch.from_numpy(~heads).float().to(model.device))
    evaluation, counted = evaluate(model, sentences, precision), {}
    for task, main in evaluation.names.items():
        kind = cast(Task, model.tasks[task]).kind
        names = scores.count_names(kind, main)
        rows = np.array([[row[name] if row else 0 for name in names] for row in evaluation.counts[task]])
        counted[task] = System(rows[None], names, scores.SCORES[kind][main])
    return counted


@dataclass(frozen=True, eq=False)
class ClosedCounts:
    """Counts of one label's runs on one task with the same heads closed; ``runs``: seed → (N, K), summed over draws."""

    names: tuple[str, ...]
    score: Score
    runs: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def system(self, seeds: tuple[int, ...], times: int = 1) -> System:
        """``times``: the counts as often, which changes no score."""
        return System(times * np.stack([self.runs[seed] for seed in seeds]), self.names, self.score, seeds)


def add_counts(table: dict[Key, ClosedCounts], key: Key, seed: int, counted: System) -> None:
    """Add the counts of one run to those of its cell."""
    cell = table.setdefault(key, ClosedCounts(counted.names, counted.score))
    cell.runs[seed] = cell.runs.get(seed, 0) + counted.counts[0]
