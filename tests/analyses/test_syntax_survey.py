"""The survey's vectors of sentences: one each, of different pieces, as one sentence alone gives them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import WORDS

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.reading import read_request
from mtlprune.analyses.syntax import SyntaxOptions
from mtlprune.analyses.syntax.measure import findings
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


def test_dimensions_are_those_of_vectors_taken_one_sentence_at_a_time(corpus, tiny_encoder):
    ticks: list[int] = []
    name = str(tiny_encoder("bert"))
    request = Request([name], corpus, SyntaxOptions(), on_batch=lambda: ticks.append(1))
    reading = read_request(request)
    gates = torch.tensor([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.5, 1.0]])
    subject = replace(next(reading.subjects()), gates=gates)
    frames = findings(reading, subject, request, counted := []).frames
    encoder = subject.encoder
    cls, means, heads = [], [], []
    for sentence in reading.sentences[:30]:
        seen = observe(encoder, encoder.collate(encoder.tokenize_all([sentence.words])), gates, {"heads"})
        cls.append(seen.last[0, 0].numpy())
        means.append(seen.word_vectors(seen.last).mean(0).numpy())
        heads.append(torch.stack([seen.word_vectors(layer).mean(0) for layer in seen.heads]).numpy())
    assert ticks and counted[0].size() == sum(len(s) for s in reading.sentences)
    facts = frames["encoders"].set_index("measure")
    for which, expected in (("cls", twonn(cls)), ("mean", twonn(means))):
        assert facts.loc[f"twonn_{which}", "n"] == expected.points == 30
        assert facts.loc[f"twonn_{which}", "value"] == pytest.approx(expected.likelihood, rel=1e-3)
    alone = np.array(heads)  # (P, L, A, d)
    expected_heads = [[twonn(alone[:, layer, head]).likelihood for head in (0, 2, 3)] for layer in (0, 1)]
    of_heads = frames["heads"].query("measure == 'twonn'")["value"].to_numpy().reshape(2, 4)
    assert np.isnan(of_heads[0, 1]) and not np.isnan(of_heads).sum() > 1
    assert of_heads[:, [0, 2, 3]] == pytest.approx(np.array(expected_heads), rel=1e-3)
    assert facts.loc["heads_there", "value"] == 7 and facts.loc["gates_by_uas", "n"] == 7
