"""The one interface of what takes part in training beside the tasks: penalties, balance of losses, treatments."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from torch import Tensor

from mtlprune.model import Batch, Decode
from mtlprune.training.mixing import MiniBatch


@dataclass
class Losses:
    """The losses of a mini-batch between decoders and backward pass, which callbacks change."""

    mini_batch: MiniBatch
    tasks: dict[str, Tensor]
    """Task → its loss, to be differentiated."""
    penalties: dict[str, Tensor] = field(default_factory=dict)
    """Name → what else is to be differentiated here."""
    logged: dict[str, Tensor] = field(default_factory=dict)
    """Name → number for the logs: losses as decoders have them, penalties without their factors."""


class Callback:
    """One part of training; a method that is not overridden changes nothing. In each update, in this order:

        before_update
        for each mini-batch:
            forward, decode    around the encoding, and how decoders compute their losses
            terms              what losses are weighed by, and what is added to them
            backward           around the backward pass
        (gradients are clipped)
        before_step            gradients that are added here are not clipped
        (the optimizer steps)
        after_step             of the last callback first

    Nothing is remembered from update to update but what a run's checkpoint holds, so that a run resumes exactly.
    """

    def before_update(self, step: int, epoch: int = 0) -> None:
        """An update begins, after ``step`` others and ``epoch`` whole epochs."""

    def forward(self, batch: Batch, rows: Sequence[int]) -> AbstractContextManager[None]:
        """Around the forward pass of a mini-batch of these training sentences."""
        return nullcontext()

    def decode(self, decode: Decode, rows: Sequence[int]) -> Decode:
        """Another way to compute a task's loss."""
        return decode

    def terms(self, losses: Losses) -> None:
        """Weigh the losses of a mini-batch, or add to them."""

    def backward(self, losses: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Around the backward pass of a mini-batch. ``losses``: task → its loss, as it goes into the sum."""
        return nullcontext()

    def before_step(self, tasks: Collection[str]) -> None:
        """Change gradients before the optimizer steps. ``tasks``: that took part in the update, among other names."""

    def after_step(self) -> None:
        """The update ends."""
