"""Inputs of analyses: the sentences of a split, and encoders and runs with their gates, which read them batch by batch.

    reading = read_request(Request(["minilm", "runs/pos"], Path("data/ewt5"), options, sentences=1000))
    for source in reading.sources:
        for subject in source.open():
            for rows, seen in reading.observations(subject, {"hidden"}, request):
                seen.word_vectors(seen.hidden[-1])

All encoders read the same sentences: a sentence that is too long for one of them is left out for all.

Letters for shapes: N sentences, L layers, A heads of a layer.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pandas import DataFrame
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation, observation_batches, observations, use_eager
from mtlprune.encoder.pieces import EncoderError
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import DescribedRun, encoder_name, task_labels
from mtlprune.runs.results import Grid, Part, Result, joined
from mtlprune.sentence import Sentence

_PRETRAINED = "pretrained"
"""Label of a pretrained encoder if no other encoder is named."""
_SAMPLED = "sampled"
"""The word in a label for runs whose batches sample tasks."""


class ProbeError(RunError):
    """An analysis cannot be run as requested; the message explains why and what to do."""


class SubjectError(RunError):
    """An encoder or run cannot be part of an analysis; the message explains why, and `survey` continues without it."""


@dataclass(frozen=True)
class Subject:
    """A loaded encoder with its gates. A run with gates or clones for each task is several subjects, one for each task.

    Attributes:
        label: pretrained or the name of the encoder; of a run POS, POS+DEP or MTL-5, and MTL-5:POS if gates or clones
            belong to one task. Words in brackets, as in POS (gates), distinguish runs of the same tasks and seed.
        name: name of the encoder or path of the run, as the user gave it.
        seed: seed of the run, or of the pretraining of a checkpoint; 0 for another encoder.
        encoder: encoder in evaluation mode, with eager attention.
        gates: (L, A), closed heads included; None if the run has no gates.
        architecture: folder or name from which the same encoder with random weights can be created.
        task: task to which the gates or clones belong; None if all tasks of the run share them.
    """

    label: str
    name: str
    seed: int
    encoder: Encoder
    gates: Tensor | None
    architecture: str
    task: str | None = None

    def part(self, task: str, problem: str) -> str:
        """Describe for the progress display which step of the analysis runs for a task."""
        return f"{self.label}, seed {self.seed}, {task.upper()}: {problem}"

    def size(self) -> tuple[str, int, int, int]:
        """Return model type, layers, heads and hidden size, which must agree to compare heads of encoders."""
        hooks = self.encoder.head_hooks
        return str(self.encoder.config.model_type), hooks.layers, hooks.heads, self.encoder.hidden_size

    def model(self, device: str) -> MultiTaskModel:
        """Load the run with its decoders for evaluation; a run with clones becomes the model of this subject's task."""
        model = MultiTaskModel.load(self.name, device=device)
        if self.task is not None:
            model.fold_clones(self.task)
        return model


@dataclass(frozen=True)
class Source:
    """A run folder or an encoder that is not loaded yet.

    Attributes:
        name: name of the encoder or path of the run, as the user gave it.
        label, seed: as in the `Subject`.
        kind: the encoder from which it started. Sources of one kind share tokenizer and window.
        run: description of the run; None for an encoder.
    """

    name: str
    label: str
    seed: int
    kind: str
    run: DescribedRun | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks of the run; empty for an encoder."""
        return self.run.tasks if self.run else ()

    def open(self, device: str = "cpu") -> Iterator[Subject]:
        """Load the encoder for evaluation with eager attention, and yield a subject for each set of gates or clones.

        Raises:
            EncoderError, RunError: the encoder or run cannot be loaded.
        """
        if self.run is None:
            try:
                encoder = Encoder.load(self.name, attention="eager").to(device)
            except EncoderError as error:
                raise EncoderError(f"{error} ({self.name} is also not a run, because it has no config.yaml)") from error
            yield Subject(self.label, self.name, self.seed, encoder, None, self.name)
            return
        model = MultiTaskModel.load(self.name, device=device)
        architecture = str(RunFolder(self.name).encoder_path)
        cloned = model.encoder.clones is not None
        for key in list(model.tasks) if cloned else list(model.gates) or [SHARED]:
            if cloned and model.encoder.clones is None:  # folding the clones of the task before removed the others
                model = MultiTaskModel.load(self.name, device=device)
            model.fold_clones(key)
            gate_module = model.gates[SHARED if SHARED in model.gates else key] if model.gates else None
            with torch.no_grad():
                gates = None if gate_module is None else gate_module().detach()
            label, task = (self.label, None) if key == SHARED else (f"{self.label}:{key.upper()}", key)
            yield Subject(label, self.name, self.seed, use_eager(model.encoder), gates, architecture, task)


def find_sources(names: Iterable[str]) -> list[Source]:
    """Return the sources that names refer to: a folder with config.yaml is a run, every other name is an encoder.

    Labels distinguish sources. Runs of different kinds have labels with their pruning, task mixing and fusion. Runs of
    the same tasks and seed have labels with their names. Several encoders are labelled by their names. A checkpoint of
    a pretraining run is labelled by the names of run and checkpoint, and has the seed of the run.

    Raises:
        ProbeError: there is no name, or two sources have the same label and seed, so that results could not be
            distinguished.
        RunError: a run is damaged.
    """
    names = list(names)
    folders = {name for name in names if RunFolder(name).has("config.yaml")}
    runs = [DescribedRun.read(RunFolder.with_weights(name)) if name in folders else None for name in names]
    if not runs:
        raise ProbeError("expected a run folder or an encoder, found none; name one")
    has_variants = len({run.variant for run in runs if run}) > 1  # labels name the variant only if runs differ in it
    sources = []
    is_only_encoder = runs.count(None) == 1
    for name, run, label in zip(names, runs, task_labels([run.tasks if run else () for run in runs]), strict=True):
        if run is None:
            label, seed = (_PRETRAINED, 0) if is_only_encoder else _encoder_label(name)
            sources.append(Source(name, label, seed, encoder_name(name)))
        else:
            kind = f" ({run.variant})" if has_variants and run.variant else ""
            sources.append(Source(name, f"{label}{kind}", run.seed, run.encoder, run))
    for label in {label for label, _ in _repeated(sources)}:
        sources_of_label = [source for source in sources if source.label == label]
        if len({source.run.name for source in sources_of_label if source.run}) > 1:
            names_by_source = {source.name: f"{label} ({source.run.name})" for source in sources_of_label if source.run}
            sources = [
                replace(source, label=names_by_source[source.name]) if source in sources_of_label else source
                for source in sources
            ]
    for label, seed in _repeated(sources):
        duplicates = [source.name for source in sources if (source.label, source.seed) == (label, seed)]
        raise ProbeError(
            f"{duplicates[0]} and {duplicates[1]} are both {label}, seed {seed}, so their results could not be "
            "distinguished; run the command once for each of them, with different folders (--out), or give the runs "
            "different names (`name`)"
        )
    return sources


def _encoder_label(name: str) -> tuple[str, int]:
    """Return label and seed of one of several encoders; a checkpoint has name and seed of its pretraining run."""
    path = Path(name).resolve()
    folder = RunFolder(path.parents[1]) if path.parent.name == "checkpoints" else None
    if folder is None or not folder.has("config.yaml"):
        return encoder_name(name), 0
    tree = folder.read_config()
    return f"{tree['name']}, {path.name.replace('-', ' ')}", tree["train"]["seed"]


def _repeated(sources: Iterable[Source]) -> list[tuple[str, int]]:
    """Return the pairs of label and seed that more than one source has."""
    return [key for key, count in Counter((source.label, source.seed) for source in sources).items() if count > 1]


def variant(label: str) -> str:
    """Return the words in brackets of a label except "sampled", such as "gates" for MTL-5 (gates, sampled)."""
    parts = label.partition(" (")[2].partition(")")[0].split(", ")
    return ", ".join(part for part in parts if part != _SAMPLED)


# -- sentences ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reading:
    """The sentences of a split, and the sources that read them.

    Attributes:
        corpus, fingerprint, split: origin of the sentences.
        sentences: sentences in the order of the corpus.
        left_out: number of sentences that are too long for at least one of the encoders.
        sources: encoders and runs that are not loaded yet.
        seed: seed by which the sentences were drawn.
    """

    corpus: str
    fingerprint: str
    split: str
    sentences: list[Sentence]
    left_out: int
    sources: list[Source]
    seed: int

    def batches(self, subject: Subject, device: str = "cpu") -> Iterator[tuple[list[int], EncoderBatch]]:
        """Yield batches of sentences of similar length, longest first, as (indices of the sentences, batch)."""
        yield from batches(subject.encoder, self.sentences, device)

    def observations(
        self, subject: Subject, want: Collection[str], request: Request
    ) -> Iterator[tuple[list[int], Observation]]:
        """Yield indices of sentences and what the subject, with its gates, computes for these sentences.

        Args:
            want: parts of the `Observation` to store, such as "hidden" or "attention".
        """
        pieces = subject.encoder.tokenize_all([sentence.words for sentence in self.sentences])
        for rows, observation in observations(subject.encoder, pieces, subject.gates, want):
            yield rows, observation
            request.on_batch()


def batches(
    encoder: Encoder, sentences: Sequence[Sentence], device: str = "cpu"
) -> Iterator[tuple[list[int], EncoderBatch]]:
    """Yield batches of sentences of similar length, longest first, as (indices of the sentences, batch)."""
    pieces = encoder.tokenize_sentences(sentences)
    for rows in observation_batches([len(p.ids) for p in pieces]):
        yield rows, encoder.collate([pieces[row] for row in rows]).to(device)


def read_request(request: Request) -> Reading:
    """Find the sources and sentences of a request; if it limits the number of sentences, draw them by its seed.

    Raises:
        ProbeError: the corpus lacks the split, no sentence or source can be read, or results of two sources could not
            be distinguished.
        EncoderError, RunError, CorpusError: an encoder, run or corpus cannot be loaded.
    """
    sources, stored, split = find_sources(request.names), load_corpus(request.corpus), request.split
    if split not in stored.splits:
        raise ProbeError(
            f"{stored.path}: expected a split of {', '.join(stored.splits)}, found {split!r}; correct --split"
        )
    sentences = list(stored[split])
    is_too_long = too_long(sources, sentences)
    rows_that_fit = np.flatnonzero(~is_too_long)
    if request.sentences is not None and request.sentences < len(rows_that_fit):
        rows_that_fit = np.sort(
            np.random.default_rng([request.seed, 6]).permutation(rows_that_fit)[: request.sentences]
        )
    if not len(rows_that_fit):
        raise ProbeError(f"{stored.path}: no sentence of {split} is short enough for the encoder to see it at once")
    sentences_read = [sentences[row] for row in rows_that_fit]
    return Reading(
        stored.info["name"], stored.fingerprint, split, sentences_read, int(is_too_long.sum()), sources, request.seed
    )


def too_long(sources: Sequence[Source], sentences: Sequence[Sentence]) -> NDArray[np.bool_]:
    """Mark the sentences that are too long for at least one of the encoders, (N,)."""
    is_too_long = np.zeros(len(sentences), bool)
    for source in {source.kind: source for source in sources}.values():
        encoder = next(source.open()).encoder
        if encoder.frame.capacity is not None:
            pieces = encoder.tokenize_sentences(sentences)
            is_too_long |= np.array([len(p.ids) > encoder.frame.capacity for p in pieces], bool)
    return is_too_long


def training_sentences(reading: Reading, request: Request, number: int) -> list[Sentence]:
    """Draw up to ``number`` training sentences, by the seed, among those short enough for all encoders.

    Raises:
        ProbeError: the corpus has no training split.
    """
    sentences = sentences_of_split(reading, request, "train")
    sampled_rows = np.random.default_rng([request.seed, 12]).permutation(len(sentences))[:number]
    return [sentences[row] for row in np.sort(sampled_rows)]


def sentences_of_split(reading: Reading, request: Request, split: str) -> list[Sentence]:
    """Return all sentences of a split of the request's corpus that are short enough for all encoders.

    Raises:
        ProbeError: the corpus has no such split.
    """
    stored = load_corpus(request.corpus)
    if split not in stored.splits:
        raise ProbeError(
            f"{stored.path}: expected a split {split}, found {', '.join(stored.splits)}; name a corpus with it"
        )
    sentences = list(stored[split])
    return [sentences[row] for row in np.flatnonzero(~too_long(reading.sources, sentences))]


# -- one Result from all encoders --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubjectResult:
    """The result of an analysis for one subject.

    Attributes:
        frames: frames as in a Result, without the keys encoder, run and seed.
        about: further items for the subject's entry in ``about["encoders"]``.
        notes: sentences on what is left out and why.
        measured: values that are compared between subjects, such as counts; they are not stored in the Result.
    """

    frames: Mapping[str, DataFrame]
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    measured: Any = None


@dataclass(frozen=True)
class Survey:
    """The results of an analysis for all subjects.

    Attributes:
        result: Result that joins the frames of all subjects.
        measured: (label, seed) of a subject → ``measured`` of its `SubjectResult`.
    """

    result: Result
    measured: dict[tuple[str, int], Any]


def survey(analysis: str, reading: Reading, request: Request, measure: Callable[[Subject], SubjectResult]) -> Survey:
    """Call ``measure`` for every subject and join the results; leave out a subject for which it raises SubjectError.

    Raises:
        EncoderError, RunError: a subject cannot be loaded, or all subjects are left out.
    """
    encoders: list[dict[str, Any]] = []
    measured: dict[tuple[str, int], Any] = {}
    notes: list[str] = []
    refused: list[str] = []
    parts: list[Part] = []
    for subject_entry, subject_remarks, outcome in _outcomes(reading, request, measure):
        if isinstance(outcome, SubjectError):
            refused.append(f"{subject_entry['run']}: {outcome}")
            continue
        encoders.append({**subject_entry, **outcome.about})
        notes += [*subject_remarks, *outcome.notes]
        parts.append(({key: subject_entry[key] for key in ("encoder", "run", "seed")}, outcome.frames))
        measured[subject_entry["encoder"], subject_entry["seed"]] = outcome.measured
    if not encoders:
        raise EncoderError("; ".join(refused))
    notes = [*(f"Left out: {line}." for line in refused), *notes]
    settings = {**request.options.model_dump(mode="json"), "seed": request.seed, "device": request.device}
    origin: dict[str, Any] = {"corpus": reading.corpus, "fingerprint": reading.fingerprint, "split": reading.split}
    origin |= {"sentences": len(reading.sentences), "too_long": reading.left_out, "seed": reading.seed}
    about = {**origin, "settings": settings, "encoders": encoders, "notes": notes}
    return Survey(Result(analysis, about, joined(parts)), measured)


_Outcome = tuple[dict[str, Any], list[str], SubjectResult | SubjectError]
"""`entry` and `remarks` of a subject, and its result or the error that explains why it is left out."""


def _outcomes(reading: Reading, request: Request, measure: Callable[[Subject], SubjectResult]) -> Iterator[_Outcome]:
    """Yield the outcomes of all subjects in the order of the sources, measured in the request's pool if it has one."""
    number = len(reading.sources)
    if request.pool is not None:
        request.on_status("finished runs", number)
        tasks = [request.pool.submit(_outcomes_of, source, request, measure) for source in reading.sources]
        for task in tasks:
            task.add_done_callback(lambda _: request.on_batch())
        for task in tasks:
            yield from task.result()
        return
    for place, source in enumerate(reading.sources, 1):
        yield from _outcomes_of(source, request, measure, f" ({place} of {number}), batch")


def _outcomes_of(
    source: Source, request: Request, measure: Callable[[Subject], SubjectResult], position: str = ""
) -> list[_Outcome]:
    """Measure the subjects of one source; ``position`` is its number among all sources, for the progress display."""
    outcomes: list[_Outcome] = []
    for subject in source.open(request.device):
        request.on_status(f"{subject.label}, seed {subject.seed}{position}")
        outcome: SubjectResult | SubjectError
        try:
            outcome = measure(subject)
        except SubjectError as why:
            outcome = why
        outcomes.append((entry(subject, source.kind), remarks(subject), outcome))
    return outcomes


def of_corpora(results: Sequence[Result]) -> Result:
    """Join Results of the same encoders on several corpora; labels then include the corpus, as in MTL-5 on gum."""
    if len(results) == 1:
        return results[0]
    encoders, notes, parts = [], [], []
    for result in results:
        about, suffix = result.about, f" on {result.about['corpus']}"
        encoders += [
            {**entry, "encoder": entry["encoder"] + suffix, "corpus": about["corpus"]} for entry in about["encoders"]
        ]
        notes += [f"{about['corpus']}: {line}" for line in (result.origin, *about["notes"])]
        parts.append({name: frame.assign(encoder=frame["encoder"] + suffix) for name, frame in result.frames.items()})
    merged: dict[str, Any] = {key: [result.about[key] for result in results] for key in results[0].about}
    about = {**results[0].about, "corpus": ", ".join(merged["corpus"]), "fingerprint": "".join(merged["fingerprint"])}
    about |= {"sentences": sum(merged["sentences"]), "too_long": sum(merged["too_long"])}
    frames = joined(({}, part) for part in parts)
    return Result(results[0].analysis, {**about, "encoders": encoders, "notes": notes}, frames)


def remarks(subject: Subject) -> list[str]:
    """Return remarks on tasks that a run has not learnt, and for readers of head maps on causal attention."""
    start, texts, run = f"{subject.label}, seed {subject.seed}: ", [], RunFolder(Path(subject.name))
    for task, best in run.read_best().items() if run.has("best.json") else ():
        if best["score"] == 0 and task != "joint" and subject.task in (None, task):
            texts.append(f"{start}the score of {task.upper()} on dev is 0, so this run says nothing about this task.")
    if subject.encoder.attention_direction != "full":
        texts.append(
            f"{start}attention is causal, so its heads see only words to the left. They find heads to the left by "
            "dep->head, and heads to the right by head<-dep."
        )
    return texts


def entry(subject: Subject, kind: str) -> dict[str, Any]:
    """Return the entry of a subject in ``about["encoders"]``; ``kind`` is the encoder from which it started."""
    hooks = subject.encoder.head_hooks
    shape = {"layers": hooks.layers, "heads": hooks.heads, "open": int((gate_grid(subject) > OPEN_ABOVE).sum())}
    return {"encoder": subject.label, "run": subject.name, "seed": subject.seed, "kind": kind, **shape}


def gate_grid(subject: Subject) -> Grid:
    """Return the gate of each head, (L, A): 1 if the run has no gates, 0 if the head was removed."""
    hooks = subject.encoder.head_hooks
    grid = np.zeros((hooks.layers, hooks.heads))
    for layer, kept_heads in enumerate(map(list, hooks.kept_heads)):
        grid[layer, kept_heads] = 1.0 if subject.gates is None else subject.gates[layer, kept_heads].cpu().numpy()
    return grid
