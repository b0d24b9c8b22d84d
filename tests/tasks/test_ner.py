"""NER against plain loops over spans."""

import itertools

import pytest
import torch
from by_hand import check_loss, decoder, encoded, surprise, with_one

from mtlprune.sentence import Sentence, Span
from mtlprune.tasks.ner import NER

GOLD = [
    Sentence("1", tuple("abcd"), ner=(Span(0, 2, "LOC"), Span(3, 4, "PER"))),
    Sentence("2", ("e",), ner=()),
    Sentence("3", tuple("fgh"), ner=(Span(0, 3, "PER"),)),
]
SIZES = [4, 1, 3]


def scores_of(task: NER, vectors: torch.Tensor, start: int, end: int) -> torch.Tensor:
    size = task.options.size
    projected = vectors @ task.ends.weight.T + task.ends.bias
    left, right = with_one(projected[start, :size]), with_one(projected[end, size:])
    return torch.einsum("i,lij,j->l", left, task.weight, right)


@pytest.mark.parametrize(("loss_per", "count"), [("word", sum(SIZES)), ("span", 10 + 1 + 6)])
@pytest.mark.parametrize("seed", range(3))
def test_loss_is_that_of_all_spans(seed, loss_per, count):
    task = decoder(NER, NER.collect(GOLD), seed, size=5, loss_per=loss_per)
    assert task.labels == {"types": ["LOC", "PER"]}
    words = encoded(SIZES, seed)
    losses = []
    for sentence, vectors in zip(GOLD, words.words.split(SIZES), strict=True):
        gold = {(span.start, span.end - 1): 1 + ["LOC", "PER"].index(span.label) for span in sentence.ner}
        for start, end in itertools.combinations_with_replacement(range(len(sentence)), 2):
            losses.append(surprise(scores_of(task, vectors, start, end), gold.get((start, end), 0)))
    assert len(losses) == 10 + 1 + 6
    check_loss(task, words, GOLD, sum(losses) / count)


@pytest.mark.parametrize("seed", range(5))
def test_decoding_is_greedy_by_score(seed):
    task = decoder(NER, {"types": ["LOC", "PER"]}, seed, size=5)
    sizes = [6, 1, 4, 7]
    words = encoded(sizes, seed)
    expected = []
    for vectors in words.words.split(sizes):
        found = []
        for start, end in itertools.combinations_with_replacement(range(len(vectors)), 2):
            scores = scores_of(task, vectors, start, end).tolist()
            best = max(range(3), key=scores.__getitem__)
            if best:
                found.append((scores[best], Span(start, end + 1, ["LOC", "PER"][best - 1])))
        taken: list[Span] = []
        while found:
            winner = max(found)
            taken.append(winner[1])
            found = [f for f in found if f[1].end <= winner[1].start or winner[1].end <= f[1].start]
        expected.append(tuple(sorted(taken)))
    assert task.decode(words) == expected
    assert any(len(spans) > 1 for spans in expected)
