"""Sense disambiguation of predicates from partial sums; PropBank rolesets stand in for SemCor's senses.

Neighbours and logits are restricted to the predicate's lemma. Senses are those of the training items, and lemmas with
one sense there are dropped; a test item whose sense was never seen counts as wrong for everybody. Beside the learned
net and the nearest neighbours stands the most frequent sense of the lemma.

Letters for shapes: U items, C senses over all lemmas, D features, S = 16 subsets.

Source: Mickus, Paperno and Constant (2022), section 5.2: k = 5 by cosine; a two-layer net without a bias of its output.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlprune.analyses.dissection.maths import subset_masks
from mtlprune.analyses.dissection.term_items import TermItems, lemma_of

NEIGHBOURS = 5
UNSEEN = -1


@dataclass(frozen=True, eq=False)
class Senses:
    """The lemmas with at least two senses in training items.

    Attributes:
        names: (C,), rolesets.
        number: roleset to its place in ``names``.
        of_lemma: lemma to the places of its senses.
        frequent: lemma to the place of its most frequent sense; of equally frequent ones the first by name.
    """

    names: tuple[str, ...]
    number: dict[str, int]
    of_lemma: dict[str, list[int]]
    frequent: dict[str, int]

    def kept(self, items: TermItems) -> NDArray[np.int64]:
        """Which items have one of these lemmas."""
        return np.flatnonzero([lemma_of(label) in self.of_lemma for label in items.labels.tolist()])

    def gold(self, labels: NDArray[np.str_]) -> NDArray[np.int64]:
        """(U,): places of senses, ``UNSEEN`` for those that training lacks."""
        return np.array([self.number.get(label, UNSEEN) for label in labels.tolist()], np.int64)

    def allowed(self, labels: NDArray[np.str_]) -> Tensor:
        """(U, C) bool: the senses of each item's lemma."""
        found = torch.zeros(len(labels), len(self.names), dtype=torch.bool)
        for row, label in enumerate(labels.tolist()):
            found[row, self.of_lemma[lemma_of(label)]] = True
        return found

    def most_frequent(self, labels: NDArray[np.str_]) -> NDArray[np.int64]:
        """(U,): the baseline's answers."""
        return np.array([self.frequent[lemma_of(label)] for label in labels.tolist()], np.int64)


def inventory(labels: NDArray[np.str_]) -> Senses:
    """The senses of training items, (U,) rolesets."""
    times = Counter(labels.tolist())
    by_lemma = defaultdict(list)
    for name in sorted(times):
        by_lemma[lemma_of(name)].append(name)
    several = {lemma: names for lemma, names in by_lemma.items() if len(names) > 1}
    names = tuple(name for listed in several.values() for name in listed)
    number = {name: place for place, name in enumerate(names)}
    frequent = {lemma: number[max(listed, key=lambda name: times[name])] for lemma, listed in several.items()}
    return Senses(names, number, {lemma: [number[n] for n in listed] for lemma, listed in several.items()}, frequent)


@torch.no_grad()
def nearest(
    train: Tensor,
    train_labels: NDArray[np.str_],
    train_gold: NDArray[np.int64],
    test: Tensor,
    test_labels: NDArray[np.str_],
    neighbours: int = NEIGHBOURS,
) -> Tensor:
    """The sense that most of the nearest training items of the same lemma have, for every subset of terms.

    Of senses with equally many neighbours the one whose neighbours are nearer in sum; fewer neighbours where the lemma
    has fewer items. A vector of zeros (the empty subset) is as near to all, so that all items vote.

    Args:
        train, test: terms, (4, U, D) and (4, U', D).
        train_labels, test_labels: rolesets, whose lemma decides who may be a neighbour.
        train_gold: (U,), places of senses.

    Returns:
        (S, U') int64.
    """
    masks, found = subset_masks(train), torch.zeros(16, len(test_labels), dtype=torch.int64)
    pools: dict[str, list[int]] = defaultdict(list)
    asked: dict[str, list[int]] = defaultdict(list)
    for places, labels in ((pools, train_labels), (asked, test_labels)):
        for row, label in enumerate(labels.tolist()):
            places[lemma_of(label)].append(row)
    for lemma, rows in asked.items():
        pool = pools[lemma]
        known = functional.normalize(torch.einsum("sv,vid->sid", masks, train[:, pool]), dim=-1)
        query = functional.normalize(torch.einsum("sv,vid->sid", masks, test[:, rows]), dim=-1)
        found[:, rows] = _votes(query @ known.transpose(1, 2), torch.from_numpy(train_gold[pool]), neighbours)
    return found


def _votes(cosine: Tensor, gold: Tensor, neighbours: int) -> Tensor:
    """(S, q, p) likeness to p items with their senses (p,) → (S, q)."""
    near, which = cosine.topk(min(neighbours, cosine.shape[2]), dim=-1)
    senses, place = gold.unique(return_inverse=True)
    chosen = place[which]  # (S, q, k)
    weight = 1 + 1e-3 * near.float()  # votes first, then nearness: k ≤ 5 cosines never make up for a vote
    votes = torch.zeros(*chosen.shape[:2], len(senses)).scatter_add_(2, chosen, weight)
    blind = cosine.abs().amax(-1) == 0  # (S, q): nothing to go by
    every = torch.bincount(place, minlength=len(senses)).to(votes)
    return senses[torch.where(blind[..., None], every, votes).argmax(-1)]
