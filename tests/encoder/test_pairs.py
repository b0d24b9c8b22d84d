"""Pairs of texts: laid out as transformers' own tokenizers lay them out."""

import logging

import numpy as np
import pytest
import torch
from tiny import CONTRACT_FAMILIES

from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import Pieces
from mtlprune.sentence import Sentence

PAIRS = [(("the", "old", "dog"), ("nobody", "saw", "it")), (("a", "cat"), ("unbelievably", "new", "dogs", "walked"))]


def sentences() -> list[Sentence]:
    return [Sentence(str(k), a + b, split=len(a)).validate() for k, (a, b) in enumerate(PAIRS)]


@pytest.mark.parametrize("family", CONTRACT_FAMILIES)
def test_a_batch_is_that_of_the_tokenizer(tiny_encoder, family: str) -> None:
    encoder = Encoder.load(str(tiny_encoder(family)))
    batch = encoder.collate(encoder.tokenize_sentences([*sentences(), Sentence("2", ("the", "dog"))]))
    lead, tokenizer = encoder.word_pieces.lead, encoder.tokenizer
    theirs = [tokenizer(*(lead + " ".join(text) for text in pair), return_token_type_ids=True) for pair in PAIRS]
    for row, their in enumerate(theirs):
        size = len(their["input_ids"])
        assert batch.input_ids[row, :size].tolist() == their["input_ids"]
        assert batch.attention_mask[row].tolist() == [1] * size + [0] * (batch.input_ids.shape[1] - size)
        types = encoder.token_types(batch).get("token_type_ids")
        typed = getattr(encoder.config, "type_vocab_size", 0) > 1  # of DistilBERT the tokenizer alone has types
        known = their["token_type_ids"] if typed and "token_type_ids" in their else [0] * size
        assert (types[row, :size].tolist() if types is not None else [0] * size) == known
        with torch.no_grad():
            given = {"token_type_ids": torch.tensor([known])} if any(known) and types is not None else {}
            state = encoder.transformer(input_ids=torch.tensor([their["input_ids"]]), **given).last_hidden_state[0, 0]
            torch.testing.assert_close(encoder(batch).cls[row], state, rtol=1e-4, atol=1e-5)
    alone = encoder(encoder.collate(encoder.tokenize_sentences([Sentence("2", ("the", "dog"))])))
    torch.testing.assert_close(encoder(batch).select([2]).words, alone.words, rtol=1e-4, atol=1e-5)


def test_decoder_only_models_get_a_line_break(tiny_encoder) -> None:
    encoder = Encoder.load(str(tiny_encoder("gpt2")))
    [pieces] = encoder.tokenize_sentences(sentences()[:1])
    row = encoder.collate([pieces]).input_ids[0].tolist()
    assert row[1 + pieces.split] == encoder.tokenizer("\n")["input_ids"][0]


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_long_pairs_are_cut_with_a_warning(tiny_encoder, pooling: str, caplog: pytest.LogCaptureFixture) -> None:
    encoder = Encoder.load(str(tiny_encoder("bert")), pooling=pooling)
    long = Sentence("0", ("a", "dog", *["cat"] * 200), split=2)
    with caplog.at_level(logging.WARNING):
        pieces = encoder.tokenize_sentences([long, *sentences()])
    assert "1 of 3 pairs have more sub-words" in caplog.text
    batch = encoder.collate(pieces)
    theirs = encoder.tokenizer("a dog", " ".join(["cat"] * 200), truncation=True, max_length=encoder.limit)
    assert batch.input_ids[0].tolist() == theirs["input_ids"]
    words = encoder(batch).words[:202]
    shown = int((pieces[0].counts > 0).sum())
    assert words[:shown].abs().sum(1).gt(0).all() and not words[shown:].any()


def test_the_longer_text_is_cut() -> None:
    pair = Pieces(np.arange(10, dtype=np.int32), np.array([2, 4, 1, 3], np.int32), split=6)
    assert [(p.ids.tolist(), p.counts.tolist(), p.split) for p in (pair.cut(10), pair.cut(7))] == [
        (list(range(10)), [2, 4, 1, 3], 6),
        ([0, 1, 2, 3, 6, 7, 8], [2, 2, 1, 2], 4),
    ]
