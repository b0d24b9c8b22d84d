"""Mean ablation: a closed head contributes its mean output instead of nothing (Bhaskar, Friedman and Chen 2024).

A head at gate z contributes z · output + (1 − z) · mean (`HeadPlaces.gated`). The mean is one vector a head, over all
slots of the windows of the training sentences, special tokens included and padding left out, with all heads open.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.encoder.batch import by_length
from mtlprune.encoder.heads import by_layer
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError, Pieces

SLOTS = 8192
"""Of a batch, padding counted."""


@torch.no_grad()
def measure_means(encoder: Encoder, pieces: Sequence[Pieces]) -> Tensor:
    """The mean output of every head, (L, A, d) float32, in evaluation mode and without autocast.

    Args:
        encoder: with all its heads.
        pieces: the sentences.
    """
    places, was = encoder.places, encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    sums, slots = torch.zeros(places.layers, places.heads, places.width, dtype=torch.float64, device=device), 0
    for rows in by_length([len(p.ids) for p in pieces], lambda longest: SLOTS // max(1, longest)):
        batch = encoder.collate([pieces[row] for row in rows]).to(device)
        there = batch.attention_mask.bool()  # (R, T)
        with places.watched() as seen:
            encoder(batch)
        sums += torch.stack([heads[there].sum(0, dtype=torch.float64) for heads in seen])
        slots += int(there.sum())
    encoder.train(was)
    return (sums / slots).float()


@torch.no_grad()
def fold_means(encoder: Encoder, gates: Tensor) -> None:
    """Add what mean ablation adds to gated heads to the biases of the attention output projections, in place; to be
    called before gates go into their weights or heads out of them. Nothing happens where there are no means.

    Args:
        gates: (L, A), in original numbering.

    Raises:
        EncoderError: a projection has no bias, or layers that share one (ALBERT) would need different ones. The encoder
            is untouched.
    """
    if encoder.head_means is None:
        return
    places = encoder.places
    outputs: list[Any] = by_layer(cast(PreTrainedModel, encoder.transformer), places.family.output)
    added: dict[Any, Tensor] = {}
    for layer, (output, shift) in enumerate(zip(outputs, places.shifts(gates, encoder.head_means), strict=True)):
        found = output.weight.double() @ shift.flatten().to(output.weight).double()  # (H,)
        if output.bias is None and bool(found.any()):
            why = "its attention output projection has no bias"
        elif not torch.equal(added.setdefault(output, found), found):
            why = (
                f"layers {outputs.index(output) + 1} and {layer + 1} share their weights and would need different ones"
            )
        else:
            continue
        raise EncoderError(
            f"the means of closed heads cannot be folded into the biases of this {encoder.config.model_type}: {why}; "
            "expected an encoder whose layers have biases of their own, or a run with pruning.closed: zero"
        )
    for output, bias in added.items():
        if output.bias is not None:
            output.bias.add_(bias.to(output.bias))
    encoder.head_means = None
