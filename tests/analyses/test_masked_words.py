"""Masked words from subsets of terms: what is chosen and hidden, the own head, learnt projections, what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from found import sentences_of
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import Subject, batches
from mtlprune.analyses.vectors.dissection import LEARNT_MLM, MLM, SUBSETS, TERMS, DissectionOptions
from mtlprune.analyses.vectors.dissection.masked import (
    MaskedItems,
    learnt_answers,
    masked_items,
    prediction_head_scores,
    score_masked,
)
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pseudo_likelihood import MaskedLanguageModel

FAMILIES = ["bert", "roberta", "distilbert", "albert", "electra", "deberta-v2"]
REQUEST = Request((), Path("nowhere"), DissectionOptions(tasks=MLM, epochs=3))


@pytest.fixture
def language_model(tiny_encoder, tmp_path) -> Callable[[str], tuple[MaskedLanguageModel, Subject]]:
    """A random masked language model of a family whose head gives every piece another score."""

    def make(family: str) -> tuple[MaskedLanguageModel, Subject]:
        folder, source = tmp_path / family, tiny_encoder(family)
        torch.manual_seed(0)
        model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(source))
        with torch.no_grad():
            for parameter in (one for one in model.parameters() if one.ndim > 1):
                parameter += 0.5 * torch.randn(parameter.shape)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        encoder = Encoder.load(str(folder), attention="eager")
        return MaskedLanguageModel.load(str(folder)), Subject("pretrained", str(folder), 0, encoder, None, str(folder))

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_all_terms_give_the_prediction_head_what_the_model_gives_it(language_model, family):
    lm, subject = language_model(family)
    sentences = sentences_of([15, 12, 15, 9])
    given: list[tuple[Tensor, Tensor]] = []
    subject.encoder.transformer.register_forward_pre_hook(
        lambda module, args, named: given.append((named["input_ids"], named["attention_mask"])), with_kwargs=True
    )
    items = masked_items(subject, sentences, REQUEST)
    ids, mask = given[0]
    [(_, batch)] = batches(subject.encoder, sentences)
    slots = batch.piece_slot[np.random.default_rng([0, 14]).random(len(batch.piece_slot)) < 0.15]
    assert torch.equal(batch.input_ids.flatten()[slots], items.gold) and len(slots) > 3
    assert torch.equal(ids.flatten()[slots], items.input_ids)
    with torch.no_grad():
        expected = lm.model(input_ids=ids, attention_mask=mask).logits.flatten(0, 1)[slots]
    scores = prediction_head_scores(lm.model, items.terms.sum(0), int(ids[0, 0]))
    assert torch.equal(scores.argmax(-1), expected.argmax(-1)) and len(set(expected.argmax(-1).tolist())) > 1
    assert torch.allclose(scores, expected, atol=1e-3)


def test_what_is_chosen_how_it_is_shown_and_how_it_is_split(language_model):
    lm, subject = language_model("bert")
    sentences = sentences_of([20] * 600)
    items = masked_items(subject, sentences, REQUEST)
    pieces = sum(len(p.ids) for p in subject.encoder.tokenize_all([one.words for one in sentences]))
    total = len(items.gold)
    assert total / pieces == pytest.approx(0.15, abs=0.01)
    hidden = (items.input_ids == lm.tokenizer.mask_token_id).double().mean()
    same = (items.input_ids == items.gold).double().mean()
    assert float(hidden) == pytest.approx(0.8, abs=0.03) and float(same) == pytest.approx(0.1, abs=0.03)
    special = torch.tensor(lm.tokenizer.all_special_ids)
    others = items.input_ids[(items.input_ids != items.gold) & (items.input_ids != lm.tokenizer.mask_token_id)]
    assert len(others) and not torch.isin(others, special).any()
    assert items.part.bincount().tolist() == pytest.approx([0.8 * total, 0.1 * total, 0.1 * total], abs=1)
    assert torch.equal(masked_items(subject, sentences, REQUEST).input_ids, items.input_ids)
    assert not torch.equal(masked_items(subject, sentences, replace(REQUEST, seed=1)).part, items.part)


def planted() -> MaskedItems:
    """1,500 pieces 3 to 8, 3 most frequent, that f alone knows; i, h and c are noise."""
    generator, number = torch.Generator().manual_seed(0), 1500
    gold = 3 + torch.randint(0, 9, (number,), generator=generator).sub(3).clamp(min=0)
    terms = 0.3 * torch.randn(4, number, 8, generator=generator)
    terms[TERMS.index("f")] = 3 * torch.nn.functional.one_hot(gold - 3, 8) + 40.0
    part = torch.arange(number) * 10 // number
    return MaskedItems(terms, gold, gold, np.arange(number), (part - 7).clamp(min=0))


def test_a_projection_learns_what_a_term_holds_and_frequencies_of_nothing():
    items = planted()
    answers = learnt_answers(items, 40, 0)
    right = (answers == items.gold[items.part == 2]).double().mean(1)
    for subset, share in zip(SUBSETS, right.tolist(), strict=True):
        assert share > 0.9 if "f" in subset else share < 0.6
    assert set(answers[0].tolist()) == {3}  # the empty subset: the most frequent piece
    assert torch.equal(learnt_answers(items, 40, 0), answers)
    shuffled = replace(items, gold=items.gold.where(items.part != 2, 99))
    assert torch.equal(learnt_answers(shuffled, 40, 0), answers)  # what is scored is not learnt from


def test_a_head_that_reads_one_term_is_right_with_that_term_alone(language_model, monkeypatch):
    lm, subject = language_model("bert")
    terms = torch.zeros(4, 200, 32)
    for place, term in enumerate(terms):  # each in eight features of its own
        term[:, 8 * place : 8 * place + 8] = torch.randn(200, 8, generator=torch.Generator().manual_seed(place))
    with torch.no_grad():
        lm.model.cls.predictions.transform.dense.weight[:, [*range(16), *range(24, 32)]] = 0  # it reads those of f
    gold = prediction_head_scores(lm.model, terms[2], 5).argmax(-1)
    items = MaskedItems(terms, gold, gold, np.zeros(200, np.int64), torch.arange(200).ge(100).long() + 1)
    items.part[:80] = 0
    monkeypatch.setattr("mtlprune.analyses.vectors.dissection.masked.masked_items", lambda *given: items)
    own, _ = score_masked(subject, lm, sentences_of([30]), range(1), REQUEST)
    assert gold.bincount().max() < 150
    for row, subset in enumerate(SUBSETS):
        assert own["score"][row] == 1 if "f" in subset else own["score"][row] < 0.9
        assert (own["answers"][0, row] == own["answers"][0, 0]).all() or "f" in subset


def test_scores_of_both(language_model):
    lm, subject = language_model("bert")
    sentences = sentences_of([30] * 60)
    own, learnt = score_masked(subject, lm, sentences, range(2), REQUEST)
    assert (own["task"], learnt["task"]) == (MLM, LEARNT_MLM)
    assert own["counts"].shape == (1, 16, 60, 3) and learnt["counts"].shape == (2, 16, 60, 3)
    assert learnt["score"][0] == pytest.approx(learnt["baseline"]) and learnt["score_sd"][0] == 0
    assert own["counts"][0, :, :, 1].sum(1).tolist() == [own["test"]] * 16 and own["train"] == 0 < learnt["train"]
