"""Do encoders of other pretraining seeds give each task the same heads, once heads are matched?

    python experiments/fight/matched.py runs/multiberts data/ewt5

E5 of results/fight/PLAN.md; runs: what experiments/fight/multiberts.yaml made. Heads of two encoders are matched by
what they attend to before fine-tuning: the assignment (Kuhn 1955), over all heads or within layers, of the greatest
affinity, the mean over attending words of Σ √(p q) (Bhattacharyya 1943) with p and q the attention of two heads, on the
first sentences of the dev split. Then Φ (Nogueira, Sechidis and Brown 2018) of claims of two encoders by index and by
matched heads; of two training seeds of one encoder it is what can be reached. Jack-knife over encoders.

Letters: n heads of an encoder, L layers, A heads a layer, B sentences, W attending words in all, S places in one.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from mtlprune.analyses.heads.claims.stability import jackknife
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observation_batches, observe, use_eager
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunFolder

SENTENCES, LONGEST = 200, 64  # words of a sentence
WAYS = ("by index", "matched", "matched within layers")

Mask = NDArray[np.bool_]
Claims = Mapping[str, Mapping[str, Sequence[Mask]]]
"""Encoder → task → (n,) of each training seed."""


def patterns(name: str, sentences: Sequence[Sequence[str]]) -> tuple[torch.Tensor, int]:
    """(n, W · S): √ of the attention of each word, to special tokens too, sentence by sentence; how many layers."""
    encoder = use_eager(Encoder.load(name))
    pieces, found, widest = encoder.tokenize_all(sentences), [], max(map(len, sentences)) + 2
    for rows in observation_batches([len(piece.ids) for piece in pieces]):
        seen = observe(encoder, encoder.collate([pieces[row] for row in rows]), want={"attention"})
        maps = torch.stack([seen.word_attention(layer) for layer in range(len(seen.attention))], 1)  # (B, L, A, S, S)
        for place, row in enumerate(rows):
            words = maps[place, :, :, 1 : len(sentences[row]) + 1].flatten(0, 1)  # (n, words, S)
            found.append((row, torch.nn.functional.pad(words, (0, widest - words.shape[-1])).sqrt().flatten(1)))
    return torch.cat([part for _, part in sorted(found, key=lambda pair: pair[0])], 1), len(seen.attention)


def assignments(one: torch.Tensor, other: torch.Tensor, layers: int) -> dict[str, NDArray[np.intp]]:
    """For each of WAYS (n,): the head of the other encoder that stands for each head of the first."""
    affinity = (one @ other.T).numpy()
    layer = np.arange(len(affinity)) // (len(affinity) // layers)
    inside = np.where(layer[:, None] == layer, affinity, affinity.min() - affinity.max() * len(affinity))
    matched = [linear_sum_assignment(matrix, maximize=True)[1] for matrix in (affinity, inside)]
    return dict(zip(WAYS, (np.arange(len(affinity)), *matched), strict=True))


def phi(pairs: Sequence[tuple[Mask, Mask]]) -> float:
    """1 − D / E over pairs of masks, as ``phi`` of analyses/heads/claims has it for runs; NaN of none."""
    if not pairs:
        return math.nan
    one, other = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))  # (Q, n)
    a, b = one.mean(), other.mean()
    return float(1 - (one != other).mean() / 2 / ((a + b) / 2 - a * b))


def figures(claims: Claims, matches: Mapping[tuple[str, str], Mapping[str, NDArray[np.intp]]]) -> NDArray[np.float64]:
    """(ways + 1, 3): Φ within one task, of two tasks and their difference; last of training seeds of one encoder."""
    tasks = list(next(iter(claims.values())))
    rows = []
    for way in WAYS:
        pairs: dict[bool, list[tuple[Mask, Mask]]] = {True: [], False: []}
        for (one, other), task, second in itertools.product(itertools.combinations(claims, 2), tasks, tasks):
            order = matches[one, other][way]
            pairs[task == second].append((claims[one][task][0], claims[other][second][0][order]))
        rows.append([phi(pairs[True]), phi(pairs[False])])
    own: dict[bool, list[tuple[Mask, Mask]]] = {True: [], False: []}
    for by_task, task, second in itertools.product(claims.values(), tasks, tasks):
        seeds = itertools.permutations(range(len(by_task[task])), 2)
        own[task == second] += [(by_task[task][i], by_task[second][j]) for i, j in seeds]
    rows.append([phi(own[True]), phi(own[False])])
    table = np.array(rows)
    return np.column_stack([table, table[:, 0] - table[:, 1]])


def read(runs: Path) -> dict[str, dict[str, list[Mask]]]:
    """Claims of the finished runs in a folder."""
    found: dict[str, dict[str, list[Mask]]] = {}
    claims = [claim for path in runs.glob("stable-*") for claim in load_claims([path])]
    for claim in sorted(claims, key=lambda claim: str(claim.training)):
        name = RunFolder(claim.run).config.encoder.name
        found.setdefault(name, {}).setdefault(claim.label, []).append(claim.open.flatten())
    tasks = {tuple(sorted(by_task)) for by_task in found.values()}
    if len(found) < 2 or len(tasks) != 1:
        raise SystemExit(
            f"{runs}: expected runs of two encoders or more with the same tasks, found {len(found)} encoders"
        )
    return found


def main(runs: str, corpus: str) -> None:
    """Print a row for each way of matching."""
    claims = read(Path(runs))
    split = load_corpus(Path(corpus))["dev"]
    sentences = [list(sentence.words) for sentence in split if len(sentence.words) <= LONGEST][:SENTENCES]
    seen = {name: patterns(name, sentences) for name in claims}
    matches = {
        (one, other): assignments(seen[one][0], seen[other][0], seen[one][1])
        for one, other in itertools.combinations(claims, 2)
    }
    whole = figures(claims, matches)
    left = [figures({name: claims[name] for name in claims if name != out}, matches) for out in claims]
    low, high, detectable, _ = jackknife(whole, np.stack(left), np.zeros(len(claims), dtype=np.int64))
    print(
        f"{len(claims)} encoders\n\n| heads | one task | two tasks | difference | detectable |\n|:--|--:|--:|--:|--:|"
    )
    for row, name in enumerate((*WAYS, "one encoder, two training seeds")):
        cells = [f"{whole[row, k]:.2f} [{low[row, k]:.2f}, {high[row, k]:.2f}]" for k in range(3)]
        print(f"| {name} | {' | '.join(cells)} | {detectable[row, 2]:.2f} |")


if __name__ == "__main__":
    main(*sys.argv[1:3])
