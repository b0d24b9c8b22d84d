"""Exact decomposition of the vectors of a post-LN encoder into input, attention, feed-forward parts and correction.

    e = i + h + f + c          h = Σ over layers and heads, f = Σ over layers

A normal forward pass is recorded in a :class:`Trace`. Then a stack of vectors, one slot for each term, is pushed
through the same layers. The outputs of heads and feed-forward parts are added to their slots, and biases are added to
the correction c. A LayerNorm multiplies every slot by g/s and adds b − g·m/s to c (gain g, bias b, mean m and standard
deviation s of its input). Nothing is fitted and nothing is approximated. The correction contains all output biases, the
biases of values, and the means that LayerNorms subtract, so c depends on the token as well.

Letters for shapes: N tokens, H hidden size, E size of embeddings, L layers, A heads of a layer before any head was
removed, n heads that a layer has now, d values of a head, K slots.

Source: Mickus, Paperno and Constant (2022), How to Dissect a Muppet, TACL 10. Biases are grouped as in their code.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.families import by_layer
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.post_norm import POST_NORM, obstacle


class Norm(NamedTuple):
    """A LayerNorm applied to N tokens: gain · (x − mean) / std + bias."""

    gain: Tensor
    """(H,): learnt gain."""
    bias: Tensor
    """(H,): learnt bias."""
    mean: Tensor
    """(N, 1): mean of the input over features."""
    std: Tensor
    """(N, 1): √(biased variance of the input over features + ε)."""


class Lift(NamedTuple):
    """A linear map from the embeddings' LayerNorm to the first layer, if embeddings are narrower than layers."""

    weight: Tensor
    """(H, E)."""
    bias: Tensor
    """(H,)."""


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """A record of what one layer computes for N tokens.

    Attributes:
        heads: (N, n, d), inputs of the attention output projection, after gates.
        numbers: original numbers of the n heads.
        value_bias: (n, d), the part of each head's output that does not depend on attention: gate · bias of the values,
            and constants of closed heads. Attention weights sum to 1, so averaging over tokens leaves a bias unchanged.
        weight: (H, n · d), weight of the attention output projection.
        bias: (H,), bias of the attention output projection.
        read: (N, H), input of the feed-forward part.
        feed_forward: (N, H), output of the feed-forward part, without its bias.
        feed_forward_bias: (H,), bias of this output.
        norms: the LayerNorm after attention, and the LayerNorm after the feed-forward part.
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
        """Return the sum of the outputs of all heads, without biases: (N, H)."""
        return (self.heads - self.value_bias).flatten(1) @ self.weight.T

    def attention_bias(self) -> Tensor:
        """Return the part of the attention output that does not depend on attention: (H,)."""
        return self.bias + self.weight @ self.value_bias.flatten()


@dataclass(frozen=True, eq=False)
class Trace:
    """A record of a forward pass, from which its hidden states can be decomposed.

    Attributes:
        embedded: (N, E), sum of word, position and segment embeddings before the first LayerNorm.
        norm: the first LayerNorm.
        lift: None where E = H.
        layers: a record for each layer.
    """

    embedded: Tensor
    norm: Norm
    lift: Lift | None
    layers: Sequence[LayerTrace]


def _normalised(stack: Tensor, norm: Norm) -> Tensor:
    """Push slots through a LayerNorm and return them, (K, N, H) → (K, N, H); the last slot is the correction."""
    scale = norm.gain / norm.std  # (N, H)
    scaled = stack * scale
    scaled[-1] += norm.bias - scale * norm.mean
    return scaled


def embedding_terms(trace: Trace) -> Tensor:
    """Return the terms of the input of the first layer, (4, N, H), where h = f = 0."""
    norm = trace.norm
    scale = norm.gain / norm.std
    scaled_embedding, correction = trace.embedded * scale, norm.bias - scale * norm.mean
    if trace.lift is not None:
        scaled_embedding, correction = (
            scaled_embedding @ trace.lift.weight.T,
            correction @ trace.lift.weight.T + trace.lift.bias,
        )
    zeros = torch.zeros_like(scaled_embedding)
    return torch.stack([scaled_embedding, zeros, zeros, correction])


def terms(trace: Trace) -> Iterator[Tensor]:
    """Yield the terms i, h, f, c after the embeddings and after each layer: L + 1 stacks (4, N, H)."""
    stack = embedding_terms(trace)
    yield stack
    for layer in trace.layers:
        stack = stack.clone()
        stack[1] += layer.attention()
        stack[3] += layer.attention_bias()
        stack = _normalised(stack, layer.norms[0])
        stack[2] += layer.feed_forward
        stack[3] += layer.feed_forward_bias
        stack = _normalised(stack, layer.norms[1])
        yield stack


def importance(parts: Tensor, full: Tensor) -> Tensor:
    """Compute μ(e, v) = e · v / ‖e‖² of each part v: ``parts`` (K, N, H), ``full`` (N, H) → (K, N).

    The values of parts that sum to the full vector sum to 1. They are not shares of a norm or a variance, so a value
    may be negative or exceed 1. μ is NaN where the full vector is 0.
    """
    return torch.einsum("knh,nh->kn", parts, full) / full.square().sum(-1)


def head_importance(trace: Trace, full: Tensor) -> list[Tensor]:
    """Compute μ of every head in the last layer's vectors ``full`` (N, H): a tensor (N, n) for each layer.

    A head adds W x to the vectors, and later LayerNorms multiply this term by k. The product e · (k · W x) is computed
    as (Wᵀ (k · e)) · x, so that no head needs a slot of size H in memory.
    """
    pull = full / full.square().sum(-1, keepdim=True)  # (N, H)
    shares = []
    for layer in reversed(trace.layers):
        for norm in reversed(layer.norms):
            pull = pull * norm.gain / norm.std
        back = (pull @ layer.weight).unflatten(1, layer.value_bias.shape)  # (N, n, d)
        shares.append((back * (layer.heads - layer.value_bias)).sum(-1))
    return shares[::-1]


# -- from a forward pass to a trace: hooks record inputs and outputs of modules and change nothing ---------------------


_FIRST_NORM = "embeddings.LayerNorm"
_LIFTS = {
    "electra": "embeddings_project",
    "roformer": "embeddings_project",
    "albert": "encoder.embedding_hidden_mapping_in",
    "rembert": "encoder.embedding_hidden_mapping_in",
}
"""Family → path of its linear map from embeddings to the first layer."""


def refusal(encoder: Encoder) -> str | None:
    """Return the reason why an encoder cannot be decomposed, as a sentence; None if it can."""
    if not encoder.context:
        return "an encoder without context consists only of its input, so it cannot be decomposed"
    why = obstacle(encoder)
    if why is None and getattr(encoder.config, "rotary_value", False):
        why = "this encoder rotates its values by their position"
    return why and f"{why}, so its vectors cannot be decomposed into i + h + f + c"


@torch.no_grad()
def trace(encoder: Encoder, batch: EncoderBatch, gates: Tensor | None = None) -> tuple[Trace, list[Tensor], Tensor]:
    """Run a forward pass over the sub-words of a batch and record it.

    Args:
        encoder: an encoder in evaluation mode for which :func:`refusal` returns None.
        gates: (L, A) in original numbering, as for the encoder itself.

    Returns:
        The trace; the hidden states, L + 1 tensors (N, H); and the slots of the N tokens in the batch, (N,), as row ·
        width + column. Tokens are all positions that are not padding, special tokens included, row by row.

    Raises:
        EncoderError: the encoder cannot be decomposed, or observe() refuses the batch.
    """
    why = refusal(encoder)
    if why is not None:
        raise EncoderError(why)
    modules = _modules(encoder)
    tokens = batch.attention_mask.flatten().nonzero().flatten()
    with _record_values(modules, tokens) as values_seen:
        observed = observe(encoder, batch, gates, want={"hidden"})
    hidden = [states.flatten(0, 1)[tokens] for states in observed.hidden]
    norm, lift = modules.pop("embeddings")[0], next(iter(modules.pop("lift", [])), None)
    layers = []
    for number in range(encoder.head_hooks.layers):
        parts = {name: (of_layers[number], values_seen[name, number]) for name, of_layers in modules.items()}
        layers.append(_layer(encoder, number, gates, parts))
    embedded = values_seen["embeddings", 0][0]
    raised = None if lift is None else Lift(lift.weight.detach(), _bias(lift))
    return Trace(embedded, _norm(norm, embedded), raised, layers), hidden, tokens


def _modules(encoder: Encoder) -> dict[str, list[Any]]:
    """Return the modules that are recorded, by their role.

    A role that occurs in every layer lists its modules in the order of the forward pass.
    """
    transformer = cast(PreTrainedModel, encoder.transformer)
    kind, family = encoder.config.model_type, encoder.head_hooks.family
    parts = POST_NORM[kind]
    modules: dict[str, list[Any]] = {"output": by_layer(transformer, family.output)}
    for name in ("first_norm", "inner", "outer", "second_norm"):
        modules[name] = by_layer(transformer, family.blocks + getattr(parts, name))
    base = transformer.base_model
    modules["embeddings"] = [base.get_submodule(_FIRST_NORM)]
    path = _LIFTS.get(kind)
    if path is not None and (path.startswith("encoder.") or hasattr(base, path)):
        modules["lift"] = [base.get_submodule(path)]
    return modules


@contextmanager
def _record_values(
    modules: dict[str, list[Any]], tokens: Tensor
) -> Iterator[dict[tuple[str, int], tuple[Tensor, Tensor]]]:
    """Record inputs and outputs of modules while this context is active.

    Yields:
        A dictionary that the forward pass fills: (role, number of the call) → input and output, (N, ...) each, for the
        given tokens only.
    """
    records: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def record(name: str, calls: Iterator[int], module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        records[name, next(calls)] = (args[0].flatten(0, 1)[tokens], output.flatten(0, 1)[tokens])

    handles = []
    for name, modules_of_name in modules.items():
        # Layers of ALBERT share a module, whose hook runs once for each layer.
        for module in dict.fromkeys(modules_of_name):
            calls = iter([place for place, listed_module in enumerate(modules_of_name) if listed_module is module])
            handles.append(module.register_forward_hook(cast(Callable, partial(record, name, calls))))
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()


def _layer(
    encoder: Encoder, number: int, gates: Tensor | None, parts: dict[str, tuple[Any, tuple[Tensor, Tensor]]]
) -> LayerTrace:
    """Assemble the record of a layer from its modules with their inputs and outputs (``parts``)."""
    output, (read, _) = parts["output"]
    kept_heads, width = encoder.head_hooks.kept_heads[number], encoder.head_hooks.width
    outer, (_, outer_output) = parts["outer"]
    outer_bias = _bias(outer)
    norms = [_norm(module, values_seen[0]) for module, values_seen in (parts["first_norm"], parts["second_norm"])]
    return LayerTrace(
        heads=read.unflatten(1, (len(kept_heads), width)),
        numbers=kept_heads,
        value_bias=_value_bias(encoder, number, gates),
        weight=output.weight.detach(),
        bias=_bias(output),
        read=parts["inner"][1][0],
        feed_forward=outer_output - outer_bias,
        feed_forward_bias=outer_bias,
        norms=(norms[0], norms[1]),
    )


def _value_bias(encoder: Encoder, number: int, gates: Tensor | None) -> Tensor:
    """Return the part of each head's output that does not depend on attention, (n, d): gate · bias of the values.

    If closed heads contribute constants (the kinds mean and optimal), (1 − gate) · constant is added.
    """
    transformer, places = cast(PreTrainedModel, encoder.transformer), encoder.head_hooks
    family, kept_heads = places.family, places.kept_heads[number]
    attention = by_layer(transformer, family.attention)[number]
    outputs = by_layer(transformer, family.output)
    bias = outputs[number].weight.new_zeros(len(kept_heads), places.width)
    if not kept_heads:
        return bias
    projection = getattr(attention, family.qkv[2])
    if projection.bias is not None:
        rows = family.rows("value", range(len(kept_heads)), len(kept_heads), places.width, places.groups[number]).to(
            bias.device
        )
        bias = bias + projection.bias[rows].view_as(bias)
    if family.value_bias and getattr(attention, family.value_bias, None) is not None:
        bias = bias + getattr(attention, family.value_bias).view_as(bias)
    if hasattr(outputs[number], "layer_gates"):  # ALBERT after removal: one module with gates for each call
        call = outputs[:number].count(outputs[number])
        bias = bias * outputs[number].layer_gates[call][:, None].to(bias)
    if gates is None:
        return bias
    bias = bias * gates[number, list(kept_heads)][:, None].to(bias)
    return (
        bias if encoder.head_constants is None else bias + places.shifts(gates, encoder.head_constants)[number].to(bias)
    )


def _norm(module: Any, read: Tensor) -> Norm:
    """Describe a LayerNorm by its parameters and by the mean and standard deviation of its input."""
    epsilon = float(module.eps if hasattr(module, "eps") else module.variance_epsilon)
    variance, mean = torch.var_mean(read, -1, correction=0, keepdim=True)
    return Norm(module.weight.detach(), module.bias.detach(), mean, (variance + epsilon).sqrt())


def _bias(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
