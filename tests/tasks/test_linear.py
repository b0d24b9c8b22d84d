"""One tag a word: POS, and entities by IOB2."""

import pytest
from by_hand import check_loss, decoder, encoded, surprise

from mtlprune.sentence import Sentence, Span
from mtlprune.tasks.linear import BIO, POS

GOLD = [
    Sentence("1", ("a", "b", "c"), pos=("X", "Z", "X"), ner=(Span(0, 2, "X"), Span(2, 3, "X"))),
    Sentence("2", ("d",), pos=("Y",), ner=()),
    Sentence("3", ("e", "f"), pos=("Z", "Y"), ner=(Span(1, 2, "Y"),)),
]


def test_loss_word_by_word() -> None:
    task, words = decoder(POS, POS.collect(GOLD)), encoded([3, 1, 2])
    scores = [task.scores.weight @ vector + task.scores.bias for vector in words.words]
    flat = [tag for s in GOLD for tag in s.pos]
    losses = [surprise(one, "XYZ".index(tag)) for one, tag in zip(scores, flat, strict=True)]
    check_loss(task, words, GOLD, sum(losses) / 6, rtol=1.3e-6)


def test_targets_are_iob2_and_lead_back() -> None:
    labels = BIO.collect(GOLD, "ner")
    assert labels == {"tags": ["O", "B-X", "I-X", "B-Y", "I-Y"]}
    task = decoder(BIO, labels)
    task.layer = "ner"
    rows = [[labels["tags"][place] for place in task.target(s)["tags"]] for s in GOLD]
    assert rows == [["B-X", "I-X", "B-X"], ["O"], ["O", "B-Y"]]
    assert [task.value(tuple(row)) for row in rows] == [s.ner for s in GOLD]
    assert task.value(("O", "I-X", "I-X", "I-Y")) == (Span(1, 3, "X"), Span(3, 4, "Y"))  # what continues nothing begins


@pytest.mark.parametrize(("kind", "layer"), [(POS, "pos"), (BIO, "ner")])
def test_decoding_takes_the_best_tag_of_each_word(kind, layer) -> None:
    task = decoder(kind, kind.collect(GOLD, layer), scale=1.0)
    words = encoded([3, 1, 2])
    scores, labels = task.scores, task.labels["tags"]
    best = [labels[int((scores.weight @ vector + scores.bias).argmax())] for vector in words.words]
    tags = [tuple(best[a:b]) for a, b in ((0, 3), (3, 4), (4, 6))]
    assert task.decode(words) == (tags if kind is POS else [task.value(one) for one in tags])
