"""The places of attention heads: gates go in there, head outputs come out there.

The *place* of a head is the input of its layer's attention output projection, where the heads lie side by side.
Whatever is done to a head (gating, reading its output, removing it) is done there, so no attention class is copied;
:mod:`mtlprune.encoder.families` says where it is. Nothing here uses the ``head_mask`` of transformers, which version 5
accepts and ignores.

Letters for shapes: L layers, A heads a layer before any was removed, n heads a layer has now, d values a head has at
its place, B rows of the batch, T slots a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.encoder.families import FAMILIES, Family, by_layer, family_of
from mtlprune.encoder.pieces import EncoderError

__all__ = ["FAMILIES", "Family", "HeadPlaces", "by_layer", "family_of"]


class HeadPlaces:
    """The places of all heads of one model: gates go in and head outputs come out there.

    Hooks are registered once, here, and do nothing outside the contexts. The state dict stays as it is. A deep copy of
    the model, or of what holds model and places, has places of its own, with no context on. With gradient checkpointing
    ``backward`` has to be called inside the context too, because it runs the layers again.

    Args:
        transformer: a model of a family in ``FAMILIES``.
        kept: for each layer the original numbers of the heads it still has, in the order in which they lie there; all
            if not given.

    Attributes:
        layers: L.
        heads: A, before any head was removed.
        width: d.
        group: how many heads share a key and a value: 1 except with grouped-query attention.
        kept: as given, one tuple a layer.

    Raises:
        EncoderError: the family is unknown, or ``kept`` does not fit the model.
    """

    def __init__(self, transformer: PreTrainedModel, kept: Sequence[Sequence[int]] | None = None) -> None:
        self.family = family_of(transformer)
        attentions = by_layer(transformer, self.family.attention)
        outputs = by_layer(transformer, self.family.output)
        self.layers = len(outputs)
        self.heads: int = transformer.config.num_attention_heads
        self.width: int = getattr(attentions[0], self.family.width)
        self.group: int = getattr(attentions[0], self.family.grouping) if self.family.grouping else 1
        everything = tuple(range(self.heads))
        self.kept = [everything] * self.layers if kept is None else [tuple(heads) for heads in kept]
        self._check(outputs)
        self._gates: list[Tensor] | None = None
        self._seen: list[Tensor] | None = None
        self._calls = 0
        shared = len(set(outputs)) < self.layers
        for layer, output in enumerate(outputs):
            if output not in outputs[:layer]:
                output.register_forward_pre_hook(partial(self._at, None if shared else layer))
        if shared:
            transformer.base_model.register_forward_pre_hook(self._restart)

    def _check(self, outputs: list[nn.Linear]) -> None:
        if len(self.kept) != self.layers:
            raise EncoderError(
                f"the head map does not fit the model: expected {self.layers} layers, found {len(self.kept)}"
            )
        for layer, (heads, output) in enumerate(zip(self.kept, outputs, strict=True)):
            if len(set(heads)) < len(heads) or not set(heads) <= set(range(self.heads)):
                raise EncoderError(
                    f"the head map is wrong: expected different heads from 0 to {self.heads - 1} in layer {layer}, "
                    f"found {list(heads)}"
                )
            first = outputs.index(output)
            if heads != self.kept[first]:
                raise EncoderError(
                    f"the head map does not fit the model: layers {first} and {layer} are one module, expected the "
                    f"same heads in both, found {list(self.kept[first])} and {list(heads)}"
                )
            if output.in_features != len(heads) * self.width:
                raise EncoderError(
                    f"the head map does not fit the model: layer {layer} keeps {len(heads)} heads of width "
                    f"{self.width}, expected {len(heads) * self.width} inputs of its attention output projection, "
                    f"found {output.in_features}; give the head map the model was saved with"
                )

    @contextmanager
    def gated(self, values: Tensor) -> Iterator[None]:
        """Multiply every head by its gate at its place, in the dtype found there: all gates 1 changes no bit.

        Args:
            values: (L, A) in original numbering, float32; gradients flow back to the gates of heads that are there.

        Raises:
            EncoderError: wrong shape, or gates are on already.
        """
        if tuple(values.shape) != (self.layers, self.heads):
            raise EncoderError(
                f"expected gate values of shape (layers, heads) = {(self.layers, self.heads)}, found "
                f"{tuple(values.shape)}"
            )
        if self._gates is not None:
            raise EncoderError("gates are on already; expected one gated() at a time: multiply the values instead")
        self._gates = [
            row if heads == tuple(range(self.heads)) else row[list(heads)]
            for row, heads in zip(values.unbind(), self.kept, strict=True)
        ]
        try:
            yield
        finally:
            self._gates = None

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        """Read what the heads say, before any gate: multiply by the gates to get what the projection reads.

        Yields:
            A list, empty until a forward pass, then one (B, T, n, d) tensor a layer of the latest pass, in the dtype
            found there: references on the way to the loss (``torch.autograd.grad(loss, seen)``, ``retain_grad`` work).

        Raises:
            EncoderError: somebody watches already.
        """
        if self._seen is not None:
            raise EncoderError("the heads are watched already; expected one watched() at a time: share its list")
        seen: list[Tensor] = []
        self._seen = seen
        try:
            yield seen
        finally:
            self._seen = None

    def _restart(self, module: nn.Module, args: Any) -> None:
        self._calls = 0  # also after a pass that broke off

    def _at(self, layer: int | None, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """The hook; layer None is a module that all layers share: its calls tell them apart."""
        if self._gates is None and self._seen is None:
            return None
        if layer is None:
            layer = self._calls % self.layers
            self._calls += 1
        heads = args[0].unflatten(-1, (len(self.kept[layer]), self.width))  # (B, T, n, d)
        if self._seen is not None:
            if layer < len(self._seen):
                self._seen[layer] = heads
            else:
                self._seen.append(heads)
        if self._gates is not None:
            heads = heads * self._gates[layer].to(heads).unsqueeze(-1)
        return (heads.flatten(-2), *args[1:])

    def __getstate__(self) -> dict[str, Any]:
        """For copies: a context that is on belongs to the original (and non-leaf tensors cannot be copied)."""
        return self.__dict__ | {"_gates": None, "_seen": None, "_calls": 0}
