"""Whom to probe: encoders as they were pretrained, and the encoders of runs, with their gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mtlprune.config.config import build_config
from mtlprune.encoder import head_map
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import use_eager
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs import RunError, RunFolder, task_labels

PRETRAINED = "pretrained"
SAMPLED = "sampled"


class ProbeError(RunError):
    """What cannot be probed as asked; the message says why and what to do."""


@dataclass(frozen=True)
class Subject:
    """One encoder, or one gate set of it where a run has one a task.

    Attributes:
        label: pretrained, POS, POS+DEP, MTL-5, or MTL-5:POS for a task's own gates; in brackets, such as POS (gates),
            what tells runs of the same tasks and seed apart.
        name: the encoder or run folder as it was given.
        seed: of the run; 0 for an encoder.
        encoder: in evaluation mode, with eager attention.
        gates: (L, A), closed heads included; None where the run has none.
        architecture: a folder or name from which the same encoder with random weights can be made.
    """

    label: str
    name: str
    seed: int
    encoder: Encoder
    gates: Tensor | None
    architecture: str

    def size(self) -> tuple[str, int, int, int]:
        """What has to agree between encoders whose heads are set side by side."""
        places = self.encoder.places
        return str(self.encoder.config.model_type), places.layers, places.heads, self.encoder.hidden_size

    def untrained(self, seed: int) -> Encoder:
        """The same encoder, heads removed likewise, with random weights."""
        return Encoder.load(self.architecture, random=True, seed=seed, attention="eager")


@dataclass(frozen=True)
class Source:
    """A run folder or an encoder, yet to be loaded."""

    name: str
    label: str
    seed: int
    kind: str
    """The encoder it began with: sources of one kind share tokenizer and window."""
    is_run: bool

    def open(self, device: str = "cpu") -> Iterator[Subject]:
        """Load it. Raises EncoderError or RunError in words."""
        if not self.is_run:
            encoder = Encoder.load(self.name, attention="eager").to(device)
            yield Subject(self.label, self.name, self.seed, encoder, None, self.name)
            return
        model = MultiTaskModel.load(self.name, device=device)
        encoder = use_eager(model.encoder)
        architecture = str(RunFolder(self.name).encoder_path)
        with torch.no_grad():
            sets = {key: gates().detach() for key, gates in model.gates.items()}
        for key, gates in sets.items() or [(SHARED, None)]:
            label = self.label if key == SHARED else f"{self.label}:{key.upper()}"
            yield Subject(label, self.name, self.seed, encoder, gates, architecture)


def find_sources(names: Iterable[str]) -> list[Source]:
    """What each name means: a folder with config.yaml is a run, everything else an encoder.

    Runs of different kinds are told apart by their pruning, mixing and fusion; those of the same tasks and seed, by
    their names.

    Raises:
        ProbeError: none is given, or one twice, or two that results could not be told apart.
        RunError: a damaged run.
    """
    found = [_Found.read(name) for name in names]
    if not found:
        raise ProbeError("expected a run folder or an encoder to probe, found none")
    labels = [label or PRETRAINED for label in task_labels([one.tasks for one in found])]
    if len({one.variant for one in found if one.tasks}) > 1:  # else it goes without saying
        labels = [
            f"{label} ({one.variant})" if one.variant else label for label, one in zip(labels, found, strict=True)
        ]
    labels = _told_apart(labels, [one.called for one in found], {label for label, _ in _repeated(labels, found)})
    for label, seed in _repeated(labels, found):
        same = [one.name for mine, one in zip(labels, found, strict=True) if (mine, one.seed) == (label, seed)]
        raise ProbeError(
            f"{same[0]} and {same[1]} are both {label}, seed {seed}, so their results could not be told apart; probe "
            "them into different folders"
        )
    return [
        Source(one.name, label, one.seed, one.kind, bool(one.tasks)) for label, one in zip(labels, found, strict=True)
    ]


@dataclass(frozen=True)
class _Found:
    """What stands behind a name."""

    name: str
    tasks: tuple[str, ...]
    seed: int
    kind: str
    variant: str
    """Pruning, mixing and fusion, as far as they are not the plain ones."""
    called: str
    """The run's own name in its configuration."""

    @classmethod
    def read(cls, name: str) -> _Found:
        if not (Path(name) / "config.yaml").is_file():
            return cls(name, (), 0, name, "", "")
        run = RunFolder.with_weights(name)
        config = build_config(run.read_config(), str(run.config_path))
        kind = f"{config.encoder.name}, without context" if not config.encoder.context else config.encoder.name
        static = "static " if config.train.start and config.pruning.method == "gates" else ""
        parts = [
            static + config.pruning.method if config.pruning.method != "none" else "",
            "heads removed" if (run.encoder_path / head_map.FILE).is_file() else "",
            SAMPLED if config.train.mixing == SAMPLED and len(config.tasks) > 1 else "",
            f"fusion {config.encoder.fusion}" if config.encoder.fusion != "none" else "",
        ]
        return cls(name, tuple(config.tasks), config.train.seed, kind, ", ".join(filter(None, parts)), config.name)


def variant(label: str) -> str:
    """What stands in brackets in a label but for the mixing of tasks: gates in MTL-5 (gates, sampled)."""
    parts = label.partition(" (")[2].partition(")")[0].split(", ")
    return ", ".join(part for part in parts if part != SAMPLED)


def _told_apart(labels: list[str], words: list[str], which: set[str]) -> list[str]:
    """Each label with its word in brackets, where those of one label, among ``which``, differ."""
    known = {label: {word for mine, word in zip(labels, words, strict=True) if mine == label} for label in which}
    return [
        f"{label} ({word})" if word and len(known.get(label, ())) > 1 else label
        for label, word in zip(labels, words, strict=True)
    ]


def _repeated(labels: Iterable[str], found: Iterable[_Found]) -> list[tuple[str, int]]:
    """Labels and seeds that more than one source has."""
    times = Counter((label, one.seed) for label, one in zip(labels, found, strict=True))
    return [key for key, count in times.items() if count > 1]
