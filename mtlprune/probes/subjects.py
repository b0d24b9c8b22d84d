"""Whom to probe: encoders as they were pretrained, and the encoders of runs, with their gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mtlprune.config import build_config
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import use_eager
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs import RunError, RunFolder

PRETRAINED = "pretrained"


class ProbeError(RunError):
    """What cannot be probed as asked; the message says why and what to do."""


@dataclass(frozen=True)
class Subject:
    """One encoder, or one gate set of it where a run has one a task.

    Attributes:
        label: pretrained, POS, POS+DEP, MTL-5, or MTL-5:POS for a task's own gates.
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

    Raises:
        ProbeError: none is given, or one twice, or two that results could not be told apart.
        RunError: a damaged run.
    """
    found = []
    for name in names:
        if (Path(name) / "config.yaml").is_file():
            run = RunFolder.existing(name)
            config = build_config(run.read_config(), str(run.config_path))
            kind = f"{config.encoder.name}, without context" if not config.encoder.context else config.encoder.name
            found.append((name, tuple(config.tasks), config.train.seed, kind))
        else:
            found.append((name, (), 0, name))
    joint = {size: {tasks for _, tasks, _, _ in found if len(tasks) == size} for size in range(3, 6)}
    sources = []
    for name, tasks, seed, kind in found:
        plain = len(tasks) < 3 or len(joint[len(tasks)]) > 1
        label = ("+".join(task.upper() for task in tasks) if plain else f"MTL-{len(tasks)}") or PRETRAINED
        sources.append(Source(name, label, seed, kind, bool(tasks)))
    if not sources:
        raise ProbeError("expected a run folder or an encoder to probe, found none")
    (label, seed), times = Counter((source.label, source.seed) for source in sources).most_common(1)[0]
    if times > 1:
        same = [source.name for source in sources if (source.label, source.seed) == (label, seed)]
        raise ProbeError(
            f"{same[0]} and {same[1]} are both {label}, seed {seed}, so their results could not be told apart; probe "
            "them into different folders"
        )
    return sources
