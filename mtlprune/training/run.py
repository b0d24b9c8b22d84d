"""The data of a run before its training (`NewRun`) and during its training (`Run`), for all modules of this package."""

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
    """The configuration, model and data of a run that is ready to train."""

    config: Config
    model: MultiTaskModel
    pieces: Sequence[Pieces]
    """The sub-words of each training sentence."""
    targets: Mapping[str, Sequence[Target | None]]
    """Task → the target of each training sentence; None for a sentence without the layer of the task."""
    lengths: list[int]
    """The number of sub-words of each training sentence, including special tokens."""
    is_annotated: dict[str, list[bool]]
    """Task → whether each training sentence has the layer of the task."""
    dev: Sequence[Sentence]
    trees: Sequence[Dependencies | None] = ()
    """The dependency tree of each training sentence or None; empty in a run without a penalty on attention along arcs.
    """

    def batch(self, mini_batch: MiniBatch) -> Batch:
        """Collate the sub-words and targets of a mini-batch into padded tensors."""
        targets = {task: [self.targets[task][row] for row in mini_batch.rows] for task in mini_batch.tasks}
        return self.model.collate([self.pieces[row] for row in mini_batch.rows], targets)


@dataclass(frozen=True)
class NewRun:
    """A run before anything is written, so that checks can refuse it without leaving files behind."""

    config: Config
    model: MultiTaskModel
    """The model before its first update, on the CPU."""
    vocabularies: dict[str, dict[str, list[str]]]
    """Task → kind of label → labels, from the training sentences or from the run ``train.start``."""
    train: Sequence[Sentence]
    dev: Sequence[Sentence]
    folder: RunFolder | None = None
    """The folder of the run, if it has one."""
    resumes: bool = False
    """Whether the run resumes from a checkpoint, so that other runs on which it depends are not read again."""


def gate_sets(model: MultiTaskModel) -> dict[str, Gates]:
    """Return the gate sets of a model by name; empty for a model without gates."""
    return {name: cast(Gates, gates) for name, gates in model.gates.items()}
