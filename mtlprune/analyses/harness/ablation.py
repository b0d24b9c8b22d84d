"""Scores and losses of finished runs in which some heads are ablated.

    run = AblatableRun.of(subject, "cpu", fingerprint).contributing("mean", training_sentences, [heads], seed=0)
    run.counts(heads, sentences)
    with run.ablated(heads):
        run.model.losses(batch)

All heads of a run must be open before the ablation. Every measurement leaves the model unchanged, so measurements do
not depend on each other.

Letters for shapes: S runs (seeds), N sentences, K counts from which a score is computed, L layers, A heads of a layer,
d values of a head, T tasks.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.analysis import HeadColumn, Request
from mtlprune.analyses.harness.reading import Subject, SubjectError, find_sources
from mtlprune.corpora.store import load_corpus
from mtlprune.corpora.tables import batched, fingerprint
from mtlprune.encoder.interventions import CONSTANT, LowerLayers, ablated, fit_constants, measure_means
from mtlprune.evaluation import scores
from mtlprune.evaluation.ablations import Closed
from mtlprune.evaluation.head_masks import Mask, single_heads
from mtlprune.io.files import replacing
from mtlprune.model import Batch, MultiTaskModel
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.statistics.resamples import Score, System
from mtlprune.tasks.base import Target, Task
from mtlprune.training import hardware
from mtlprune.training.evaluation import evaluate
from mtlprune.training.setup import code_hash

_Key = TypeVar("_Key", bound=Hashable)

_BATCH, SENTENCES = 32, 256
"""Number of sentences in a batch, and largest number of sentences for losses and for constants of ablated heads."""


@dataclass(frozen=True, eq=False)
class AblatableRun:
    """A finished run without gates and with all its heads, and the output that replaces an ablated head.

    Attributes:
        model: model in evaluation mode.
        precision: dtype in which ``counts`` evaluates the model.
        kind: kind of the ablation.
        constants: (L, A, d), constant outputs of heads, for the kinds mean and optimal.
        seed: seed that pairs sentences, for the kind resample.
        factor: factor of the outputs of ablated heads, which replaces the kind; None for the kind.
        store: files with the counts of evaluations, which are not made again; None makes all evaluations.
    """

    model: MultiTaskModel
    precision: torch.dtype = torch.float32
    kind: Closed = "zero"
    constants: Tensor | None = None
    seed: int = 0
    factor: float | None = None
    store: "MeasurementStore | None" = None

    @classmethod
    def of(cls, subject: Subject, device: str, fingerprint: str, store: Path | None = None) -> "AblatableRun":
        """Load the run of a subject with its decoders. ``store`` is a folder for the counts of evaluations.

        Raises:
            SubjectError: the subject has no decoders, was trained on a corpus with another ``fingerprint``, or has
                gated, removed or cloned heads.
        """
        folder = run_of(subject, fingerprint)
        model, config = subject.model(device), folder.config
        if not _has_all_heads(model):
            raise SubjectError("expected a run whose heads are all open, found one with closed heads; name another run")
        precision = hardware.dtype(config.train.precision)
        return cls(model, precision, store=None if store is None else MeasurementStore(store, folder, device))

    @property
    def size(self) -> tuple[int, int]:
        """The numbers L of layers and A of heads in a layer."""
        hooks = self.model.encoder.head_hooks
        return hooks.layers, hooks.heads

    def of_task(self, name: str) -> "AblatableRun":
        """Return this run with only one of its tasks."""
        return replace(self, model=with_task(self.model, name))

    def contributing(
        self, kind: Closed, sentences: Sequence[Sentence], masks: Sequence[Mask], seed: int = 0
    ) -> "AblatableRun":
        """Return this run with another kind of ablation.

        For the kind optimal, constants are fitted on the sum of the losses of all tasks. The fit cycles through batches
        and head sets until each batch and each set was used, so that one table of constants serves all sets.

        Args:
            sentences: training sentences of the run for the kinds mean and optimal, of which up to `SENTENCES` are
                drawn by the seed.
            masks: sets of heads that will be ablated.
        """
        constants = None
        if kind in CONSTANT:
            order = np.random.default_rng([seed, 37]).permutation(len(sentences))[:SENTENCES]
            selection = [sentences[row] for row in order.tolist()]
            encoder = self.model.encoder
            constants = measure_means(encoder, encoder.tokenize_sentences(selection))
            if kind == "optimal":
                batches = self._batches(selection)
                turns = range(max(len(masks), len(batches)) if batches else 0)
                pairs = [(masks[turn % len(masks)], batches[turn % len(batches)]) for turn in turns]
                constants = fit_constants([partial(self._loss, *pair) for pair in pairs], constants)
        return replace(self, kind=kind, constants=constants, seed=seed)

    def ablated(self, heads: Mask) -> AbstractContextManager[None]:
        """Ablate heads (L, A), or multiply their outputs by the factor, while this context is active."""
        if self.factor is not None:
            return ablated(self.model.encoder, torch.from_numpy(heads), "scale", factor=self.factor)
        seed = self.seed if self.kind == "resample" else None
        return ablated(self.model.encoder, torch.from_numpy(heads), self.kind, constants=self.constants, seed=seed)

    def counts(self, heads: Mask, sentences: Sequence[Sentence]) -> dict[str, System]:
        """Evaluate the model on sentences with some heads ablated.

        Returns:
            Task → counts (1, N, K), 0 for sentences without the layer. Tasks whose layer no sentence has are left out.
        """
        path = self._stored(heads, sentences)
        if path is not None and path.exists():
            counts_by_score = read_arrays(path)
        else:
            with self.ablated(heads):
                evaluation = evaluate(self.model, sentences, self.precision)
            counts_by_score = {}
            for task, main in evaluation.names.items():
                names = scores.count_names(cast(Task, self.model.tasks[task]).kind, main)
                counts_by_score[f"{task}/{main}"] = np.array(
                    [[row[name] if row else 0 for name in names] for row in evaluation.counts[task]]
                )
            if path is not None:
                write_arrays(path, counts_by_score)
        counts_by_task = {}
        for name, rows in counts_by_score.items():
            task, _, main = name.partition("/")
            kind = cast(Task, self.model.tasks[task]).kind
            counts_by_task[task] = System(rows[None], scores.count_names(kind, main), scores.SCORES[kind][main])
        return counts_by_task

    def _stored(self, heads: Mask, sentences: Sequence[Sentence]) -> Path | None:
        """Return the file that stores the counts of an evaluation."""
        if self.store is None:
            return None
        kind = [self.kind, self.seed, self.factor, str(self.precision), *self.model.tasks]
        constants = b"" if self.constants is None else self.constants.cpu().numpy().tobytes()
        return self.store.path([*kind, fingerprint({"": sentences})], heads.tobytes() + constants)

    def counts_each(self, masks: Sequence[Mask], sentences: Sequence[Sentence]) -> Iterator[dict[str, System]]:
        """Yield the `counts` with no head ablated, and then with each set of heads ablated.

        Layers below the lowest ablated head are computed only once, unless outputs for other sentences (resample) need
        their heads.
        """
        paths = [self._stored(heads, sentences) for heads in masks]
        if self.kind == "resample" or all(path is not None and path.exists() for path in paths):
            yield from (self.counts(heads, sentences) for heads in [np.zeros(self.size, bool), *masks])
            return
        lower = LowerLayers(self.model.encoder)
        with lower.recorded():
            open_counts = replace(self, store=None).counts(np.zeros(self.size, bool), sentences)
        yield open_counts
        for heads in masks:
            layers = np.flatnonzero(heads.any(1))
            with lower.skipped(int(layers[0]) if len(layers) else 0):
                counts = self.counts(heads, sentences)
            yield counts

    @torch.no_grad()
    def losses(
        self, sentences: Sequence[Sentence], masks: Sequence[Mask], on_batch: Callable[[], None] = lambda: None
    ) -> NDArray[np.float64]:
        """Compute mean losses with each set of heads ablated, (sets, T).

        The mean weights mini-batches by their number of words. It is NaN for tasks whose layer no sentence has.
        """
        tasks = self.model.tasks
        sums, words = np.zeros((len(masks), len(tasks))), np.zeros(len(tasks))
        for batch in self._batches(sentences):
            has = np.array([name in batch.targets for name in tasks])
            words += batch.words * has
            for row, heads in enumerate(masks):
                with self.ablated(heads):
                    losses = self.model.losses(batch)
                sums[row, has] += [batch.words * float(losses[name]) for name in tasks if name in losses]
            on_batch()
        return np.divide(sums, words, out=np.full_like(sums, np.nan), where=words > 0)

    def _batches(self, sentences: Sequence[Sentence]) -> list[Batch]:
        """Return mini-batches of sentences with their `known_target` for each task; leave out those without targets."""
        model = self.model
        pieces = model.encoder.tokenize_sentences(sentences)
        targets = {
            name: [known_target(cast(Task, task), sentence) for sentence in sentences]
            for name, task in model.tasks.items()
        }
        batches = [
            model.collate(
                [pieces[row] for row in rows],
                {name: [targets_of_task[row] for row in rows] for name, targets_of_task in targets.items()},
            )
            for rows in batched(range(len(sentences)), _BATCH)
        ]
        return [batch for batch in batches if batch.targets]

    def _loss(self, heads: Mask, batch: Batch, constants: Tensor) -> Tensor:
        """Sum the losses of all tasks on a batch, with the ablated heads replaced by constants (L, A, d)."""
        with replace(self, kind="optimal", constants=constants).ablated(heads):
            return cast(Tensor, sum(self.model.losses(batch).values()))


class MeasurementStore:
    """Files with measurements of a run, so that an interrupted analysis need not make them again.

    Args:
        folder: folder of the files.
        run: the run. Files of other weights, code or devices have other names.
        device: device of the model.
    """

    def __init__(self, folder: Path, run: RunFolder, device: str) -> None:
        best = run.read_text("best.json") if run.has("best.json") else ""
        self._folder, self._origin = folder, [code_hash(), str(run.path), run.read_manifest(), best, device]

    def path(self, measurement: list[Any], content: bytes = b"") -> Path:
        """Return the file of a measurement, which JSON values and bytes describe."""
        digest = hashlib.sha256(json.dumps([self._origin, measurement]).encode() + content)
        return self._folder / f"{digest.hexdigest()[:24]}.npz"


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the file of a measurement. Raises RunError if it is damaged."""
    try:
        with np.load(path) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} could not be read ({error}); delete {path.parent}, so that it is made again") from None


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write the file of a measurement. Raises RunError if it cannot be written."""
    with replacing(path) as staging, staging.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def run_of(subject: Subject, fingerprint: str) -> RunFolder:
    """Return the run of a subject. Raises SubjectError if the subject has no decoders, or was trained on a corpus with
    another ``fingerprint``."""
    folder = RunFolder(subject.name)
    if not folder.has("config.yaml"):
        raise SubjectError("expected a run, found an encoder without decoders, which has no task; name a run")
    if folder.read_manifest()["data"]["fingerprint"] != fingerprint:
        raise SubjectError(
            "expected a run that was trained on the corpus that is read, found one of another corpus; name the right "
            "--corpus"
        )
    return folder


def with_task(model: MultiTaskModel, name: str) -> MultiTaskModel:
    """Return a model with only one of its tasks, which shares encoder, decoder and gates with the original."""
    single = MultiTaskModel(model.encoder, {name: cast(Task, model.tasks[name])})
    single.gates = model.gates
    return single


def _has_all_heads(model: MultiTaskModel) -> bool:
    """Return whether no head of a model is gated, removed or cloned."""
    hooks = model.encoder.head_hooks
    return not model.gates and model.encoder.clones is None and min(map(len, hooks.kept_heads)) == hooks.heads


def known_target(task: Task, sentence: Sentence) -> Target | None:
    """Return the target of a sentence; None if it lacks the layer or has a label that is not in the vocabulary."""
    try:
        return task.target(sentence) if task.is_annotated(sentence) else None
    except KeyError:  # the label is not in the vocabulary
        return None


@dataclass(frozen=True, eq=False)
class AblatedCounts:
    """Counts of the runs of a label on one task, with the same heads ablated.

    Attributes:
        names: names of the K counts.
        score: function from counts to scores.
        runs: seed → counts (N, K), summed over random draws of heads.
    """

    names: tuple[str, ...]
    score: Score
    runs: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def system(self, seeds: tuple[int, ...], times: int = 1) -> System:
        """Return the counts of some seeds, multiplied by ``times``.

        The factor changes no score. With it, counts that were measured once match counts that are summed over several
        draws.
        """
        return System(times * np.stack([self.runs[seed] for seed in seeds]), self.names, self.score, seeds)


def add_counts(table: dict[_Key, AblatedCounts], key: _Key, seed: int, system: System) -> None:
    """Add the counts of one run to the entry ``key`` of a table."""
    cell = table.setdefault(key, AblatedCounts(system.names, system.score))
    cell.runs[seed] = cell.runs.get(seed, 0) + system.counts[0]


def join_counts(
    measured: Mapping[tuple[str, int], Mapping[tuple[Any, ...], AblatedCounts]],
) -> dict[tuple[Any, ...], AblatedCounts]:
    """Merge the counts of a survey's runs, by (label, seed) and then key, into counts of all seeds by (label, *key)."""
    tables: dict[tuple[Any, ...], AblatedCounts] = {}
    for (label, _), table in measured.items():
        for key, cell in table.items():
            tables.setdefault((label, *key), AblatedCounts(cell.names, cell.score)).runs.update(cell.runs)
    return tables


def ablation_costs(
    run: str, kind: Closed, request: Request, head: tuple[int, int] | None = None
) -> dict[str, tuple[float, NDArray[np.float64]]]:
    """Measure how much the loss of each task rises when one head of a run is ablated, in nats.

    Losses are those on up to `SENTENCES` sentences of the run's dev split, drawn by the seed of the request.

    Args:
        head: layer and head, from 0; by default all heads, one after another.

    Returns:
        Task → its loss with all heads open, and the rise of its loss with one head ablated: a grid (L, A), or a scalar
        array if ``head`` is given. Values are NaN if no sentence has the layer.

    Raises:
        RunError: there is no such run, its corpus is missing, or some of its heads are closed, removed or cloned.
    """
    folder = RunFolder.with_weights(run)
    model = MultiTaskModel.load(run, device=request.device)
    data, corpus = folder.config.data, load_corpus(folder.corpus_path())
    if not _has_all_heads(model):
        raise RunError(
            f"closed={kind}: expected a run whose heads are all open, found closed or cloned heads in {run}; name "
            "another run"
        )
    open_run = AblatableRun(model)
    shape = open_run.size
    masks = single_heads(shape)
    masks = masks if head is None else masks[[np.ravel_multi_index(head, shape)]]
    request.on_status(f"{run}, each of {len(masks)} heads closed alone, batch")
    ablatable = open_run.contributing(kind, list(corpus[data.train]), list(masks), request.seed)
    sentences = list(corpus[data.dev])
    sentence_rows = np.sort(np.random.default_rng([request.seed, 38]).permutation(len(sentences))[:SENTENCES])
    losses = ablatable.losses(
        [sentences[row] for row in sentence_rows], [np.zeros(shape, bool), *masks], request.on_batch
    )  # (1 + heads, T)
    rises = (losses[1:] - losses[0]).T.reshape(-1, *(shape if head is None else ()))
    return {task: (float(losses[0, row]), rises[row]) for row, task in enumerate(model.tasks)}


def ablation_columns(runs: Sequence[str], kind: Closed, request: Request) -> list[HeadColumn]:
    """Return a column for each label and task: the rise of the loss when a head is ablated, averaged over runs."""
    rises: dict[str, list[NDArray[np.float64]]] = {}
    for source in find_sources(runs):
        for task, (_, rise) in ablation_costs(source.name, kind, request).items():
            title = f"closing {task.upper()}" + f" in {source.label}" * (task.upper() != source.label)
            if not np.isnan(rise).any():
                rises.setdefault(title, []).append(rise)
    meaning = f"Rise of the loss on dev, in nats, if only this head is closed ({kind}), as the mean of {{}} runs."
    return [
        HeadColumn(title, "closing", np.mean(grids, axis=0), meaning=meaning.format(len(grids)))
        for title, grids in rises.items()
    ]
