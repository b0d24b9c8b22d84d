"""Exchanged outputs of heads: nothing exchanged changes nothing, what is exchanged is what the other sentence gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from found import model_of

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.heads.exchange import STEM, ExchangeOptions
from mtlprune.analyses.heads.exchange.measure import (
    Change,
    _cells,
    _contrasts,
    _Margins,
    _shares,
    _stems,
    usable_pairs,
    with_stem,
)
from mtlprune.corpora.grammar import build_grammar, draw_pairs
from mtlprune.model import MultiTaskModel
from mtlprune.statistics.contrast import contrast_frame


@pytest.fixture(scope="module")
def model(tiny_encoder: Callable[[str], Path]) -> MultiTaskModel:
    pairs = draw_pairs(60, 2, ("pos",))
    sentences = [*build_grammar(200, 1, 1, seed=9)["train"], *(s for pair in pairs for s in pair[1:])]
    return model_of(tiny_encoder("bert"), sentences, ["pos"])


def margins(model: MultiTaskModel, precision: torch.dtype = torch.float32) -> tuple[_Margins, Any]:
    pairs = usable_pairs(model, "pos", 60, 1)
    assert len(pairs) > 2
    return _Margins(model, "pos", pairs, precision), pairs


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_nothing_exchanged_changes_nothing_and_something_does(model: MultiTaskModel, precision: torch.dtype) -> None:
    reads, _ = margins(model, precision)
    size = model.encoder.head_hooks.layers, model.encoder.head_hooks.heads
    assert (reads.exchanged(np.zeros(size, bool)) == reads.of("first")).all()
    assert (reads.exchanged(np.ones(size, bool)) != reads.of("first")).any()


def test_all_heads_and_the_words_of_the_other_sentence_are_the_other_sentence(model: MultiTaskModel) -> None:
    reads, _ = margins(model)
    size = model.encoder.head_hooks.layers, model.encoder.head_hooks.heads
    reads.batches = [(rows, {**both, "first": both["second"]}) for rows, both in reads.batches]
    assert reads.exchanged(np.ones(size, bool)) == pytest.approx(reads.of("second"), abs=1e-5)


def test_sets_are_those_of_labels_and_what_three_claim() -> None:
    heads = np.zeros((2, 3), bool)
    heads[0, 1] = True
    other = np.zeros((2, 3), bool)
    other[1, 2] = True
    sets = with_stem({"POS": heads, "NER": heads | other, "DEP": heads, "MTL-3": other})
    assert set(sets) == {"POS", "NER", "DEP", "MTL-3", STEM} and (sets[STEM] == heads).all()
    assert STEM not in with_stem({"POS": heads, "NER": heads})


def planted(through: dict[str, float], generator: np.random.Generator) -> dict[int, Change]:
    """Three runs, of whose change each set carries so much and two draws of random heads a tenth, with noise over
    pairs."""
    runs = {}
    for seed in (1, 2, 3):
        whole = generator.uniform(1, 3, 100)
        shares = {name: np.array([[share], [0.1], [0.1]]) for name, share in through.items()}
        noisy = {name: share * whole + generator.normal(0, 0.05, (3, 100)) for name, share in shares.items()}
        runs[seed] = Change(whole, 1.0, noisy)
    return runs


def test_planted_shares_are_found() -> None:
    generator = np.random.default_rng(0)
    changes = {
        ("MTL-3", "pos"): planted({"POS": 0.5, "DEP": 0.3, "SRL": 0.1, STEM: 0.3}, generator),
        ("MTL-3", "dep"): planted({"POS": 0.2, "DEP": 0.7, "SRL": 0.2, STEM: 0.3}, generator),
        ("MTL-3", "srl"): planted({"POS": 0.1, "DEP": 0.1, "SRL": 0.6, STEM: 0.05}, generator),
    }
    shares = _shares(changes, Request([], Path(), ExchangeOptions(resamples=500)))
    cells = contrast_frame(_cells(shares, changes)).set_index(["task", "other"])
    row = cells.loc[("pos", "POS")]
    assert row["share"] == pytest.approx(0.5, abs=0.02) and row["random"] == pytest.approx(0.1, abs=0.02)
    assert row["low"] < row["estimate"] < row["high"] and row["p"] < 0.01 and row["decided"] == 1
    contrasts = contrast_frame(_contrasts(shares)).set_index("term")
    assert contrasts.loc["own", "estimate"] == pytest.approx(0.5, abs=0.02)  # beyond random heads
    assert contrasts.loc["others", "estimate"] == pytest.approx(1 / 15, abs=0.02)
    apart = contrasts.loc["own minus others"]
    assert apart["estimate"] == pytest.approx(0.5 - 1 / 15, abs=0.02)
    assert apart["low"] < apart["estimate"] < apart["high"]
    stem = contrasts.loc["stem"]
    assert stem["estimate"] == pytest.approx(0.65 / 3 - 0.1, abs=0.02) and stem["p"] < 0.05
    assert [row["carried"] for row in _stems(shares)] == [2, 2, 2]


@pytest.mark.slow
def test_own_minus_others_is_found_no_more_often_than_5_percent_where_sets_are_random() -> None:
    request, reached = Request([], Path(), ExchangeOptions(resamples=100)), 0
    for study in range(1000):
        generator = np.random.default_rng([12, study])
        expected = generator.uniform(0, 0.3, (2, 3))  # of a task's change, through random heads of each set's layers
        draws = expected[..., None] + generator.normal(0, 0.1, (2, 3, 5))
        changes: Any = {}
        for row, task in enumerate(("pos", "dep")):
            for seed in (1, 2, 3):
                whole = generator.uniform(1, 3, 40)
                through = {
                    name: np.array([expected[row, column], *draws[row, column]])[:, None] * whole
                    + generator.normal(0, 0.02, (6, 1))
                    + generator.normal(0, 0.1, (6, 40))
                    for column, name in enumerate(("POS", "DEP", "SRL"))
                }
                changes.setdefault(("MTL-2", task), {})[seed] = Change(whole, 1.0, through)
        contrasts = {keys["term"]: contrast for keys, contrast in _contrasts(_shares(changes, request))}
        reached += contrasts["own minus others"].p < 0.05
    assert reached <= 60


def test_others_are_all_single_tasks_that_have_claims_also_those_without_pairs() -> None:
    generator = np.random.default_rng(1)
    changes = {
        ("MTL-3", "ner"): planted({"POS": 0.7, "NER": 0.2, "SRL": 0.3, STEM: 0.9, "MTL-3": 0.9}, generator),
        ("MTL-3", "srl"): planted({"POS": 0.5, "NER": 0.3, "SRL": 0.4, STEM: 0.9, "MTL-3": 0.9}, generator),
    }
    contrasts = contrast_frame(_contrasts(_shares(changes, Request([], Path(), ExchangeOptions(resamples=99)))))
    means = contrasts.set_index("term")["estimate"]
    assert means["own"] == pytest.approx(0.2, abs=0.02)
    assert means["others"] == pytest.approx((0.6 + 0.2 + 0.4 + 0.2) / 4, abs=0.02)
