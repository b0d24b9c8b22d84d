"""Which pieces are to be predicted, and what is shown in their place (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from mtlprune.encoder.batch import EncoderBatch
from mtlprune.pretraining.config import MaskConfig


class Masked(NamedTuple):
    """A batch with pieces hidden.

    Attributes:
        shown: (B, L) int64.
        places: (M,) int64, slots (row · L + column) of the pieces to be predicted.
        gold: (M,) int64.
    """

    shown: Tensor
    places: Tensor
    gold: Tensor


def mask(batch: EncoderBatch, settings: MaskConfig, mask_id: int, plain: Tensor, generator: torch.Generator) -> Masked:
    """Choose pieces one by one; special tokens and padding are never chosen.

    Args:
        batch: on the CPU.
        mask_id: of the mask token.
        plain: ids that may be shown as random ones.
        generator: of the CPU; all that is random is drawn from it.
    """
    ids = batch.input_ids
    chance, how = (torch.rand(ids.shape, generator=generator) for _ in range(2))
    others = plain[torch.randint(len(plain), ids.shape, generator=generator)]
    chosen = (chance < settings.share) & (batch.source >= 0)
    shown = ids.masked_fill(chosen & (how < settings.hidden), mask_id)
    swapped = chosen & (how >= settings.hidden) & (how < settings.hidden + settings.random)
    shown = torch.where(swapped, others, shown)
    places = chosen.flatten().nonzero()[:, 0]
    return Masked(shown, places, ids.flatten()[places])


def prediction_loss(model: PreTrainedModel, masked: Masked, there: Tensor) -> Tensor:
    """Σ of −log p of the hidden pieces, in float32; 0 where there are none.

    Args:
        masked: on the model's device.
        there: (B, L), 1 at tokens, 0 at padding.
    """
    with _head_at(model, masked.places, masked.shown.shape):
        logits = model(input_ids=masked.shown, attention_mask=there).logits  # (M, V)
    return functional.cross_entropy(logits.float(), masked.gold, reduction="sum")


@contextmanager
def _head_at(model: PreTrainedModel, places: Tensor, shape: torch.Size) -> Iterator[None]:
    """Let the head, the largest part of a small model, run on some slots alone."""

    def pick(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden: Tensor = args[0]
        return (hidden.flatten(0, 1)[places] if hidden.shape[:2] == shape else hidden, *args[1:])

    body = model.base_model
    first = next(child for child in model.children() if child is not body)
    handle = first.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()
