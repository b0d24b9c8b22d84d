"""Hooks at attention heads, which multiply head outputs by gates, replace them, or cache them.

The hooks are at the input of each layer's attention output projection, which is the concatenation of the outputs of all
heads. The table of families gives the path of this projection for each model type, so no attention class is copied. The
``head_mask`` of transformers is not used, because version 5 accepts and ignores it.

Letters for shapes: L layers, A heads in a layer before any was removed, n heads in a layer now, d values in the output
of a head, B rows of the batch, T slots in a row.
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
    """Return a mask of the named heads, (L, A) bool. The name 3-7 is layer 3, head 7, counted from 1."""
    mask = torch.zeros(layers, heads, dtype=torch.bool)
    for layer, head in (map(int, name.split("-")) for name in names):
        mask[layer - 1, head - 1] = True
    return mask


def check_kept(kept_heads: Sequence[Sequence[int]], heads: int, width: int, outputs: list[Any]) -> None:
    """Raise EncoderError unless a list of remaining heads fits the output projections of a model.

    Args:
        kept_heads: for each layer the original numbers of its remaining heads.
        heads: A.
        width: d.
        outputs: the attention output projection of each layer.
    """
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
"""The vectors that closed heads contribute: (L, A, d), the same at every slot, or (B, T, n, d) for each layer."""


@dataclass(frozen=True, eq=False)
class Ablation:
    """An ablation that is active in an encoder, within the context `interventions.ablated`.

    Attributes:
        factors: (L, A) float32, the factors of the heads' outputs. Heads that are not ablated have the factor 1.
        substitutes: the vectors that heads with the factor 0 contribute, None for zeros.
        seed: the random seed for resample ablation, in which heads with the factor 0 contribute their outputs for
            other sentences of the batch. None for other kinds.
    """

    factors: Tensor
    substitutes: Substitutes | None = None
    seed: int | None = None

    def under(self, gates: Tensor | None, shape: torch.Size | None) -> Tensor:
        """Return the factors of all heads, including the gates of the run: (L, A).

        Args:
            gates: (L, A) gates of the run, None without gates.
            shape: the shape (rows, slots) of the batch, None without a batch.

        Raises:
            EncoderError: the outputs to exchange belong to a batch of another shape. Or the ablation has substitutes
                although the run has gates, whose values between 0 and 1 would mix the substitutes into heads that are
                not ablated.
        """
        if gates is not None:
            if self.substitutes is not None or self.seed is not None:
                raise EncoderError(
                    "heads under gates are ablated to zero or scaled only; name a run whose heads are all open"
                )
            return gates * self.factors
        if not isinstance(self.substitutes, Tensor | None) and (found_shape := self.substitutes[0].shape[:2]) != shape:
            raise EncoderError(
                f"outputs are exchanged slot by slot: expected (rows, slots) {tuple(shape or ())}, found "
                f"{tuple(found_shape)}"
            )
        return self.factors


class HeadHooks:
    """Hooks at all attention heads of a model, which apply gates and cache head outputs.

    The constructor registers the hooks, which do nothing outside the contexts `gated` and `cache_outputs`. The state
    dict does not change. A deep copy of the model together with this object has separate hooks, and no context is
    active in the copy. Gradient checkpointing runs the layers again in ``backward``, which therefore must also be
    called inside the context, or inside :meth:`rerunning`.

    Args:
        transformer: a model of a family in ``FAMILIES``.
        kept_heads: for each layer the original numbers of its remaining heads, in the order of its weights. By default,
            no head was removed.

    Attributes:
        layers: L.
        heads: A, the number of heads in a layer before any was removed.
        width: d.
        groups: for each layer the number of heads that share a key and a value, which is 1 without grouped-query
            attention.
        kept_heads: for each layer a tuple of the original numbers of its remaining heads.

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
        # Heads are always named by their numbers in the original model. `kept_heads` maps the position of a head in the
        # current layer to its original number.
        all_heads = tuple(range(self.heads))
        self.kept_heads = [all_heads] * self.layers if kept_heads is None else [tuple(heads) for heads in kept_heads]
        check_kept(self.kept_heads, self.heads, self.width, outputs)
        self._gates: list[tuple[Tensor, Tensor | None]] | None = None  # gates and shift (see `shifts`) of each layer
        self._cache: list[Tensor] | None = None
        self._after_gates = False
        self._calls = 0
        # ALBERT has one module for all layers. A hook on this module cannot tell which layer calls it, so it counts its
        # calls in a forward pass. The count is reset whenever the base model starts a pass.
        shared = len(set(outputs)) < self.layers
        for layer, output in enumerate(outputs):
            if output not in outputs[:layer]:
                # The hook is at the input of the attention output projection, because this input is the concatenation
                # of the heads' outputs, with d numbers each, in every family. The projection then mixes the heads.
                output.register_forward_pre_hook(partial(self._hook, None if shared else layer))
        if shared:
            transformer.base_model.register_forward_pre_hook(self._restart)

    @contextmanager
    def gated(self, values: Tensor, substitutes: Substitutes | None = None) -> Iterator[None]:
        """Enter a context in which the output of every head is multiplied by its gate.

        The product has the dtype of the head outputs, so gates of 1 change no bit of the result.

        Args:
            values: (L, A) float32 gates in the original numbering. Gates of remaining heads receive gradients.
            substitutes: the vectors that closed heads contribute, zeros by default (see `shifts`).

        Raises:
            EncoderError: the gates have a wrong shape, or another `gated` context is active.
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
            # Rows are indexed once at the start of the context instead of in every forward pass. The row of a layer
            # with all its heads is not indexed at all, which would add a needless operation to the autograd graph.
            (row if heads == tuple(range(self.heads)) else row[list(heads)], shift)
            for row, heads, shift in zip(values.unbind(), self.kept_heads, shifts, strict=True)
        ]
        try:
            yield
        finally:
            self._gates = None

    def rerunning(self) -> AbstractContextManager[None]:
        """Return a context that restores the gates that are active now and disables the cache.

        Gradient checkpointing enters it when it runs a layer again in the backward pass, where other contexts may be
        active.
        """
        return self._with_gates(self._gates)

    def suspended(self) -> AbstractContextManager[None]:
        """Return a context for a forward pass without gates, in which an active cache is not filled."""
        return self._with_gates(None)

    @contextmanager
    def _with_gates(self, gates: list[tuple[Tensor, Tensor | None]] | None) -> Iterator[None]:
        outer_state = self._gates, self._cache, self._after_gates
        self._gates, self._cache = gates, None
        try:
            yield
        finally:
            self._gates, self._cache, self._after_gates = outer_state

    def shifts(self, values: Tensor, substitutes: Substitutes) -> list[Tensor]:
        """Return (1 − gate) · substitute for each layer, which is added to the outputs of its n gated heads.

        A closed head (gate 0) then contributes its substitute, whatever its input is.

        Args:
            values: (L, A) gates in the original numbering.
            substitutes: (L, A, d) in the original numbering, the same at every slot, or (B, T, n, d) for each layer.

        Returns:
            (n, d) or (B, T, n, d) for each layer.
        """
        if isinstance(substitutes, Tensor):
            # With the gate g, output O and substitute S, a head contributes g · O + (1 − g) · S. This function computes
            # only the second term.
            rows = ((1 - values)[..., None] * substitutes.to(values)).unbind()
            return [row[list(heads)] for row, heads in zip(rows, self.kept_heads, strict=True)]
        return [
            (1 - row[list(heads)]).to(substitute)[:, None] * substitute
            for row, heads, substitute in zip(values, self.kept_heads, substitutes, strict=True)
        ]

    @contextmanager
    def cache_outputs(self, after_gates: bool = False) -> Iterator[list[Tensor]]:
        """Enter a context in which the outputs of all heads are cached.

        Args:
            after_gates: whether outputs are cached after gates and substitutes are applied, instead of before.

        Yields:
            A list, empty before the first forward pass, then with a (B, T, n, d) tensor for each layer of the latest
            pass, in the dtype of the forward pass. The tensors are part of the autograd graph, so
            ``torch.autograd.grad(loss, cache)`` works.

        Raises:
            EncoderError: another `cache_outputs` context is active.
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
        # The reset is also needed after a pass that stopped with an error between two layers.
        self._calls = 0

    def _hook(self, layer: int | None, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Apply gates and cache head outputs: the hook of a layer, or of a module that all layers share (None)."""
        if self._gates is None and self._cache is None:
            return None
        if layer is None:
            # The remainder keeps the count valid if layers run without the forward pass of the base model, which would
            # reset the count.
            layer = self._calls % self.layers
            self._calls += 1
        # (B, T, n · d) is only viewed as (B, T, n, d) and flattened again below. Without gates, the projection reads
        # the same memory.
        outputs = heads = args[0].unflatten(-1, (len(self.kept_heads[layer]), self.width))  # (B, T, n, d)
        if self._gates is not None:
            gates, shift = self._gates[layer]
            # Gates are cast to the dtype of the head outputs. Multiplying by a float32 gate would promote the outputs
            # under bf16 autocast, so the projection would round differently, and gates of 1 would change the result.
            heads = heads * gates.to(heads).unsqueeze(-1)
            heads = heads if shift is None else heads + shift.to(heads)
        if self._cache is not None:
            # The slice assignment appends in the first pass and replaces in later passes, so the list always holds the
            # outputs of the latest pass.
            self._cache[layer : layer + 1] = [heads if self._after_gates else outputs]
        return (heads.flatten(-2), *args[1:])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy, without active contexts, because tensors within a graph cannot be deep-copied."""
        return self.__dict__ | {"_gates": None, "_cache": None, "_calls": 0}
