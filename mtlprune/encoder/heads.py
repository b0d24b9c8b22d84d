"""Hooks at the places of attention heads: gates and interventions go in there, head outputs come out there.

The *place* of a head is the input of its layer's attention output projection, where the heads lie side by side.
Whatever is done to a head (gating, reading its output, removing it) is done there, so no attention class is copied;
the table of families says where it is. Nothing here uses the ``head_mask`` of transformers, which version 5
accepts and ignores.

Letters for shapes: L layers, A heads a layer before any was removed, n heads a layer has now, d values a head has at
its place, B rows of the batch, T slots a row.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.encoder.families import by_layer, family_of, matrix
from mtlprune.encoder.pieces import EncoderError


def head_mask(names: Sequence[str], layers: int, heads: int) -> Tensor:
    """(L, A) of bool, True at these heads; 3-7 is layer 3, head 7, counted from 1."""
    mask = torch.zeros(layers, heads, dtype=torch.bool)
    for layer, head in (map(int, name.split("-")) for name in names):
        mask[layer - 1, head - 1] = True
    return mask


def check_kept(kept_heads: Sequence[Sequence[int]], heads: int, width: int, outputs: list[Any]) -> None:
    """Raise EncoderError unless these are the heads that the output projections of a model's layers have."""
    if len(kept_heads) != len(outputs):
        raise EncoderError(
            f"the head map does not fit the model: expected {len(outputs)} layers, found {len(kept_heads)}"
        )
    for layer, (head_numbers, output) in enumerate(zip(kept_heads, outputs, strict=True)):
        different = len({*head_numbers} & {*range(heads)}) == len(head_numbers)
        inputs = matrix(output).shape[1]
        if not different or head_numbers != kept_heads[outputs.index(output)] or inputs != len(head_numbers) * width:
            raise EncoderError(
                f"the head map does not fit the model: expected {inputs // width} different heads from 0 to "
                f"{heads - 1} in layer {layer} (the same ones in layers that share a module), found "
                f"{list(head_numbers)}; give the head map the model was saved with, or of the earlier removal"
            )


Substitutes = Tensor | Sequence[Tensor]
"""Substitutes for closed heads: (L, A, d), the same at every slot, or (B, T, n, d) for each layer."""


@dataclass(frozen=True, eq=False)
class Ablation:
    """Heads that contribute something else than their outputs for a while; `interventions.ablated` begins and ends it.

    Attributes:
        factors: (L, A) float32 of the heads' outputs: 1 where a head is not ablated.
        instead: what heads with a factor of 0 contribute instead of nothing.
        seed: draws other sentences of the batch, whose outputs these heads contribute.
    """

    factors: Tensor
    instead: Substitutes | None = None
    seed: int | None = None

    def under(self, gates: Tensor | None, shape: torch.Size | None) -> Tensor:
        """The factors of heads that may be under gates of their own, for a batch of (rows, slots).

        Raises:
            EncoderError: outputs of a batch of another shape; gates beside a substitute, because a gate between 0 and 1
                would mix the substitute into heads that are not ablated.
        """
        if gates is not None:
            if self.instead is not None or self.seed is not None:
                raise EncoderError(
                    "heads under gates are ablated to zero or scaled only; name a run whose heads are all open"
                )
            return gates * self.factors
        if not isinstance(self.instead, Tensor | None) and (found_shape := self.instead[0].shape[:2]) != shape:
            raise EncoderError(
                f"outputs are exchanged slot by slot: expected (rows, slots) {tuple(shape or ())}, found "
                f"{tuple(found_shape)}"
            )
        return self.factors


class HeadHooks:
    """Hooks at the places of all heads of one model: gates go in and head outputs come out there.

    Hooks are registered once, here, and do nothing outside the contexts. The state dict stays as it is. A deep copy of
    the model, or of what holds model and places, has hooks of its own, with no context on. Gradient checkpointing runs
    the layers again in ``backward``, which has to be called inside the context too, or inside :meth:`rerunning`.

    Args:
        transformer: a model of a family in ``FAMILIES``.
        kept_heads: for each layer the original numbers of the heads it still has, in the order in which they lie
            there; all if not given.

    Attributes:
        layers: L.
        heads: A, before any head was removed.
        width: d.
        groups: for each layer how many heads share a key and a value: 1 except with grouped-query attention.
        kept_heads: as given, one tuple a layer.

    Raises:
        EncoderError: the family is unknown, or ``kept_heads`` does not fit the model.
    """

    def __init__(self, transformer: PreTrainedModel, kept_heads: Sequence[Sequence[int]] | None = None) -> None:
        self.family = family_of(transformer)
        attentions = by_layer(transformer, self.family.attention)
        outputs = by_layer(transformer, self.family.output)
        self.layers = len(outputs)
        self.heads: int = transformer.config.num_attention_heads
        self.width: int = getattr(attentions[0], self.family.width)
        self.groups: list[int] = [self.family.sharing(attention) for attention in attentions]
        # Users name heads by the numbers of the original model for ever. `kept_heads` translates: position in the
        # layer as it lies now → original number.
        all_heads = tuple(range(self.heads))
        self.kept_heads = [all_heads] * self.layers if kept_heads is None else [tuple(heads) for heads in kept_heads]
        check_kept(self.kept_heads, self.heads, self.width, outputs)
        self._gates: list[tuple[Tensor, Tensor | None]] | None = None  # and what is added to gated heads
        self._cache: list[Tensor] | None = None
        self._after_gates = False
        self._calls = 0
        # ALBERT has one module for all layers. A hook on it cannot know its layer from the module, so the calls of a
        # forward pass are counted, and counting starts anew whenever the base model begins a pass.
        shared = len(set(outputs)) < self.layers
        for layer, output in enumerate(outputs):
            if output not in outputs[:layer]:
                # A head is addressed at the input of the attention output projection, because there every family lays
                # the heads side by side: d numbers each, before the projection mixes them.
                output.register_forward_pre_hook(partial(self._at, None if shared else layer))
        if shared:
            transformer.base_model.register_forward_pre_hook(self._restart)

    @contextmanager
    def gated(self, values: Tensor, substitutes: Substitutes | None = None) -> Iterator[None]:
        """Multiply every head by its gate at its place, in the dtype that is at its place: all gates 1 changes no bit.

        Args:
            values: (L, A) in original numbering, float32; gradients flow back to the gates of heads that are there.
            substitutes: what closed heads contribute instead of nothing: see `shifts`.

        Raises:
            EncoderError: wrong shape, or gates are on already.
        """
        if tuple(values.shape) != (self.layers, self.heads):
            raise EncoderError(
                f"expected gate values of shape (layers, heads) = {(self.layers, self.heads)}, found "
                f"{tuple(values.shape)}"
            )
        if self._gates is not None:
            raise EncoderError(
                "expected one gated() at a time, found another one that is active; multiply the values instead"
            )
        shifts = [None] * self.layers if substitutes is None else self.shifts(values, substitutes)
        self._gates = [
            # Rows are indexed once when the context is entered, and not in every forward pass of it. An untouched
            # layer keeps its row as it is, so that no gather joins the graph where none is needed.
            (row if heads == tuple(range(self.heads)) else row[list(heads)], shift)
            for row, heads, shift in zip(values.unbind(), self.kept_heads, shifts, strict=True)
        ]
        try:
            yield
        finally:
            self._gates = None

    def rerunning(self) -> AbstractContextManager[None]:
        """A context to run a layer in once more, whatever is on by then: with the gates of now, and no cache."""
        return self._rerunning(self._gates)

    @contextmanager
    def _rerunning(self, gates: list[tuple[Tensor, Tensor | None]] | None) -> Iterator[None]:
        outer_state = self._gates, self._cache
        self._gates, self._cache = gates, None
        try:
            yield
        finally:
            self._gates, self._cache = outer_state

    def shifts(self, values: Tensor, substitutes: Substitutes) -> list[Tensor]:
        """(1 − gate) · substitute for each layer: what is added to its n gated heads, so that a closed one contributes
        its substitute whatever it reads.

        Args:
            values: (L, A) in original numbering.
            substitutes: (L, A, d) in original numbering, the same at every slot; or of each layer (B, T, n, d).

        Returns:
            (n, d) or (B, T, n, d) for each layer.
        """
        if isinstance(substitutes, Tensor):
            # A gate mixes the head's own output with its substitute, g · O + (1 − g) · S: at g = 1 nothing changes,
            # and at g = 0 the head contributes S whatever it reads. Only the second term is made here.
            rows = ((1 - values)[..., None] * substitutes.to(values)).unbind()
            return [row[list(heads)] for row, heads in zip(rows, self.kept_heads, strict=True)]
        return [
            (1 - row[list(heads)]).to(substitute)[:, None] * substitute
            for row, heads, substitute in zip(values, self.kept_heads, substitutes, strict=True)
        ]

    @contextmanager
    def cache_outputs(self, after_gates: bool = False) -> Iterator[list[Tensor]]:
        """Cache what the heads give before any gate, or what the projection reads after all of them.

        Yields:
            A list, empty until a forward pass, then one (B, T, n, d) tensor a layer of the latest pass, in the dtype
            found at the place: references on the way to the loss (``torch.autograd.grad(loss, cache)`` works).

        Raises:
            EncoderError: outputs are cached already.
        """
        if self._cache is not None:
            raise EncoderError(
                "expected one cache_outputs() at a time, found another one that is active; share its list"
            )
        cache: list[Tensor] = []
        self._cache, self._after_gates = cache, after_gates
        try:
            yield cache
        finally:
            self._cache = None

    @property
    def is_caching(self) -> bool:
        """True within ``cache_outputs``."""
        return self._cache is not None

    def _restart(self, module: nn.Module, args: Any) -> None:
        # The count starts anew also after a pass that broke off in the middle of the layers.
        self._calls = 0

    def _at(self, layer: int | None, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """The hook; layer None is a module that all layers share: its calls tell them apart."""
        if self._gates is None and self._cache is None:
            return None
        if layer is None:
            # Calls count up within a pass. The remainder keeps the count a valid layer where passes follow each other
            # without the base model's own forward, which would restart it.
            layer = self._calls % self.layers
            self._calls += 1
        # (B, T, n · d) is only viewed as (B, T, n, d) and flattened again below, so with no gates on, the projection
        # reads the very same memory.
        outputs = heads = args[0].unflatten(-1, (len(self.kept_heads[layer]), self.width))  # (B, T, n, d)
        if self._gates is not None:
            gates, shift = self._gates[layer]
            # Gates are cast to the dtype of the place, so that under bf16 autocast all gates 1 change no bit:
            # multiplying by a float32 one would promote the states, and the projection would round differently.
            heads = heads * gates.to(heads).unsqueeze(-1)
            heads = heads if shift is None else heads + shift.to(heads)
        if self._cache is not None:
            # A slice assignment appends in the first pass and replaces in later ones, so the list always holds the
            # latest pass.
            self._cache[layer : layer + 1] = [heads if self._after_gates else outputs]
        return (heads.flatten(-2), *args[1:])

    def __getstate__(self) -> dict[str, Any]:
        """The state to copy: a context that is on belongs to the original (and non-leaf tensors cannot be copied)."""
        return self.__dict__ | {"_gates": None, "_cache": None, "_calls": 0}
