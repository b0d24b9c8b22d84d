"""Masked words from partial sums, by the encoder folder's own masked-language-model head.

15% of the sub-words are chosen; of these 80% become the mask token, 10% a random sub-word, 10% stay. The head of the
folder reads Σ_{v in S} v instead of e. Nothing is trained.

Source: Mickus, Paperno and Constant (2022), section 5.1, "default" head. Their "learned" projection is not made here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from mtlprune.analyses.dissection import maths as dissection
from mtlprune.analyses.dissection.trace import trace
from mtlprune.analyses.reading import batches
from mtlprune.analyses.subjects import Subject
from mtlprune.encoder.sources import locate, quiet
from mtlprune.sentence import Sentence

log = logging.getLogger(__name__)

CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1


@dataclass(frozen=True, eq=False)
class MaskedScores:
    """``accuracy`` (16,) on ``items`` sub-words; ``agreement`` (16, 16), the share of equal answers."""

    items: int
    accuracy: NDArray[np.float64]
    agreement: NDArray[np.float64]


def masked_head(name: str) -> nn.Module | None:
    """What turns hidden states into scores of the vocabulary, where the folder holds all its weights; else None."""
    try:
        with quiet():
            model, report = AutoModelForMaskedLM.from_pretrained(locate(name), output_loading_info=True)
    except (ValueError, OSError) as error:  # no such head for this model type
        log.info("%s has no masked-language-model head: %s", name, error)
        return None
    base = model.base_model_prefix + "."
    if any(not key.startswith(base) for key in report["missing_keys"]):
        return None
    for part in (*HEADS,):
        if hasattr(model, part):
            return _Head(model, part).eval()
    return None


HEADS = ("cls", "lm_head", "generator_predictions", "vocab_transform", "predictions", "lm_predictions")


class _Head(nn.Module):
    """The head's modules in the order in which the model calls them."""

    def __init__(self, model: Any, part: str) -> None:
        super().__init__()
        names = {
            "generator_predictions": ("generator_predictions", "generator_lm_head"),
            "vocab_transform": ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
        }.get(part, (part,))
        self.parts = nn.ModuleList()
        self.steps = [getattr(model, name) for name in names]
        self.parts.extend(step for step in self.steps if isinstance(step, nn.Module))

    def forward(self, hidden: Tensor) -> Tensor:
        for step in self.steps:
            hidden = step(hidden)
        return hidden


@torch.no_grad()
def score_masked(
    subject: Subject, sentences: Sequence[Sentence], seed: int, device: str = "cpu"
) -> MaskedScores | None:
    """Accuracy of the folder's head on every partial sum; None where it has none."""
    head = masked_head(subject.name)
    if head is None:
        return None
    head.to(device)
    encoder, generator = subject.encoder, torch.Generator().manual_seed(seed)
    mask = encoder.word_pieces.mask
    answers, gold = [], []
    for _, batch in batches(encoder, sentences, device):
        pieces = batch.piece_slot
        draw, kind = torch.rand(2, len(pieces), generator=generator).to(device)
        others = torch.randint(len(encoder.tokenizer), (len(pieces),), generator=generator).to(device)
        chosen = pieces[draw < CHOSEN]
        true = batch.input_ids.flatten()[pieces]
        shown = torch.where(kind < MASKED, mask, torch.where(kind < MASKED + RANDOM, others, true))
        ids = batch.input_ids.flatten().index_copy(0, chosen, shown[draw < CHOSEN])
        batch.input_ids = ids.view_as(batch.input_ids)
        traced, _, tokens = trace(encoder, batch, subject.gates)
        *_, stack = dissection.terms(traced)
        asked = stack[:, torch.searchsorted(tokens, chosen)]  # (4, m, H)
        sums = torch.einsum("sv,vmh->smh", dissection.subset_masks(asked), asked)
        answers.append(torch.stack([head(part).argmax(-1) for part in sums]).cpu())
        gold.append(true[draw < CHOSEN].cpu())
    told, wanted = torch.cat(answers, 1), torch.cat(gold)
    agreement = (told[:, None] == told[None]).double().mean(-1)
    accuracy = (told == wanted).double().mean(1)
    return MaskedScores(len(wanted), accuracy.numpy(), agreement.numpy())
