"""A run before it begins and while it trains: the types that all parts of training share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from mtlprune.config.config import Config
from mtlprune.encoder.gates import Gates
from mtlprune.encoder.pieces import Pieces
from mtlprune.model import Batch, MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.tasks.base import Target
from mtlprune.training.mixing import MiniBatch


@dataclass
class Run:
    """Configuration, model and data of a run, ready to train."""

    config: Config
    model: MultiTaskModel
    pieces: Sequence[Pieces]
    targets: Mapping[str, Sequence[Target | None]]
    lengths: list[int]
    """Sub-words of each training sentence with its special tokens."""
    is_annotated: dict[str, list[bool]]
    dev: Sequence[Sentence]
    trees: Sequence[Dependencies | None] = ()
    """The tree of each training sentence, where attention along arcs has a penalty."""

    def batch(self, mini_batch: MiniBatch) -> Batch:
        """Join the rows of a mini-batch."""
        targets = {task: [self.targets[task][row] for row in mini_batch.rows] for task in mini_batch.tasks}
        return self.model.collate([self.pieces[row] for row in mini_batch.rows], targets)


@dataclass(frozen=True)
class NewRun:
    """A run before anything is written, as its parts check it."""

    config: Config
    model: MultiTaskModel
    """Before its first update, on the CPU."""
    vocabularies: dict[str, dict[str, list[str]]]
    train: Sequence[Sentence]
    dev: Sequence[Sentence]
    folder: RunFolder | None = None
    """The run's folder, where there is one."""
    resumes: bool = False
    """From a checkpoint, so that other runs are not asked again."""


def gate_sets(model: MultiTaskModel) -> dict[str, Gates]:
    """The model's gate sets by name, none where it has no gates."""
    return {name: cast(Gates, gates) for name, gates in model.gates.items()}
