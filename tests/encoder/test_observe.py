"""Observation: nothing changes, words get what their sub-words have, gates and removed heads are respected."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from found import GATES, without_heads
from tiny import FAMILIES, LAYERS, WORDS
from torch import Tensor

from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation, observe, use_eager
from mtlprune.encoder.pieces import EncoderError

SENTENCES = [WORDS[:5], WORDS[7:20], WORDS[3:4], WORDS[20:28]]
WANTS = ("attention", "heads", "hidden", "norms")


@pytest.fixture(scope="module", params=FAMILIES)
def encoder(request: pytest.FixtureRequest, tiny_encoder: Callable[[str], Path]) -> Encoder:
    return Encoder.load(str(tiny_encoder(request.param)), attention="eager")


def batch_of(encoder: Encoder, sentences: Sequence[Sequence[str]] = SENTENCES) -> EncoderBatch:
    return encoder.collate(encoder.tokenize_all(sentences))


@torch.no_grad()
def output(encoder: Encoder, batch: EncoderBatch, gates: Tensor | None = None) -> list[Tensor]:
    encoded = encoder(batch, gates)
    return [encoded.words, encoded.cls, encoded.sep]


@pytest.mark.parametrize("gates", [None, GATES], ids=["plain", "gated"])
def test_observing_changes_nothing(encoder: Encoder, gates: Tensor | None) -> None:
    batch = batch_of(encoder)
    before = output(encoder, batch, gates)
    seen = observe(encoder, batch, gates, WANTS)
    assert torch.equal(encoder._pool(seen.last.flatten(0, 1), batch), before[0])
    assert all(torch.equal(a, b) for a, b in zip(output(encoder, batch, gates), before, strict=True))
    alone = observe(encoder, batch, gates, {"heads"})
    assert torch.equal(alone.last, seen.last) and not alone.attention and not alone.hidden and not alone.norms


def test_word_vectors_are_those_the_encoder_gives(encoder: Encoder) -> None:
    batch = batch_of(encoder)
    seen = observe(encoder, batch, want={"hidden", "heads"})
    torch.testing.assert_close(seen.word_vectors(seen.last), output(encoder, batch)[0])
    assert len(seen.hidden) == LAYERS + 1 and torch.equal(seen.hidden[-1], seen.last)
    heads = seen.heads[1]
    assert torch.equal(seen.word_vectors(heads).flatten(1), seen.word_vectors(heads.flatten(2)))


def slowly(seen: Observation, encoder: Encoder, layer: int) -> list[Tensor]:
    """Word attention by its definition, one sentence and pair of words at a time, specials kept."""
    found = []
    for attention, pieces in zip(seen.attention[layer], encoder.tokenize_all(SENTENCES), strict=True):
        ends = np.cumsum([1, *pieces.counts, 1])
        slots = [range(start, end) for start, end in pairwise([0, *ends])]
        rows = [
            [sum(attention[:, i, j] for i in those for j in others) / len(those) for others in slots] for those in slots
        ]
        found.append(torch.stack([torch.stack(row, -1) for row in rows], -2))  # (n, S, S)
    return found


def test_attention_of_words_is_mean_of_rows_and_sum_of_columns(encoder: Encoder) -> None:
    seen = observe(encoder, batch_of(encoder), want={"attention"})
    kept, dropped = seen.word_attention(1), seen.word_attention(1, "dropped")
    for b, expected in enumerate(slowly(seen, encoder, 1)):
        n = len(SENTENCES[b])
        torch.testing.assert_close(kept[b, :, : n + 2, : n + 2], expected)
        torch.testing.assert_close(kept[b, :, : n + 2].sum(-1), torch.ones(4, n + 2))
        assert not kept[b, :, n + 2 :].any() and not kept[b, :, :, n + 2 :].any()
        torch.testing.assert_close(dropped[b, :, :n, :n], expected[:, 1:-1, 1:-1])
        assert not dropped[b, :, n:].any() and not dropped[b, :, :, n:].any()


def test_a_removed_head_is_a_head_at_gate_zero(encoder: Encoder) -> None:
    gates = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 1.0]])
    if encoder.config.model_type == "albert":  # layers share their heads
        gates[0] = gates[1]
    batch = batch_of(encoder)
    gated = observe(encoder, batch, gates, WANTS)
    smaller = without_heads(encoder, gates)
    seen = observe(smaller, batch, want=WANTS)
    for layer, kept in enumerate(smaller.head_map.kept):
        torch.testing.assert_close(seen.attention[layer], gated.attention[layer][:, list(kept)], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen.heads[layer], gated.heads[layer][:, :, list(kept)], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(seen.last, gated.last, atol=1e-5, rtol=1e-4)
    assert not gated.heads[1][:, :, 1].any()


def test_what_cannot_be_observed_is_refused_in_words(tiny_encoder: Callable[[str], Path]) -> None:
    encoder = Encoder.load(str(tiny_encoder("bert")))
    batch = batch_of(encoder)
    with pytest.raises(EncoderError, match="'sdpa', which never holds it"):
        observe(encoder, batch)
    before = output(encoder, batch)
    seen = observe(use_eager(encoder), batch)
    torch.testing.assert_close(seen.word_vectors(seen.last), before[0])
    with pytest.raises(EncoderError, match="different windows"):
        observe(encoder, batch_of(encoder, [WORDS * 3]))
    with pytest.raises(EncoderError, match="eval"):
        observe(encoder.train(), batch)
