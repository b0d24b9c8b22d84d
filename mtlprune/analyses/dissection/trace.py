"""From one forward pass of a post-LN encoder to the :class:`Trace` from which its outcome is taken apart.

Hooks read the places; nothing is changed and no class of transformers is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.analyses.dissection.maths import LayerTrace, Lift, Norm, Trace
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.heads import by_layer
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.post_norm import POST_NORM

FIRST_NORM = "embeddings.LayerNorm"
LIFTS = {
    "electra": "embeddings_project",
    "roformer": "embeddings_project",
    "albert": "encoder.embedding_hidden_mapping_in",
}


def refusal(encoder: Encoder) -> str | None:
    """Why an encoder cannot be taken apart, as a sentence; None where it can."""
    if not encoder.context:
        return "an encoder without context has nothing but its input to take apart"
    config = encoder.config
    if config.model_type not in POST_NORM:
        return (
            f"{config.model_type} does not normalise after each block (it is no post-LN encoder), so its vectors do "
            f"not fall apart into i + h + f + c in this way; expected one of {', '.join(sorted(POST_NORM))}"
        )
    if getattr(config, "conv_kernel_size", 0):
        return f"this {config.model_type} has a convolution beside its first layer, which is in none of the four terms"
    if getattr(config, "rotary_value", False):
        return "this encoder rotates its values by their position, so the bias of its values is no constant"
    family = encoder.places.family
    attentions = by_layer(cast(PreTrainedModel, encoder.transformer), family.attention)
    if any(getattr(attention, name, None) is not None for attention in attentions for name in family.mixers):
        return "this encoder mixes its heads with each other, so that their rows no longer sum to 1"
    return None


@torch.no_grad()
def trace(encoder: Encoder, batch: EncoderBatch, gates: Tensor | None = None) -> tuple[Trace, list[Tensor], Tensor]:
    """One forward pass over the sub-words of a batch.

    Args:
        encoder: in evaluation mode, one that :func:`refusal` has nothing against.
        gates: (L, A) in original numbering, as for the encoder itself.

    Returns:
        The trace, the hidden states (L + 1 times (N, H)), and the slots (N,) of its tokens in the batch, row · width +
        column. Tokens are all that is no padding, special tokens included, row by row.

    Raises:
        EncoderError: it cannot be taken apart, or observe() refuses the batch.
    """
    why = refusal(encoder)
    if why is not None:
        raise EncoderError(why)
    modules = _modules(encoder)
    tokens = batch.attention_mask.flatten().nonzero().flatten()
    with _seen(modules, tokens) as seen:
        observed = observe(encoder, batch, gates, want={"hidden"})
    hidden = [states.flatten(0, 1)[tokens] for states in observed.hidden]
    norm, lift = modules.pop("embeddings")[0], next(iter(modules.pop("lift", [])), None)
    layers = []
    for number in range(encoder.places.layers):
        parts = {name: (found[number], seen[name, number]) for name, found in modules.items()}
        layers.append(_layer(encoder, number, gates, parts))
    embedded = seen["embeddings", 0][0]
    raised = None if lift is None else Lift(lift.weight.detach(), _bias(lift))
    return Trace(embedded, _norm(norm, embedded), raised, layers), hidden, tokens


def _modules(encoder: Encoder) -> dict[str, list[Any]]:
    """The modules that are read, those of layers in the order of the forward pass."""
    transformer = cast(PreTrainedModel, encoder.transformer)
    kind, family = encoder.config.model_type, encoder.places.family
    parts = POST_NORM[kind]
    stack = family.attention.partition(".*.")[0] + ".*"
    found: dict[str, list[Any]] = {"output": by_layer(transformer, family.output)}
    for name in ("first_norm", "inner", "outer", "second_norm"):
        found[name] = by_layer(transformer, f"{stack}.{getattr(parts, name)}")
    base = transformer.base_model
    found["embeddings"] = [base.get_submodule(FIRST_NORM)]
    path = LIFTS.get(kind)
    if path is not None and (path.startswith("encoder.") or hasattr(base, path)):
        found["lift"] = [base.get_submodule(path)]
    return found


@contextmanager
def _seen(modules: dict[str, list[Any]], tokens: Tensor) -> Iterator[dict[tuple[str, int], tuple[Tensor, Tensor]]]:
    """What modules read and gave, for tokens only: (name, the how manyth call) to (N, ...) twice."""
    found: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def record(name: str, calls: Iterator[int], module: nn.Module, args: tuple[Tensor, ...], given: Tensor) -> None:
        found[name, next(calls)] = (args[0].flatten(0, 1)[tokens], given.flatten(0, 1)[tokens])

    handles = []
    for name, listed in modules.items():
        for module in dict.fromkeys(listed):
            calls = iter([place for place, other in enumerate(listed) if other is module])
            handles.append(module.register_forward_hook(cast(Callable, partial(record, name, calls))))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _layer(
    encoder: Encoder, number: int, gates: Tensor | None, parts: dict[str, tuple[Any, tuple[Tensor, Tensor]]]
) -> LayerTrace:
    output, (read, _) = parts["output"]
    kept, width = encoder.places.kept[number], encoder.places.width
    outer, (_, given) = parts["outer"]
    outer_bias = _bias(outer)
    norms = [_norm(module, seen[0]) for module, seen in (parts["first_norm"], parts["second_norm"])]
    return LayerTrace(
        heads=read.unflatten(1, (len(kept), width)),
        numbers=kept,
        value_bias=_value_bias(encoder, number, gates),
        weight=output.weight.detach(),
        bias=_bias(output),
        read=parts["inner"][1][0],
        feed_forward=given - outer_bias,
        feed_forward_bias=outer_bias,
        norms=(norms[0], norms[1]),
    )


def _value_bias(encoder: Encoder, number: int, gates: Tensor | None) -> Tensor:
    """(n, d): gate · bias of the values, for the heads that a layer has; with mean ablation + (1 − gate) · mean."""
    transformer, places = cast(PreTrainedModel, encoder.transformer), encoder.places
    family, kept = places.family, places.kept[number]
    attention = by_layer(transformer, family.attention)[number]
    outputs = by_layer(transformer, family.output)
    found = outputs[number].weight.new_zeros(len(kept), places.width)
    if not kept:
        return found
    projection = getattr(attention, family.qkv[2])
    if projection.bias is not None:
        group = getattr(attention, family.grouping) if family.grouping else 1
        rows = family.rows("value", range(len(kept)), len(kept), places.width, group).to(found.device)
        found = found + projection.bias[rows].view_as(found)
    if family.value_bias and getattr(attention, family.value_bias, None) is not None:
        found = found + getattr(attention, family.value_bias).view_as(found)
    if hasattr(outputs[number], "layer_gates"):  # ALBERT after removal: gates that differ between calls of one module
        call = outputs[:number].count(outputs[number])
        found = found * outputs[number].layer_gates[call][:, None].to(found)
    if gates is None:
        return found
    found = found * gates[number, list(kept)][:, None].to(found)
    return found if encoder.head_means is None else found + places.shifts(gates, encoder.head_means)[number].to(found)


def _norm(module: Any, read: Tensor) -> Norm:
    epsilon = float(module.eps if hasattr(module, "eps") else module.variance_epsilon)
    variance, mean = torch.var_mean(read, -1, correction=0, keepdim=True)
    return Norm(module.weight.detach(), module.bias.detach(), mean, (variance + epsilon).sqrt())


def _bias(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
