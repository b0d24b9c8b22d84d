"""UAS of heads: a plain loop, attention whose UAS is known, pseudo-likelihoods, minimal pairs."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from found import GATES, reading_of, sentences_of, subject_of, without_heads
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.vectors.syntax.measure import _compared, measure_heads
from mtlprune.corpora.blimp import MinimalPair, Paradigm
from mtlprune.encoder.arcs import OFFSETS, ArcCounts, ArcError, guesses, halves, uas_of
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe, use_eager
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.pseudo_likelihood import MaskedLanguageModel, judge, pseudo_log_likelihoods
from mtlprune.io.block import Block
from mtlprune.statistics.twonn import twonn

SENTENCES = sentences_of([5, 9, 1, 2, 7, 7, 12, 3])


def test_it_is_what_a_plain_loop_counts(bert):
    found: dict[tuple[int, int, int, str], list[float]] = {}
    for sentence in SENTENCES:
        seen, size = observe(bert, bert.collate([bert.tokenize(sentence.words)]), want={"attention"}), len(sentence)
        attention = [seen.word_attention(layer, "dropped")[0].numpy() for layer in range(len(seen.attention))]
        for (layer, head), (i, (gold, relation)) in product(
            np.ndindex(len(attention), len(attention[0])), enumerate(zip(*sentence.dep, strict=True))
        ):
            weights, others = attention[layer][head], [j for j in range(size) if j != i]
            for direction, row in enumerate((weights[i], weights[:, i])):
                guess = max(others, key=lambda j: row[j]) + 1 if others else -1
                entry = found.setdefault((direction, layer, head, relation), [0, 0.0])
                entry[0] += guess == gold
                entry[1] += float(row[gold - 1]) if gold else 0.0
    counts = uas_of(bert, SENTENCES)
    assert counts.tokens.sum() == sum(map(len, SENTENCES)) and counts.arcs.sum() == counts.tokens.sum() - len(SENTENCES)
    for half, side in enumerate(counts.tokens.sum(1)):
        assert side == sum(len(s) for s, own in zip(SENTENCES, halves(len(SENTENCES)), strict=True) if own == half)
    for (direction, layer, head, relation), (hits, mass) in found.items():
        row = counts.relations.index(relation)
        assert counts.hits[:, direction, row, layer, head].sum() == hits
        assert counts.mass[:, direction, row, layer, head].sum() == pytest.approx(mass, abs=1e-5)
    assert counts.hits.sum() == sum(hits for hits, _ in found.values()) > 0
    for place, k in enumerate(OFFSETS):
        for row, relation in enumerate(counts.relations):
            assert counts.offsets[:, place, row].sum() == sum(
                min(max(i + k, 0), len(s)) == head
                for s in SENTENCES
                for i, (head, name) in enumerate(zip(*s.dep, strict=True), 1)
                if name == relation
            )


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_the_measures(bert, seed):
    counts = uas_of(bert, sentences_of([*range(1, 21)], seed), GATES if seed % 2 else None)
    listed = counts.frequent_relations(40)
    assert sorted(listed) == ["nsubj", "obj"] and counts.frequent_relations(minimum=10**6) == []
    values, sizes = zip(*((counts.best([name]).value, counts.size([name])) for name in listed), strict=True)
    assert counts.mean_best(listed).value == pytest.approx(np.average(values, weights=sizes))
    assert counts.mean_best_offset(listed[:1])[0] == counts.best_offset(listed[:1]).value
    assert np.isnan(counts.mean_best([]).value)
    for weight in (False, True):
        best, single = counts.mean_best(listed, weight), counts.best(listed, weight)
        each = counts.weight(listed) if weight else counts.uas(listed)
        assert best.value >= single.value >= np.nanmax(each) - 1e-9
        assert single.value == pytest.approx(each[single.direction, single.layer, single.head])
        assert best.held_out <= best.value + 1e-9 and single.held_out <= single.value + 1e-9
    best = counts.best()
    counts.present[best.layer, best.head] = False
    other = counts.best()
    assert other.value <= best.value and (other.layer, other.head) != (best.layer, best.head)
    assert np.isnan(counts.by_head()[best.layer, best.head])
    counts.present[:] = False
    assert np.isnan(counts.best().value) and counts.best().layer == -1


def test_of_even_attention_the_first_other_word_is_guessed():
    there = torch.ones(1, 4, dtype=torch.bool)
    for attention in (torch.full((1, 2, 4, 4), 0.25), torch.zeros(1, 2, 4, 4)):
        assert (guesses(attention, there) == torch.tensor([2, 1, 1, 1])).all()


def test_choosing_on_one_half_and_scoring_on_the_other_by_hand():
    counts = ArcCounts.empty(("a",), np.ones((1, 2), bool))
    counts.tokens[:] = counts.arcs[:] = [[10], [20]]
    counts.hits[:, 0, 0, 0] = [[6, 5], [3, 9]]
    found = counts.best(["a"])
    # all: head 2 with 14 of 30; the first half chooses head 1 (3 in the second), the second head 2 (5 in the first)
    assert (found.head, found.value) == (1, pytest.approx(100 * 14 / 30))
    assert found.held_out == pytest.approx(100 * (3 + 5) / 30)
    counts.tokens[1] = 0
    assert np.isnan(counts.best(["a"]).held_out)
    assert sorted(halves(7).tolist()) == [0, 0, 0, 0, 1, 1, 1]
    assert np.array_equal(halves(50, 1), halves(50, 1)) and not np.array_equal(halves(50, 1), halves(50, 2))


def test_gated_and_removed_heads_count_nothing(bert):
    gated, scale = uas_of(bert, SENTENCES, GATES), (GATES > 0).float()
    removed, closed = uas_of(use_eager(without_heads(bert, scale)), SENTENCES), uas_of(bert, SENTENCES, scale)
    assert np.array_equal(gated.present, GATES.numpy() > 0) and np.array_equal(removed.present, gated.present)
    assert np.array_equal(np.isnan(removed.uas()), np.broadcast_to(GATES.numpy() == 0, (2, 2, 4)))
    there = removed.present
    assert np.array_equal(removed.hits[..., there], closed.hits[..., there])
    assert np.allclose(removed.mass[..., there], closed.mass[..., there], atol=1e-5)


def test_an_evaluation_leaves_a_training_as_it_was(tiny_encoder):
    encoder = Encoder.load(str(tiny_encoder("bert"))).train()
    expected = uas_of(Encoder.load(str(tiny_encoder("bert")), attention="eager"), SENTENCES)
    encoder.transformer.encoder.layer[0].eval()
    modes = [module.training for module in encoder.modules()]
    torch.manual_seed(3)
    found = uas_of(encoder, SENTENCES)
    after = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), after)
    assert [module.training for module in encoder.modules()] == modes and not all(modes)
    assert encoder.transformer.config._attn_implementation == "sdpa"
    assert np.array_equal(found.hits, expected.hits)


def test_sentences_without_trees_or_too_long_are_left_out(tiny_encoder):
    encoder = Encoder.load(str(tiny_encoder("bert")), attention="eager")
    long = sentences_of([70], seed=5)
    bare = [s.bare() for s in SENTENCES]
    assert uas_of(encoder, [*long, *SENTENCES[:3], *bare]).tokens.sum() == 15
    with pytest.raises(ArcError, match="none of the 8 sentences has one"):
        uas_of(encoder, bare)
    with pytest.raises(ArcError, match="fits into the 64 tokens"):
        uas_of(encoder, long)


def test_dimensions_are_those_of_vectors_taken_one_sentence_at_a_time(bert):
    """The last ten of forty sentences repeat the first ten in capitals, which the tokenizer lowers."""
    sentences = sentences_of([*range(2, 32)])
    repeated = [replace(one, words=tuple(word.upper() for word in one.words)) for one in sentences[:10]]
    reading, request = reading_of([*sentences, *repeated]), Request((), Path("nowhere"), Block())
    found = measure_heads(reading, subject_of(bert, GATES), request)
    frames, measured = found.frames, found.measured
    cls, means, heads = [], [], []
    for sentence in sentences:
        seen = observe(bert, bert.collate([bert.tokenize(sentence.words)]), GATES, {"heads"})
        cls.append(seen.last[0, 0].numpy())
        means.append(seen.word_vectors(seen.last).mean(0).numpy())
        heads.append(torch.stack([seen.word_vectors(layer).mean(0) for layer in seen.heads]).numpy())  # (L, A, d)
    assert measured.counts.size() == sum(map(len, reading.sentences))
    compared = _compared(measured.counts.by_head(), measured, seed=1)
    facts = pd.DataFrame([*measured.facts, *compared]).set_index("measure")
    for which, expected in (("cls", twonn(cls)), ("mean", twonn(means))):
        assert facts.loc[f"twonn_{which}", "n"] == expected.points == 30
        assert facts.loc[f"twonn_{which}", "value"] == pytest.approx(expected.likelihood, rel=1e-3)
    of_heads = frames["heads"].query("measure == 'twonn'")["value"].to_numpy().reshape(2, 4)
    for (layer, head), gate in np.ndenumerate(GATES.numpy()):
        expected = twonn(np.array(heads)[:, layer, head]).likelihood if gate else np.nan
        assert of_heads[layer, head] == pytest.approx(expected, rel=1e-3, nan_ok=True)
    assert facts.loc["heads_there", "value"] == 6 and facts.loc["gates_by_uas", "n"] == 6


TEXTS = ["The dog saw a cat.", "Nobody unbelievably opened the letter quickly in London!", "He", "old dogs walked"]


def model_of(folder: Path) -> MaskedLanguageModel:
    torch.manual_seed(1)
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    return MaskedLanguageModel.of(model, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="module")
def masked(tiny_encoder: Callable[[str], Path]) -> MaskedLanguageModel:
    return model_of(tiny_encoder("bert"))


@torch.no_grad()
def one_by_one(lm: MaskedLanguageModel, text: str) -> float:
    ids, total = lm.tokenizer(text, return_tensors="pt")["input_ids"][0], 0.0
    for t in range(1, len(ids) - 1):
        shown = ids.clone()
        shown[t] = lm.tokenizer.mask_token_id
        logits = lm.model(input_ids=shown[None], attention_mask=torch.ones_like(shown)[None]).logits[0, t]
        total += float(logits.double().log_softmax(-1)[ids[t]])
    return total


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "electra", "modernbert", "mpnet", "albert", "deberta-v2"]
)
def test_it_is_what_one_masked_position_after_another_gives(family, tiny_encoder, monkeypatch):
    lm = model_of(tiny_encoder(family))
    expected = [one_by_one(lm, text) for text in TEXTS]
    for slots in (1, 300, 10**6):
        monkeypatch.setattr("mtlprune.encoder.pseudo_likelihood.SLOTS", slots)
        assert pseudo_log_likelihoods(lm, TEXTS) == pytest.approx(expected, abs=2e-4)


def test_a_model_in_training_is_evaluated_without_dropout_and_stays_in_training(tiny_encoder):
    lm = model_of(tiny_encoder("bert"))
    expected = pseudo_log_likelihoods(lm, TEXTS)
    for module in lm.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    lm.model.train()
    assert np.array_equal(pseudo_log_likelihoods(lm, TEXTS), expected) and lm.model.training


def test_ties_are_wrong_and_means_are_over_paradigms(masked):
    worst, *_, best = (TEXTS[k] for k in pseudo_log_likelihoods(masked, TEXTS).argsort())
    pairs = {"right": [(best, worst)] * 30, "tied": [(best, best)] * 4, "wrong": [(worst, best)] * 7}
    paradigms = [
        Paradigm(name, "b" if name == "wrong" else "a", tuple(MinimalPair(*pair) for pair in held))
        for name, held in pairs.items()
    ]
    found = judge(masked, paradigms)
    assert found.paradigms == {"right": 100, "tied": 0, "wrong": 0}
    assert found.phenomena == {"a": 50, "b": 0} and found.overall == pytest.approx(100 / 3) and found.pairs == 41


def test_an_encoder_or_a_run_does_not_judge_nor_a_model_texts_that_it_cannot_see(tiny_encoder, masked, tmp_path):
    with pytest.raises(EncoderError, match="an encoder without a head that predicts masked words"):
        MaskedLanguageModel.load(str(tiny_encoder("bert")))
    (tmp_path / "config.yaml").write_text("tasks: [pos]\n")
    with pytest.raises(EncoderError, match="is a run, which keeps its encoder without a head"):
        MaskedLanguageModel.load(str(tmp_path))
    with pytest.raises(EncoderError, match="tokens, and the model sees 64 at once"):
        pseudo_log_likelihoods(masked, ["the " * 90])
