"""Hierarchical fusion: word vectors from all layers instead of the last one, the remedy of Shi et al. (2022).

H_k are the hidden states after layer k = 1..L (the embeddings are left out); all is by token.

    concat       O = [H_1; ...; H_L] W + b           W begins with the identity at layer L and 0 elsewhere
    max          O_ij = max_k (H_k)_ij
    gate         a_ik = softmax_k(H_k[i] · w_k + b_k),  O_i = Σ_k a_ik H_k[i]        begins with equal weights
    scalar_mix   O = γ Σ_k softmax(s)_k H_k          (Peters et al. 2018, ELMo)      begins with equal weights, γ = 1

The published text gives the first three names and that gates are by token and learnt by layer; the forms are ours. No
random number is drawn, so that a run with fusion differs from one without in nothing else. Everything is float32.

Letters for shapes: L layers, H hidden size.
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
FILE = "fusion.safetensors"


class Fusion(nn.Module):
    """One way to join layers.

    Args:
        kind: one of KINDS but none.
        layers: L.
        hidden: H.
    """

    def __init__(self, kind: Kind, layers: int, hidden: int) -> None:
        super().__init__()
        self.kind, self.layers, self.hidden = kind, layers, hidden
        if kind == "concat":
            last = torch.zeros(hidden, layers * hidden)
            last[:, -hidden:] = torch.eye(hidden)
            self.projection, self.bias = nn.Parameter(last), nn.Parameter(torch.zeros(hidden))
        elif kind == "gate":
            self.gate, self.bias = nn.Parameter(torch.zeros(layers, hidden)), nn.Parameter(torch.zeros(layers))
        elif kind == "scalar_mix":
            self.scores, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(()))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Hidden states of L layers, each (..., H), to (..., H) float32, outside of autocast."""
        with torch.autocast(states[0].device.type, enabled=False):
            if self.kind == "concat":
                joined = torch.cat([state.float() for state in states], -1)  # (..., L · H)
                return nn.functional.linear(joined, self.projection, self.bias)
            stacked = torch.stack([state.float() for state in states], -2)  # (..., L, H)
            if self.kind == "max":
                return stacked.amax(-2)
            scores = (stacked * self.gate).sum(-1) + self.bias if self.kind == "gate" else self.scores
            weights = torch.softmax(scores, -1).expand(stacked.shape[:-1])  # (..., L)
            mixed = (weights[..., None] * stacked).sum(-2)
            return self.scale * mixed if self.kind == "scalar_mix" else mixed

    def save(self, folder: Path) -> None:
        """Write its parameters beside an encoder's files; nothing where it has none."""
        if self.state_dict():
            save_file({name: value.detach().contiguous() for name, value in self.state_dict().items()}, folder / FILE)

    def read(self, folder: Path) -> None:
        """Take the parameters that an encoder was saved with, where there are any.

        Raises:
            EncoderError: they are of another kind or size, or damaged.
        """
        if not (folder / FILE).is_file():
            return
        message = (
            f"{folder / FILE} does not hold a fusion of the kind {self.kind!r} for {self.layers} layers of size "
            f"{self.hidden}; take the fusion the encoder was saved with, or remove the file to begin anew"
        )
        fill(self, read_weights(folder / FILE, EncoderError, "remove the file to begin anew"), EncoderError, message)
