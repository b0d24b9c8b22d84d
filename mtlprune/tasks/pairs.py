"""Labels of given pairs of rows: a head and its dependent, the two ends of a span. Never of all pairs.

M rows (words, or fenceposts), P pairs of them, L labels.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from mtlprune.tasks.base import SharedMLP, dropout_mask
from mtlprune.tasks.products import Linear, biaffine_rows

PairScorer = Literal["biaffine", "mlp"]


class BiaffinePairs(nn.Module):
    """One biaffine form a label, both biases, over an MLP of either row (Dozat and Manning 2017)."""

    def __init__(self, inputs: int, size: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.mlp = SharedMLP(inputs, [size, size], dropout)
        self.weight = nn.Parameter(torch.zeros(labels, size + 1, size + 1))

    def forward(self, rows: Tensor, owner: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
        """Left and right vectors of all rows (M, size), to be paired by ``score``."""
        return self.mlp(rows, owner, sentences)

    def label_rows(self) -> Tensor:
        """(L, (size + 1)²): each label's form as one row."""
        return self.weight.flatten(1)

    def score(self, vectors: tuple[Tensor, Tensor], left: Tensor, right: Tensor, owner: Tensor) -> Tensor:
        """Scores of the pairs (left row, right row). (P, L), fp32"""
        first, second = vectors[0].index_select(0, left), vectors[1].index_select(0, right)
        return biaffine_rows(first, self.weight, second)


class MLPPairs(nn.Module):
    """Two layers over the joined rows; the first is split, W[a; b] = W₁a + W₂b, and applied to each row once.

    Exact, and many times cheaper than a biaffine form, whose cost is that of L matrices.
    """

    def __init__(self, inputs: int, size: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.size, self.dropout = size, dropout
        self.first = Linear(inputs, 2 * size)
        self.last = Linear(size, labels)
        nn.init.xavier_uniform_(self.first.weight)
        nn.init.zeros_(self.first.bias)

    def forward(self, rows: Tensor, owner: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
        """Left and right parts of the first layer for all rows (M, size), to be added by ``score``."""
        return self.first(rows).chunk(2, dim=1)

    def label_rows(self) -> Tensor:
        """(L, size): weights of the last layer."""
        return self.last.weight

    def score(self, vectors: tuple[Tensor, Tensor], left: Tensor, right: Tensor, owner: Tensor) -> Tensor:
        """Scores of the pairs (left row, right row) of sentences ``owner`` (P,). (P, L), fp32"""
        gather = nn.functional.embedding  # its gradient is fast on CPUs
        hidden = nn.functional.leaky_relu(gather(left, vectors[0]) + gather(right, vectors[1]), negative_slope=0.1)
        if self.training and self.dropout:
            sentences = int(owner[-1]) + 1 if len(owner) else 0
            hidden = hidden * dropout_mask((sentences, self.size), self.dropout, hidden).index_select(0, owner)
        return self.last(hidden).float()


def pair_scorer(kind: PairScorer, inputs: int, size: int, labels: int, dropout: float) -> BiaffinePairs | MLPPairs:
    """The scorer of that name; an MLP is twice as wide as the vectors of a biaffine form."""
    if kind == "biaffine":
        return BiaffinePairs(inputs, size, labels, dropout)
    return MLPPairs(inputs, 2 * size, labels, dropout)
