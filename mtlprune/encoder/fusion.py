"""Hierarchical fusion: token vectors from several layers instead of only the last layer (Shi et al. 2022).

H_k are the hidden states after layer k, for all layers or the chosen layers, without the embeddings. Every token i is
treated separately.

    concat       O = [H_1; ...; H_L] W + b           W starts as the identity for the last H_k and 0 elsewhere
    max          O_ij = max_k (H_k)_ij
    gate         a_ik = softmax_k(H_k[i] · w_k + b_k),  O_i = Σ_k a_ik H_k[i]        starts with equal weights
    scalar_mix   O = γ Σ_k softmax(s)_k H_k          (Peters et al. 2018, ELMo)      starts with equal weights, γ = 1

The paper names the first three kinds and says that gates are computed for each token and learnt for each layer. The
formulas are ours. No random number is drawn, so that a run with fusion differs from a run without fusion in nothing
else. All computations are in float32.

Letters for shapes: L layers that are joined, H the hidden size.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.sources import fill, read_weights

Kind = Literal["none", "concat", "max", "gate", "scalar_mix"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FILE = "fusion.safetensors"


class Fusion(nn.Module):
    """A module that joins the hidden states of several layers.

    Args:
        kind: one of ``KINDS`` except "none".
        depth: the number of layers of the encoder.
        hidden: H.
        layers: the layers that are joined, counted from 1, by default all layers.

    Raises:
        EncoderError: the encoder does not have a chosen layer.
    """

    def __init__(self, kind: Kind, depth: int, hidden: int, layers: Sequence[int] | None = None) -> None:
        super().__init__()
        self.joined_layers = tuple(layers or range(1, depth + 1))
        if max(self.joined_layers) > depth:
            raise EncoderError(
                f"encoder.fusion_layers: expected layers from 1 to {depth}, which the encoder has, found "
                f"{max(self.joined_layers)}; leave it out to join all of them"
            )
        count = len(self.joined_layers)
        self.kind, self.layers, self.hidden = kind, count, hidden
        if kind == "concat":
            last = torch.zeros(hidden, count * hidden)
            last[:, -hidden:] = torch.eye(hidden)
            self.projection, self.bias = nn.Parameter(last), nn.Parameter(torch.zeros(hidden))
        elif kind == "gate":
            self.gate, self.bias = nn.Parameter(torch.zeros(count, hidden)), nn.Parameter(torch.zeros(count))
        elif kind == "scalar_mix":
            self.scores, self.scale = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.ones(()))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Join the hidden states of all layers of the encoder, (..., H) each, into (..., H) float32."""
        with torch.autocast(states[0].device.type, enabled=False):
            stacked = self._stack(states)
            if self.kind == "concat":
                return nn.functional.linear(stacked.flatten(-2), self.projection, self.bias)
            if self.kind == "max":
                return stacked.amax(-2)
            mixed = (self._mixture(stacked)[..., None] * stacked).sum(-2)
            return self.scale * mixed if self.kind == "scalar_mix" else mixed

    def weights(self, states: Sequence[Tensor]) -> Tensor:
        """Return the weight of each joined layer in the vector of a token: (..., L), which sum to 1.

        For gate and scalar_mix these are the softmax weights. For max, the weight of a layer is the share of features
        in which the layer has the largest value. For concat, it is the layer's share of the squared Frobenius norm of
        W, the same for all tokens.
        """
        stacked = self._stack(states)
        if self.kind == "max":
            return nn.functional.one_hot(stacked.argmax(-2), self.layers).float().mean(-2)
        if self.kind == "concat":
            norms = self.projection.square().sum(0).unflatten(0, (self.layers, self.hidden)).sum(1)
            return (norms / norms.sum()).expand(stacked.shape[:-1])
        return self._mixture(stacked)

    def _stack(self, states: Sequence[Tensor]) -> Tensor:
        """Stack the joined layers: (..., L, H) float32."""
        return torch.stack([states[layer - 1].float() for layer in self.joined_layers], -2)

    def _mixture(self, stacked: Tensor) -> Tensor:
        """Return the softmax weights of the kinds gate and scalar_mix: (..., L)."""
        scores = (stacked * self.gate).sum(-1) + self.bias if self.kind == "gate" else self.scores
        return torch.softmax(scores, -1).expand(stacked.shape[:-1])

    def save(self, folder: Path) -> None:
        """Write the parameters into the folder of a saved encoder. A fusion without parameters writes no file."""
        if self.state_dict():
            save_file({name: value.detach().contiguous() for name, value in self.state_dict().items()}, folder / _FILE)

    def read(self, folder: Path) -> None:
        """Load the parameters from the folder of a saved encoder, if the folder contains any.

        Raises:
            EncoderError: the parameters are damaged, or belong to a fusion of another kind or size.
        """
        if not (folder / _FILE).is_file():
            return
        message = (
            f"{folder / _FILE} does not hold a fusion of the kind {self.kind!r} for {self.layers} layers of size "
            f"{self.hidden}; restore the fusion with which the encoder was saved, or remove the file to start again"
        )
        fill(self, read_weights(folder / _FILE, EncoderError, "remove the file to start again"), EncoderError, message)
