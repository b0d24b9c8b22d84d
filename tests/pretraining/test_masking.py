"""Which pieces are hidden, and the loss of them, against transformers' own."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from mtlprune.encoder.batch import Frame, collate
from mtlprune.encoder.pieces import Pieces
from mtlprune.pretraining.config import MaskConfig
from mtlprune.pretraining.setup import Masked, mask, prediction_loss

CLS, SEP, MASK = 2, 3, 4
PLAIN = torch.arange(5, 100)


def batch_of(*lengths: int):
    generator = np.random.default_rng(0)
    made = [Pieces(generator.integers(5, 100, n).astype(np.int32), np.ones(n, np.int32)) for n in lengths]
    return collate(made, Frame([CLS], [SEP], 0, None))


def drawn(batch, seed: int = 1, **settings: float) -> Masked:
    return mask(batch, MaskConfig(**settings), MASK, PLAIN, torch.Generator().manual_seed(seed))


def test_shares_are_as_asked_and_special_tokens_are_never_chosen():
    batch = batch_of(*[200] * 150, 3)
    found = drawn(batch)
    flat, shown = batch.input_ids.flatten(), found.shown.flatten()
    assert (batch.source.flatten()[found.places] >= 0).all() and torch.equal(flat[found.places], found.gold)
    number = len(found.places)
    assert number / 30003 == pytest.approx(0.15, abs=0.01)
    here = shown[found.places]
    assert ((here == MASK).sum() / number).item() == pytest.approx(0.8, abs=0.02)
    assert ((here == found.gold).sum() / number).item() == pytest.approx(0.1 + 0.1 / 95, abs=0.015)
    elsewhere = torch.ones_like(flat, dtype=torch.bool)
    elsewhere[found.places] = False
    assert torch.equal(shown[elsewhere], flat[elsewhere])


def test_masks_follow_from_the_seed_alone():
    batch = batch_of(9, 4, 7)
    one, same, other = drawn(batch), drawn(batch), drawn(batch, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(drawn(batch_of(60)).places, drawn(batch_of(60), seed=2).places) and other is not one


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta-v2", "modernbert", "electra"])
def test_the_loss_is_that_of_the_whole_model(tiny_encoder, family):
    model = AutoModelForMaskedLM.from_pretrained(tiny_encoder(family), attn_implementation="eager").eval()
    batch = batch_of(9, 4, 14)
    found = drawn(batch, share=0.5)
    labels = torch.full_like(batch.input_ids, -100)
    labels.view(-1)[found.places] = found.gold
    expected = model(input_ids=found.shown, attention_mask=batch.attention_mask, labels=labels).loss
    loss = prediction_loss(model, found, batch.attention_mask)
    assert loss.item() / len(found.gold) == pytest.approx(expected.item(), rel=1e-5)
    whole = model(input_ids=found.shown, attention_mask=batch.attention_mask).logits
    assert whole.ndim == 3  # the head sees all slots again


def test_nothing_hidden_is_no_loss(tiny_encoder):
    model = AutoModelForMaskedLM.from_pretrained(tiny_encoder("bert"), attn_implementation="eager")
    batch = batch_of(3)
    none = Masked(batch.input_ids, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    loss = prediction_loss(model, none, batch.attention_mask)
    loss.backward()
    assert loss.item() == 0
