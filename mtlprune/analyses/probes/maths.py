"""The two probes, all heads at once, of He and Choi (2021, section 5, and their code); intervals of differences.

Attention probes: does a head look from dependent to head, or from predicate to argument? A word's choice is the word it
attends to most, itself included. Centroid probes: a unit (word, entity, phrase) has one vector a head, the mean over
its words of what the head says there (the values it mixed, before the output projection); the label predicted is the
one whose centroid has the highest cosine.

Letters for shapes: B sentences, L slots a row, T words of the longest sentence, S = T + 1 places ([CLS] and words), N
words of a batch, H heads of all layers that are there, d values a head has, U items, K labels, P pairs of an item and
one of its words.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlprune.encoder.observe import Observation

RESAMPLES = 2000
_BOOTSTRAP = 11
"""Keeps the generator of the resamples apart from others of the same seed."""

# -- attention ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class AttendedPlaces:
    """The place that each place attends to most, in every head. ``anywhere``: (B · S, H) int64, of [CLS] and the words
    (place 0 and 1 on): candidates of DEP, where [CLS] is the root; ``words``: (B · S, H) int64, of the words alone, as
    places too: candidates of SRL; ``side``: S."""

    anywhere: Tensor
    words: Tensor
    side: int


def choose(observation: Observation) -> AttendedPlaces:
    """The choices of all places in all heads; [SEP] is never chosen.

    Of equal ones the first counts. Rows are averaged over the sub-words that attend, columns summed over those attended
    to. Columns that a sentence does not have get −1 (minus the row's sum), so that nothing chooses them.
    """
    side = max(observation.batch.sizes) + 1
    place = torch.arange(side, device=observation.last.device)
    is_own_place = observation.positions[..., None] == place  # (B, L, S); a sentence's [SEP] lies at its length + 1
    is_own_place = is_own_place & (place <= observation.batch.lengths[:, None])[:, None]
    counts = is_own_place.sum(1)  # (B, S), sub-words
    columns = is_own_place.to(observation.last) - (counts == 0)[:, None].to(observation.last)
    rows = (is_own_place / counts.clamp(min=1)[:, None]).to(observation.last).transpose(1, 2)  # (B, S, L)
    anywhere, words = [], []
    for attention in observation.attention:
        weights = rows[:, None] @ (attention.flatten(1, 2) @ columns).unflatten(1, attention.shape[1:3])  # (B, n, S, S)
        word = weights[..., 1:].argmax(-1, keepdim=True)  # (B, n, S, 1)
        highest = weights[..., 1:].gather(-1, word)
        word = word + 1
        words.append(word.squeeze(-1))
        anywhere.append(torch.where(weights[..., :1] >= highest, 0, word).squeeze(-1))
    lay = [torch.cat(part, 1).transpose(1, 2).flatten(0, 1).contiguous() for part in (anywhere, words)]
    return AttendedPlaces(lay[0], lay[1], side)


def arcs_found(choices: AttendedPlaces, row: Tensor, head: Tensor, dependent: Tensor) -> Tensor:
    """Mark the arcs that each attention head finds: the dependent chooses its head, or the reverse. (U, H) bool

    Args:
        row: (U,), sentence of the batch.
        head: (U,), place of the head; 0 is the root, which [CLS] stands for.
        dependent: (U,), place of the dependent.
    """
    base = row * choices.side
    down, up = choices.anywhere[base + dependent], choices.anywhere[base + head]
    return (down == head[:, None]) | (up == dependent[:, None])


def arguments_found(choices: AttendedPlaces, row: Tensor, start: Tensor, end: Tensor, predicate: Tensor) -> Tensor:
    """Mark the arguments that each attention head finds: one of its words chooses the predicate, or the reverse. (U, H)
    bool. ``row``: (U,), sentence of the batch; ``start``, ``end``: (U,), words of the argument, from 0, half-open;
    ``predicate``: (U,), word of the predicate, from 0."""
    base = row * choices.side + 1  # of word 0
    attended_words = choices.words[base + predicate] - 1  # (U, H), as words
    inside = (attended_words >= start[:, None]) & (attended_words < end[:, None])
    sizes = end - start
    item = torch.repeat_interleave(sizes)  # (P,)
    word = torch.arange(len(item), device=row.device) - (sizes.cumsum(0) - sizes)[item] + start[item]
    back = choices.words[base[item] + word] - 1 == predicate[item, None]  # (P, H)
    any_of_span = back.new_zeros(inside.shape, dtype=torch.int32).index_add_(0, item, back.int()) > 0
    return inside | any_of_span


def by_label(hits: Tensor, label: Tensor, labels: int) -> Tensor:
    """Count hits: (U, H) bool to (K, H) float64."""
    if not len(label):
        return hits.new_zeros(labels, hits.shape[1], dtype=torch.float64)
    one_hot = functional.one_hot(label, labels).float()  # (U, K); sums up to 2²⁴ are exact
    return (one_hot.T @ hits.float()).double()


# -- centroids ---------------------------------------------------------------------------------------------------------


def head_vectors(observation: Observation) -> Tensor:
    """Outputs of every head for every word: (N, H, d), mean over sub-words."""
    return torch.cat([observation.word_vectors(heads) for heads in observation.heads], 1)


def unit_vectors(words: Tensor, first: Tensor, sizes: Tensor) -> Tensor:
    """Means over the words of units. (U, H, d). ``words``: (N, H, d); ``first``: (U,) int64, the first word of each
    unit, counted over the batch; ``sizes``: (U,) int64, how many words it has, at least 1."""
    if not len(first):
        return words.new_zeros(0, *words.shape[1:])
    offsets = sizes.cumsum(0) - sizes
    word_index = torch.arange(int(sizes.sum()), device=words.device) + torch.repeat_interleave(first - offsets, sizes)
    return functional.embedding_bag(word_index, words.flatten(1), offsets, mode="mean").view(-1, *words.shape[1:])


class Centroids:
    """Running sums of units by label, and the directions they end with."""

    def __init__(self, labels: int, heads: int, width: int, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(labels, heads, width, dtype=torch.float64, device=device)
        self.counts = torch.zeros(labels, dtype=torch.int64, device=device)

    def add(self, units: Tensor, label: Tensor) -> None:
        """Add units (U, H, d) with labels (U,) int64."""
        part = torch.zeros(self.sums.shape, dtype=units.dtype, device=units.device).index_add_(0, label, units)
        self.sums += part
        self.counts += torch.bincount(label, minlength=len(self.counts))

    def directions(self) -> Tensor:
        """(H, d, K) float32: centroids of length 1; zero for labels without units and for heads that say nothing.

        A mean and a sum point the same way.
        """
        return functional.normalize(self.sums, dim=-1).permute(1, 2, 0).float()

    @property
    def is_known(self) -> Tensor:
        """(K,) bool: labels that have units."""
        return self.counts > 0


def nearest_found(units: Tensor, label: Tensor, directions: Tensor, is_known: Tensor) -> Tensor:
    """True where the centroid of the own label is the nearest; of equally near ones the first label counts. (U, H)
    bool.

    A label without a centroid is never predicted, and a head that says nothing (all zero) predicts nothing.

    Args:
        units: (U, H, d); their lengths do not matter.
        label: (U,) int64.
        directions: (H, d, K), of :meth:`Centroids.directions`.
        is_known: (K,) bool.
    """
    near = torch.bmm(units.transpose(0, 1), directions.to(units))  # (H, U, K)
    if not is_known.all():
        near.masked_fill_(~is_known, -torch.inf)
    says = torch.linalg.vector_norm(units, dim=-1) > 0  # (U, H)
    predicted = near.argmax(-1).T  # (U, H)
    return (predicted == label[:, None]) & says & is_known[label][:, None]


# -- what is chosen, and how sure differences are ----------------------------------------------------------------------


def best_places(dev: NDArray[np.float64]) -> NDArray[np.int64]:
    """The best head of each label, (K, L, A), the lowest of equal ones: (K,) places in L · A, −1 where there is nothing
    to choose by."""
    flat = dev.reshape(len(dev), -1)
    return np.where(np.isnan(flat).all(1), -1, np.where(np.isnan(flat), -1, flat).argmax(1))


def paired_interval(gap: NDArray[np.float64], sentence: NDArray[np.int64], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap percentile interval of a mean over items (U,), whole sentences (U,) drawn with replacement.

    Sentences with items of the label take few different pairs (sum of gaps, number of items), so a resample is one
    multinomial draw of how often each pair is met: exactly the bootstrap over sentences, at a cost that does not grow
    with their number.
    """
    _, sentence_index = np.unique(sentence, return_inverse=True)
    sums, sizes = np.bincount(sentence_index, gap), np.bincount(sentence_index)
    pairs, counts = np.unique(np.stack([sums.round(12), sizes], 1), axis=0, return_counts=True)
    generator = np.random.default_rng([_BOOTSTRAP, seed])
    resampled_gaps = generator.multinomial(len(sums), counts / len(sums), size=RESAMPLES) @ pairs  # (resamples, 2)
    low, high = np.quantile(resampled_gaps[:, 0] / resampled_gaps[:, 1], [0.025, 0.975])
    return float(low), float(high)
