"""Test whether the penalty on attention along dependency arcs also changes attention elsewhere.

    python results/pretraining/attention_outside_arcs.py \\
        runs/base/checkpoints/step-4000 runs/sas-plus/checkpoints/step-4000

The script prints the mean over pairs of dev words of the largest attention weight of any head, for pairs that are
joined by an arc (in either direction), for other pairs that are one to three words apart, and for all other pairs. It
also prints the mean weight of heads on special tokens and on the word itself. Sentences have 30 words or fewer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe, use_eager
from mtlprune.sentence import Sentence

SENTENCES = 250
NEAR = 3


def read() -> list[Sentence]:
    """Read the dev sentences of two corpora, without long sentences and those without a tree."""
    sentences = [s for name in ("grammar", "ewt5") for s in list(load_corpus(Path("data") / name)["dev"])[:SENTENCES]]
    return [sentence for sentence in sentences if 1 < len(sentence) <= 30 and sentence.dep is not None]


def kinds(sentence: Sentence) -> torch.Tensor:
    """Classify all pairs of words as 0 (the word itself), 1 (joined by an arc), 2 (near) or 3 (far): (T, T)."""
    size = len(sentence)
    position = torch.arange(size)
    kind_of_pair = torch.where((position[:, None] - position).abs() <= NEAR, 2, 3)
    for word, head in enumerate(sentence.dep.heads if sentence.dep else ()):
        if head:
            kind_of_pair[word, head - 1] = kind_of_pair[head - 1, word] = 1
    kind_of_pair.fill_diagonal_(0)
    return kind_of_pair


def main(paths: list[str]) -> None:
    sentences = read()
    for path in paths:
        encoder = use_eager(Encoder.load(path, word_dropout=0.0))
        sums, sizes, outside = torch.zeros(4), torch.zeros(4), []
        for sentence in sentences:
            pieces = encoder.tokenize(sentence.words)
            if encoder.frame.capacity is not None and len(pieces.ids) > encoder.frame.capacity:
                continue
            observation = observe(encoder, encoder.collate([pieces]), None, {"attention"})
            layers = range(encoder.head_hooks.layers)
            weights = torch.cat([observation.word_attention(layer, "dropped")[0] for layer in layers])  # (heads, T, T)
            kind, largest = kinds(sentence).flatten(), weights.amax(0).flatten()
            sums.index_add_(0, kind, largest)
            sizes.index_add_(0, kind, torch.ones_like(largest))
            on_itself = weights.diagonal(dim1=1, dim2=2)
            outside.append(torch.stack([(1 - weights.sum(-1)).mean(), on_itself.mean()]))
        arcs, near, far = (sums / sizes)[1:].tolist()
        special, itself = torch.stack(outside).mean(0).tolist()
        print(f"{path}: arcs {arcs:.3f}  near {near:.3f}  far {far:.3f}  special {special:.2f}  itself {itself:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
