"""Items of all tasks, shuffled labels, chance by counting; ties, centroids and nested spans with known answers."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from found import met
from hypothesis import given
from random_sentences import corpora, nested_spans, spans

from mtlprune.analyses.probes import maths
from mtlprune.analyses.probes.items import chance, offset_hits, read_items, tree_heights
from mtlprune.sentence import Dependencies, Predicate, Sentence

# (S (NP the old dog) (VP saw (NP (NP cats) (PP in (NP parks)))))
TREE = spans((0, 7, "S"), (0, 3, "NP"), (3, 7, "VP"), (4, 7, "NP"), (4, 5, "NP"), (5, 7, "PP"), (6, 7, "NP"))
SENTENCE = Sentence(
    "1",
    ("the", "old", "dog", "saw", "cats", "in", "parks"),
    pos=("DT", "JJ", "NN", "VBD", "NNS", "IN", "NNS"),
    ner=spans((6, 7, "LOC")),
    dep=Dependencies((3, 3, 4, 0, 4, 7, 5), ("det", "amod", "nsubj", "root", "obj", "case", "nmod")),
    con=TREE,
    srl=(Predicate(3, "see.01", spans((0, 3, "ARG0"), (3, 4, "V"), (4, 7, "ARG1"))),),
).validate()


def listed(task: str, heights: str = "lowest") -> list[tuple]:
    found = {items.task: items for items in read_items({"test": [SENTENCE]}, 0, heights)["test"]}[task]
    return [(*map(int, row), found.labels[k]) for row, k in zip(found.columns, found.label, strict=True)]


def test_items_of_a_sentence():
    assert listed("pos")[2] == (2, 3, "NN") and len(listed("pos")) == 7
    assert listed("ner") == [(6, 7, "LOC")]
    assert listed("dep")[:4] == [(3, 1, "det"), (3, 2, "amod"), (4, 3, "nsubj"), (0, 4, "root")]
    assert listed("srl") == [(0, 3, 3, "ARG0"), (4, 7, 3, "ARG1")]  # without V
    assert listed("con") == [(0, 3, "NP"), (4, 5, "NP"), (6, 7, "NP")]
    assert tree_heights(TREE) == [6 + 1, 3, 6, 5, 3, 4, 3]
    assert len(listed("con", "all")) == 7
    assert {label for *_, label in listed("con", "each")} == {"S@7", "NP@3", "VP@6", "NP@5", "PP@4"}
    tasks = [items.task for items in read_items({"test": [SENTENCE.bare().with_layers(pos=SENTENCE.pos)]}, 0)["test"]]
    assert tasks == ["pos"]


@given(nested_spans(7))
def test_heights_by_their_definition(tree):
    def height(place: int) -> int:
        start, end, _ = tree[place]
        inside = [n for n in range(place + 1, len(tree)) if start <= tree[n].start and tree[n].end <= end]
        return 1 + max(map(height, inside), default=2)

    assert tree_heights(tree) == [height(place) for place in range(len(tree))]


@given(corpora())
def test_labels_offsets_and_shuffles(sentences):
    found = read_items({"train": sentences[:1], "test": sentences}, 3)
    for train, test in zip(found["train"], found["test"], strict=True):
        assert train.labels == test.labels and train.task == test.task
        assert len(test) == test.offsets[-1] == len(test.columns) == test.counts().sum()
        assert np.array_equal(np.bincount(test.shuffled, minlength=len(test.labels)), test.counts())
        total = test.counts() + train.counts()
        assert all(a >= b for a, b in pairwise(total))
        rows = list(range(len(sentences)))[::-1]
        which, row = test.of(rows)
        parts = [np.arange(test.offsets[s], test.offsets[s + 1]) for s in rows]
        assert np.array_equal(which, np.concatenate(parts))
        assert np.array_equal(row, np.repeat(np.arange(len(rows)), [len(part) for part in parts]))
        assert np.array_equal(test.lengths, np.repeat([len(s) for s in sentences], np.diff(test.offsets)))
    many = {"test": [SENTENCE] * 20}
    first, again, other = (read_items(many, seed)["test"][0].shuffled for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@given(corpora())
def test_offsets_one_by_one(sentences):
    for items in (items for items in read_items({"test": sentences}, 0)["test"] if items.task in ("dep", "srl")):
        expected = np.zeros((len(items.labels), 9))
        for row, label in zip(items.columns.tolist(), items.label, strict=True):
            for offset in range(1, 10):
                expected[label, offset - 1] += met(items, row, lambda one, other, by=offset: one + by == other)
        assert np.array_equal(offset_hits(items, 9), expected)
        assert np.array_equal(offset_hits(items, 2), expected[:, :2])


@given(corpora())
def test_chance_by_all_ways_to_choose(sentences):
    for items in read_items({"test": [s for s in sentences if len(s) < 5]}, 0)["test"]:
        if items.task in ("pos", "ner", "con"):
            assert np.allclose(chance(items), 1 / len(items.labels))
            continue
        expected: dict[int, list[float]] = {}
        for row, label, n in zip(items.columns.tolist(), items.label, items.lengths, strict=True):
            slots = n + (items.task == "dep")  # one for the root
            ways = product(range(slots), repeat=int(slots))
            hits = [met(items, row, lambda one, other, way=way: way[one] == other) for way in ways]
            expected.setdefault(int(label), []).append(float(np.mean(hits)))
        found = chance(items)
        for label, values in expected.items():
            assert found[label] == pytest.approx(np.mean(values))


def test_the_direction_counts_not_the_length():
    made = maths.Centroids(3, 1, 2)
    made.add(torch.tensor([[[1.0, 0.0]], [[0.0, 9.0]]]), torch.tensor([0, 1]))
    made.add(torch.tensor([[[3.0, 0.2]]]), torch.tensor([0]))
    assert made.counts.tolist() == [2, 1, 0] and made.known.tolist() == [True, True, False]
    units = torch.tensor([[[0.5, 0.4]], [[100.0, 120.0]], [[-1.0, -1.0]], [[0.0, 0.0]], [[1.0, 0.0]]])
    found = maths.nearest_found(units, torch.tensor([0, 1, 0, 0, 2]), made.directions(), made.known)[:, 0]
    # far from all, the nearest is still one; nothing said is nothing found; a label without centroid is never found
    assert found.tolist() == [True, True, False, False, False]


def test_of_equally_good_heads_the_lowest_is_chosen():
    dev = np.array([[[1.0, 5.0], [5.0, 2.0]], [[np.nan, 0.0], [0.0, np.nan]], np.full((2, 2), np.nan)])
    assert maths.chosen(dev).tolist() == [1, 1, -1]


def test_sentences_of_different_sizes_are_resampled_as_wholes():
    """Against the plain bootstrap, sentence by sentence."""
    generator = np.random.default_rng(4)
    sizes = generator.integers(1, 6, 80)
    sentence = np.repeat(np.arange(80), sizes)
    gap = generator.choice([-1.0, 0.0, 1.0], len(sentence))
    sums = np.bincount(sentence, gap)
    rows = generator.integers(0, 80, (20_000, 80))
    plain = np.quantile(sums[rows].sum(1) / sizes[rows].sum(1), [0.025, 0.975])
    assert np.allclose(maths.paired_interval(gap, sentence), plain, atol=0.01)
