"""Centroid probes: is the mean vector of its own label the nearest one? All heads and labels at once.

A unit (word, entity, phrase) has one vector a head: the mean over its words of what the head says there (the values it
mixed, before the output projection). The label predicted is the one whose centroid has the highest cosine. He and Choi
(2021), section 5 and released code.

Letters for shapes: N words of a batch, U units, K labels, H heads of all layers that are there, d values a head has.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mtlprune.encoder.observe import Observation


def head_vectors(seen: Observation) -> Tensor:
    """What every head says of every word: (N, H, d), mean over sub-words."""
    return torch.cat([seen.word_vectors(heads) for heads in seen.heads], 1)


def unit_vectors(words: Tensor, first: Tensor, sizes: Tensor) -> Tensor:
    """Means over the words of units.

    Args:
        words: (N, H, d).
        first: (U,) int64, the first word of each unit, counted over the batch.
        sizes: (U,) int64, how many words it has, at least 1.

    Returns:
        (U, H, d)
    """
    if not len(first):
        return words.new_zeros(0, *words.shape[1:])
    offsets = sizes.cumsum(0) - sizes
    which = torch.arange(int(sizes.sum()), device=words.device) + torch.repeat_interleave(first - offsets, sizes)
    return functional.embedding_bag(which, words.flatten(1), offsets, mode="mean").view(-1, *words.shape[1:])


class Centroids:
    """Running sums of units by label, and the directions they end with.

    Args:
        labels: K.
        heads: H.
        width: d.
    """

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
    def known(self) -> Tensor:
        """(K,) bool: labels that have units."""
        return self.counts > 0


def nearest_found(units: Tensor, label: Tensor, directions: Tensor, known: Tensor) -> Tensor:
    """Whether the centroid of the own label is the nearest; of equally near ones the first label counts.

    A label without a centroid is never predicted, and a head that says nothing (all zero) predicts nothing.

    Args:
        units: (U, H, d); their lengths do not matter.
        label: (U,) int64.
        directions: (H, d, K), of :meth:`Centroids.directions`.
        known: (K,) bool.

    Returns:
        (U, H) bool.
    """
    near = torch.bmm(units.transpose(0, 1), directions.to(units))  # (H, U, K)
    if not known.all():
        near.masked_fill_(~known, -torch.inf)
    says = torch.linalg.vector_norm(units, dim=-1) > 0  # (U, H)
    predicted = near.argmax(-1).T  # (U, H)
    return (predicted == label[:, None]) & says & known[label][:, None]
