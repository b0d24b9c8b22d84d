"""What a trained fusion makes of the layers: the mean over tokens of the weight each layer has.

Letters for shapes: B sentences, T places, L layers.
"""

from __future__ import annotations

from typing import Any

import torch

from mtlprune.encoder.fusion import Fusion
from mtlprune.encoder.observe import Observation


class FusionWeights:
    """Sums over batches.

    Args:
        fusion: of the encoder that is observed.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.tokens = 0
        self.sums = torch.zeros(fusion.layers, dtype=torch.float64)
        self.squares = torch.zeros_like(self.sums)

    @torch.no_grad()
    def add(self, seen: Observation) -> None:
        """Count a batch in which hidden states were observed; all tokens, special ones too, no padding."""
        weights = self.fusion.weights([*seen.hidden[1:-1], seen.last])  # (B, T, L)
        held = weights[seen.batch.attention_mask.bool()].double().cpu()
        self.tokens += len(held)
        self.sums += held.sum(0)
        self.squares += held.square().sum(0)

    def record(self) -> dict[str, Any]:
        """``kind``, and for each layer from the first ``mean`` and ``sd`` over tokens."""
        mean = self.sums / self.tokens
        deviation = (self.squares / self.tokens - mean.square()).clamp(min=0).sqrt()
        rows = zip(mean.tolist(), deviation.tolist(), strict=True)
        return {"kind": self.fusion.kind, "weights": [{"mean": m, "sd": d} for m, d in rows]}
