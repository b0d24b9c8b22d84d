"""Words to sub-words, batches and windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import FAMILIES
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mtlprune.encoder.batch import Frame, collate
from mtlprune.encoder.pieces import EncoderError, Pieces, WordPieces

ROWS = 10_000


@pytest.fixture(params=FAMILIES)
def pieces(request: pytest.FixtureRequest, tiny_encoder) -> WordPieces:
    return WordPieces(AutoTokenizer.from_pretrained(tiny_encoder(request.param)), ROWS)


def test_words_have_the_form_they_have_in_running_text(pieces):
    words = ["old", "dogs", "walked", "unbelievably", "in", "the", "park", "qxz"]
    text = pieces.tokenizer("of " + " ".join(words), add_special_tokens=False)["input_ids"]
    before = pieces.tokenizer("of", add_special_tokens=False)["input_ids"]
    made = pieces.tokenize([words])[0]
    assert before + made.ids.tolist() == text
    assert made.counts.sum() == len(made.ids) and made.ids.dtype == made.counts.dtype == np.int32


def test_specials_are_those_of_the_tokenizer(pieces):
    full = pieces.tokenizer(pieces.lead + "dogs")["input_ids"]
    assert full == [*pieces.before, *pieces.tokenize([["dogs"]])[0].ids.tolist(), *pieces.after]


def test_every_word_has_a_piece_and_none_is_a_special_token(pieces):
    odd = ["\u200b", "\x00", "\ufe0f", "漢字", "🙂", "a b", " ", "\u00ad", "x" * 300]
    specials = [t for t in pieces.tokenizer.all_special_tokens if t != pieces.tokenizer.unk_token]
    forbidden = set(pieces.tokenizer.all_special_ids) - {pieces.tokenizer.unk_token_id}
    for word in odd + specials:
        made = pieces.tokenize([[word]])[0]
        assert len(made.ids) == made.counts[0] >= 1, word
        assert not forbidden & set(made.ids.tolist()), word


@pytest.mark.parametrize(("family", "word"), [("bert", "[MASK]"), ("roberta", "</s>"), ("mpnet", "<pad>")])
def test_a_word_that_looks_like_a_special_token_is_spelled(tiny_encoder, family, word):
    pieces = WordPieces(AutoTokenizer.from_pretrained(tiny_encoder(family)), ROWS)
    spelled = pieces.tokenizer.convert_ids_to_tokens(pieces.tokenize([[word]])[0].ids.tolist())
    assert "".join(spelled).replace("##", "").lstrip("Ġ").lower() == word.lower()


def test_one_by_one_equals_all_at_once(pieces):
    sentences = [["dogs", "walked"], ["Paris"], ["dogs", "the", "qxz"]]
    fresh = WordPieces(pieces.tokenizer, ROWS)
    for one, other in zip(pieces.tokenize(sentences), (fresh.tokenize([s])[0] for s in sentences), strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.counts.tolist() == other.counts.tolist()


def test_wrong_inputs_are_refused(tiny_encoder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder("bert"))
    with pytest.raises(EncoderError, match="sentence 1 of 2 has no words"):
        WordPieces(tokenizer, ROWS).tokenize([["a"], []])
    with pytest.raises(EncoderError, match="only 5 input embeddings"):
        WordPieces(tokenizer, 5).tokenize([["dogs"]])


def test_tokenizers_that_cannot_serve_are_refused(tiny_encoder):
    backend = AutoTokenizer.from_pretrained(tiny_encoder("modernbert")).backend_tokenizer
    from tokenizers import Tokenizer, models, processors

    bare = Tokenizer.from_str(backend.to_str())
    bare.post_processor = processors.ByteLevel()
    with pytest.raises(EncoderError, match="0 special tokens before"):
        WordPieces(PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]"), ROWS)
    with pytest.raises(EncoderError, match="neither an unknown nor a mask"):
        WordPieces(PreTrainedTokenizerFast(tokenizer_object=backend), ROWS)
    empty = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    with pytest.raises(EncoderError, match="no vocabulary"):
        WordPieces(PreTrainedTokenizerFast(tokenizer_object=empty, unk_token="[UNK]"), ROWS)


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=25), min_size=1, max_size=5),
    st.one_of(st.none(), st.integers(2, 13)),
    st.integers(1, 2),
    st.integers(1, 2),
)
def test_every_piece_comes_from_exactly_one_place(counts, capacity, front, back):
    frame = Frame([900 + i for i in range(front)], [950 + i for i in range(back)], 0, capacity)
    made, total = [], 0
    for row in counts:
        ids = np.arange(total, total + sum(row), dtype=np.int32)  # 0, a real piece here, is also the padding id
        total += sum(row)
        made.append(Pieces(ids, np.array(row, np.int32)))
    batch = collate(made, frame)
    width = batch.input_ids.shape[1]
    every = [count for row in counts for count in row]
    flat, mask = batch.input_ids.flatten(), batch.attention_mask
    assert capacity is None or width <= capacity + front + back
    assert flat[batch.piece_slot].tolist() == list(range(total)) == batch.source.flatten()[batch.piece_slot].tolist()
    assert batch.piece_word.tolist() == [word for word, n in enumerate(every) for _ in range(n)]
    assert batch.piece_word[batch.first_piece].tolist() == list(range(sum(map(len, counts))))
    assert batch.piece_counts.tolist() == every
    assert batch.sizes == [len(row) for row in counts] == batch.lengths.tolist()
    assert (batch.cls_slot == torch.arange(len(counts)) * width).all()
    assert flat[batch.cls_slot].tolist() == [900] * len(counts)
    assert flat[batch.sep_slot].tolist() == [950 + back - 1] * len(counts)
    # the row of the last special token holds the last piece; the row of the first holds the first
    ends = batch.piece_word.new_tensor(np.cumsum([sum(row) for row in counts]) - 1)
    assert torch.equal(batch.piece_slot[ends] // width, batch.sep_slot // width)
    # the mask covers a prefix of each row: special tokens and pieces, whatever their ids
    assert torch.equal(mask.sum(1), (batch.source >= 0).sum(1) + front + back)
    assert torch.equal(mask, mask.sort(1, descending=True).values)
    assert (flat[~mask.flatten().bool()] == 0).all()
