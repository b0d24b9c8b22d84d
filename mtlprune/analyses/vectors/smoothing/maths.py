"""Mathematics of over-smoothing: how alike a sentence's token vectors are, and how a post-LN layer can change that.

Source: Shi et al. (2022), "Revisiting Over-smoothing in BERT from the Perspective of Graph" (arXiv 2202.08625). M is
the set of matrices whose rows are all equal; a layer that moves token vectors closer to M smooths. Every statistic
describes one sentence, over the tokens that ``mask`` marks; padding is ignored. All functions are pure and compute in
the dtype of their arguments, which should be float64. A statistic is NaN where it is not defined (fewer than two
tokens, no variation).

    d_M(H) = ‖(I − 11ᵀ/n) H‖_F         CosSim(H) = 1 / (n (n − 1)) · Σ_{i≠j} cos(h_i, h_j)
    λ(A) = ‖(I − 11ᵀ/n) A‖₂²           v = (1 + s²) (1 + √λ h s) / (σ₁ σ₂)        (Theorem 2)

The second part of the file measures how much of the spread of a sentence's words lies between gold labels, compared
with random labels:

    share = between / (between + within)        of d_M² over the words of a sentence (no special tokens)

If the n words of a sentence have K different labels, random orders of these labels have a share of (K − 1) / (n − 1) on
average, exactly. The p-value comes from permuting labels within sentences.

Letters for shapes: B sentences, T token positions, H hidden size, n heads, L hidden states of a token (the embeddings
and one for each layer), P permutations.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mtlprune.encoder.batch import table
from mtlprune.encoder.observe import Observation
from mtlprune.encoder.post_norm import LayerNorms
from mtlprune.layers import OF_SENTENCES, kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence, Span


def cosine(vectors: Tensor, mask: Tensor) -> Tensor:
    """Compute CosSim of each sentence, the mean cosine over pairs of different tokens: (B, T, H) → (B,).

    A vector of zeros has cosine 0 with all vectors. ``mask``, (B, T) of bool, marks the positions that are tokens.
    """
    units = functional.normalize(_masked(vectors, mask), dim=-1, eps=torch.finfo(vectors.dtype).tiny)
    counts = mask.sum(1).to(vectors)
    # ‖Σ u‖² is the sum of the cosines of all pairs, in which every token is also paired with itself.
    pairs = units.sum(1).square().sum(-1) - units.square().sum((1, 2))
    return pairs / torch.where(counts > 1, counts * (counts - 1), torch.nan)


def centred(vectors: Tensor, mask: Tensor) -> Tensor:
    """Compute (I − 11ᵀ/n) H, in which each sentence's mean vector is subtracted: (B, T, H); zero at padding."""
    masked = _masked(vectors, mask)
    return _masked(vectors - masked.sum(1, keepdim=True) / mask.sum(1).clamp(min=1).to(vectors)[:, None, None], mask)


def distance(vectors: Tensor, mask: Tensor) -> Tensor:
    """Compute d_M, the distance of the token vectors from the nearest matrix of equal rows: (B, T, H) → (B,)."""
    return centred(vectors, mask).square().sum((1, 2)).sqrt()


def relative_distance(vectors: Tensor, mask: Tensor) -> Tensor:
    """Compute d_M / ‖H‖_F, which lies in [0, 1]: (B, T, H) → (B,)."""
    size = _masked(vectors, mask).square().sum((1, 2)).sqrt()
    return distance(vectors, mask) / torch.where(size > 0, size, torch.nan)


def least_deviation(inputs: Tensor, mask: Tensor, epsilon: float = 0.0) -> Tensor:
    """Compute σ, the smallest (biased) standard deviation over features among the tokens of each sentence: (B,).

    Args:
        inputs: (B, T, H), the vectors that a LayerNorm reads.
        epsilon: constant that the LayerNorm adds to the variance.
    """
    deviations = (inputs.var(-1, correction=0) + epsilon).sqrt()
    return deviations.masked_fill(~mask, torch.inf).amin(1)


def mixing(attention: Tensor, mask: Tensor) -> Tensor:
    """Compute λ of each head, the largest eigenvalue of Aᵀ (I − 11ᵀ/n) A: (B, n, T, T) → (B, n).

    λ is 0 if all tokens attend in the same way, and it can exceed 1. The rows of ``attention`` are the attending
    tokens.

    Raises:
        ValueError: padding precedes a token in ``mask``, (B, T).
    """
    width = int(mask.sum(1).amax())
    if bool(mask[:, width:].any()):
        raise ValueError("mixing needs the tokens of each sentence in front of its padding")
    masked = attention[:, :, :width, :width] * (mask[:, None, :width, None] & mask[:, None, None, :width])
    counts = mask.sum(1).clamp(min=1).to(masked)[:, None, None, None]
    off = (masked - masked.sum(2, keepdim=True) / counts) * mask[:, None, :width, None]
    # For every matrix C, C Cᵀ has the same largest eigenvalue as Cᵀ C.
    return torch.linalg.eigvalsh(off @ off.transpose(-1, -2))[..., -1].clamp(min=0)


class Bound(NamedTuple):
    """Factors of an upper bound on d_M after a layer divided by d_M before the layer."""

    norm: Tensor
    """(B,): factor of the two LayerNorms, g₁ g₂ / (σ₁ σ₂)."""
    feed_forward: float
    """Factor of the feed-forward part, the same for all sentences."""
    attention: Tensor
    """(B,): factor of the attention part."""

    @property
    def value(self) -> Tensor:
        """The bound of each sentence, (B,): the product of its three factors."""
        return self.norm * self.feed_forward * self.attention


def published_factor(layer: LayerNorms, sigma1: Tensor, sigma2: Tensor, mixings: Tensor) -> Tensor:
    """Compute the factor v of Theorem 2, (B,). It ignores the gains of the LayerNorms and assumes a ReLU activation.

    Args:
        sigma1, sigma2: (B,), without epsilon.
        mixings: (B, n), λ of each head; v uses the largest λ among open heads.
    """
    s = layer.largest
    largest = mixings.masked_fill(layer.heads.to(mixings) == 0, 0.0)
    strongest = largest.amax(1) if largest.shape[1] else largest.new_zeros(len(largest))
    return (1 + s**2) * (1 + strongest.sqrt() * layer.open * s) / (sigma1 * sigma2)


def rigorous_bound(layer: LayerNorms, sigma1: Tensor, sigma2: Tensor, mixings: Tensor) -> Bound:
    """Compute a bound on d_M after / d_M before that holds for real layers.

    In contrast to the published factor, it includes the gains and epsilon of LayerNorms, the slope of the activation,
    gates, and the λ of every head. d_M² is a mean of squared distances between pairs of tokens, so a block that treats
    all tokens alike has the same Lipschitz constant for d_M as for a single token. A LayerNorm has the Lipschitz
    constant gain / σ on the tokens of the sentence: apart from this factor, it projects their centred vectors from
    outside a ball onto the ball, which does not increase distances.

    Args:
        sigma1, sigma2: (B,), epsilon included.
        mixings: (B, n), λ of each head.
    """
    norm = layer.gains[0] * layer.gains[1] / (sigma1 * sigma2)
    attention = 1 + (mixings.sqrt() * layer.heads.to(mixings)).sum(1)
    return Bound(norm, 1 + layer.lipschitz * layer.feed_forward[0] * layer.feed_forward[1], attention)


def shares_of_dimensions(mean_unit: Tensor) -> Tensor:
    """Compute the share of each dimension in the expected cosine of two tokens of a corpus; shares sum to 1. (..., H)

    Timkey and van Schijndel (2021), over independent pairs: E[u_i]² / Σ_j E[u_j]², where u are token vectors scaled to
    length 1. ``mean_unit``, (..., H), is E[u].
    """
    squares = mean_unit.square()
    return squares / squares.sum(-1, keepdim=True)


def _masked(vectors: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask[..., None], vectors, 0.0)


# -- spread between labels ---------------------------------------------------------------------------------------------

_NO_ROLE = "O"
_MAX_VALUES = 2**24
"""Largest number of values that one block of permutations holds in memory."""


def word_labels(sentence: Sentence, task: str) -> list[str] | None:
    """Return one label for each word of a sentence; None where the layer is missing or belongs to the whole sentence.

    Depending on the kind of the layer, the label of a word is
    - tags: its tag;
    - spans: the type of its entity, or O;
    - tree: its relation;
    - brackets: the label of the smallest bracket around it, or O;
    - frames: the role of the smallest argument around it, of any predicate; V for a predicate outside all arguments;
      otherwise O.
    """
    kind = sentence.kind(task)
    if kind is None or kind_of(kind) in OF_SENTENCES:
        return None
    return _WORD_LABELS[kind_of(kind)](sentence.get(task), len(sentence))


def _roles(frames: Any, words: int) -> list[str]:
    """Label each word with the role of the smallest argument around it, V for a predicate, or O."""
    predicates = {predicate.index for predicate in frames}
    arguments = [a for predicate in frames for a in predicate.arguments if a.label not in NOT_ARGUMENTS]
    return _smallest(arguments, ["V" if place in predicates else _NO_ROLE for place in range(words)])


def _smallest(spans: Sequence[Span], otherwise: list[str]) -> list[str]:
    """Label each word with the smallest span around it; a word outside all spans keeps its label of ``otherwise``."""
    labels = list(otherwise)
    # Smaller spans overwrite larger spans, and of spans with the same length the last wins.
    for span in sorted(spans, key=lambda span: span.start - span.end):
        labels[span.start : span.end] = [span.label] * (span.end - span.start)
    return labels


_WORD_LABELS: dict[str, Callable[[Any, int], list[str]]] = {
    "tags": lambda tags, _: list(tags),
    "spans": lambda spans, words: _smallest(spans, [_NO_ROLE] * words),
    "tree": lambda tree, _: list(tree.relations),
    "brackets": lambda brackets, words: _smallest(brackets, [_NO_ROLE] * words),
    "frames": _roles,
}


def between_shares(grams: Tensor, labels: Tensor) -> Tensor:
    """Compute the share of d_M² that lies between labels.

    Args:
        grams: (B, L, T, T), inner products of centred word vectors, zero beyond a sentence's words.
        labels: (B, P, T), labels as numbers from 0; −1 beyond a sentence's words.

    Returns:
        (B, P, L); 0 where all vectors of a sentence are equal.
    """
    same_label = (labels[..., :, None] == labels[..., None, :]) & (labels[..., None, :] >= 0)  # (B, P, T, T)
    weights = same_label / same_label.sum(-1, keepdim=True).clamp(min=1)
    between = weights.to(grams).flatten(2) @ grams.flatten(2).transpose(1, 2)
    totals = grams.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None]  # (B, 1, L)
    return between / torch.where(totals > 0, totals, 1.0)


def permuted(labels: Tensor, permutations: int, generator: torch.Generator) -> Tensor:
    """Permute the labels of each sentence at random: (B, T) → (B, P, T); −1 (padding) keeps its position."""
    # Sorting by random keys permutes the words of a sentence.
    keys = torch.rand(len(labels), permutations, labels.shape[1], generator=generator)
    keys = keys.masked_fill((labels < 0)[:, None].cpu(), 2.0)  # padding sorts last, and a stable sort keeps its order
    order = keys.argsort(dim=-1, stable=True).to(labels.device)
    return labels[:, None].expand_as(order).gather(2, order)


def word_grams(observation: Observation) -> Tensor:
    """Compute inner products of a sentence's centred word vectors, for each hidden state: (B, L, T, T)."""
    sizes = observation.batch.sizes
    words = observation.word_vectors(torch.stack(observation.hidden, 2))  # (N, L, H)
    word_table = table(words, sizes, max(sizes)).transpose(1, 2)  # (B, L, T, H)
    is_word = (torch.arange(max(sizes), device=word_table.device) < observation.batch.lengths[:, None])[
        :, None, :, None
    ]
    off = (word_table - word_table.sum(2, keepdim=True) / observation.batch.lengths[:, None, None, None]) * is_word
    return off @ off.transpose(-1, -2)


class LabelSplit:
    """The spread of words between and within the gold labels of one task, accumulated over sentences.

    A sentence counts if it has at least 3 words and at least 2 different labels, unless all its labels differ: the
    share of other sentences does not depend on the order of their labels.
    """

    def __init__(self, task: str, layers: int, permutations: int, seed: int) -> None:
        self.task, self.layers, self.permutations = task, layers, permutations
        self.sentences, self.chance = 0, 0.0
        self.share, self.between, self.within = np.zeros((3, layers))
        self.null = np.zeros((permutations, layers))
        self.generator = torch.Generator().manual_seed(seed)

    def add(self, sentences: Sequence[Sentence], grams: Tensor) -> None:
        """Add a batch of sentences, with ``grams`` (B, L, T, T) as in :func:`between_shares`."""
        width = grams.shape[-1]
        rows, numbers, chances = [], [], []
        for row, sentence in enumerate(sentences):
            labels = word_labels(sentence, self.task)
            number_of = {label: number for number, label in enumerate(dict.fromkeys(labels or ()))}
            if labels is None or len(labels) < 3 or not 2 <= len(number_of) < len(labels):
                continue
            rows.append(row)
            numbers.append([number_of[label] for label in labels] + [-1] * (width - len(labels)))
            chances.append((len(number_of) - 1) / (len(labels) - 1))
        if not rows:
            return
        label_numbers, batch_grams = torch.tensor(numbers, device=grams.device), grams[rows]
        shares = between_shares(batch_grams, label_numbers[:, None])[:, 0]  # (B, L)
        totals = batch_grams.diagonal(dim1=-2, dim2=-1).sum(-1)
        self.sentences += len(rows)
        self.chance += sum(chances)
        self.share += shares.sum(0).cpu().double().numpy()
        self.between += (shares * totals).sum(0).cpu().double().numpy()
        self.within += ((1 - shares) * totals).sum(0).cpu().double().numpy()
        step = max(1, _MAX_VALUES // (len(rows) * width**2))
        for first in range(0, self.permutations, step):
            number = min(step, self.permutations - first)
            null_shares = between_shares(batch_grams, permuted(label_numbers, number, self.generator))
            self.null[first : first + number] += null_shares.sum(0).cpu().double().numpy()

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield means over sentences by layer as rows of the frame ``labels``, with p of ``share``.

        Nothing is yielded if no sentence counted.
        """
        n, near = self.sentences, 1e-9 * np.abs(self.share).max()
        for layer in range(self.layers if n else 0):
            share, null = self.share[layer], self.null[:, layer]
            p = float(1 + (null >= share - near).sum()) / (1 + self.permutations)
            values = {"share": share, "chance": self.chance, "gain": share - self.chance}
            values |= {"between": self.between[layer], "within": self.within[layer], "null_sd": float(null.std())}
            for measure, value in values.items():
                row = {"layer": layer, "task": self.task, "measure": measure, "value": value / n}
                yield {**row, "p": p if measure == "share" else math.nan, "n": n}
