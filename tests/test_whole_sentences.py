"""Intervals of scores of whole sentences, and readers under mutated files."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtlprune.evaluation.scores import COUNT, MAIN, SCORES, count_names
from mtlprune.statistics.resamples import System, percentiles, resampled_scores

SENTENCES = 300


def drawn(kind: str, generator: np.random.Generator, size: int) -> list[tuple]:
    """Gold and predicted values of a population with a fixed score."""
    if kind == "label":
        gold = generator.choice(3, size, p=(0.6, 0.3, 0.1))
        return [(g, g if right else 3) for g, right in zip(gold, generator.random(size) < 0.7, strict=True)]
    if kind == "number":
        gold = generator.normal(size=size)
        return list(zip(gold, 0.6 * gold + 0.8 * generator.normal(size=size), strict=True))
    gold = generator.random((size, 4)) < 0.3
    found = np.where(generator.random((size, 4)) < 0.2, ~gold, gold)
    return [tuple(tuple(np.flatnonzero(row)) for row in pair) for pair in zip(gold, found, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["label", "number", "labels"])
def test_intervals_over_sentences_cover(kind: str) -> None:
    """Of 2,000 samples of 300 sentences 93 to 97 % have the population's score within their interval."""
    generator, names = np.random.default_rng(7), count_names(kind, MAIN[kind])
    score = SCORES[kind][MAIN[kind]]

    def counts(size: int) -> np.ndarray:
        rows = [COUNT[kind](gold, found, None, kind) for gold, found in drawn(kind, generator, size)]
        return np.array([[row[name] for name in names] for row in rows], float)

    population = counts(400_000)
    truth = score({name: population[:, k].sum() for k, name in enumerate(names)})
    inside = 0
    for seed in range(2000):
        [one] = resampled_scores([System(counts(SENTENCES)[None], names, score)], 400, seed)
        low, high = percentiles(one.booted[:, 0])
        inside += low <= truth <= high
    assert 0.93 <= inside / 2000 <= 0.97


FILES = {
    "t.tsv": ("text\tstars\tkind\na good one\t4\tx\nwhat ?\t2.5\ty|z\n", ["text=words,stars=rating:number,kind=kinds"]),
    "p.csv": ('a,b,y\n"one, two",three,no\nx,y,yes\n', ["a=words,b=words,y=same"]),
    "s.jsonl": ('{"text": "a b", "n": 1.5}\n{"text": "c", "n": null}\n', ["text=words,n=rating:number"]),
    "c.conllu": ("# k = v\n# n = 3\n1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n# k = w\n1\tb\t_\tX\t_\t_\t0\troot\t_\t_\n", []),
}


@pytest.mark.parametrize("name", FILES)
def test_mutated_files_are_read_or_refused_in_a_sentence(mtlprune: Callable, tmp_path: Path, name: str) -> None:
    """Ten mutations of each file: signs lost, doubled, swapped or replaced. None gives a traceback."""
    content, columns = FILES[name]
    draw = random.Random(name)
    for number in range(10):
        signs = list(content)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(signs))
            signs[place] = draw.choice(["", signs[place] * 2, "\t", "\n", '"', ",", "\x00", "é", "9", "=", "{", "|"])
        (tmp_path / name).write_text("".join(signs), encoding="utf-8")
        options = ["--columns", *columns] if columns else ["--comment", "k=kind", "--comment", "n=rating:number"]
        out = tmp_path / f"out{number}"
        answer = mtlprune("data", "build", tmp_path / name, *options, "--split", "50/50/0", "--out", out)
        assert answer.code in (0, 2), answer
        assert answer.code == 0 or (answer.err.splitlines()[-1].startswith("mtlprune: ") and not out.exists()), answer
