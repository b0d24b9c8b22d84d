"""Closing one task's heads in another task's runs: what is drawn beside them, and the contrast on planted counts."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.cross import CrossOptions
from mtlprune.analyses.cross.measure import ClosedCounts, Tables, _cells, _own, others
from mtlprune.scores import SCORES, count_names


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(0, 99))
def test_others_are_as_many_in_each_layer_and_others_where_there_are_enough(rows, seed):
    heads = np.array(rows)
    drawn = others(heads, np.random.default_rng(seed))
    assert (drawn.sum(1) == heads.sum(1)).all()
    assert ((drawn & heads).sum(1) == np.maximum(2 * heads.sum(1) - heads.shape[1], 0)).all()


@pytest.mark.parametrize("planted", [0.0, 0.2])
def test_a_planted_loss_in_the_own_task_is_found(planted):
    """Closing own heads costs ``planted`` of the words, other heads nothing; only the noise of sentences differs."""
    names = count_names("tags", "accuracy")
    generator, labels, words, sentences = np.random.default_rng(5), ("POS", "NER", "DEP"), 20, 300
    held: Tables = {}
    closed = [("", ""), *((mode, label) for mode in ("claimed", "random") for label in labels)]
    for label in labels:
        for mode, other in closed:
            rate = 0.9 - planted * (mode == "claimed" and other == label)
            cell = held[label, label.lower(), mode, other] = ClosedCounts(names, SCORES["tags"]["accuracy"])
            for seed in (1, 2, 3):
                right = generator.binomial(words, rate, sentences)
                cell.runs[seed] = np.stack([right, np.full(sentences, words)], 1) * (1 + (mode == "random"))
    request = Request([], Path(), CrossOptions(draws=2, resamples=400, margin=3.0))
    own = _own(held, request).iloc[0]
    assert own["low"] < -100 * planted < own["high"] and (own["p"] < 1e-4) == bool(planted)
    cells = _cells(held, request).set_index(["encoder", "other"])
    assert np.isclose(
        own["delta"],
        np.mean(
            [
                cells.loc[(a, a), "delta"] - np.mean([cells.loc[(b, a), "delta"] for b in labels if b != a])
                for a in labels
            ]
        ),
    )
    assert (cells["equal"].drop([(label, label) for label in labels]) < 0.05).all()
