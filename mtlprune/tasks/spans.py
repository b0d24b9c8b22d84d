"""What span networks share: candidates, first layers split into per-word parts, pruning, pairs.

The linear layer over a span's joined vectors [start; end; width; pooled words] is split into per-word parts which are
added (W[a; b] = W₁a + W₂b; a sum over a span is a difference of prefix sums), so no span vector is ever built: exact,
and much cheaper. M candidate spans, sorted by sentence.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from mtlprune.encoder.model import Encoded
from mtlprune.tasks.base import Dropout, SharedMLP, dropout_mask
from mtlprune.tasks.products import Linear, biaffine_rows, biaffine_table


class Candidates(NamedTuple):
    """Spans of a batch; ends are inclusive."""

    sentence: Tensor  # (M,)
    start: Tensor  # (M,) within the sentence
    end: Tensor  # (M,)

    def take(self, rows: Tensor) -> Candidates:
        return Candidates(*(column[rows] for column in self))


def candidates(encoded: Encoded, max_width: int) -> Candidates:
    """All spans of at most ``max_width`` words."""
    longest = max(encoded.sizes)
    start = torch.arange(longest, device=encoded.lengths.device)
    width = torch.arange(min(longest, max_width), device=encoded.lengths.device)
    end = start[:, None] + width
    sentence, first, extra = (end < encoded.lengths[:, None, None]).nonzero(as_tuple=True)
    return Candidates(sentence, first, first + extra)


def best_of_each(scores: Tensor, owner: Tensor, lengths: Tensor, ratio: float) -> Tensor:
    """Mark the best max(1, ⌊ratio · n⌋) candidates of each sentence of n words; ties go to the earlier one. (M,) bool

    Args:
        scores, owner: (M,), owner sorted.
        lengths: (B,) words of each sentence.
    """
    order = scores.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]  # by sentence, best first
    counts = torch.bincount(owner, minlength=len(lengths))
    rank = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
    limit = (lengths * ratio).floor().clamp(min=1).long()
    marked = torch.zeros_like(owner, dtype=torch.bool)
    marked[order] = rank < limit[owner]  # owner is sorted, so owner[order] is owner
    return marked


def pairs(left: Tensor, right: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
    """Every left item with every right item of the same sentence.

    Args:
        left (K,), right (P,): sentence of each item, both sorted.

    Returns:
        For each pair the row of its left and of its right item, left-major.
    """
    counts = torch.bincount(right, minlength=sentences)
    per_left = counts[left]  # (K,)
    row = torch.arange(len(left), device=left.device).repeat_interleave(per_left)
    shift = (counts.cumsum(0) - counts)[left] - (per_left.cumsum(0) - per_left)
    return row, torch.arange(len(row), device=left.device) + shift[row]


class SplitSpanLayer(nn.Module):
    """The first layer of a span network: W [start; end; width; pooled] + b, pooled = sum over the span / max_width.

    Args:
        inputs: H. size: of the layer. max_width, width_size: the width embedding. beside: inputs that another part of
        the same (unsplit) layer has, for Xavier's bound.
    """

    def __init__(self, inputs: int, size: int, widths: nn.Embedding, beside: int = 0) -> None:
        super().__init__()
        self.words = Linear(inputs, 3 * size)  # start, end, pooled
        self.width = Linear(widths.embedding_dim, size, bias=False)
        self.max_width = widths.num_embeddings
        self.bound = math.sqrt(6 / (3 * inputs + widths.embedding_dim + beside + size))
        for weight in (self.words.weight, self.width.weight):
            nn.init.uniform_(weight, -self.bound, self.bound)

    def forward(self, encoded: Encoded, widths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parts by start word (N, size), by end word (N, size), by width (max_width, size)."""
        start, end, pooled = self.words(encoded.words).chunk(3, dim=1)
        pooled = pooled.float() / self.max_width
        prefix = pooled.cumsum(0)  # the sum over a span: the prefix of its end without the prefix before its start
        owner = torch.arange(len(encoded.sizes), device=prefix.device).repeat_interleave(encoded.lengths)
        # counted from each sentence's start: over a whole batch the sums outgrow bf16, and their differences are lost
        prefix = prefix - (prefix - pooled).index_select(0, encoded.starts).index_select(0, owner)
        kind = start.dtype
        return (start - (prefix - pooled)).to(kind), (end + prefix).to(kind), self.width(widths).to(kind)

    @staticmethod
    def gather(parts: tuple[Tensor, Tensor, Tensor], spans: Candidates, offset: Tensor) -> Tensor:
        """The layer's output for each span. (M, size)"""
        embedding = nn.functional.embedding  # a gather whose gradient is fast on CPUs
        begin = offset[spans.sentence]
        return (
            embedding(begin + spans.start, parts[0])
            + embedding(begin + spans.end, parts[1])
            + embedding(spans.end - spans.start, parts[2])
        )


class SpanScorerMLP(nn.Module):
    """Span scores by two hidden layers over the span vector (He et al. 2018)."""

    def __init__(self, inputs: int, size: int, widths: nn.Embedding, dropout: float) -> None:
        super().__init__()
        self.first = SplitSpanLayer(inputs, size, widths)
        self.rest = scorer(size, 1, dropout)

    def forward(self, encoded: Encoded, spans: Candidates, widths: Tensor) -> Tensor:
        """(M,) scores, fp32"""
        hidden = self.first.gather(self.first(encoded, widths), spans, encoded.starts)
        return self.rest(hidden).float().squeeze(1)


class SpanScorerBiaffine(nn.Module):
    """Span scores by a biaffine form of the first and the last word, plus a score of the width: cheap."""

    def __init__(self, inputs: int, size: int, max_width: int) -> None:
        super().__init__()
        self.ends = Linear(inputs, 2 * size)
        self.weight = nn.Parameter(torch.zeros(1, size + 1, size + 1))
        self.width = nn.Parameter(torch.zeros(max_width))

    def forward(self, encoded: Encoded, spans: Candidates, widths: Tensor) -> Tensor:
        """(M,) scores, fp32"""
        start, end = self.ends(encoded.words).chunk(2, dim=-1)  # (N, size) each
        scores = biaffine_table(start, self.weight, end, encoded.sizes).squeeze(2)  # (B, T, T)
        return scores[spans.sentence, spans.start, spans.end] + self.width[spans.end - spans.start]


def scorer(size: int, outputs: int, dropout: float) -> nn.Sequential:
    """What follows a first layer: ReLU, dropout, a second hidden layer, scores. Xavier weights, zero bias."""
    hidden, last = Linear(size, size), Linear(size, outputs)
    for layer in (hidden, last):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.ReLU(), Dropout(dropout), hidden, nn.ReLU(), Dropout(dropout), last)


# -- labels of given pairs of rows: a head and its dependent, the two ends of a span. Never of all pairs --
# M rows (words, or fenceposts), P pairs of them, L labels.


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
