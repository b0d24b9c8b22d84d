"""The survey's vectors of sentences: one each, of different pieces, as one sentence alone gives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import WORDS

from mtlprune.analyses.reading import read
from mtlprune.analyses.syntax.survey import survey
from mtlprune.corpora.store import save_corpus
from mtlprune.encoder.observe import observe
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.statistics.twonn import twonn


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty sentences, the last ten of which repeat the first ten in capitals, which the tokenizer lowers."""
    generator = np.random.default_rng(0)
    texts = [tuple(generator.choice(WORDS, generator.integers(2, 9))) for _ in range(30)]
    texts += [tuple(word.upper() for word in text) for text in texts[:10]]
    trees = [Dependencies(tuple(range(len(t))), ("root", *("obj",) * (len(t) - 1))) for t in texts]
    sentences = [Sentence(str(k), t, dep=tree) for k, (t, tree) in enumerate(zip(texts, trees, strict=True))]
    folder = tmp_path_factory.mktemp("corpus") / "c"
    return Path(save_corpus({"dev": sentences}, folder, name="c", licence="x", sources={}).path)


def test_dimensions_are_those_of_vectors_taken_one_sentence_at_a_time(
    corpus: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    reading = read([str(tiny_encoder("bert"))], corpus)
    subject = next(reading.subjects())
    gates = torch.tensor([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.5, 1.0]])
    subject = type(subject)(subject.label, subject.name, 0, subject.encoder, gates, subject.architecture)
    ticks: list[int] = []
    found = survey(subject, reading, tick=lambda: ticks.append(1))
    encoder = subject.encoder
    cls, means, heads = [], [], []
    for sentence in reading.sentences[:30]:
        seen = observe(encoder, encoder.collate(encoder.tokenize_all([sentence.words])), gates, {"heads"})
        cls.append(seen.last[0, 0].numpy())
        means.append(seen.word_vectors(seen.last).mean(0).numpy())
        heads.append(torch.stack([seen.word_vectors(layer).mean(0) for layer in seen.heads]).numpy())
    assert found.cloud == 30 and ticks and found.counts.size() == sum(len(s) for s in reading.sentences)
    for which, expected in ((found.cls, twonn(cls)), (found.mean, twonn(means))):
        assert not isinstance(which, str)
        assert which.points == expected.points == 30
        assert which.likelihood == pytest.approx(expected.likelihood, rel=1e-3)
    alone = np.array(heads)  # (P, L, A, d)
    expected_heads = [[twonn(alone[:, layer, head]).likelihood for head in (0, 2, 3)] for layer in (0, 1)]
    assert np.isnan(found.heads[0, 1]) and not np.isnan(found.heads).sum() > 1
    assert found.heads[:, [0, 2, 3]] == pytest.approx(np.array(expected_heads), rel=1e-3)
