"""Scores and losses of finished runs whose heads are all open, with some of them closed.

Letters for shapes: S runs (seeds), N sentences, K counts a score is made of, L layers, A heads a layer.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from mtlprune.analyses.analysis import HeadColumn, Request
from mtlprune.analyses.harness.reading import Subject, find_sources
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.gates import Gates
from mtlprune.evaluation import scores
from mtlprune.evaluation.ablations import Closed
from mtlprune.evaluation.head_masks import Mask
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.statistics.resamples import Score, System
from mtlprune.tasks.base import Task
from mtlprune.training import hardware
from mtlprune.training.ablation import SENTENCES, close, close_with, closed_losses
from mtlprune.training.evaluation import evaluate

Key = TypeVar("Key", bound=Hashable)


class WholeRun(NamedTuple):
    """A finished run with one gate set for all tasks, which is fixed to masks."""

    model: MultiTaskModel
    precision: torch.dtype
    size: tuple[int, int]


def whole_run(subject: Subject, device: str, fingerprint: str = "") -> WholeRun | str:
    """A run with its decoders; why it is left out, where it has none, lacks heads, or was trained on other data than
    the corpus of this ``fingerprint``."""
    folder = RunFolder(subject.name)
    if not folder.config_path.is_file():
        return "an encoder without decoders has no task; name a run"
    if fingerprint and folder.read_manifest()["data"]["fingerprint"] != fingerprint:
        return "it was trained on another corpus than is read"
    model, config = subject.model(device), folder.read_config()
    if (size := _with_gates(model)) is None:
        return "some of its heads are closed already; name a run whose heads are all open"
    return WholeRun(model, hardware.dtype(config["train"]["precision"]), size)


def _with_gates(model: MultiTaskModel) -> tuple[int, int] | None:
    """Give a model one gate set, of this size; None where heads are closed, removed or cloned."""
    places = model.encoder.places
    if model.gates or model.encoder.clones is not None or min(map(len, places.kept_heads)) < places.heads:
        return None
    model.gates[SHARED] = Gates(places.layers, places.heads).to(model.device)
    return places.layers, places.heads


def with_task(model: MultiTaskModel, name: str) -> MultiTaskModel:
    """The same with one of its tasks alone."""
    alone = MultiTaskModel(model.encoder, {name: cast(Task, model.tasks[name])})
    alone.gates = model.gates
    return alone


def count_closed(
    model: MultiTaskModel, heads: Mask, sentences: Sequence[Sentence], precision: torch.dtype
) -> dict[str, System]:
    """Task → its counts (1, N, K) with these heads closed, 0 where a sentence lacks the layer; of the tasks whose layer
    some sentence has."""
    close(model, heads)
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


def closing_costs(
    run: str, kind: Closed, request: Request, head: tuple[int, int] | None = None
) -> dict[str, tuple[float, NDArray[np.float64]]]:
    """Losses of a run's tasks, in nats, on `SENTENCES` sentences of its dev split, drawn by the seed. Raises RunError:
    no run, or one without its corpus, or one whose heads are closed, removed or cloned.

    Args:
        head: layer and head, from 0; all heads, one after another, if not given.

    Returns:
        Task → its loss with all heads open, and how much more it is with one closed, (layers, heads) or (); NaN where
        no sentence has its layer.
    """
    folder = RunFolder.with_weights(run)
    model = MultiTaskModel.load(run, device=request.device)
    data, corpus = folder.read_config()["data"], load_corpus(folder.corpus_path())
    if (shape := _with_gates(model)) is None:
        raise RunError(f"closed={kind}: heads of {run} are closed or cloned; name a run whose heads are all open")
    each = np.eye(math.prod(shape), dtype=bool).reshape(-1, *shape)
    each = each if head is None else each[[np.ravel_multi_index(head, shape)]]
    request.on_status(f"{run}, each of {len(each)} heads closed alone, batch")
    close_with(model, kind, list(corpus[data["train"]]), list(each), request.seed)
    sentences = list(corpus[data["dev"]])
    drawn = np.sort(np.random.default_rng([request.seed, 38]).permutation(len(sentences))[:SENTENCES])
    closed = [np.zeros(shape, bool), *each]
    losses = closed_losses(model, [sentences[row] for row in drawn], closed, request.on_batch)  # (1 + heads, T)
    rises = (losses[1:] - losses[0]).T.reshape(-1, *(shape if head is None else ()))
    return {task: (float(losses[0, row]), rises[row]) for row, task in enumerate(model.tasks)}


def closing_columns(runs: Sequence[str], kind: Closed, request: Request) -> list[HeadColumn]:
    """The rise of each task's loss with each head closed alone, mean over the runs of a label."""
    rises: dict[str, list[NDArray[np.float64]]] = {}
    for source in find_sources(runs):
        for task, (_, rise) in closing_costs(source.name, kind, request).items():
            title = f"closing {task.upper()}" + f" in {source.label}" * (task.upper() != source.label)
            if not np.isnan(rise).any():
                rises.setdefault(title, []).append(rise)
    meaning = f"Rise of the loss on dev, in nats, with this head alone closed ({kind}); mean of {{}} runs."
    return [
        HeadColumn(title, "closing", np.mean(grids, axis=0), meaning=meaning.format(len(grids)))
        for title, grids in rises.items()
    ]
