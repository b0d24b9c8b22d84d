"""Distillation from finished single-task runs (BAM, Clark et al. 2019): the loss is λ · gold + (1 − λ) · teacher.

λ rises linearly from 0 to 1 over the share ``rise`` of the updates. Teachers score each mini-batch without dropout. The
teacher loss depends on the kind of the layer, with the probabilities p of the teacher and q of the student:

    tags, spans    −Σ p log q over the labels of each word or span
    tree           −Σ p log q over the syntactic heads of each word, and over the relations at its gold head
    brackets       (log Z − ⟨μ, s⟩) / words, where μ are the teacher's span marginals and s the student's span scores;
                   −Σ p log q over the labels of gold spans
    frames         binary cross-entropies of words (predicates) and spans (arguments); −Σ p log q over the roles of gold
                   predicates with the spans that the teacher keeps

Every term has the same denominator as in the gold loss. Letters for shapes: B sentences, T words of the longest
sentence, N words, M spans or words, K labels.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtlprune.config.blocks import DistilConfig
from mtlprune.config.config import ConfigError
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.batch import Encoded
from mtlprune.io.files import verify_file
from mtlprune.model import Decode, MultiTaskModel
from mtlprune.runs.forms import damaged
from mtlprune.tasks import inference
from mtlprune.tasks.base import WordLabels
from mtlprune.tasks.con import CON
from mtlprune.tasks.dep import DEP
from mtlprune.tasks.ner import NER
from mtlprune.tasks.srl import SRL
from mtlprune.training.data import read_splits
from mtlprune.training.run import NewRun
from mtlprune.training.start import check_finished, check_same_labels
from mtlprune.training.treatments.base import Treatment, TreatmentContext

_Target = Mapping[str, Tensor]
_Read = tuple[Any, Encoded]
"""A decoder, and a batch as encoded by the encoder of the same model."""


def _cross(student_scores: Tensor, teacher_scores: Tensor) -> Tensor:
    """Return the cross-entropy −Σ p log q, summed over all rows of scores, (M, K) each.

    The scores of impossible classes are −∞.
    """
    logs = student_scores.log_softmax(-1).masked_fill(student_scores == float("-inf"), 0.0)
    return -(teacher_scores.softmax(-1) * logs).sum()


def _teach_words(student: _Read, teacher: _Read, target: _Target) -> Tensor:
    student_scores, teacher_scores = (task.scores(encoded.words).float() for task, encoded in (student, teacher))
    return _cross(student_scores, teacher_scores) / len(student_scores)


def _teach_spans(student: _Read, teacher: _Read, target: _Target) -> Tensor:
    def scores(task: Any, encoded: Encoded) -> Tensor:
        """Return the scores of all candidate spans, sentence by sentence, (M, K)."""
        table = task.span_scores(encoded)  # (B, T, K, T)
        return table.transpose(2, 3)[task.candidates(encoded.lengths, table.shape[1])]

    student_scores, teacher_scores = scores(*student), scores(*teacher)
    return _cross(student_scores, teacher_scores) / (
        len(student[1].words) if student[0].options.loss_per == "word" else len(student_scores)
    )


def _teach_trees(student: _Read, teacher: _Read, target: _Target) -> Tensor:
    def scores(task: Any, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Return the scores of the heads of each word, (N, T + 1), and of the relations at its gold head, (N, K)."""
        arcs, vectors = task.features(encoded)
        return task.word_rows(encoded, arcs), task.relation_scores(encoded, vectors, target["rows"])

    (heads, relations), teacher_scores = scores(*student), scores(*teacher)
    return (_cross(heads, teacher_scores[0]) + _cross(relations, teacher_scores[1])) / len(heads)


def _teach_brackets(student: _Read, teacher: _Read, target: _Target) -> Tensor:
    def scores(task: Any, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Return the scores of all spans, (B, T + 1, T + 1), and of the labels of gold spans, (M, K)."""
        spans, vectors = task.features(encoded)
        return spans, task.label_scores(encoded, vectors, target)

    (spans, labels), teacher_scores = scores(*student), scores(*teacher)
    encoded = student[1]
    # The cross-entropy of two distributions over trees is the student's log partition function minus its expected score
    # under the teacher's marginals, so no tree needs to be enumerated.
    expected = (spans * inference.constituency_marginals(teacher_scores[0], encoded.lengths)).sum()
    crf = inference.constituency_log_partition(spans, encoded.lengths).sum() - expected
    return crf / len(encoded.words) + _cross(labels, teacher_scores[1]) / len(labels)


def _teach_frames(student: _Read, teacher: _Read, target: _Target) -> Tensor:
    encoded, binary = student[1], nn.functional.binary_cross_entropy_with_logits
    student_ranks, teacher_ranks = (decoder.rank(batch) for decoder, batch in (student, teacher))
    total = binary(student_ranks.predicate, teacher_ranks.predicate.sigmoid(), reduction="sum")
    total = total + binary(student_ranks.argument, teacher_ranks.argument.sigmoid(), reduction="sum")
    rows = teacher[0].keep(teacher[1], teacher_ranks)[0].nonzero().squeeze(1), target["predicate"]
    spans, words = (
        torch.bincount(sentence[rows_of_kind], minlength=len(encoded.sizes))
        for sentence, rows_of_kind in zip((student_ranks.spans.sentence, encoded.owner), rows, strict=True)
    )
    if pairs := int((spans * words).sum()):
        roles, teacher_roles = (
            nn.functional.pad(decoder.pair_scores(batch, ranked, rows, pairs)[0], (1, 0))
            for (decoder, batch), ranked in ((student, student_ranks), (teacher, teacher_ranks))
        )
        total = total + _cross(roles, teacher_roles)
    return total / len(encoded.words)


_TEACHERS: dict[type, Callable[[_Read, _Read, _Target], Tensor]] = {
    WordLabels: _teach_words,
    NER: _teach_spans,
    DEP: _teach_trees,
    CON: _teach_brackets,
    SRL: _teach_frames,
}
"""Class of a decoder → the function that computes its loss for a teacher with the same kind of decoder."""


def teaching_of(task: Any) -> Callable[[_Read, _Read, _Target], Tensor] | None:
    """Return the function that computes the teacher loss of a decoder; None if the decoder cannot be distilled."""
    if isinstance(task, SRL) and task.ranked:
        return None
    return next((teach for kind, teach in _TEACHERS.items() if isinstance(task, kind)), None)


class Distil(Treatment[DistilConfig]):
    """Treatment that distils single-task teachers; while λ = 1, it is training on gold labels, bit for bit."""

    Options = DistilConfig

    def __init__(self, run: TreatmentContext[DistilConfig]) -> None:
        super().__init__(run)
        self.model, self.weight = run.run.model, 1.0
        self.last = max(1.0, self.options.rise * (run.total - 1))
        config = run.run.config
        files = run.folder.read_manifest().get("begun_from", {})
        self.sentences = read_splits(config, load_corpus(Path(config.data.path)))[0]
        self.teachers: dict[str, MultiTaskModel] = {}
        for task, path in self.options.teachers.items():
            # A resumed run must have the same teachers as at its beginning; its manifest holds their SHA-256.
            key = f"treatment.distil.teachers.{task}"
            advice = f"{key} names it; restore it, or choose another --out"
            if key not in files:
                raise damaged(run.folder.path / "manifest.json")
            verify_file(Path(files[key]["file"]), files[key]["sha256"], advice)
            self.teachers[task] = MultiTaskModel.load(path, device=str(self.model.device)).requires_grad_(False)

    @classmethod
    def check(cls, run: NewRun, options: DistilConfig) -> None:
        for task, path in options.teachers.items() if not run.resumes else ():
            key, student = f"treatment.distil.teachers.{task}", run.model.tasks[task]
            if teaching_of(student) is None:
                reason = "; give predicates: classified" if isinstance(student, SRL) else ""
                raise ConfigError(f"{key}: the decoder of {task} cannot be distilled{reason}")
            teacher_folder = check_finished(path, key, run.folder)
            teacher_folder.refuse_packed("weights")
            teacher_config = teacher_folder.config
            if task not in teacher_config.tasks:
                raise ConfigError(
                    f"{key}: expected a run with the task {task}, found {', '.join(teacher_config.tasks)}"
                )
            check_same_labels({task: run.vocabularies[task]}, teacher_folder, key)
            own_config = run.config
            for name in ("type", "predicates", "max_width"):
                own_setting, teacher_setting = (
                    getattr(getattr(config.decoders, task), name, None) for config in (own_config, teacher_config)
                )
                if own_setting != teacher_setting:
                    raise ConfigError(
                        f"{key}: expected a decoder with {name} {own_setting}, found {teacher_setting} in {path}"
                    )

    def before_update(self, step: int, epoch: int = 0) -> None:
        self.weight = min(1.0, step / self.last)

    def decode(self, decode: Decode, rows: Sequence[int]) -> Decode:
        # With λ = 1 the loss is the gold loss alone, so the teachers need not be run.
        if self.weight == 1.0:
            return decode

        def distilled_loss(
            name: str, encoded: Encoded, annotated_rows: list[int] | None, target: dict[str, Tensor]
        ) -> Tensor:
            gold, teach = decode(name, encoded, annotated_rows, target), teaching_of(self.model.tasks[name])
            if name not in self.teachers or teach is None:
                return gold
            selected = encoded if annotated_rows is None else encoded.select(annotated_rows)
            teacher = self.read(name, rows if annotated_rows is None else [rows[place] for place in annotated_rows])
            return self.weight * gold + (1 - self.weight) * teach((self.model.tasks[name], selected), teacher, target)

        return distilled_loss

    def read(self, task: str, rows: Sequence[int]) -> _Read:
        """Return the decoder of a task's teacher, and training sentences as encoded by the teacher."""
        model = self.teachers[task]
        pieces = model.encoder.tokenize_sentences([self.sentences[row] for row in rows])
        [(encoded, _)] = model.encodings(model.encoder.collate(pieces).to(model.device), [task])
        return model.tasks[task], encoded
