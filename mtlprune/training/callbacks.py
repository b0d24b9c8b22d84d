"""The interface `Callback` of penalties, loss balancing and treatments, by which they change the training loop."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from torch import Tensor

from mtlprune.model import Batch, Decode
from mtlprune.training.mixing import MiniBatch


@dataclass
class Losses:
    """The losses of a mini-batch, which callbacks change after the decoders and before the backward pass."""

    mini_batch: MiniBatch
    tasks: dict[str, Tensor]
    """Task → its loss, which is part of the differentiated sum."""
    penalties: dict[str, Tensor] = field(default_factory=dict)
    """Name → a further term of the differentiated sum."""
    logged: dict[str, Tensor] = field(default_factory=dict)
    """Name → value for the logs: the unweighted loss of a task, or a penalty without its factor."""


class Callback:
    """Base class of everything that changes the updates of a training; methods that are not overridden change nothing.

    Every update calls the methods in this order:

        before_update
        for each mini-batch:
            forward, decode    a context around the encoder's forward pass, and the function that computes losses
            terms              weights of the losses, and further terms of the sum
            backward           a context around the backward pass
        (gradients are clipped)
        before_step            gradients that are added here are not clipped
        (the optimizer steps)
        after_step             in reverse order of the callbacks

    A callback keeps no state from one update to the next except state that the checkpoint holds, because a resumed run
    must equal an uninterrupted one.
    """

    def before_update(self, step: int, epoch: int = 0) -> None:
        """Prepare for the update that follows ``step`` finished updates and ``epoch`` finished epochs."""

    def forward(self, batch: Batch, rows: Sequence[int]) -> AbstractContextManager[None]:
        """Return a context for the forward pass of the encoder. ``rows``: indices of the training sentences."""
        return nullcontext()

    def decode(self, decode: Decode, rows: Sequence[int]) -> Decode:
        """Return the function that computes the loss of a task, either ``decode`` or a function that wraps it."""
        return decode

    def terms(self, losses: Losses) -> None:
        """Change ``losses`` in place: multiply the losses of tasks by weights, or add penalties."""

    def backward(self, losses: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Return a context for the backward pass of a mini-batch. ``losses``: task → its weighted loss."""
        return nullcontext()

    def before_step(self, tasks: Collection[str]) -> None:
        """Change gradients before the optimizer steps. ``tasks``: names of the losses and penalties of the update."""

    def after_step(self) -> None:
        """Finish the update after the optimizer has stepped."""
