"""The price on attention along arcs in multi-task training: on all heads, or on a named set of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.config.config import ConfigError
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.training.arcs import SyntaxPressure, attention_seen, batch_arcs, named_heads
from mtlprune.training.checkpoint import Progress

if TYPE_CHECKING:
    from mtlprune.training.setup import Beginning


def check_syntax(run: Beginning) -> None:
    """Refuse a price where there are no trees, on heads that are not there, or where several processes each see only
    their own arcs. Raises ConfigError."""
    config = run.config
    if not config.syntax.strength:
        return
    if run.processes > 1:
        raise ConfigError(
            f"syntax.strength: the price is on the arcs of a whole batch, which {run.processes} processes share out; "
            "train on one process"
        )
    if all(sentence.dep is None for sentence in run.train):
        raise ConfigError(
            f"syntax.strength: the price needs dependency trees, and no training sentence of {config.data.path} has "
            "one; take a corpus with the layer dep, or leave syntax out"
        )
    if config.syntax.heads is not None:
        named_heads(config.syntax.heads, run.model.encoder.places.kept)


class SyntaxTerm:
    """What a training adds to its loss, if its settings say so.

    Args:
        run: the run's configuration, model and trees.
    """

    def __init__(self, run: Any) -> None:
        self.trees = run.trees
        self.pressure: SyntaxPressure | None = None
        self._price: tuple[Tensor, float] | None = None
        if run.config.syntax.strength:
            encoder = run.model.encoder
            transformer = cast(PreTrainedModel, encoder.transformer)
            self.pressure = SyntaxPressure(run.config.syntax, transformer, encoder.places.kept)

    @contextlib.contextmanager
    def seen(self, batch: EncoderBatch, rows: Sequence[int], step: int) -> Iterator[None]:
        """Keep the attention maps of one forward pass, if they cost anything in this update.

        Args:
            rows: training sentences of the batch.
            step: updates done.
        """
        self._price = None
        if self.pressure is None or not self.pressure.active(step):
            yield
            return
        with attention_seen(self.pressure.transformer) as maps:
            yield
        self._price = self.pressure(maps, batch_arcs(batch, [self.trees[row] for row in rows]))

    def added(self, loss: Tensor, now: Progress) -> Tensor:
        """The loss with the price of what was seen; the price without λ is noted among the losses as ``syntax``."""
        if self._price is None:
            return loss
        term, price = self._price
        past, number = now.losses.get("syntax", (0.0, 0))
        now.losses["syntax"] = [past + price, number + 1]
        return loss + term
