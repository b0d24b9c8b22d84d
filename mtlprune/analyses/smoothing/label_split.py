"""How much of the spread of a sentence's words lies between gold labels, and how much would by chance.

    share = between / (between + within)        of d_M² over the words of a sentence (no special tokens)

Words with labels drawn blindly have a share of (K − 1) / (n − 1) on average, exactly: n words of K different labels.
The p-value is from permuting labels within sentences.

Letters for shapes: B sentences, T places, L layers (embeddings included), P permutations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.encoder.batch import table
from mtlprune.encoder.observe import Observation
from mtlprune.layers import kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence, Span

NOTHING = "O"
ROOM = 2**24
"""Numbers held at a time while permuting."""


def word_labels(sentence: Sentence, task: str) -> list[str] | None:
    """A label a word; None where the layer is unknown.

    tags: its tag. spans: the type of the entity it is in, or O. tree: its relation. brackets: the label of the smallest
    bracket around it, or O. frames: the role of the smallest argument around it, of whatever predicate; V for a
    predicate that is in no argument; else O.
    """
    kind = sentence.kind(task)
    return None if kind is None else _WORD_LABELS[kind_of(kind)](sentence.get(task), len(sentence))


def _roles(frames: Any, words: int) -> list[str]:
    predicates = {predicate.index for predicate in frames}
    arguments = [a for predicate in frames for a in predicate.arguments if a.label not in NOT_ARGUMENTS]
    return _smallest(arguments, ["V" if place in predicates else NOTHING for place in range(words)])


def _smallest(spans: Sequence[Span], otherwise: list[str]) -> list[str]:
    found = list(otherwise)
    for span in sorted(spans, key=lambda span: span.start - span.end):  # the largest first; of equal ones the last wins
        found[span.start : span.end] = [span.label] * (span.end - span.start)
    return found


_WORD_LABELS: dict[str, Callable[[Any, int], list[str]]] = {
    "tags": lambda tags, _: list(tags),
    "spans": lambda spans, words: _smallest(spans, [NOTHING] * words),
    "tree": lambda tree, _: list(tree.relations),
    "brackets": lambda brackets, words: _smallest(brackets, [NOTHING] * words),
    "frames": _roles,
}


def shares(grams: Tensor, labels: Tensor) -> Tensor:
    """The share of d_M² between labels.

    Args:
        grams: (B, L, T, T), inner products of centred word vectors, zero beyond a sentence's words.
        labels: (B, P, T), numbers from 0; −1 beyond its words.

    Returns:
        (B, P, L); 0 where all vectors are equal.
    """
    same = (labels[..., :, None] == labels[..., None, :]) & (labels[..., None, :] >= 0)  # (B, P, T, T)
    weights = same / same.sum(-1, keepdim=True).clamp(min=1)
    between = weights.to(grams).flatten(2) @ grams.flatten(2).transpose(1, 2)
    totals = grams.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None]  # (B, 1, L)
    return between / torch.where(totals > 0, totals, 1.0)


def permuted(labels: Tensor, permutations: int, generator: torch.Generator) -> Tensor:
    """Labels of each sentence in random orders: (B, T) to (B, P, T); −1 (no word) stays where it is."""
    keys = torch.rand(len(labels), permutations, labels.shape[1], generator=generator)
    keys = keys.masked_fill((labels < 0)[:, None].cpu(), 2.0)  # stable, and last
    order = keys.argsort(dim=-1, stable=True).to(labels.device)
    return labels[:, None].expand_as(order).gather(2, order)


def word_grams(seen: Observation) -> Tensor:
    """Inner products of word vectors, the sentence's mean removed, for each hidden state: (B, L + 1, T, T)."""
    sizes = seen.batch.sizes
    words = seen.word_vectors(torch.stack(seen.hidden, 2))  # (N, L + 1, H)
    laid = table(words, sizes, max(sizes)).transpose(1, 2)  # (B, L + 1, T, H)
    there = (torch.arange(max(sizes), device=laid.device) < seen.batch.lengths[:, None])[:, None, :, None]
    off = (laid - laid.sum(2, keepdim=True) / seen.batch.lengths[:, None, None, None]) * there
    return off @ off.transpose(-1, -2)


@dataclass
class LabelSplit:
    """Sums over sentences for one task. A sentence counts if it has 3 words or more, of 2 labels or more, but not each
    word a label of its own.

    Args:
        task: the name of a layer.
        layers: L.
        permutations: P.
        seed: of the permutations.
    """

    task: str
    layers: int
    permutations: int
    seed: int
    sentences: int = 0
    share: NDArray[np.float64] = field(init=False)
    between: NDArray[np.float64] = field(init=False)
    within: NDArray[np.float64] = field(init=False)
    null: NDArray[np.float64] = field(init=False)
    chance: float = 0.0

    def __post_init__(self) -> None:
        self.share, self.between, self.within = (np.zeros(self.layers) for _ in range(3))
        self.null = np.zeros((self.permutations, self.layers))
        self.generator = torch.Generator().manual_seed(self.seed)

    def add(self, sentences: Sequence[Sentence], grams: Tensor) -> None:
        """Count a batch: its sentences, and (B, L, T, T) of :func:`shares`."""
        width = grams.shape[-1]
        rows, numbers, chances = [], [], []
        for row, sentence in enumerate(sentences):
            labels = word_labels(sentence, self.task)
            kinds = {label: number for number, label in enumerate(dict.fromkeys(labels or ()))}
            if labels is None or len(labels) < 3 or not 2 <= len(kinds) < len(labels):
                continue
            rows.append(row)
            numbers.append([kinds[label] for label in labels] + [-1] * (width - len(labels)))
            chances.append((len(kinds) - 1) / (len(labels) - 1))
        if not rows:
            return
        labels_of, held = torch.tensor(numbers, device=grams.device), grams[rows]
        found = shares(held, labels_of[:, None])[:, 0]  # (B, L)
        totals = held.diagonal(dim1=-2, dim2=-1).sum(-1)
        self.sentences += len(rows)
        self.chance += sum(chances)
        self.share += found.sum(0).cpu().double().numpy()
        self.between += (found * totals).sum(0).cpu().double().numpy()
        self.within += ((1 - found) * totals).sum(0).cpu().double().numpy()
        step = max(1, ROOM // (len(rows) * width**2))
        for first in range(0, self.permutations, step):
            number = min(step, self.permutations - first)
            drawn = shares(held, permuted(labels_of, number, self.generator))
            self.null[first : first + number] += drawn.sum(0).cpu().double().numpy()

    def records(self) -> list[dict[str, float | int | str]]:
        """One entry a layer: means over sentences; nothing where no sentence counted."""
        if not self.sentences:
            return []
        n = self.sentences
        near = 1e-9 * np.abs(self.share).max()
        return [
            {
                "task": self.task,
                "layer": layer,
                "sentences": n,
                "share": self.share[layer] / n,
                "chance": self.chance / n,
                "gain": (self.share[layer] - self.chance) / n,
                "between": self.between[layer] / n,
                "within": self.within[layer] / n,
                "null_sd": float(self.null[:, layer].std()) / n,
                "p": float(1 + (self.null[:, layer] >= self.share[layer] - near).sum()) / (1 + self.permutations),
            }
            for layer in range(self.layers)
        ]
