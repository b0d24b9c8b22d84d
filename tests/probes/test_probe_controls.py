"""Fixed offsets and chance against counting by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from random_sentences import corpora

from mtlprune.analyses.probes.items import Items, chance, offset_hits, read_items
from mtlprune.sentence import Sentence


def tasks(sentences: list[Sentence], *names: str) -> list[Items]:
    return [items for items in read_items({"test": sentences}, 0)["test"] if items.task in names]


@given(corpora())
def test_offsets_one_by_one(sentences: list[Sentence]) -> None:
    for items in tasks(sentences, "dep", "srl"):
        expected = np.zeros((len(items.labels), 9))
        for row, label in zip(items.columns.tolist(), items.label, strict=True):
            for offset in range(1, 10):
                if items.task == "dep":
                    head, dependent = row
                    hit = dependent + offset == head or head + offset == dependent
                else:
                    start, end, predicate = row
                    hit = any(t + offset == predicate or predicate + offset == t for t in range(start, end))
                expected[label, offset - 1] += hit
        assert np.array_equal(offset_hits(items, 9), expected)
        assert np.array_equal(offset_hits(items, 2), expected[:, :2])


@given(corpora())
def test_chance_by_all_ways_to_choose(sentences: list[Sentence]) -> None:
    for items in tasks([s for s in sentences if len(s) < 5], "dep", "srl"):
        expected: dict[int, list[float]] = {}
        for row, label, n in zip(items.columns.tolist(), items.label, items.lengths, strict=True):
            hits = []
            if items.task == "dep":
                head, dependent = row
                for g_head, g_dependent in product(range(n + 1), repeat=2):
                    hits.append(g_dependent == head or g_head == dependent)
            else:
                start, end, predicate = row
                for g in product(range(n), repeat=int(n)):
                    hits.append(any(g[t] == predicate or g[predicate] == t for t in range(start, end)))
            expected.setdefault(int(label), []).append(float(np.mean(hits)))
        found = chance(items)
        for label, values in expected.items():
            assert found[label] == pytest.approx(np.mean(values))


@given(corpora())
def test_chance_of_centroids_is_one_in_k(sentences: list[Sentence]) -> None:
    for items in tasks(sentences, "pos", "ner", "con"):
        assert np.allclose(chance(items), 1 / len(items.labels))
