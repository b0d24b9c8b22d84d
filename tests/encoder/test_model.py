"""The encoder: words to sub-words, batches and windows, one vector a word, whatever family, padding, order, length."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import FAMILIES, make_tiny
from tokenizers import Tokenizer, models, processors
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from mtlprune.encoder.batch import FEW_ROWS, Frame, by_length, collate, move_together, table
from mtlprune.encoder.model import Encoded, Encoder
from mtlprune.encoder.pieces import EncoderError, Pieces, WordPieces

ROWS = 10_000


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pieces(family: str, tiny_encoder) -> WordPieces:
    return WordPieces(AutoTokenizer.from_pretrained(tiny_encoder(family)), ROWS)


@given(st.lists(st.integers(1, 60), max_size=80))
def test_batches_hold_every_row_once_and_little_padding(lengths):
    batches = list(by_length(lengths, lambda longest: 512 // longest, 0.8))
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        longest, real = lengths[rows[0]], sum(lengths[row] for row in rows)
        assert len(rows) * longest <= 512 and (len(rows) <= FEW_ROWS or real >= 0.8 * len(rows) * longest)


def test_words_have_the_form_they_have_in_running_text(pieces):
    words = ["old", "dogs", "walked", "unbelievably", "in", "the", "park", "qxz"]
    text = pieces.tokenizer("of " + " ".join(words), add_special_tokens=False)["input_ids"]
    before = pieces.tokenizer("of", add_special_tokens=False)["input_ids"]
    made = pieces.tokenize([words])[0]
    assert before + made.ids.tolist() == text
    assert made.counts.sum() == len(made.ids) and made.ids.dtype == made.counts.dtype == np.int32
    full = pieces.tokenizer(pieces.lead + "dogs")["input_ids"]  # specials are those of the tokenizer
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
def test_a_word_that_looks_like_a_special_token_is_spelled(pieces, word):
    spelled = pieces.tokenizer.convert_ids_to_tokens(pieces.tokenize([[word]])[0].ids.tolist())
    assert "".join(spelled).replace("##", "").lstrip("Ġ").lower() == word.lower()


def test_wrong_inputs_and_tokenizers_that_cannot_serve_are_refused(tiny_encoder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder("bert"))
    backend = AutoTokenizer.from_pretrained(tiny_encoder("modernbert")).backend_tokenizer
    bare = Tokenizer.from_str(backend.to_str())
    bare.post_processor = processors.ByteLevel()
    empty = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    for tokens, rows, message in (
        (tokenizer, ROWS, "sentence 1 of 2 has no words"),
        (tokenizer, 5, "only 5 input embeddings"),
        (PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]"), ROWS, "kinds bos, cls, eos, pad"),
        (PreTrainedTokenizerFast(tokenizer_object=backend), ROWS, "no token of the kinds unk, mask, pad, eos"),
        (PreTrainedTokenizerFast(tokenizer_object=empty, unk_token="[UNK]"), ROWS, "no vocabulary"),
    ):
        with pytest.raises(EncoderError, match=message):
            WordPieces(tokens, rows).tokenize([["dogs"], []])


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=25), min_size=1, max_size=5),
    st.one_of(st.none(), st.integers(2, 13)),
    st.integers(1, 2),
    st.integers(1, 2),
)
def test_long_sentences_are_overlapping_windows(counts, capacity, front, back):
    """As the original has them: stride half the window, of each the central part, of the ends head and tail too."""
    frame = Frame([900 + i for i in range(front)], [950 + i for i in range(back)], 0, capacity)
    made, total, places = [], 0, []  # of each piece the first one of the window that gives it, and its column there
    for row in counts:
        size = sum(row)
        ids = np.arange(total, total + size, dtype=np.int32)  # 0, a real piece here, is also the padding id
        made.append(Pieces(ids, np.array(row, np.int32)))
        stride, starts = (capacity or 0) // 2, [0]
        while capacity is not None and starts[-1] + capacity < size:
            starts.append(starts[-1] + stride)
        for start in starts:
            begin = start + (stride // 2 if start else 0)
            end = size if start == starts[-1] else start + stride // 2 + stride
            places += [(total + start, front + piece - start) for piece in range(begin, end)]
        total += size
    batch = collate(made, frame)
    width = batch.input_ids.shape[1]
    flat, mask = batch.input_ids.flatten(), batch.attention_mask
    assert capacity is None or width <= capacity + front + back
    assert flat[batch.piece_slot].tolist() == list(range(total)) == batch.source.flatten()[batch.piece_slot].tolist()
    firsts = batch.source[batch.piece_slot // width, front]
    assert list(zip(firsts.tolist(), (batch.piece_slot % width).tolist(), strict=True)) == places
    assert (batch.cls_slot == torch.arange(len(counts)) * width).all()
    assert flat[batch.cls_slot].tolist() == [900] * len(counts)
    assert flat[batch.sep_slot].tolist() == [950 + back - 1] * len(counts)
    # the row of the last special token holds the last piece
    ends = torch.tensor(np.cumsum([sum(row) for row in counts]) - 1)
    assert torch.equal(batch.piece_slot[ends] // width, batch.sep_slot // width)
    # the mask covers a prefix of each row: special tokens and pieces, whatever their ids
    assert torch.equal(mask.sum(1), (batch.source >= 0).sum(1) + front + back)
    assert torch.equal(mask, mask.sort(1, descending=True).values)
    assert (flat[~mask.flatten().bool()] == 0).all()


SENTENCES = [
    ["The", "old", "dog", "walked", "to", "Smith", "'s", "house", ",", "unbelievably", "quickly", "."],
    ["Paris"],
    ["(", "nobody", "gave", "qxz", "the", "letters", "!", ")"],
    ["everybody", "wrote", "two", "letters", "and", "a", "zyx"],
]


def encode(encoder: Encoder, sentences: list[list[str]]) -> Encoded:
    with torch.no_grad():
        return encoder(encoder.collate(encoder.tokenize_all(sentences)))


def close(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=1e-5, atol=1e-5)


def bare(encoder: Encoder, ids: list[int]) -> Tensor:
    row = torch.tensor([[*encoder.frame.before, *ids, *encoder.frame.after]])
    with torch.no_grad():
        return encoder.transformer(input_ids=row, attention_mask=torch.ones_like(row)).last_hidden_state[0]


@pytest.mark.parametrize(("family", "pooling"), [*((family, "mean") for family in FAMILIES), ("bert", "first")])
def test_words_are_the_mean_or_the_first_of_their_pieces(family, pooling, tiny_encoder):
    encoder = Encoder.load(str(tiny_encoder(family)), pooling=pooling)
    got = encode(encoder, SENTENCES)
    expected, cls, sep = [], [], []
    for words in SENTENCES:
        pieces = encoder.tokenize(words)
        hidden = bare(encoder, pieces.ids.tolist())
        cls.append(hidden[0])
        sep.append(hidden[-1])
        at = len(encoder.frame.before)
        for count in pieces.counts.tolist():
            expected.append(hidden[at : at + count].mean(0) if pooling == "mean" else hidden[at])
            at += count
    assert close(got.words, torch.stack(expected))
    assert close(got.cls, torch.stack(cls)) and close(got.sep, torch.stack(sep))
    assert got.sizes == [len(words) for words in SENTENCES] == got.lengths.tolist()


@pytest.mark.parametrize("context", [True, False])
def test_alone_equals_in_a_padded_batch_in_any_order(family, tiny_encoder, context):
    encoder = Encoder.load(str(tiny_encoder(family)), context=context)
    sentences = [*SENTENCES, ["dogs", "walked", "unbelievably"] * 40]  # the last needs windows
    for batch in (sentences, sentences[::-1]):
        whole = encode(encoder, batch)
        padded = table(whole.words, whole.sizes, max(whole.sizes))  # (B, T, H)
        for row, words in enumerate(batch):
            alone = encode(encoder, [words])
            assert close(alone.words, padded[row, : len(words)])
            assert close(alone.cls[0], whole.cls[row]) and close(alone.sep[0], whole.sep[row])
            assert not padded[row, len(words) :].any()


def test_batches_that_are_joined_equal_one_batch(tiny_encoder):
    encoder = Encoder.load(str(tiny_encoder("bert")))
    whole, parts = encode(encoder, SENTENCES), [encode(encoder, SENTENCES[:1]), encode(encoder, SENTENCES[1:])]
    joined = Encoded.joined(parts)
    assert close(joined.words, whole.words) and close(joined.cls, whole.cls) and close(joined.sep, whole.sep)
    assert joined.sizes == whole.sizes == joined.lengths.tolist() and len(parts[1].sizes) > 1


@pytest.mark.parametrize("positions", [7, 64])
def test_a_row_is_as_long_as_the_model_can_see(family, positions, tmp_path):
    encoder = Encoder.load(str(make_tiny(family, tmp_path, positions=positions)))
    assert encoder.frame.capacity == positions - 2
    encode(encoder, [["dogs", "the"] * 40])


def test_word_dropout_masks_pieces_only(family, tiny_encoder):
    encoder = Encoder.load(str(tiny_encoder(family)), word_dropout=0.5)
    batch = encoder.collate(encoder.tokenize_all([["dogs", "walked"] * 50, *SENTENCES]))
    before, source, caught = batch.input_ids, batch.source, []
    encoder.transformer.register_forward_pre_hook(
        lambda module, args, named: caught.append(named["input_ids"]), with_kwargs=True
    )

    def seen_ids(seed: int) -> Tensor:
        torch.manual_seed(seed)
        encoder(batch)
        return caught[-1]

    assert torch.equal(seen_ids(0), before)  # evaluation
    encoder.train()
    after = seen_ids(0)
    changed = before != after
    assert (after[changed] == encoder.tokenizer.mask_token_id).all() and not changed[source < 0].any()
    assert 0.35 < changed[source >= 0].float().mean() < 0.65
    fallen = {}
    for piece, value in zip(source[source >= 0].tolist(), changed[source >= 0].tolist(), strict=True):
        assert fallen.setdefault(piece, value) == value  # the same in every window
    assert torch.equal(seen_ids(0), after) and not torch.equal(seen_ids(1), after)
    encoder.word_dropout = 0.0
    assert torch.equal(seen_ids(0), before)


def test_without_context_only_the_embeddings_remain(tiny_encoder):
    encoder = Encoder.load(str(tiny_encoder("electra")), context=False)
    assert isinstance(encoder.transformer, nn.Embedding) and encode(encoder, SENTENCES).words.shape[1] == 16
    table = AutoModel.from_pretrained(tiny_encoder("electra")).get_input_embeddings().weight
    assert torch.equal(encoder.transformer.weight, table)


def test_random_initialisation_is_seeded_and_leaves_the_generator_alone(family, tiny_encoder):
    name = str(tiny_encoder(family))
    state = torch.random.get_rng_state()
    one, same, other = (Encoder.load(name, random=True, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    first, second, third, trained = (encode(e, SENTENCES).words for e in (one, same, other, Encoder.load(name)))
    assert torch.equal(first, second) and not close(first, third) and not close(first, trained)


def test_a_column_of_a_matrix_with_one_row_can_be_moved():
    """Such a column counts as contiguous whatever its stride; one long span in a batch is one."""
    ends = torch.arange(2).view(1, 2)
    left, right = move_together([ends[:, 0], ends[:, 1]], torch.device("meta"))
    assert left.shape == right.shape == (1,) and left.dtype == ends.dtype
