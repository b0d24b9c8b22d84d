"""The survey of degeneration on tiny encoders: sums against whole matrices, shut heads, the mean taken apart."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gated_runs import claim
from tiny import WORDS
from torch import Tensor

from mtlprune.analyses.claims.groups import read_groups
from mtlprune.analyses.degeneration import claims as degeneration_claims
from mtlprune.analyses.degeneration import maths as dg
from mtlprune.analyses.degeneration.cloud import draw
from mtlprune.analyses.degeneration.results import encoder as entry
from mtlprune.analyses.degeneration.survey import HEAD_MEASURES, Degeneration, DegenerationSettings, DegenerationSurvey
from mtlprune.analyses.reading import Reading
from mtlprune.analyses.subjects import Subject
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe
from mtlprune.encoder.removal import remove_heads
from mtlprune.sentence import Sentence

GATES = torch.tensor([[1.0, 0.0, 0.5, 0.25], [0.0, 0.75, 1.0, 0.1]])
SENTENCES = [
    Sentence(str(k), tuple(np.random.default_rng(k).choice(WORDS, size).tolist()))
    for k, size in enumerate((5, 11, 3, 8, 1, 6, 9, 9, 4, 7, 10, 2, 12, 6, 5, 8))
]
SETTINGS = DegenerationSettings(rows=80, permutations=50)


def measured(encoder: Encoder, gates: Tensor | None = None) -> tuple[Degeneration, DegenerationSurvey]:
    reading = Reading("tiny", "f" * 64, "dev", SENTENCES, 0, [], 0)
    survey = DegenerationSurvey(reading, Subject("pretrained", "tiny", 0, encoder, gates, "tiny"), "tiny", SETTINGS)
    return survey.run(), survey


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


def test_what_streams_is_what_whole_matrices_say(bert: Encoder) -> None:
    found, survey = measured(bert, GATES)
    hidden, heads = words(bert, GATES)
    for row, states, kept in zip(found.hidden, hidden, survey.states, strict=True):
        assert row["mean_cosine"] == pytest.approx(float(dg.mean_cosine(states)), abs=1e-10)
        assert row["rows"] == len(states) == sum(map(len, SENTENCES))
        assert row["isoscore"] == pytest.approx(float(dg.isoscore(torch.cov(states.T))), abs=1e-8)
        torch.testing.assert_close(kept, states[survey.sample.kept].float())
    for layer, outputs in enumerate(heads):
        for head in range(4):
            value = found.heads["cosine"][layer, head]
            if GATES[layer, head] == 0:
                assert math.isnan(value)
            else:
                expected = float(dg.mean_cosine(outputs[:, head])) * len(outputs) / (len(outputs) - 1)
                assert value == pytest.approx(expected, abs=1e-10)
    assert found.embeddings["rows"] == bert.transformer.get_input_embeddings().weight.shape[0]
    assert found.embeddings["margin"] >= 0 and math.isnan(found.hidden[0]["margin"]) == (len(survey.sample.rows) < 78)


def test_the_sample_depends_on_sentences_only_and_has_one_word_of_each() -> None:
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


def test_the_mean_taken_apart(bert: Encoder) -> None:
    found, survey = measured(bert, GATES)
    cone = found.cone
    assert cone is not None and cone.terms.shape == (3, 4)
    np.testing.assert_allclose(cone.terms.sum(1), 1, atol=1e-10)
    np.testing.assert_allclose(cone.terms[0, 1:3], 0, atol=1e-12)
    assert cone.heads.sum() == pytest.approx(cone.terms[-1, 1], abs=1e-8)
    assert (cone.heads[GATES.numpy() == 0] == 0).all()
    for mean, moments in zip(cone.means, survey.hidden, strict=True):
        torch.testing.assert_close(mean, moments.mean(), rtol=1e-9, atol=1e-11)
    assert max(cone.spreads) < 1e-13 and all(angle > 90 for angle in cone.angles)
    assert cone.direction is not None
    states = survey.states[-1].double()
    assert ((states @ cone.direction) < 0).all()


def test_removed_heads_are_as_closed_ones(bert: Encoder) -> None:
    gates = (GATES > 0).double()
    closed, _ = measured(bert, gates)
    small = copy.deepcopy(bert)
    small.__dict__.pop("places", None)
    small.head_map = remove_heads(small.transformer, gates, bert.places.kept)
    cut, _ = measured(small)
    for name in HEAD_MEASURES:
        np.testing.assert_allclose(cut.heads[name], closed.heads[name], atol=1e-6)
        assert np.isnan(closed.heads[name][gates.numpy() == 0]).all()
    assert cut.cone is not None and closed.cone is not None
    np.testing.assert_allclose(cut.cone.heads, closed.cone.heads, atol=1e-9)
    np.testing.assert_allclose(cut.cone.terms, closed.cone.terms, atol=1e-9)


def test_a_layer_without_heads(bert: Encoder) -> None:
    small = copy.deepcopy(bert)
    small.__dict__.pop("places", None)
    small.head_map = remove_heads(small.transformer, torch.tensor([[0.0] * 4, [1.0] * 4]), bert.places.kept)
    found, _ = measured(small)
    assert found.heads["gate"].tolist() == [[0] * 4, [1] * 4] and found.cone is not None
    assert np.isnan(found.heads["cosine"][0]).all() and not np.isnan(found.heads["cosine"][1]).any()
    assert (found.cone.heads[0] == 0).all()


def test_encoders_that_cannot_be_taken_apart_say_so(tiny_encoder: Callable[[str], Path]) -> None:
    found, _ = measured(Encoder.load(str(tiny_encoder("modernbert")), attention="eager"))
    assert found.cone is None and "no post-LN encoder" in found.notes[0] and len(found.hidden) == 3
    assert entry(found, None)["cone"] is None
    bare, _ = measured(Encoder.load(str(tiny_encoder("bert")), context=False))
    assert not bare.hidden and not bare.heads and "has no layers" in bare.notes[0]
    assert bare.embeddings["rows"] > 0 and entry(bare, None)["heads"] == []


def test_claims_are_compared_within_layers() -> None:
    """Claimed heads are more isotropic in every layer, and layers differ by more: only a test within layers sees it."""
    generator = np.random.default_rng(2)
    claimed = np.tile([1.0] * 4 + [0.0] * 4, (6, 1))
    groups = read_groups([claim(task, 1, claimed) for task in ("POS", "NER", "DEP")])
    layers = np.arange(6)[:, None] * 10.0
    heads = {name: generator.standard_normal((6, 8)) for name in HEAD_MEASURES}
    heads["isoscore"] = layers + claimed + 0.1 * generator.standard_normal((6, 8))
    tests = degeneration_claims.compare(groups, heads, 400, 0)
    degeneration_claims.correct(tests)
    assert {test["test"] for test in tests} == {"stem - exclusive", "stem - free", "exclusive - free", "tasks"}
    strong = [test for test in tests if test["q"] < 0.05]
    assert {test["measure"] for test in strong} == {"isoscore"} and len(strong) == 2
    found = degeneration_claims.means(groups, heads)["isoscore"]
    assert found["stem"] - found["free"] == pytest.approx(1, abs=0.2) and math.isnan(found["exclusive"])
