"""The two probes of He and Choi (2021, section 5, and released code), computed for all heads at once, and the
confidence interval of a difference in accuracy.

The attention probe tests whether a head attends from dependent to head, or from predicate to argument. The choice of a
word is the word to which it attends most, which may be the word itself. The centroid probe represents a unit (word,
entity, phrase) by one vector for each head, the mean of the head's output over the words of the unit. The output of a
head is the input of the attention output projection. The predicted label is the one whose centroid has the highest
cosine with this vector.

Letters for shapes: B sentences, L slots (sub-words, special tokens and padding) of a row, T words of the longest
sentence, S = T + 1 positions ([CLS] and words), N words of a batch, H heads of all layers that were not removed, n
heads of a layer that were not removed, d values of a head's output, U items, K labels, P pairs of an item and one of
its words.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlprune.encoder.observe import Observation

RESAMPLES = 2000
"""Number of bootstrap resamples of an interval."""
_BOOTSTRAP = 11
"""Part of the seed of the bootstrap's generator, so that its draws differ from those of other generators."""

# -- attention ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class AttendedPositions:
    """The position to which each position of a batch attends most, in every head.

    Position 0 is [CLS], and position i is the i-th word (counted from 1). Row b · S + s belongs to position s of
    sentence b.

    Attributes:
        anywhere: (B · S, H) int64, the choice among [CLS] and the words. DEP uses it, with [CLS] as the root.
        words: (B · S, H) int64, the choice among the words only, also as a position. SRL uses it.
        side: S.
    """

    anywhere: Tensor
    words: Tensor
    side: int


def choose(observation: Observation) -> AttendedPositions:
    """Return the position to which each position attends most, in all heads. [SEP] is never chosen.

    Attention is averaged over the sub-words of the attending word, and summed over the sub-words of the attended word.
    If several positions receive the same attention, the first of them is chosen.
    """
    side = max(observation.batch.sizes) + 1
    position = torch.arange(side, device=observation.last.device)
    # The [SEP] of a sentence is at position length + 1, which the second condition excludes.
    is_position = observation.positions[..., None] == position  # (B, L, S)
    is_position = is_position & (position <= observation.batch.lengths[:, None])[:, None]
    counts = is_position.sum(1)  # (B, S), sub-words
    # Columns beyond the end of a sentence are −1 throughout, so their weight is minus the sum of the row's attention,
    # which is below that of every real position, and they are never chosen.
    columns = is_position.to(observation.last) - (counts == 0)[:, None].to(observation.last)
    rows = (is_position / counts.clamp(min=1)[:, None]).to(observation.last).transpose(1, 2)  # (B, S, L)
    anywhere, words = [], []
    for attention in observation.attention:
        weights = rows[:, None] @ (attention.flatten(1, 2) @ columns).unflatten(1, attention.shape[1:3])  # (B, n, S, S)
        attended_word = weights[..., 1:].argmax(-1, keepdim=True)  # (B, n, S, 1)
        highest = weights[..., 1:].gather(-1, attended_word)
        attended_word = attended_word + 1
        words.append(attended_word.squeeze(-1))
        # [CLS] is before all words, so it wins a tie with a word.
        anywhere.append(torch.where(weights[..., :1] >= highest, 0, attended_word).squeeze(-1))
    flattened = [torch.cat(part, 1).transpose(1, 2).flatten(0, 1).contiguous() for part in (anywhere, words)]
    return AttendedPositions(flattened[0], flattened[1], side)


def arcs_found(choices: AttendedPositions, row: Tensor, head: Tensor, dependent: Tensor) -> Tensor:
    """Mark the arcs that each attention head finds: the dependent chooses its head, or the head its dependent.

    Args:
        choices: choices of the batch, from ``choose``.
        row: (U,), the index of the sentence in the batch.
        head: (U,), position of the syntactic head; 0 is the root, for which [CLS] is used.
        dependent: (U,), position of the dependent.

    Returns:
        (U, H) bool.
    """
    base = row * choices.side
    down, up = choices.anywhere[base + dependent], choices.anywhere[base + head]
    return (down == head[:, None]) | (up == dependent[:, None])


def arguments_found(choices: AttendedPositions, row: Tensor, start: Tensor, end: Tensor, predicate: Tensor) -> Tensor:
    """Mark the arguments that each attention head finds: a word of the argument chooses the predicate, or the predicate
    chooses a word of the argument: (U, H) bool.

    Args:
        choices: choices of the batch, from ``choose``.
        row: (U,), the index of the sentence in the batch.
        start, end: (U,), the argument as a half-open range of words, counted from 0.
        predicate: (U,), the word of the predicate, counted from 0.
    """
    base = row * choices.side + 1  # index of word 0 of the sentence in ``choices.words``
    attended_words = choices.words[base + predicate] - 1  # (U, H), as words
    inside = (attended_words >= start[:, None]) & (attended_words < end[:, None])
    sizes = end - start
    # Arguments have different numbers of words. Pair p is word ``word[p]`` of argument ``item[p]``.
    item = torch.repeat_interleave(sizes)  # (P,)
    word = torch.arange(len(item), device=row.device) - (sizes.cumsum(0) - sizes)[item] + start[item]
    back = choices.words[base[item] + word] - 1 == predicate[item, None]  # (P, H)
    any_of_span = back.new_zeros(inside.shape, dtype=torch.int32).index_add_(0, item, back.int()) > 0
    return inside | any_of_span


def by_label(hits: Tensor, label: Tensor, labels: int) -> Tensor:
    """Count the hits of each label: (U, H) bool → (K, H) float64."""
    if not len(label):
        return hits.new_zeros(labels, hits.shape[1], dtype=torch.float64)
    one_hot = functional.one_hot(label, labels).float()  # (U, K); float32 counts exactly up to 2²⁴
    return (one_hot.T @ hits.float()).double()


# -- centroids ---------------------------------------------------------------------------------------------------------


def head_vectors(observation: Observation) -> Tensor:
    """Return the output of every head for every word, as the mean over the word's sub-words: (N, H, d)."""
    return torch.cat([observation.word_vectors(heads) for heads in observation.heads], 1)


def unit_vectors(words: Tensor, first: Tensor, sizes: Tensor) -> Tensor:
    """Average vectors of words over the words of each unit: (U, H, d).

    Args:
        words: (N, H, d), vectors of all words of a batch.
        first: (U,) int64, the index of the first word of each unit among all words of the batch.
        sizes: (U,) int64, the number of words of each unit, at least 1.
    """
    if not len(first):
        return words.new_zeros(0, *words.shape[1:])
    offsets = sizes.cumsum(0) - sizes
    word_index = torch.arange(int(sizes.sum()), device=words.device) + torch.repeat_interleave(first - offsets, sizes)
    return functional.embedding_bag(word_index, words.flatten(1), offsets, mode="mean").view(-1, *words.shape[1:])


class Centroids:
    """Running sums of the vectors of units by label, from which the directions of the centroids are computed."""

    def __init__(self, labels: int, heads: int, width: int, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(labels, heads, width, dtype=torch.float64, device=device)
        self.counts = torch.zeros(labels, dtype=torch.int64, device=device)

    def add(self, units: Tensor, label: Tensor) -> None:
        """Add units (U, H, d) with labels (U,) int64."""
        part = torch.zeros(self.sums.shape, dtype=units.dtype, device=units.device).index_add_(0, label, units)
        self.sums += part
        self.counts += torch.bincount(label, minlength=len(self.counts))

    def directions(self) -> Tensor:
        """Return the centroids, scaled to length 1: (H, d, K) float32.

        Labels without units and heads whose output is zero have zero vectors. Sums are not divided by counts, because
        this does not change their direction.
        """
        return functional.normalize(self.sums, dim=-1).permute(1, 2, 0).float()

    @property
    def is_known(self) -> Tensor:
        """Which labels have units: (K,) bool."""
        return self.counts > 0


def nearest_found(units: Tensor, label: Tensor, directions: Tensor, is_known: Tensor) -> Tensor:
    """Mark the units whose nearest centroid, in each head, is that of their label: (U, H) bool.

    If several centroids are equally near, the first label is predicted. A label without a centroid is never predicted,
    and a head whose output is zero predicts nothing.

    Args:
        units: (U, H, d), vectors of any length.
        label: (U,) int64, the label of each unit.
        directions: (H, d, K), from :meth:`Centroids.directions`.
        is_known: (K,) bool, which labels have a centroid.
    """
    near = torch.bmm(units.transpose(0, 1), directions.to(units))  # (H, U, K)
    if not is_known.all():
        near.masked_fill_(~is_known, -torch.inf)
    says = torch.linalg.vector_norm(units, dim=-1) > 0  # (U, H)
    predicted = near.argmax(-1).T  # (U, H)
    return (predicted == label[:, None]) & says & is_known[label][:, None]


# -- choice of heads, and intervals of differences ---------------------------------------------------------------------


def best_heads(dev: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the best head of each label, from accuracies (K, L, A) that may be NaN.

    Returns:
        (K,), indices layer · A + head. Of equally good heads, the first is chosen. The index is −1 if all accuracies
        of a label are NaN.
    """
    flat = dev.reshape(len(dev), -1)
    return np.where(np.isnan(flat).all(1), -1, np.where(np.isnan(flat), -1, flat).argmax(1))


def paired_interval(gap: NDArray[np.float64], sentence: NDArray[np.int64], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile interval of a mean over items, from a bootstrap over sentences.

    Sentences have few different pairs of a sum of gaps and a number of items, so one multinomial draw of the count of
    each pair makes a resample. This is exactly the bootstrap over sentences, but its cost does not grow with the number
    of sentences.

    Args:
        gap: (U,), the differences whose mean is estimated.
        sentence: (U,), the index of the sentence that contains the item.
        seed: seed of the resamples.

    Returns:
        the lower and the upper end, in the unit of ``gap``.
    """
    _, sentence_index = np.unique(sentence, return_inverse=True)
    sums, sizes = np.bincount(sentence_index, gap), np.bincount(sentence_index)
    pairs, counts = np.unique(np.stack([sums.round(12), sizes], 1), axis=0, return_counts=True)
    generator = np.random.default_rng([_BOOTSTRAP, seed])
    resampled_gaps = generator.multinomial(len(sums), counts / len(sums), size=RESAMPLES) @ pairs  # (resamples, 2)
    low, high = np.quantile(resampled_gaps[:, 0] / resampled_gaps[:, 1], [0.025, 0.975])
    return float(low), float(high)
