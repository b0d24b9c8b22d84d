"""What a treatment is: refusals before a run begins, and calls from the training loop that do nothing unless said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from mtlprune.blocks import Block, HeadsConfig
from mtlprune.model import Decode, MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.training.parallel import ProcessGroup
from mtlprune.training.treatments.heads import Sets, check_own_weights

if TYPE_CHECKING:
    from mtlprune.training.setup import Beginning, Run


@dataclass(frozen=True)
class Treated:
    """A run as its treatments see it."""

    options: Any
    """Of the treatment."""
    run: Run
    folder: RunFolder
    total: int
    """Updates."""
    group: ProcessGroup
    heads: Sets
    """That are treated: (L, A) of bool for each task, or for all of them as "shared"; nothing without heads."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.run.config.tasks


class Treatment:
    """One treatment of one run.

    Nothing is remembered from update to update: all follows from the step, so that a run that is stopped resumes
    exactly. Letters: L layers, A heads a layer, T tasks of the batch.
    """

    Options: ClassVar[type[Block]]
    """Its settings; heads among them are called ``heads``."""
    one_set: ClassVar[bool] = True
    """Whether all tasks share the set of heads."""

    def __init__(self, run: Treated) -> None:
        self.options, self.group, self.tasks = run.options, run.group, run.tasks

    # -- before the first update --

    @classmethod
    def heads_of(cls, options: Any) -> HeadsConfig | None:
        """What the settings say of heads; None where none are treated."""
        return getattr(options, "heads", None)

    @classmethod
    def check_model(cls, model: MultiTaskModel) -> None:
        """Refuse models whose heads cannot be treated; asked where heads are. Raises EncoderError."""
        check_own_weights(model.encoder)

    @classmethod
    def check(cls, run: Beginning, options: Any) -> None:
        """Refuse what cannot be done. Raises ConfigError or RunError."""

    @classmethod
    def shape(cls, model: MultiTaskModel, heads: Sets, options: Any) -> None:
        """Add parameters to a new model; what random numbers others draw must not change by it."""

    @classmethod
    def begin(cls, options: Any, run: Run, folder: RunFolder, precision: torch.dtype) -> None:
        """Change the weights that the run begins with. One process does; the others are sent what it made."""

    # -- in each update --

    def update(self, step: int) -> None:
        """An update begins; ``step`` of them were made."""

    def decode(self, decode: Decode, rows: Sequence[int]) -> Decode:
        """Another way to compute the terms of a task's loss.

        Args:
            rows: training sentences of the mini-batch.
        """
        return decode

    def factors(self, tasks: Sequence[str], gram: Callable[[], Tensor]) -> Tensor | None:
        """What the gradients of tasks by each head's weights are multiplied with before they are added.

        Args:
            gram: gives (L, A, T, T) float64, scalar products of the tasks' gradients by the weights of each head; it
                costs a backward pass a task.

        Returns:
            (T, L, A); None for 1 everywhere.
        """
        return None

    def backward(self, losses: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Around the backward pass of a mini-batch; see `Treatments.backward`."""
        return nullcontext()
