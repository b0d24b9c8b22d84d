"""The survey of degeneration on tiny encoders: sums against whole matrices, closed heads, the mean taken apart."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from found import column, grids, without_heads
from tiny import WORDS
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.degeneration import DegenerationOptions
from mtlprune.analyses.degeneration import maths as dg
from mtlprune.analyses.degeneration.maths import draw
from mtlprune.analyses.degeneration.measure import HEAD_MEASURES, TERMS, DegenerationSurvey, take_apart
from mtlprune.analyses.reading import Found, Reading, Subject
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe
from mtlprune.sentence import Sentence
from mtlprune.statistics import twonn

GATES = torch.tensor([[1.0, 0.0, 0.5, 0.25], [0.0, 0.75, 1.0, 0.1]])
SENTENCES = [
    Sentence(str(k), tuple(np.random.default_rng(k).choice(WORDS, size).tolist()))
    for k, size in enumerate((5, 11, 3, 8, 1, 6, 9, 9, 4, 7, 10, 2, 12, 6, 5, 8))
]
REQUEST = Request((), Path("nowhere"), DegenerationOptions(rows=80, permutations=50))
READING = Reading("tiny", "f" * 64, "dev", SENTENCES, 0, [], 0)


def measured(encoder: Encoder, gates: Tensor | None = None) -> Found:
    return DegenerationSurvey(READING, Subject("pretrained", "tiny", 0, encoder, gates, "tiny"), REQUEST).run()


@pytest.fixture(scope="module")
def bert(tiny_encoder: Callable[[str], Path]) -> Encoder:
    encoder = Encoder.load(str(tiny_encoder("bert")), attention="eager")
    encoder.transformer.double()
    torch.manual_seed(5)
    for name, parameter in encoder.transformer.named_parameters():
        if "LayerNorm" in name:
            torch.nn.init.normal_(parameter, float(name.endswith("weight")), 0.3)
    return encoder


def words(encoder: Encoder, gates: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden states and head outputs of all words, sentence by sentence: no padding anywhere."""
    hidden, heads = [], []
    for sentence in SENTENCES:
        seen = observe(encoder, encoder.collate([encoder.tokenize(sentence.words)]), gates, {"hidden", "heads"})
        hidden.append([seen.word_vectors(states) for states in seen.hidden])
        heads.append([seen.word_vectors(outputs) for outputs in seen.heads])
    return [torch.cat(parts) for parts in zip(*hidden, strict=True)], [
        torch.cat(parts) for parts in zip(*heads, strict=True)
    ]


def test_what_streams_is_what_whole_matrices_say(bert):
    found = measured(bert, GATES)
    hidden, heads = words(bert, GATES)
    for layer, states in enumerate(hidden):
        assert column(found, "layers", "mean_cosine")[layer] == pytest.approx(float(dg.mean_cosine(states)), abs=1e-10)
        assert column(found, "layers", "rows")[layer] == len(states) == sum(map(len, SENTENCES))
        isoscore = float(dg.isoscore(torch.cov(states.T)))
        assert column(found, "layers", "isoscore")[layer] == pytest.approx(isoscore, abs=1e-8)
    sample = draw([len(sentence) for sentence in SENTENCES], 80, 0)
    drawn = hidden[-1][sample.kept][sample.rows].float().double()
    assert column(found, "layers", "positive")[-1] == dg.positive_share(drawn)
    assert column(found, "layers", "dimension")[-1] == pytest.approx(
        twonn.likelihood(hidden[-1][sample.kept][sample.lone].double()), 1e-4
    )
    for layer, outputs in enumerate(heads):
        for head in range(4):
            value = grids(found)["cosine"][layer, head]
            if GATES[layer, head] == 0:
                assert math.isnan(value)
            else:
                expected = float(dg.mean_cosine(outputs[:, head])) * len(outputs) / (len(outputs) - 1)
                assert value == pytest.approx(expected, abs=1e-10)
    assert column(found, "embeddings", "rows") == bert.transformer.get_input_embeddings().weight.shape[0]
    assert column(found, "embeddings", "margin") >= 0
    assert math.isnan(column(found, "layers", "margin")[0]) == (len(sample.rows) < 78)


def test_the_sample_depends_on_sentences_only_and_has_one_word_of_each():
    sizes = [len(sentence) for sentence in SENTENCES]
    sample = draw(sizes, 40, seed=3)
    assert len(set(sample.kept)) == len(sample.kept) and len(sample.rows) == 40
    lone = sample.kept[sample.lone]
    assert (np.searchsorted(sample.starts, lone, side="right") - 1).tolist() == list(range(len(sizes)))
    seen: dict[int, int] = {}
    for rows in ([3, 0], [1], [2, *range(4, len(sizes))]):
        here, there = sample.of(rows)
        places = np.concatenate([np.arange(sample.starts[row], sample.starts[row + 1]) for row in rows])
        assert (sample.kept[there] == places[here]).all()
        seen |= dict(zip(there.tolist(), here.tolist(), strict=True))
    assert sorted(seen) == list(range(len(sample.kept)))
    assert (draw(sizes, 40, seed=3).kept == sample.kept).all() and len(draw(sizes, 9999, 0).rows) == sum(sizes)


def test_the_mean_taken_apart(bert):
    hidden, _ = words(bert, GATES)
    subject = Subject("pretrained", "tiny", 0, bert, GATES, "tiny")
    mean = hidden[-1].mean(0)
    layers, heads, middle, direction = take_apart(subject, READING, mean, REQUEST)
    terms = np.array([[row[f"share_{term}"] for term in TERMS] for row in layers])
    assert terms.shape == (3, 4)
    np.testing.assert_allclose(terms.sum(1), 1, atol=1e-10)
    np.testing.assert_allclose(terms[0, 1:3], 0, atol=1e-12)
    assert heads.sum() == pytest.approx(terms[-1, 1], abs=1e-8)
    assert (heads[GATES.numpy() == 0] == 0).all()
    torch.testing.assert_close(middle, mean, rtol=1e-9, atol=1e-11)
    assert all(row["plane_spread"] < 1e-13 and row["plane_angle"] > 90 for row in layers[1:])
    assert direction is not None and ((hidden[-1] @ direction) < 0).all()


def test_removed_heads_are_as_closed_ones(bert):
    gates = (GATES > 0).double()
    closed, cut = measured(bert, gates), measured(without_heads(bert, gates))
    for name in HEAD_MEASURES:
        np.testing.assert_allclose(grids(cut)[name], grids(closed)[name], atol=1e-6)
        assert np.isnan(grids(closed)[name][gates.numpy() == 0]).all()
    np.testing.assert_allclose(grids(cut)["cone"], grids(closed)["cone"], atol=1e-9)
    for term in TERMS:
        shares = [column(one, "layers", f"share_{term}") for one in (cut, closed)]
        np.testing.assert_allclose(*shares, atol=1e-9)


def test_a_layer_without_heads(bert):
    found = grids(measured(without_heads(bert, torch.tensor([[0.0] * 4, [1.0] * 4]))))
    assert found["gate"].tolist() == [[0] * 4, [1] * 4] and (found["cone"][0] == 0).all()
    assert np.isnan(found["cosine"][0]).all() and not np.isnan(found["cosine"][1]).any()


def test_encoders_that_cannot_be_taken_apart_say_so(tiny_encoder):
    found = measured(Encoder.load(str(tiny_encoder("modernbert")), attention="eager"))
    assert "cone" not in grids(found) and "no post-LN encoder" in found.notes[0]
    assert len(column(found, "layers", "isoscore")) == 3
    bare = measured(Encoder.load(str(tiny_encoder("bert")), context=False))
    assert bare.frames.keys() == {"embeddings", "spectra", "points"} and "has no layers" in bare.notes[0]
    assert column(bare, "embeddings", "rows") > 0
