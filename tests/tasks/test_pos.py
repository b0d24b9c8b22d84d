import torch

from mtlprune.sentence import Sentence
from mtlprune.tasks.linear import POS

GOLD = [
    Sentence("1", ("a", "b", "c"), pos=("X", "Z", "X")),
    Sentence("2", ("d",), pos=("Y",)),
    Sentence("3", ("e", "f"), pos=("Z", "Y")),
]


def test_loss_and_decoding_word_by_word(encoded, decoder):
    task = decoder(POS, POS.collect(GOLD))
    words = encoded([3, 1, 2])
    target = task.collate([task.target(s) for s in GOLD], [3, 1, 2])
    flat = [tag for s in GOLD for tag in s.pos]
    losses, best = [], []
    for vector, tag in zip(words.words, flat, strict=True):
        scores = task.scores.weight @ vector + task.scores.bias
        losses.append(torch.logsumexp(scores, 0) - scores["XYZ".index(tag)])
        best.append("XYZ"[int(scores.argmax())])
    torch.testing.assert_close(task.loss(words, target), sum(losses) / 6)
    assert task.decode(words) == [tuple(best[:3]), tuple(best[3:4]), tuple(best[4:])]
