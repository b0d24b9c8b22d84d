"""The LayerNorms and feed-forward matrices of post-LN encoders, and the norms of their weights.

A post-LN layer maps the hidden states H to LN₂(H' + W₂ φ(W₁ H')), where H' = LN₁(H + attention(H)). Encoders that
normalise before the blocks instead (ModernBERT, EuroBERT) have no such layers. The analyses of smoothing and dissection
use this module.

Letters for shapes: L layers, A heads in a layer before any was removed, n heads in a layer now, d values in the output
of a head, H the hidden size.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.encoder.families import by_layer, family_of, matrix
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError

LIPSCHITZ = {
    "relu": 1.0,
    "gelu": 1.1290,
    "gelu_new": 1.1290,
    "gelu_fast": 1.1290,
    "gelu_pytorch_tanh": 1.1290,
    "silu": 1.0999,
    "swish": 1.0999,
    "tanh": 1.0,
}
"""The Lipschitz constant (the largest slope) of each activation, rounded up."""


class LayerNorms(NamedTuple):
    """The norms of the weights of one post-LN layer, from which bounds of smoothing are computed."""

    gains: tuple[float, float]
    """The largest absolute gain of the LayerNorm after attention, and of the LayerNorm after the feed-forward part."""
    epsilons: tuple[float, float]
    """The epsilons of the two LayerNorms."""
    feed_forward: tuple[float, float]
    """The spectral norms of the two feed-forward matrices W₁ and W₂."""
    lipschitz: float
    """The largest slope of the activation."""
    heads: Tensor
    """(n,), the norm |z| ‖W_O W_V‖₂ of each remaining head, where z is its gate."""

    @property
    def largest(self) -> float:
        """The largest singular value s among the feed-forward matrices and the gated maps W_O W_V of heads."""
        return max([*self.feed_forward, *self.heads.tolist()])

    @property
    def open(self) -> int:
        """The number h of heads that are not closed."""
        return int((self.heads > 0).sum())


@dataclass(frozen=True)
class _Parts:
    """The paths of the LayerNorms and feed-forward matrices within a layer."""

    first_norm: str = "attention.output.LayerNorm"
    inner: str = "intermediate.dense"
    outer: str = "output.dense"
    second_norm: str = "output.LayerNorm"


POST_NORM: dict[str, _Parts] = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "camembert", "electra", "roformer", "deberta", "deberta-v2"), _Parts()
    ),
    **dict.fromkeys(("ernie", "data2vec-text", "bert-generation", "roc_bert", "rembert", "splinter", "luke"), _Parts()),
    "distilbert": _Parts("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
    "albert": _Parts(
        "albert_layers.0.attention.LayerNorm",
        "albert_layers.0.ffn",
        "albert_layers.0.ffn_output",
        "albert_layers.0.full_layer_layer_norm",
    ),
    "mpnet": _Parts("attention.LayerNorm"),
}


def obstacle(encoder: Encoder) -> str | None:
    """Return the beginning of a sentence that says why an encoder has no plain post-LN layers, or None if it has."""
    config, transformer = encoder.config, cast(PreTrainedModel, encoder.transformer)
    if config.model_type not in POST_NORM:
        return f"{config.model_type} does not normalise after each block (it is not a Post-LN encoder)"
    if getattr(config, "conv_kernel_size", 0):
        return f"this {config.model_type} has a convolution in parallel with its first layer"
    family = family_of(transformer)
    attentions = by_layer(transformer, family.attention)
    if any(getattr(attention, name, None) is not None for attention in attentions for name in family.mixers):
        return "this encoder mixes its heads with each other"
    return None


def refusal(encoder: Encoder) -> str | None:
    """Return a sentence that says why bounds for post-LN layers do not hold for an encoder, or None if they hold."""
    reason = obstacle(encoder)
    if reason is None and activation(encoder) not in LIPSCHITZ:
        reason = f"the slope of the activation {activation(encoder)!r} is not known (known: {', '.join(LIPSCHITZ)})"
    return reason and f"{reason}, so σ₁, σ₂, the factor v and the bound are not defined for it and left out"


def activation(encoder: Encoder) -> str:
    """Return the name of the activation in the feed-forward part of the layers."""
    return str(getattr(encoder.config, "hidden_act", None) or getattr(encoder.config, "activation", "?"))


@torch.no_grad()
def read_layers(encoder: Encoder, gates: Tensor | None) -> list[LayerNorms]:
    """Compute the norms of the weights of every layer, in float64.

    Args:
        encoder: an encoder for which :func:`refusal` returns None.
        gates: (L, A) gates in the original numbering, None without gates.

    Raises:
        EncoderError: this version of transformers arranges the modules of the family differently.
    """
    transformer = cast(PreTrainedModel, encoder.transformer)
    parts, family = POST_NORM[encoder.config.model_type], family_of(transformer)
    heads = head_norms(encoder, gates)
    layers = []
    names = (parts.first_norm, parts.second_norm, parts.inner, parts.outer)
    modules = [by_layer(transformer, family.blocks + name) for name in names]
    for first, second, inner, outer, norms in zip(*modules, heads, strict=True):
        layers.append(
            LayerNorms(
                (_gain(first), _gain(second)),
                (_epsilon(first), _epsilon(second)),
                (_spectral(inner), _spectral(outer)),
                LIPSCHITZ[activation(encoder)],
                norms,
            )
        )
    return layers


@torch.no_grad()
def head_norms(encoder: Encoder, gates: Tensor | None) -> list[Tensor]:
    """Compute |z| ‖W_O W_V‖₂ of each remaining head, where z is its gate: (n,) float64 on the CPU for each layer.

    This works for every family in the table, not only for post-LN encoders.
    """
    transformer, head_hooks = cast(PreTrainedModel, encoder.transformer), encoder.head_hooks
    family = head_hooks.family
    outputs = by_layer(transformer, family.output)
    attentions = by_layer(transformer, family.attention)
    result = []
    for layer, (attention, output, heads) in enumerate(zip(attentions, outputs, head_hooks.kept_heads, strict=True)):
        n = len(heads)
        if not n:
            result.append(torch.zeros(0, dtype=torch.float64))
            continue
        rows = family.rows("value", range(n), n, head_hooks.width, head_hooks.groups[layer])
        value = matrix(getattr(attention, family.qkv[2])).cpu().double()[rows].unflatten(0, (n, head_hooks.width))
        columns = matrix(output).cpu().double()[:, family.columns(range(n), head_hooks.width)]  # (H, n · d)
        out = columns.unflatten(1, (n, head_hooks.width)).transpose(0, 1)  # (n, H, d)
        norms = _product_norm(out, value)
        # After removal, a module that several layers of ALBERT share may hold gates, with one row for each of these
        # layers. The row of a layer is the number of earlier layers with the same module.
        if hasattr(output, "layer_gates"):
            norms = norms * output.layer_gates[outputs[:layer].count(output)].cpu().double().abs()
        if gates is not None:
            norms = norms * gates[layer, list(heads)].cpu().double().abs()
        result.append(norms)
    return result


def _product_norm(left: Tensor, right: Tensor) -> Tensor:
    """Compute ‖left · right‖₂ by way of small d × d matrices: (..., H, d), (..., d, H) → (...)."""
    first, second = torch.linalg.qr(left).R, torch.linalg.qr(right.transpose(-1, -2)).R
    return torch.linalg.matrix_norm(first @ second.transpose(-1, -2), ord=2)


def _gain(norm: Any) -> float:
    if getattr(norm, "weight", None) is None:
        raise EncoderError(f"expected a LayerNorm with a gain, found {type(norm).__name__} without one")
    return float(norm.weight.double().abs().amax())


def _epsilon(norm: Any) -> float:
    return float(norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)


def _spectral(linear: nn.Linear) -> float:
    return float(torch.linalg.matrix_norm(linear.weight.double(), ord=2))
