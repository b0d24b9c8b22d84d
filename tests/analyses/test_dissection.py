"""Exact decomposition: parts sum to the whole; comparisons of decompositions; light decoders on partial sums."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from found import GATES, loaded, sentences_of, subject_of
from scipy import stats
from sklearn.metrics import f1_score
from tiny import HEADS, LAYERS, WORDS
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.vectors.dissection import SUBSETS, comparison, decoders
from mtlprune.analyses.vectors.dissection import maths as dissection
from mtlprune.analyses.vectors.dissection.maths import embedding_terms, importance, terms, trace
from mtlprune.analyses.vectors.dissection.measure import dissect
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import remove_heads
from mtlprune.sentence import Dependencies, Layer, Predicate, Sentence, Span

POST_LN = ("bert", "roberta", "electra", "distilbert", "albert", "mpnet", "deberta", "deberta-v2")
SENTENCES = [WORDS[:7], WORDS[3:20], WORDS[9:11]]
REQUEST = Request((), Path("nowhere"), None)


def passed(encoder: Encoder, gates: Tensor | None = None) -> tuple[dissection.Trace, list[Tensor]]:
    traced, hidden, _ = trace(encoder, encoder.collate(encoder.tokenize_all(SENTENCES)), gates)
    return traced, hidden


def closed_form(trace: dissection.Trace, last: int) -> Tensor:
    """The terms after so many layers as products of LayerNorms' scales, K_λ = Π_{k ≥ λ} g_k / s_k: i = K_0 · embedding;
    h = Σ K_{2l−1} · attention_l; f = Σ K_{2l} · feed-forward_l; c = the rest. (4, N, H)"""
    layers, found = list(trace.layers)[:last], embedding_terms(trace).clone()
    norms = [norm for layer in layers for norm in layer.norms]
    scales = [torch.ones_like(found[0])]  # at place k K of norms k, k + 1, ...; the last one is 1
    for norm in reversed(norms):
        scales.insert(0, scales[0] * norm.gain / norm.std)
    found *= scales[0]
    for before, between, layer in zip(scales[::2], scales[1::2], layers, strict=False):
        found[1] += before * layer.attention()
        found[2] += between * layer.feed_forward
        found[3] += before * layer.attention_bias() + between * layer.feed_forward_bias
    for before, after, norm in zip(scales, scales[1:], norms, strict=False):
        found[3] += after * norm.bias - before * norm.mean
    return found


FURTHER = ("ernie", "data2vec-text", "bert-generation", "roc_bert", "rembert", "splinter", "luke")


@pytest.mark.parametrize("family", [*POST_LN, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
def test_parts_sum_to_hidden_states_with_padding_and_gates(tiny_encoder, family):
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        if family == "deberta" and dtype is torch.float64:
            limit = 1e-5  # its LayerNorm computes in float32 whatever it is given
        encoder = loaded(tiny_encoder(family), dtype)
        for gates in (None, GATES.to(dtype)):
            traced, hidden = passed(encoder, gates)
            stacks = list(terms(traced))
            assert len(stacks) == len(hidden) == LAYERS + 1
            for layer, (stack, whole) in enumerate(zip(stacks, hidden, strict=True)):
                assert (stack.sum(0) - whole).abs().max() <= limit
                assert (closed_form(traced, layer) - stack).abs().max() <= limit


@pytest.mark.parametrize("family", ["bert", "albert", "mpnet"])
def test_a_removed_head_is_a_head_whose_gate_is_0(tiny_encoder, family):
    gates = (GATES > 0.4).double()
    gates[1] = gates[0] if family == "albert" else 0  # ALBERT's layers are one module; elsewhere a layer loses all
    gated, _ = passed(loaded(tiny_encoder(family)), gates)
    encoder = loaded(tiny_encoder(family))
    encoder.head_map = remove_heads(encoder.transformer, gates)
    removed, hidden = passed(encoder)
    for one, other, whole in zip(terms(gated), terms(removed), hidden, strict=True):
        assert (one - other).abs().max() <= 1e-10 and (other.sum(0) - whole).abs().max() <= 1e-10


def test_a_head_has_what_is_left_of_the_heads_without_the_others(bert):
    traced, hidden = passed(bert, GATES.double())
    shares = dissection.head_importance(traced, hidden[-1])
    for place in range(LAYERS):
        for head in range(HEADS):
            alone = [layer.value_bias.expand_as(layer.heads).clone() for layer in traced.layers]  # adds nothing
            alone[place][:, head] = traced.layers[place].heads[:, head]
            layers = [replace(layer, heads=heads) for layer, heads in zip(traced.layers, alone, strict=True)]
            *_, stack = terms(replace(traced, layers=layers))
            assert torch.allclose(shares[place][:, head], importance(stack[1:2], hidden[-1])[0], atol=1e-12)
            assert bool(shares[place][:, head].any()) == (GATES[place, head] > 0)


def test_many_sentences_are_what_single_ones_say_and_a_miss_is_refused(tiny_encoder):
    subject, sentences = subject_of(loaded(tiny_encoder("bert"), torch.float32), GATES), sentences_of([7, 17, 2])
    whole = dissect(subject, sentences, 10, REQUEST)
    start, mu, pieces, heads = 0, 0.0, 0, 0.0
    for sentence in sentences:
        one = dissect(subject, [sentence], 10, REQUEST)
        mine = slice(start, start + len(sentence))
        assert np.allclose(whole["word_mu"][mine], one["word_mu"], atol=1e-4)
        assert torch.allclose(whole["last"][:, mine], one["last"], atol=1e-5)
        start, pieces = start + len(sentence), pieces + one["pieces"]
        mu, heads = mu + one["pieces"] * one["mu"], heads + one["pieces"] * one["heads"]
    assert whole["pieces"] == pieces and np.allclose(whole["mu"], mu / pieces, atol=1e-5)
    assert np.allclose(whole["mu"].sum(1), 1, atol=1e-5) and 0 < whole["error"] < 1e-5
    assert np.allclose(whole["heads"], heads / pieces, atol=1e-5) and not whole["heads"][GATES.numpy() == 0].any()
    assert np.isclose(whole["heads"].sum(), whole["mu"][-1, 1], atol=1e-5)
    assert all(line["tokens"] == pieces for line in whole["linearity"])
    layer = subject.encoder.transformer.encoder.layer[0]
    layer.register_forward_hook(lambda module, args, output: output + 1)  # something no term knows of
    with pytest.raises(EncoderError, match="differ from the encoder's output"):
        dissect(subject, sentences, 5, REQUEST)


def test_r2_is_that_of_direct_least_squares():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)) * 3 + 1, rng.normal(size=(60, 4))
    y[:, 0] += x @ rng.normal(size=5)
    design = np.column_stack([np.ones(60), x])
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    expected = (1 - ((y - fitted) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean()
    whole = comparison.moments(x, y)
    assert comparison.r2(whole, comparison.fit(whole, 5)) == pytest.approx(expected, abs=1e-10)
    found = comparison.linearity(comparison.moments(x[:40], y[:40]), comparison.moments(x[40:], y[40:]), 5)
    assert found["in_sample"] == pytest.approx(expected, abs=1e-10)
    assert found["held_out"] < expected and found["tokens"] == 60


def test_correlations_are_scipys_and_undefined_where_nothing_moves():
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=(2, 40, 3, 4)).astype(np.float32)
    one[:, 0, 1] = 0
    spearman, pearson = comparison.mu_correlations(one, other).values()
    assert math.isnan(spearman[0, 1]) and math.isnan(pearson[0, 1])
    assert spearman[2, 3] == pytest.approx(stats.spearmanr(one[:, 2, 3], other[:, 2, 3]).statistic)
    assert pearson[1, 0] == pytest.approx(stats.pearsonr(one[:, 1, 0], other[:, 1, 0]).statistic, abs=1e-6)
    assert comparison.mu_correlations(other, other)["spearman"] == pytest.approx(np.ones((3, 4)))


def test_gates_that_follow_shares_do_not_pass_for_chance():
    rng = np.random.default_rng(3)
    shares = rng.normal(size=(6, 12)) + np.arange(6)[:, None]
    follows = np.where(stats.rankdata(shares, axis=1) > 6, 0.2, 0.0)  # a head with any gate above 0.001 is open
    found = comparison.gates_against_shares(follows, shares)
    assert (found["open"], found["shared"], found["expected"]) == (36, 36, 18.0) and found["rho"] > 0.8
    assert found["rho_p"] < 0.01 and found["shared_p"] < 1e-6
    by_layer = np.repeat(np.arange(6)[:, None] > 2, 12, axis=1).astype(float)  # all of some layers: no ranks within
    assert math.isnan(comparison.gates_against_shares(by_layer, shares)["rho"])
    assert comparison.gates_against_shares(rng.permuted(follows, axis=1), shares)["rho_p"] > 0.1


def test_losses_of_encoders():
    rng = np.random.default_rng(4)
    gold = rng.integers(2, 9, size=50)
    counts = np.stack([np.stack([rng.binomial(gold, p), gold, gold], 1) for p in np.linspace(0.1, 0.9, 16)])[None]
    assert not any(same.any() for same in comparison.losses(counts, counts).values())
    found = comparison.losses(counts[:, ::-1], counts)
    assert (found["low"] < found["difference"]).all() and (found["difference"] < found["high"]).all()
    assert found["low"][0] > 0 > found["high"][-1] and found["difference"][0] == pytest.approx(0.8, abs=0.1)


def test_a_mixture_is_found_and_a_rotation_undone():
    rng = np.random.default_rng(5)
    parts = {name: rng.normal(size=(30, 8)) + 1 for name in "abc"}
    found = comparison.composition(0.3 * parts["a"] + 0.7 * parts["c"], parts)
    (weights, rest), (centred, _) = found["weights"], found["centred"]
    assert weights == pytest.approx({"a": 0.3, "b": 0.0, "c": 0.7}, abs=1e-10)
    assert rest == pytest.approx(0, abs=1e-12) and centred == pytest.approx(weights, abs=1e-10)
    against = comparison.composition(-parts["a"], {"a": parts["a"]})
    assert against["weights"] == ({"a": 0.0}, pytest.approx(1))
    assert math.isnan(comparison.composition(np.zeros((30, 8)), parts)["weights"][1])
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    found = comparison.composition(parts["a"] @ turn, {"a": parts["a"]})
    assert found["rotated"] == (pytest.approx({"a": 1.0}), pytest.approx(0, abs=1e-12)) and found["weights"][1] > 0.3


QUICK = decoders.NetSettings(hidden=16, epochs=30, batch=64, rate=1e-2)


def test_macro_f1_is_scikit_learns_and_agreement_that_of_equal_seeds():
    rng = np.random.default_rng(6)
    answers, gold = rng.integers(-1, 6, (2, 3, 16, 50))
    for row, other in zip(answers[0], gold[0], strict=True):
        assert comparison.macro_f1(row, other) == pytest.approx(f1_score(other, row, average="macro", zero_division=0))
    agreement = comparison.agreement(answers, gold)
    expected = [comparison.macro_f1(answers[seed, 2], gold[seed, 5]) for seed in range(3)]
    assert agreement["macro_agreement"][2, 5] == pytest.approx(np.mean(expected))
    assert agreement["micro_agreement"][2, 5] == pytest.approx((answers[:, 2] == gold[:, 5]).mean())
    same = comparison.agreement(answers, answers)
    assert all(np.allclose(np.diag(matrix), 1) and np.allclose(matrix, matrix.T) for matrix in same.values())


def test_the_spread_is_that_of_seeds_of_decoders():
    codes = torch.randn(4, 4, 16, generator=torch.Generator().manual_seed(0)).repeat(1, 6, 1)
    codes += 2 * torch.randn(codes.shape, generator=torch.Generator().manual_seed(1))
    material = decoders.Material([sentence() for _ in range(6)], codes)
    settings = replace(QUICK, epochs=2)
    [one], [three] = (decoders.score("pos", material, material, replace(settings, seeds=n)) for n in (1, 3))
    [last] = decoders.score("pos", material, material, replace(settings, seed=2))
    assert "score_sd" not in one and (three["answers"][[0, 2]] == [one["answers"][0], last["answers"][0]]).all()
    by_seed = (three["counts"][..., 0].sum(2) / 24).T  # (S, D)
    assert np.allclose(three["score"], by_seed.mean(1)) and np.allclose(three["score_sd"], by_seed.std(1, ddof=1))
    assert three["score_sd"][0] == 0 < three["score_sd"].max()
    lost = comparison.losses(three["counts"], one["counts"])
    assert np.allclose(lost["difference"], three["score"] - one["score"])


def test_a_net_learns_classes_and_keeps_to_those_that_are_allowed():
    features = np.random.default_rng(1).normal(size=(300, 8))
    features[:, 3] = 7.0  # a constant feature
    labels = (features[:, 0] > -0.5).astype(np.int64)
    answers = decoders.net_answers(features, labels, features, None, QUICK)
    assert (answers == labels).mean() > 0.95
    only = np.stack([labels == 1, labels == 0], 1)  # the other one each time
    assert (decoders.net_answers(features, labels, features, only, QUICK) == 1 - labels).all()


def sentence() -> Sentence:
    return Sentence(
        "1",
        ("the", "dog", "saw", "London"),
        pos=("DET", "NOUN", "VERB", "PROPN"),
        ner=(Span(3, 4, "LOC"),),
        dep=Dependencies((2, 3, 0, 3), ("det", "nsubj", "root", "obj")),
        con=(Span(0, 4, "S"), Span(0, 4, "FRAG"), Span(0, 2, "NP"), Span(3, 4, "NP")),
        srl=(Predicate(2, "see.01", (Span(0, 2, "ARG0"), Span(2, 3, "V"), Span(3, 4, "ARG1")), "see"),),
    )


def test_items_and_their_features():
    expected = {"pos": "DET NOUN VERB PROPN", "ner": "O O O B-LOC", "con": "S NP", "srl": "ARG0 ARG1", "wsd": "see.01"}
    expected["dep"] = "det nsubj obj"  # the root has no head to be asked of
    both = [Sentence("0", ("hello",)), sentence()]  # one that lacks all layers, before
    items = {task: decoders.term_items(task, both) for task in expected}
    assert {task: " ".join(found.labels) for task, found in items.items()} == expected
    assert set(items["srl"].sentence.tolist()) == {1}
    parts = torch.randn(4, 5, 3)
    features = items["srl"].features(parts)
    assert torch.allclose(features[:, 0], torch.cat([parts[:, 3], parts[:, 1:3].mean(1)], 1))
    assert torch.allclose(items["dep"].features(parts)[:, 0], torch.cat([parts[:, 1], parts[:, 2]], 1))


def test_scores_count_what_is_right():
    upos = Layer("tags", ("D", "N", "V", "P"))
    sentences = [sentence().with_layers(upos=upos) for _ in range(6)]
    codes = torch.randn(4, 4, 16, generator=torch.Generator().manual_seed(0))
    material = decoders.Material(sentences, codes.repeat(1, 6, 1))
    for task in ("pos", "ner", "upos", "dep"):
        [found] = decoders.score(task, material, material, replace(QUICK, epochs=100))
        assert found["score"][1:].min() == 1.0  # each term names the word
        assert found["counts"].shape == (1, 16, 6, 3) and found["unseen"] == 0
    assert found["baseline"] == pytest.approx(1 / 3)
    assert decoders.score("con", decoders.Material([Sentence("0", ("a",))], codes[:, :1]), material, QUICK) == []


def test_senses_from_rolesets_beside_the_most_frequent_one():
    generator = torch.Generator().manual_seed(0)
    senses = torch.tensor([2, 1, 1] * 30)
    sentences = [Sentence("1", ("runs",), srl=(Predicate(0, f"run.0{sense}", (), "run"),)) for sense in senses]
    vectors = torch.randn(4, 90, 8, generator=generator)
    vectors[1, :, 0] += 6 * (senses - 1.5)  # the heads know the sense
    material = decoders.Material(sentences, vectors)
    learned, near = decoders.score("wsd", material, material, QUICK)
    heads = SUBSETS.index("h")
    assert learned["baseline"] == pytest.approx(2 / 3)
    assert learned["score"][heads] > 0.95 and near["score"][heads] > 0.95
    assert learned["score"][0] == near["score"][0] == pytest.approx(2 / 3)  # nothing to go by: the most frequent sense
    apart = np.array([[told[0][heads], told[heads][0]] for told in (near["micro_agreement"], near["macro_agreement"])])
    assert (apart[:, 0] == apart[:, 1]).all() and (apart < 1).all() and np.diag(near["macro_agreement"]).min() == 1
    assert decoders.score("wsd", decoders.Material(sentences[:1], vectors[:, :1]), material, QUICK) == []
