"""Takes encoders and runs apart and sets them side by side: all of ``mtlprune analyze dissect`` but its files.

    found = dissect(DissectionRequest(("minilm", "runs/pos", "runs/mtl-5"), Path("data/ewt5")))

Every encoder is loaded once; what is kept of it is small (two layers' worth of words, and sums).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.dissection.linearity import linearity
from mtlprune.analyses.dissection.masked import MaskedScores, score_masked
from mtlprune.analyses.dissection.subset_nets import NetSettings
from mtlprune.analyses.dissection.subset_scores import Material, SubsetScores, score_senses, score_task
from mtlprune.analyses.dissection.survey import DissectionSurvey, last_terms, survey
from mtlprune.analyses.dissection.trace import refusal
from mtlprune.analyses.reading import Reading, read
from mtlprune.analyses.subjects import ProbeError, Subject, variant
from mtlprune.config.config import build_config
from mtlprune.encoder.pieces import EncoderError
from mtlprune.layers import LAYERS
from mtlprune.runs import RunFolder

SENSES = "wsd"
MASKED = "mlm"
SCORED = (*LAYERS, SENSES, MASKED)


@dataclass(frozen=True)
class DissectionRequest:
    """What to take apart.

    Attributes:
        names: run folders, encoder names or folders.
        corpus, split: where sentences come from.
        sentences: how many of the split; None for all.
        train_sentences: how many of train the light decoders learn from.
        tasks: of ``SCORED``; a single-task run is scored on its own task only (and ``wsd``), everything else on all.
        nets: how light decoders are trained.
        sample: words on which h and f of encoders are compared by layer.
        seed: of samples and decoders.
    """

    names: tuple[str, ...]
    corpus: Path
    split: str = "dev"
    sentences: int | None = None
    train_sentences: int | None = 1000
    tasks: tuple[str, ...] = SCORED
    nets: NetSettings = field(default_factory=NetSettings)
    sample: int = 1000
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class Dissected:
    """One encoder, taken apart and scored.

    Attributes:
        tasks: it was trained on; none for a pretrained encoder.
        gates: (L, A) or None. ``kept``: heads that each layer still has.
        lines: for each layer in-sample and held-out r².
        word_mu, added: as in :class:`DissectionSurvey`.
    """

    label: str
    name: str
    seed: int
    tasks: tuple[str, ...]
    gates: NDArray | None
    kept: tuple[tuple[int, ...], ...]
    found: DissectionSurvey
    lines: list[dict[str, float]]
    scores: list[SubsetScores]
    masked: MaskedScores | None

    @property
    def key(self) -> str:
        """Label, and the seed of a run."""
        return f"{self.label}, seed {self.seed}" if self.tasks else self.label


@dataclass(frozen=True, eq=False)
class Dissection:
    """All encoders, and what could not be taken apart, in sentences."""

    head: dict[str, Any]
    encoders: list[Dissected]
    refused: list[str]


def dissect(
    request: DissectionRequest,
    say: Callable[[str], object] = lambda words: None,
    tick: Callable[[], object] = lambda: None,
) -> Dissection:
    """Take all encoders apart.

    Raises:
        ProbeError: a task that there is none of.
        EncoderError: none of the encoders is post-LN, or one cannot be loaded.
        RunError, CorpusError: a damaged run or corpus.
    """
    unknown = [task for task in request.tasks if task not in SCORED]
    if unknown:
        raise ProbeError(f"--tasks: expected some of {', '.join(SCORED)}, or none, found {', '.join(unknown)}")
    reading = read(request.names, request.corpus, request.split, request.sentences, request.seed)
    training = None
    if set(request.tasks) - {MASKED}:
        training = read(request.names, request.corpus, "train", request.train_sentences, request.seed)
    encoders, refused = [], []
    for subject in reading.subjects(request.device):
        why = refusal(subject.encoder)
        if why is not None:
            refused.append(f"{subject.name}: {why}")
            continue
        say(subject.label)
        encoders.append(_one(subject, reading, training, request, tick))
    if not encoders:
        raise EncoderError("; ".join(refused))
    head = reading.head() | {
        "train_sentences": len(training.sentences) if training else 0,
        "tasks": list(request.tasks),
        "nets": vars(request.nets),
        "sample": request.sample,
        "torch": torch.__version__,
        "special_tokens": "read by the encoder, left out of every number",
    }
    return Dissection(head, encoders, refused)


def _one(
    subject: Subject, reading: Reading, training: Reading | None, request: DissectionRequest, tick: Callable[[], object]
) -> Dissected:
    found = survey(subject, reading.sentences, request.sample, request.seed, request.device, tick)
    tasks = _trained_on(subject)
    asked = _asked(request.tasks, tasks)
    scores = []
    if training is not None and set(asked) - {MASKED}:
        terms = last_terms(subject, training.sentences, request.device, tick)
        scores = _scores(asked, Material(training.sentences, terms), Material(reading.sentences, found.last), request)
    masked = None
    if MASKED in asked and not tasks:
        masked = score_masked(subject, reading.sentences, request.seed, request.device)
    lines = [linearity(halves) for halves in found.moments]
    found.last, found.moments = Tensor(), []  # large, and no longer needed
    gates = None if subject.gates is None else subject.gates.double().cpu().numpy()
    kept = tuple(subject.encoder.places.kept)
    return Dissected(subject.label, subject.name, subject.seed, tasks, gates, kept, found, lines, scores, masked)


def _trained_on(subject: Subject) -> tuple[str, ...]:
    """The tasks of a run, or the one whose gate set this is; none for a pretrained encoder."""
    if not (Path(subject.name) / "config.yaml").is_file():
        return ()
    run = RunFolder.existing(subject.name)
    return tuple(build_config(run.read_config(), str(run.config_path)).tasks)


def _asked(tasks: tuple[str, ...], trained: tuple[str, ...]) -> list[str]:
    return [task for task in tasks if len(trained) != 1 or task in (*trained, SENSES)]


def _scores(asked: list[str], train: Material, test: Material, request: DissectionRequest) -> list[SubsetScores]:
    found = [score_task(task, train, test, request.nets) for task in asked if task in LAYERS]
    kept = [scores for scores in found if scores is not None]
    return kept + (score_senses(train, test, request.nets) if SENSES in asked else [])


def single_and_joint(encoders: list[Dissected]) -> list[tuple[str, Dissected, Dissected]]:
    """(task, its own encoder, a joint one) of the same seed and kind of run."""
    return [
        (single.tasks[0], single, joint)
        for single in encoders
        for joint in encoders
        if len(single.tasks) == 1 and len(joint.tasks) > 1 and single.tasks[0] in joint.tasks
        if single.seed == joint.seed and variant(single.label) == variant(joint.label)
        if ":" not in joint.label or joint.label.endswith(f":{single.tasks[0].upper()}")
    ]


def open_heads(encoder: Dissected) -> NDArray[np.bool_] | None:
    """(L, A): heads that a run keeps; None for one that has no gates and lost no heads."""
    total = encoder.found.heads.shape
    if encoder.gates is not None:
        return encoder.gates >= 0.5
    if all(len(heads) == total[1] for heads in encoder.kept):
        return None
    there = np.zeros(total, bool)
    for layer, heads in enumerate(encoder.kept):
        there[layer, list(heads)] = True
    return there
