"""Pseudo-likelihoods: one masked position at a time as oracle; minimal pairs; models without a head."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import WORDS
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from mtlprune.analyses.syntax.pseudo_likelihood import MaskedLanguageModel, judge, pseudo_log_likelihoods
from mtlprune.corpora.blimp import MinimalPair, Paradigm
from mtlprune.encoder.pieces import EncoderError

FAMILIES = ["bert", "roberta", "distilbert", "electra", "modernbert", "mpnet", "albert", "deberta-v2"]
TEXTS = ["The dog saw a cat.", "Nobody unbelievably opened the letter quickly in London!", "He", "old dogs walked"]


def model_of(folder: Path) -> MaskedLanguageModel:
    torch.manual_seed(1)
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    return MaskedLanguageModel.of(model, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="module")
def bert(tiny_encoder: Callable[[str], Path]) -> MaskedLanguageModel:
    return model_of(tiny_encoder("bert"))


@torch.no_grad()
def by_loop(lm: MaskedLanguageModel, text: str, variant: str) -> float:
    made = lm.tokenizer(text, return_tensors="pt")
    ids, words, total = made["input_ids"][0], made.word_ids(0), 0.0
    for t, word in enumerate(words):
        if word is None or ids[t] in (lm.tokenizer.cls_token_id, lm.tokenizer.sep_token_id):
            continue
        shown = ids.clone()
        for u in range(t, len(ids)):
            if u == t or (variant == "word-l2r" and words[u] == word):
                shown[u] = lm.tokenizer.mask_token_id
        logits = lm.model(input_ids=shown[None], attention_mask=torch.ones_like(shown)[None]).logits[0, t]
        total += float(logits.double().log_softmax(-1)[ids[t]])
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_what_one_masked_position_after_another_gives(family, tiny_encoder, monkeypatch):
    lm = model_of(tiny_encoder(family))
    for variant in ("original", "word-l2r"):
        expected = [by_loop(lm, text, variant) for text in TEXTS]
        for slots in (1, 300, 10**6):
            monkeypatch.setattr("mtlprune.analyses.syntax.pseudo_likelihood.SLOTS", slots)
            assert pseudo_log_likelihoods(lm, TEXTS, variant) == pytest.approx(expected, abs=2e-4)


def test_a_model_in_training_is_evaluated_without_dropout_and_stays_in_training(tiny_encoder):
    lm = model_of(tiny_encoder("bert"))
    expected = pseudo_log_likelihoods(lm, TEXTS)
    for module in lm.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    lm.model.train()
    assert np.array_equal(pseudo_log_likelihoods(lm, TEXTS), expected) and lm.model.training


def pairs_of(number: int, seed: int) -> tuple[MinimalPair, ...]:
    generator = np.random.default_rng(seed)
    letters = [word for word in WORDS if word.isalpha()]
    return tuple(MinimalPair(*(" ".join(generator.choice(letters, 5)) for _ in range(2))) for _ in range(number))


def test_ties_are_wrong_and_means_are_over_paradigms(bert):
    pairs = pairs_of(30, 3)
    scores = pseudo_log_likelihoods(bert, [text for pair in pairs for text in pair]).reshape(-1, 2)
    sorted_pairs = tuple(MinimalPair(*(p if a > b else p[::-1])) for p, (a, b) in zip(pairs, scores, strict=True))
    same = tuple(MinimalPair(p.good, p.good) for p in pairs[:4])
    paradigms = [
        Paradigm("right", "a", "syntax", sorted_pairs),
        Paradigm("tied", "a", "syntax", same),
        Paradigm("wrong", "b", "syntax", tuple(MinimalPair(p.bad, p.good) for p in sorted_pairs[:7])),
    ]
    found = judge(bert, paradigms)
    assert found.paradigms == {"right": 100, "tied": 0, "wrong": 0}
    assert found.phenomena == {"a": 50, "b": 0} and found.overall == pytest.approx(100 / 3) and found.pairs == 41


def test_a_saved_model_is_loaded_and_an_encoder_or_a_run_refused(bert, tiny_encoder, tmp_path):
    bert.model.save_pretrained(tmp_path)
    bert.tokenizer.save_pretrained(tmp_path)
    loaded = MaskedLanguageModel.load(str(tmp_path))
    assert np.allclose(pseudo_log_likelihoods(loaded, TEXTS), pseudo_log_likelihoods(bert, TEXTS), atol=1e-5)
    with pytest.raises(EncoderError, match="an encoder without a head that predicts masked words"):
        MaskedLanguageModel.load(str(tiny_encoder("bert")))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("tasks: [pos]\n")
    with pytest.raises(EncoderError, match="is a run, which keeps its encoder without a head"):
        MaskedLanguageModel.load(str(run))


@pytest.mark.parametrize(
    ("texts", "variant", "words"),
    [
        (["the " * 90], "original", "tokens, and the model sees 64 at once"),
        ([""], "original", "has no pieces"),
        (["the"], "l2r", "expected the variant original or word-l2r, found 'l2r'"),
    ],
)
def test_what_has_no_pseudo_likelihood(bert, texts, variant, words):
    with pytest.raises(EncoderError, match=words):
        pseudo_log_likelihoods(bert, texts, variant)  # type: ignore[arg-type]
    with pytest.raises(EncoderError, match="found none"):
        judge(bert, [])
