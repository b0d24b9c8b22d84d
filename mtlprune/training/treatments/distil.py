"""Teach: finished single-task runs give targets, λ · gold + (1 − λ) · teacher (BAM, Clark et al. 2019).

λ rises from 0 to 1 over the updates. Teachers score the training sentences when a run begins or goes on, without
dropout; their scores lie in a temporary file, in half precision. By decoder, p the teacher's probabilities, q the
student's:

    tags, spans    −Σ p log q over labels of each word, of each span
    tree           the same over the heads of each word, and over relations at its gold head
    brackets       (log Z − ⟨μ, s⟩) / words, μ the teacher's span marginals and s the student's span scores; −Σ p log q
                   over labels of gold spans
    frames         binary cross-entropies of words (predicates) and spans (arguments); −Σ p log q over roles of gold
                   predicates with the spans that the teacher keeps

Every part has the denominator of its gold loss. Letters: B sentences, N words, M spans, K labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune.config.blocks import DistilConfig
from mtlprune.config.config import ConfigError, build_config
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.batch import Encoded
from mtlprune.io.files import verify_file
from mtlprune.model import Decode, MultiTaskModel, autocast, evaluation_batches
from mtlprune.tasks import inference
from mtlprune.tasks.base import Target, Term, WordLabels
from mtlprune.tasks.con import CON
from mtlprune.tasks.dep import DEP
from mtlprune.tasks.ner import NER
from mtlprune.tasks.srl import SRL
from mtlprune.training import hardware
from mtlprune.training.data import read_splits
from mtlprune.training.run import NewRun, Run
from mtlprune.training.start import check_finished, check_same_labels, origins
from mtlprune.training.treatments.base import Treatment, TreatmentContext

Scores = Mapping[str, np.ndarray]
"""The teacher's scores of one sentence, by name."""
Rows = Sequence[Scores]
Tensors = Mapping[str, Tensor]


class Teacher(ABC):
    """Teaching of one kind of decoder by another of its kind."""

    shared: ClassVar[tuple[str, ...]]
    """Methods of the decoder whose results serve gold and teacher in one update, with one dropout."""

    @staticmethod
    @abstractmethod
    def read(task: Any, encoded: Encoded, target: Tensors) -> list[dict[str, Any]]:
        """The teacher's scores of each sentence, by name; float16 and integers."""

    @staticmethod
    @abstractmethod
    def losses(task: Any, encoded: Encoded, target: Tensors, scores: Rows, gold: Sequence[Term]) -> list[Tensor]:
        """The losses by the teacher in the places of ``gold``."""


class WordTeacher(Teacher):
    shared = ("scores",)

    @staticmethod
    def read(task: Any, encoded: Encoded, target: Tensors) -> list[dict[str, Any]]:
        return _split(task.scores(encoded.words).float().softmax(-1), encoded.sizes)

    @staticmethod
    def losses(task: Any, encoded: Encoded, target: Tensors, scores: Rows, gold: Sequence[Term]) -> list[Tensor]:
        own = task.scores(encoded.words).float()
        return [cross(own, _joined(scores, "p", own)) / len(own)]


class SpanTeacher(Teacher):
    shared = ("span_scores",)

    @staticmethod
    def read(task: Any, encoded: Encoded, target: Tensors) -> list[dict[str, Any]]:
        return _split(_spans(task, encoded).softmax(-1), [size * (size + 1) // 2 for size in encoded.sizes])

    @staticmethod
    def losses(task: Any, encoded: Encoded, target: Tensors, scores: Rows, gold: Sequence[Term]) -> list[Tensor]:
        own = _spans(task, encoded)
        return [cross(own, _joined(scores, "p", own)) / gold[0].items]


def _spans(task: Any, encoded: Encoded) -> Tensor:
    """Scores of the spans that there are, sentence by sentence. (M, K)"""
    scores = task.span_scores(encoded)  # (B, T, K, T)
    return scores.transpose(2, 3)[task.candidates(encoded.lengths, scores.shape[1])]


class TreeTeacher(Teacher):
    shared = ("features", "relation_scores")

    @staticmethod
    def read(task: Any, encoded: Encoded, target: Tensors) -> list[dict[str, Any]]:
        arcs, vectors = task.features(encoded)
        rows = _split(task.relation_scores(encoded, vectors, target["heads"]).softmax(-1), encoded.sizes)
        heads = arcs.softmax(-1).half().cpu().numpy()
        for place, size in enumerate(encoded.sizes):
            rows[place]["heads"] = heads[place, :size, : size + 1]
        return rows

    @staticmethod
    def losses(task: Any, encoded: Encoded, target: Tensors, scores: Rows, gold: Sequence[Term]) -> list[Tensor]:
        arcs, vectors = task.features(encoded)
        own, relations = task.real(encoded, arcs), task.relation_scores(encoded, vectors, target["heads"])
        heads = np.zeros(own.shape, np.float16)
        for start, one in zip(encoded.starts.tolist(), scores, strict=True):
            heads[start : start + len(one["heads"]), : one["heads"].shape[1]] = one["heads"]
        return [(cross(own, _even(heads, own)) + cross(relations, _joined(scores, "p", relations))) / len(own)]


class BracketTeacher(Teacher):
    shared = ("features",)

    @staticmethod
    def read(task: Any, encoded: Encoded, target: Tensors) -> list[dict[str, Any]]:
        spans, vectors = task.features(encoded)
        labels = task.label.score(vectors, target["left"], target["right"], target["sentence"], len(encoded.sizes))
        rows = _split(labels.softmax(-1), [2 * size - 1 for size in encoded.sizes])
        marginals = inference.constituency_marginals(spans, encoded.lengths).half().cpu().numpy()
        for place, size in enumerate(encoded.sizes):
            rows[place]["spans"] = marginals[place][np.triu_indices(size + 1, 1)]
        return rows

    @staticmethod
    def losses(task: Any, encoded: Encoded, target: Tensors, scores: Rows, gold: Sequence[Term]) -> list[Tensor]:
        spans, vectors = task.features(encoded)
        labels = task.label.score(vectors, target["left"], target["right"], target["sentence"], len(encoded.sizes))
        marginals = np.zeros(spans.shape, np.float32)
        for table, size, one in zip(marginals, encoded.sizes, scores, strict=True):
            table[np.triu_indices(size + 1, 1)] = one["spans"]
        expected = (spans * torch.from_numpy(marginals).to(spans.device)).sum()
        # log Z was computed for gold: log Z − ⟨μ, s⟩ = (log Z − gold score) + gold score − ⟨μ, s⟩
        crf = gold[0].mean + (spans[target["chart"]].sum() - expected) / len(encoded.words)
        return [crf, cross(labels, _joined(scores, "p", labels)) / len(labels)]


class FrameTeacher(Teacher):
    shared = ("rank",)

    @staticmethod
    def read(task: Any, encoded: Encoded, target: Tensors) -> list[dict[str, Any]]:
        ranked = task.rank(encoded)
        kept = task.keep(encoded, ranked)[0].nonzero().squeeze(1)
        roles, span, _ = _roles(task, encoded, ranked, kept, target["predicate"])
        counts = torch.bincount(ranked.spans.sentence, minlength=len(encoded.sizes)).tolist()
        pairs = torch.bincount(ranked.spans.sentence[span], minlength=len(encoded.sizes)).tolist()
        rows = _split(nn.functional.pad(roles, (1, 0)).softmax(-1), pairs)
        first = np.concatenate([[0], np.cumsum(counts)])
        owner = ranked.spans.sentence[kept].cpu().numpy()
        parts = zip(
            rows,
            ranked.predicate.sigmoid().half().cpu().split(encoded.sizes),
            ranked.argument.sigmoid().half().cpu().split(counts),
            strict=True,
        )
        for place, (row, words, spans) in enumerate(parts):
            row |= {"words": words.numpy(), "spans": spans.numpy()}
            row["kept"] = (kept.cpu().numpy()[owner == place] - first[place]).astype(np.int32)
        return rows

    @staticmethod
    def losses(task: Any, encoded: Encoded, target: Tensors, scores: Rows, gold: Sequence[Term]) -> list[Tensor]:
        ranked = task.rank(encoded)
        binary = nn.functional.binary_cross_entropy_with_logits
        total = binary(ranked.predicate, _numbers(scores, "words", ranked.predicate), reduction="sum")
        total = total + binary(ranked.argument, _numbers(scores, "spans", ranked.argument), reduction="sum")
        first = np.cumsum([0, *(len(one["spans"]) for one in scores[:-1])])
        kept = np.concatenate([one["kept"] + start for one, start in zip(scores, first, strict=True)])
        if len(kept) and len(target["predicate"]):
            device = ranked.predicate.device
            roles = _roles(task, encoded, ranked, torch.from_numpy(kept).long().to(device), target["predicate"])[0]
            roles = nn.functional.pad(roles, (1, 0))
            total = total + cross(roles, _joined(scores, "p", roles))
        return [total / len(encoded.words)]


def _roles(task: Any, encoded: Encoded, ranked: Any, kept: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Role scores of all pairs of a kept span and a chosen word of its sentence, and their rows."""
    spans, words = (
        torch.bincount(of[rows], minlength=len(encoded.sizes))
        for of, rows in ((ranked.spans.sentence, kept), (encoded.owner, chosen))
    )
    scores: tuple[Tensor, Tensor, Tensor] = task.pair_scores(
        encoded, ranked, (kept, chosen), int((spans * words).sum())
    )
    return scores


TEACHERS: dict[type, type[Teacher]] = {
    WordLabels: WordTeacher,
    NER: SpanTeacher,
    DEP: TreeTeacher,
    CON: BracketTeacher,
    SRL: FrameTeacher,
}


def teacher_of(task: Any) -> type[Teacher] | None:
    """The teacher for a decoder; None where there is none."""
    if isinstance(task, SRL) and task.ranked:
        return None
    return next((teacher for kind, teacher in TEACHERS.items() if isinstance(task, kind)), None)


def cross(scores: Tensor, probabilities: Tensor) -> Tensor:
    """−Σ p log q over all rows. Scores may be −∞ where p is 0. (M, K) each"""
    logs = scores.log_softmax(-1).masked_fill(scores == float("-inf"), 0.0)
    return -(probabilities * logs).sum()


def _split(probabilities: Tensor, counts: Sequence[int]) -> list[dict[str, Any]]:
    """(M, K) to one array a sentence, "p"."""
    return [{"p": part.numpy()} for part in probabilities.half().cpu().split(list(counts))]


def _even(rows: np.ndarray, like: Tensor) -> Tensor:
    """Probabilities that add up to 1 again, which half precision makes nearly so."""
    probabilities = torch.from_numpy(rows).to(like.device, torch.float32)
    return probabilities / probabilities.sum(-1, keepdim=True).clamp(min=1e-6)


def _joined(scores: Sequence[Scores], name: str, like: Tensor) -> Tensor:
    return _even(np.concatenate([one[name] for one in scores]), like)


def _numbers(scores: Sequence[Scores], name: str, like: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate([one[name] for one in scores])).to(like.device, torch.float32)


@contextmanager
def computed_once(task: Any, methods: Sequence[str]) -> Iterator[None]:
    """Within it these methods of a decoder give what they gave when they were first asked."""
    kept: dict[str, Any] = {}

    def once(name: str, method: Any) -> Any:
        def call(*args: Any) -> Any:
            if name not in kept:
                kept[name] = method(*args)
            return kept[name]

        return call

    vars(task).update({name: once(name, getattr(task, name)) for name in methods})
    try:
        yield
    finally:
        for name in methods:
            del vars(task)[name]


@torch.no_grad()
def taught(run: Run, model: MultiTaskModel, task: str, precision: torch.dtype) -> list[dict[str, Any] | None]:
    """The scores of a finished run for each training sentence, in the batches of evaluation; None without the layer."""
    decoder: Any = model.eval().tasks[task]
    teacher = teacher_of(decoder)
    assert teacher is not None
    sentences = list(read_splits(run.config, load_corpus(Path(run.config.data.path)))[0])
    rows: list[dict[str, Any] | None] = [None] * len(sentences)
    known = [row for row, has in enumerate(run.known[task]) if has]
    pieces = model.encoder.tokenize_all([sentences[row].words for row in known])
    for places in evaluation_batches([len(p.ids) for p in pieces]):
        targets: list[Target | None] = [run.targets[task][known[place]] for place in places]
        batch = model.collate([pieces[place] for place in places], {task: targets})
        with autocast(model.device, precision):
            [(encoded, _)] = model.encodings(batch.pieces, [task])
            scores = teacher.read(decoder, encoded, batch.targets[task][1])
        for place, one in zip(places, scores, strict=True):
            rows[known[place]] = one
    return rows


class Distil(Treatment):
    """Teaching; with λ = 1 training on gold, bit for bit."""

    Options = DistilConfig

    def __init__(self, run: TreatmentContext) -> None:
        super().__init__(run)
        self.model, self.weight = run.run.model, 1.0
        self.last = max(1.0, self.options.rise * (run.total - 1))
        config = run.run.config
        begun = run.folder.read_manifest().get("begun_from") if run.folder.config_path.exists() else None
        files = begun or origins(config)
        precision = hardware.dtype(config.train.precision)
        self.scores: dict[str, Sequence[Any]] = {}
        for task, path in self.options.teachers.items():
            key = f"treatment.distil.teachers.{task}"
            advice = f"{key} names it; bring it back, or choose another --out"
            verify_file(Path(files[key]["file"]), files[key]["sha256"], advice)
            source = MultiTaskModel.load(path, device=str(self.model.device))
            self.scores[task] = taught(run.run, source, task, precision)

    @classmethod
    def check(cls, run: NewRun, options: Any) -> None:
        for task, path in options.teachers.items() if not run.resumes else ():
            key, student = f"treatment.distil.teachers.{task}", run.model.tasks[task]
            if teacher_of(student) is None:
                why = "; take predicates: classified" if isinstance(student, SRL) else ""
                raise ConfigError(f"{key}: the decoder of {task} can neither teach nor be taught{why}")
            other = check_finished(path, key, run.folder)
            other.refuse_packed("weights")
            theirs = build_config(other.read_config(), str(other.config_path))
            if task not in theirs.tasks:
                raise ConfigError(f"{key}: expected a run with the task {task}, found {', '.join(theirs.tasks)}")
            check_same_labels({task: run.vocabularies[task]}, other, key)
            mine = run.config
            for name in ("type", "predicates", "max_width"):
                asked, has = (getattr(getattr(one.decoders, task), name, None) for one in (mine, theirs))
                if asked != has:
                    raise ConfigError(f"{key}: expected a decoder with {name} {asked}, found {has} in {path}")

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.weight = min(1.0, step / self.last)

    def decode(self, decode: Decode, rows: Sequence[int]) -> Decode:
        if self.weight == 1.0:
            return decode

        def taught_terms(name: str, encoded: Encoded, known: list[int] | None, target: dict[str, Tensor]) -> list[Term]:
            if name not in self.scores:
                return decode(name, encoded, known, target)
            task, teacher = self.model.tasks[name], teacher_of(self.model.tasks[name])
            assert teacher is not None
            own = encoded if known is None else encoded.select(known)
            scores = [self.scores[name][row] for row in (rows if known is None else [rows[place] for place in known])]
            with computed_once(task, teacher.shared):
                gold = decode(name, own, None, target)
                losses = teacher.losses(task, own, target, scores, gold)
            return [
                Term(self.weight * term.mean + (1 - self.weight) * loss, term.items)
                for term, loss in zip(gold, losses, strict=True)
            ]

        return taught_terms
