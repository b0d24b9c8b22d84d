"""Exact decomposition: parts sum to the whole in every family, under padding, gates and removed heads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import HEADS, LAYERS, WORDS, make_config
from torch import Tensor
from transformers import AutoModelForMaskedLM

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.dissection import SUBSETS
from mtlprune.analyses.dissection import maths as dissection
from mtlprune.analyses.dissection.maths import embedding_terms, importance, refusal, terms, trace
from mtlprune.analyses.dissection.measure import dissect, score_masked
from mtlprune.analyses.reading import Subject
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import remove_heads
from mtlprune.sentence import Sentence

POST_LN = ("bert", "roberta", "electra", "distilbert", "albert", "mpnet", "deberta", "deberta-v2")
SENTENCES = [WORDS[:7], WORDS[3:20], WORDS[9:11]]
TinyEncoder = Callable[[str], Path]
REQUEST = Request((), Path("nowhere"), None)


def loaded(folder: Path, dtype: torch.dtype = torch.float64) -> Encoder:
    """With gains and biases that are not 1 and 0, as they are after pretraining."""
    encoder = Encoder.load(str(folder), attention="eager")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return encoder.to(dtype)


def some_gates(dtype: torch.dtype = torch.float64) -> Tensor:
    gates = torch.rand(LAYERS, HEADS, generator=torch.Generator().manual_seed(3)).to(dtype)
    gates[0, 1] = gates[1, 2] = 0
    return gates


def passed(encoder: Encoder, gates: Tensor | None = None) -> tuple[dissection.Trace, list[Tensor]]:
    traced, hidden, _ = trace(encoder, encoder.collate(encoder.tokenize_all(SENTENCES)), gates)
    return traced, hidden


def closed_form(trace: dissection.Trace, last: int) -> Tensor:
    """The terms after so many layers as products of LayerNorms' scales, K_λ = Π_{k ≥ λ} g_k / s_k: i = K_0 · embedding;
    h = Σ K_{2l−1} · attention_l; f = Σ K_{2l} · feed-forward_l; c = the rest. (4, N, H)"""
    layers = list(trace.layers)[:last]
    norms = [norm for layer in layers for norm in layer.norms]
    one = torch.ones_like(layers[0].read if layers else embedding_terms(trace)[0])
    products = [one]  # K after LayerNorm λ, from the last backwards
    for norm in reversed(norms):
        products.append(products[-1] * norm.gain / norm.std)
    products.reverse()  # products[k] = K of norms k, k + 1, ...; the last one is 1
    first = embedding_terms(trace)
    given, correction = products[0] * first[0], products[0] * first[3]
    attention, feed_forward = torch.zeros_like(given), torch.zeros_like(given)
    for number, layer in enumerate(layers):
        before, between = products[2 * number], products[2 * number + 1]
        attention = attention + before * layer.attention()
        feed_forward = feed_forward + between * layer.feed_forward
        correction = correction + before * layer.attention_bias() + between * layer.feed_forward_bias
    for place, norm in enumerate(norms):
        correction = correction + products[place + 1] * norm.bias - products[place] * norm.mean
    return torch.stack([given, attention, feed_forward, correction])


@pytest.mark.parametrize("family", POST_LN)
def test_parts_sum_to_hidden_states_with_padding_and_gates(tiny_encoder, family):
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        if family == "deberta" and dtype is torch.float64:
            limit = 1e-5  # its LayerNorm computes in float32 whatever it is given
        encoder = loaded(tiny_encoder(family), dtype)
        for gates in (None, some_gates(dtype)):
            traced, hidden = passed(encoder, gates)
            stacks = list(terms(traced))
            assert len(stacks) == len(hidden) == LAYERS + 1
            for layer, (stack, whole) in enumerate(zip(stacks, hidden, strict=True)):
                assert (stack.sum(0) - whole).abs().max() <= limit
                assert (closed_form(traced, layer) - stack).abs().max() <= limit


@pytest.mark.parametrize("family", ["bert", "albert", "mpnet"])
def test_a_removed_head_is_a_head_whose_gate_is_0(tiny_encoder, family):
    gates = (some_gates() > 0.4).double()
    gates[1] = gates[0] if family == "albert" else 0  # ALBERT's layers are one module; elsewhere a layer loses all
    gated, _ = passed(loaded(tiny_encoder(family)), gates)
    encoder = loaded(tiny_encoder(family))
    encoder.head_map = remove_heads(encoder.transformer, gates)
    removed, hidden = passed(encoder)
    for one, other, whole in zip(terms(gated), terms(removed), hidden, strict=True):
        assert (one - other).abs().max() <= 1e-10 and (other.sum(0) - whole).abs().max() <= 1e-10


def test_a_head_has_what_is_left_of_the_heads_without_the_others(tiny_encoder):
    gates = some_gates()
    traced, hidden = passed(loaded(tiny_encoder("bert")), gates)
    shares = dissection.head_importance(traced, hidden[-1])
    for place in range(LAYERS):
        for head in range(HEADS):
            alone = [layer.value_bias.expand_as(layer.heads).clone() for layer in traced.layers]  # adds nothing
            alone[place][:, head] = traced.layers[place].heads[:, head]
            layers = [replace(layer, heads=heads) for layer, heads in zip(traced.layers, alone, strict=True)]
            *_, stack = terms(replace(traced, layers=layers))
            assert torch.allclose(shares[place][:, head], importance(stack[1:2], hidden[-1])[0], atol=1e-12)
            assert bool(shares[place][:, head].any()) == (gates[place, head] > 0)


def test_importance_sums_to_1_and_knows_no_scale(tiny_encoder):
    encoder = loaded(tiny_encoder("bert"))
    traced, hidden = passed(encoder)
    *_, stack = terms(traced)
    mu = importance(stack, hidden[-1])
    assert torch.allclose(mu.sum(0), torch.ones(mu.shape[1], dtype=mu.dtype), atol=1e-10)
    assert torch.allclose(importance(hidden[-1][None], hidden[-1]), torch.ones_like(mu[:1]))
    last = encoder.transformer.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        last.weight *= 3.5
        last.bias *= 3.5
    scaled, whole = passed(encoder)
    *_, stack = terms(scaled)
    assert torch.allclose(whole[-1], 3.5 * hidden[-1]) and torch.allclose(importance(stack, whole[-1]), mu, atol=1e-10)


@pytest.mark.parametrize("family", ["modernbert", "eurobert"])
def test_an_encoder_that_is_not_post_ln_is_refused(tiny_encoder, family):
    encoder = Encoder.load(str(tiny_encoder(family)), attention="eager")
    assert refusal(encoder) and "no post-LN encoder" in str(refusal(encoder))
    with pytest.raises(EncoderError, match="no post-LN encoder"):
        passed(encoder)


def subject(folder: Path, encoder: Encoder | None = None, gates: Tensor | None = None) -> Subject:
    return Subject("pretrained", str(folder), 0, encoder or Encoder.load(str(folder), attention="eager"), gates, "")


def test_many_sentences_are_what_single_ones_say(tiny_encoder):
    folder = tiny_encoder("bert")
    sentences = [Sentence(str(place), tuple(words)) for place, words in enumerate(SENTENCES)]
    gates = some_gates(torch.float32)
    whole = dissect(subject(folder, gates=gates), sentences, 10, REQUEST)
    start, mu, pieces, heads = 0, 0.0, 0, 0.0
    for sentence in sentences:
        one = dissect(subject(folder, gates=gates), [sentence], 10, REQUEST)
        mine = slice(start, start + len(sentence))
        assert np.allclose(whole["word_mu"][mine], one["word_mu"], atol=1e-4)
        assert torch.allclose(whole["last"][:, mine], one["last"], atol=1e-5)
        start, pieces = start + len(sentence), pieces + one["pieces"]
        mu, heads = mu + one["pieces"] * one["mu"], heads + one["pieces"] * one["heads"]
    assert whole["pieces"] == pieces and np.allclose(whole["mu"], mu / pieces, atol=1e-5)
    assert np.allclose(whole["mu"].sum(1), 1, atol=1e-5) and 0 < whole["error"] < 1e-5
    assert np.allclose(whole["heads"], heads / pieces, atol=1e-5) and whole["heads"][0, 1] == whole["heads"][1, 2] == 0
    assert np.isclose(whole["heads"].sum(), whole["mu"][-1, 1], atol=1e-5)
    assert all(line["tokens"] == pieces for line in whole["linearity"])


def test_a_decomposition_that_misses_is_refused(tiny_encoder):
    folder = tiny_encoder("bert")
    encoder = Encoder.load(str(folder), attention="eager")
    layer = encoder.transformer.encoder.layer[0]
    layer.register_forward_hook(lambda module, args, output: output + 1)  # something no term knows of
    with pytest.raises(EncoderError, match="miss what the encoder says"):
        dissect(subject(folder, encoder), [Sentence("1", tuple(WORDS[:5]))], 5, REQUEST)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "albert", "mpnet"])
def test_the_whole_vector_gives_the_masked_head_what_the_model_gives_it(tiny_encoder, family, tmp_path):
    plain = Encoder.load(str(tiny_encoder(family)))
    assert not score_masked(subject(tiny_encoder(family)), [Sentence("1", tuple(WORDS[:5]))], 0)  # no such head
    model = AutoModelForMaskedLM.from_config(make_config(family)).eval()
    model.save_pretrained(tmp_path)
    plain.tokenizer.save_pretrained(tmp_path)
    sentences = [Sentence(str(place), tuple(words)) for place, words in enumerate([WORDS[:30], WORDS[5:34]])]
    encoder = Encoder.load(str(tmp_path), attention="eager")
    seen: list[tuple[Tensor, Tensor]] = []
    encoder.transformer.register_forward_pre_hook(
        lambda module, args, given: seen.append((given["input_ids"], given["attention_mask"])), with_kwargs=True
    )
    [found] = score_masked(subject(tmp_path, encoder), sentences, 0)
    (ids, mask), batch = seen[0], encoder.collate(encoder.tokenize_all([s.words for s in sentences]))
    rows = sorted(range(2), key=lambda row: -len(encoder.tokenize(sentences[row].words).ids))
    batch = encoder.collate([encoder.tokenize(sentences[row].words) for row in rows])
    with torch.no_grad():
        told = model(input_ids=ids, attention_mask=mask).logits.argmax(-1)
    draw = torch.rand(2, len(batch.piece_slot), generator=torch.Generator().manual_seed(0))[0]
    chosen = batch.piece_slot[draw < 0.15]
    right = (told.flatten()[chosen] == batch.input_ids.flatten()[chosen]).double().mean()
    assert found["test"] == len(chosen) > 2 and found["score"][SUBSETS.index("ihfc")] == pytest.approx(float(right))
