"""Exact decomposition of what a post-LN encoder says of a token: input, attention, feed-forward, correction.

    e = i + h + f + c          h = Σ over layers and heads, each head a slot of its own

The normal forward pass leaves a :class:`Trace`. A small stack of vectors is then pushed through the same layers: what a
head or a feed-forward part adds goes to its slot, biases go to the correction c, and a LayerNorm multiplies every slot
by g/s and adds b − g·m/s to c. Nothing is fitted and nothing is approximated. All biases of outputs, biases of values
and means that LayerNorms take away lie in c, so c depends on the token, too.

Letters for shapes: N tokens, H hidden size, L layers, n heads a layer has now, d values a head has, K slots.

Source: Mickus, Paperno and Constant (2022), How to Dissect a Muppet, TACL 10; grouping of biases as in their code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mtlprune.analyses.dissection import SUBSETS, TERMS


class Norm(NamedTuple):
    """One LayerNorm on N tokens: gain · (x − mean) / std + bias."""

    gain: Tensor
    """(H,)."""
    bias: Tensor
    """(H,)."""
    mean: Tensor
    """(N, 1), of the input."""
    std: Tensor
    """(N, 1), √(biased variance + ε)."""


class Lift(NamedTuple):
    """A linear map between the embeddings' LayerNorm and the first layer, where embeddings are narrower than layers."""

    weight: Tensor
    """(H, E)."""
    bias: Tensor
    """(H,)."""


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """What one layer did to N tokens.

    Attributes:
        heads: (N, n, d), what the attention output projection reads: gates are applied.
        numbers: the n heads' original numbers.
        value_bias: (n, d), what of each head is there whatever it attends to: gate · bias of the values. Attention
            rows sum to 1, so it comes out of the average as it went in.
        weight: (H, n · d), of the attention output projection.
        bias: (H,), of the same.
        read: (N, H), what the feed-forward part reads.
        feed_forward: (N, H), what it adds, without the bias of its output.
        feed_forward_bias: (H,).
        norms: after attention, after the feed-forward part.
    """

    heads: Tensor
    numbers: tuple[int, ...]
    value_bias: Tensor
    weight: Tensor
    bias: Tensor
    read: Tensor
    feed_forward: Tensor
    feed_forward_bias: Tensor
    norms: tuple[Norm, Norm]

    def attention(self) -> Tensor:
        """(N, H): what all heads add, without biases."""
        return (self.heads - self.value_bias).flatten(1) @ self.weight.T

    def attention_bias(self) -> Tensor:
        """(H,): what the output projection adds whatever the heads attend to."""
        return self.bias + self.weight @ self.value_bias.flatten()


@dataclass(frozen=True, eq=False)
class Trace:
    """What a forward pass leaves: enough to take its outcome apart.

    Attributes:
        embedded: (N, E), word, position and segment embeddings before the first LayerNorm.
        norm: the embeddings' LayerNorm.
        lift: None where E = H.
        layers: L of them.
    """

    embedded: Tensor
    norm: Norm
    lift: Lift | None
    layers: Sequence[LayerTrace]


def normalised(stack: Tensor, norm: Norm) -> Tensor:
    """Push slots through a LayerNorm: (K, N, H) to the same; the last slot is the correction."""
    scale = norm.gain / norm.std  # (N, H)
    moved = stack * scale
    moved[-1] += norm.bias - scale * norm.mean
    return moved


def embedding_terms(trace: Trace) -> Tensor:
    """(4, N, H): the terms of what the first layer reads; h = f = 0."""
    norm = trace.norm
    scale = norm.gain / norm.std
    given, correction = trace.embedded * scale, norm.bias - scale * norm.mean
    if trace.lift is not None:
        given, correction = given @ trace.lift.weight.T, correction @ trace.lift.weight.T + trace.lift.bias
    nothing = torch.zeros_like(given)
    return torch.stack([given, nothing, nothing, correction])


def terms(trace: Trace) -> Iterator[Tensor]:
    """The terms i, h, f, c after the embeddings and after each layer: L + 1 times (4, N, H), by the recursion."""
    stack = embedding_terms(trace)
    yield stack
    for layer in trace.layers:
        stack = stack.clone()
        stack[1] += layer.attention()
        stack[3] += layer.attention_bias()
        stack = normalised(stack, layer.norms[0])
        stack[2] += layer.feed_forward
        stack[3] += layer.feed_forward_bias
        stack = normalised(stack, layer.norms[1])
        yield stack


def importance(parts: Tensor, whole: Tensor) -> Tensor:
    """μ(e, v) = e · v / ‖e‖²: (K, N, H) and (N, H) to (K, N). Sums to 1 over parts that sum to the whole.

    No share of norm or variance: it may be negative, or exceed 1. NaN where the whole is 0.
    """
    return torch.einsum("knh,nh->kn", parts, whole) / whole.square().sum(-1)


def head_importance(trace: Trace, whole: Tensor) -> list[Tensor]:
    """μ of every head in the last layer's vectors ``whole`` (N, H): for each layer (N, n).

    e · (K · W x) is taken as (Wᵀ (K · e)) · x, so that no slot of a head is ever held.
    """
    pull = whole / whole.square().sum(-1, keepdim=True)  # (N, H)
    found = []
    for layer in reversed(trace.layers):
        for norm in reversed(layer.norms):
            pull = pull * norm.gain / norm.std
        back = (pull @ layer.weight).unflatten(1, layer.value_bias.shape)  # (N, n, d)
        found.append((back * (layer.heads - layer.value_bias)).sum(-1))
    return found[::-1]


def subset_masks(like: Tensor) -> Tensor:
    """(16, 4): which terms are in which of ``SUBSETS``, in the dtype of ``like``."""
    return torch.tensor([[float(term in subset) for term in TERMS] for subset in SUBSETS]).to(like)
