"""Spread between gold labels: the exact split, the exact chance level, and its permutation null."""

import itertools

import numpy as np
import pytest
import torch

from mtlprune.analyses.smoothing.maths import LabelSplit, between_shares, permuted, word_labels
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

WORDS = ("she", "gave", "Ann", "Lee", "it", "to", "keep")


def test_a_label_a_word_for_every_task():
    one = Sentence(
        "1",
        WORDS,
        pos=("P", "V", "N", "N", "P", "T", "V"),
        ner=(Span(2, 4, "PER"),),
        dep=Dependencies((2, 0, 4, 2, 2, 7, 2), ("a", "root", "b", "c", "d", "e", "f")),
        con=(Span(0, 7, "S"), Span(1, 7, "VP"), Span(2, 4, "NP"), Span(5, 7, "VP2")),
        srl=(
            Predicate(1, arguments=(Span(0, 1, "A0"), Span(1, 2, "V"), Span(2, 4, "A2"), Span(4, 7, "A1"))),
            Predicate(6, arguments=(Span(4, 5, "A1b"), Span(6, 7, "V"))),
        ),
    )
    assert word_labels(one, "pos") == list(one.pos) and word_labels(one, "dep") == list(one.dep.relations)
    assert word_labels(one, "ner") == ["O", "O", "PER", "PER", "O", "O", "O"]
    assert word_labels(one, "con") == ["S", "VP", "NP", "NP", "VP", "VP2", "VP2"]
    assert word_labels(one, "srl") == ["A0", "V", "A2", "A2", "A1b", "A1", "A1"]
    assert all(word_labels(one.bare(), task) is None for task in ("pos", "ner", "dep", "con", "srl"))


def vectors(seed: int, words: int) -> torch.Tensor:
    return torch.randn(words, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def grams(rows: list[torch.Tensor], width: int) -> torch.Tensor:
    """(B, 1, T, T)"""
    found = torch.zeros(len(rows), 1, width, width, dtype=torch.float64)
    for place, values in enumerate(rows):
        off = values - values.mean(0)
        found[place, 0, : len(off), : len(off)] = off @ off.T
    return found


def test_shares_are_those_of_the_split():
    held = [vectors(1, 6), vectors(2, 4)]
    labels = torch.tensor([[0, 1, 0, 2, 2, 1], [0, 0, 1, 1, -1, -1]])
    found = between_shares(grams(held, 6), labels[:, None])[:, 0, 0]
    for values, numbers, share in zip(held, labels, found, strict=True):
        numbers, mean = numbers[: len(values)], values.mean(0)
        between = sum(
            (numbers == k).sum() * (values[numbers == k].mean(0) - mean).square().sum() for k in numbers.unique()
        )
        assert float(share) == pytest.approx(float(between / (values - mean).square().sum()))


def test_chance_is_exactly_the_mean_over_all_orders():
    labels = (0, 0, 0, 1, 2)
    orders = torch.tensor(sorted(set(itertools.permutations(labels))))
    mean = float(between_shares(grams([vectors(3, 5)], 5), orders[None])[0, :, 0].mean())
    assert mean == pytest.approx((3 - 1) / (5 - 1))


def test_permuted_labels_are_the_same_labels_in_the_same_places():
    labels = torch.tensor([[0, 1, 1, 2, 0], [3, 0, 1, -1, -1]])
    drawn = permuted(labels, 400, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 400, 5) and (drawn[1, :, 3:] == -1).all()
    assert torch.equal(drawn.sort(-1).values, labels.sort(-1).values[:, None].expand(2, 400, 5))
    first = torch.bincount(drawn[1, :, 0], minlength=4)[[0, 1, 3]].numpy() / 400
    np.testing.assert_allclose(first, 1 / 3, atol=0.09)


@pytest.mark.parametrize("planted", [False, True])
def test_a_planted_label_is_found_and_a_blind_one_is_not(planted):
    counted = LabelSplit("pos", 1, 199, 0)
    generator = np.random.default_rng(5)
    for batch in range(10):
        tags = [generator.choice(["A", "B"], 8).tolist() for _ in range(4)]
        held = [vectors(10 * batch + k, 8) for k in range(4)]
        if planted:
            held = [v + 2 * torch.tensor([t == "A" for t in row])[:, None] for v, row in zip(held, tags, strict=True)]
        counted.add([Sentence("s", ("w",) * 8, pos=tuple(row)) for row in tags], grams(held, 8))
    rows = list(counted.records())
    gain, p, found = rows[2]["value"], rows[0]["p"], {row["measure"]: row["value"] for row in rows}
    assert counted.sentences >= 38 and gain == pytest.approx(found["share"] - found["chance"])
    assert p <= 0.01 and gain > 0.2 if planted else p > 0.01 and abs(gain) < 0.1
    assert abs(counted.null.mean() / counted.sentences - found["chance"]) < 0.01


def test_sentences_in_which_labels_cannot_tell_anything_do_not_count():
    counted = LabelSplit("pos", 1, 9, 0)
    tags = [("A", "B"), ("A", "A", "A"), ("A", "B", "C")]
    counted.add(
        [Sentence("s", ("w",) * len(row), pos=row) for row in tags], grams([vectors(1, len(t)) for t in tags], 3)
    )
    assert counted.sentences == 0 and not list(counted.records())
