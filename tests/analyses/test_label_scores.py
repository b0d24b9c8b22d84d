"""Counts of labels: together they are the counts of the score; differences are those of the tables' tests."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_sentences import sentences

from mtlprune.scores import count
from mtlprune.sentence import Sentence, Span
from mtlprune.statistics.significance import LabelDifference, compare_counted, count_labels

KEYS = {"pos": ("correct", None), "ner": ("correct", "gold"), "dep": ("arcs", None), "con": ("correct", "gold")}
KEYS["srl"] = ("correct", "gold")


@pytest.mark.parametrize("layer", KEYS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_labels_add_up_to_the_score(layer, data):
    gold = data.draw(sentences())
    drawn = data.draw(st.none() | sentences().filter(lambda sentence: len(sentence) == len(gold)))
    other = replace(drawn, words=gold.words) if drawn is not None else gold
    if getattr(other, layer) is None:
        with pytest.raises(ValueError, match="do not have the same words, or"):
            count_labels(layer, gold, other)
        return
    counted, whole = count_labels(layer, gold, other), count(layer, gold, other)
    assert (counted is None) == (whole is None)
    if counted is not None and whole is not None:
        right, in_gold = KEYS[layer]
        sums = np.array([*counted.values(), (0, 0, 0)]).sum(0)
        assert sums[0] == whole[right]
        assert sums[1] == (whole[in_gold] if in_gold else len(gold))
        assert in_gold is None or sums[2] == whole["predicted"]


def tagged(tags: str, place: int) -> Sentence:
    return Sentence(f"s{place}", tuple("abc"), pos=tuple(tags))


def compared(layer: str, gold: list, joint: list, single: list) -> dict[str, LabelDifference]:
    sides = [[count_labels(layer, g, p) for g, p in zip(gold, run, strict=True)] for run in (joint, single)]
    return {row.label: row for row in compare_counted(sides[:1], sides[1:], resamples=200)}


def test_differences_by_label():
    gold = [tagged("NNV", place) for place in range(30)]
    joint = [tagged("NNV" if place % 2 else "NVV", place) for place in range(30)]
    rows = compared("pos", gold, joint, gold)
    assert list(rows) == ["N", "V"]
    assert (rows["N"].items, rows["V"].items) == (60, 30)
    assert rows["N"].single == 100 and rows["N"].joint == pytest.approx(200 * 45 / (60 + 45))
    assert rows["V"].found.delta == pytest.approx(200 * 30 / (30 + 45) - 100)
    assert rows["N"].q < 0.05 and not rows["N"].few


def test_labels_with_few_items_are_marked_and_not_corrected_for():
    gold = [replace(tagged("NNV", place), ner=(Span(0, 1, "PER" if place else "LOC"),)) for place in range(25)]
    none = [replace(sentence, ner=()) for sentence in gold]
    rows = compared("ner", gold, none, gold)
    assert rows["LOC"].few and np.isnan(rows["LOC"].q)
    assert rows["PER"].q == rows["PER"].found.p and rows["PER"].found.delta == -100
