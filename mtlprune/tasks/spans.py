"""Parts that span networks share: candidates, first layers split into per-word parts, pruning, pairs.

The linear layer over a span's joined vectors [start; end; width; pooled words] is split into per-word parts which are
added (W[a; b] = W₁a + W₂b; a sum over a span is a difference of prefix sums), so no span vector is ever built: exact,
and much cheaper. M candidate spans, sorted by sentence.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mtlprune.config.decoders import PairScorer
from mtlprune.encoder.batch import Encoded, move_together
from mtlprune.tasks.base import Dropout, SharedMLP, dropout_mask
from mtlprune.tasks.products import Linear, biaffine_lists, biaffine_table, linear


class Candidates(NamedTuple):
    """Spans of a batch; ends are inclusive."""

    sentence: Tensor  # (M,)
    start: Tensor  # (M,) within the sentence
    end: Tensor  # (M,)

    def take(self, rows: Tensor) -> "Candidates":
        return Candidates(*(column[rows] for column in self))


def candidates(encoded: Encoded, max_width: int) -> Candidates:
    """All spans of at most ``max_width`` words."""
    longest = max(encoded.sizes)
    start = torch.arange(longest, device=encoded.lengths.device)
    width = torch.arange(min(longest, max_width), device=encoded.lengths.device)
    end = start[:, None] + width
    fits = end < encoded.lengths[:, None, None]
    # The number of candidates is known from the lengths, so the size is given, and the host need not wait for the
    # device to count.
    places = fits.nonzero_static(size=sum(candidate_counts(encoded.sizes, max_width)))
    sentence, first, extra = places.t().contiguous().unbind()
    return Candidates(sentence, first, first + extra)


def candidate_counts(sizes: Sequence[int], max_width: int) -> list[int]:
    """The number of candidates of each sentence; ``sizes``: words of each."""
    widest = [min(size, max_width) for size in sizes]
    return [width * size - width * (width - 1) // 2 for size, width in zip(sizes, widest, strict=True)]


def best_of_each(scores: Tensor, owner: Tensor, lengths: Tensor, ratio: float) -> Tensor:
    """Mark the best max(1, ⌊ratio · n⌋) candidates of each sentence of n words; ties go to the earlier one. (M,) bool

    Args:
        scores, owner: (M,), owner sorted.
        lengths: (B,) words of each sentence, on the CPU.
    """
    order = scores.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]  # by sentence, best first
    first = torch.searchsorted(owner, torch.arange(len(lengths), device=owner.device))
    rank = torch.arange(len(owner), device=owner.device) - first[owner]
    (limit,) = move_together([(lengths * ratio).floor().clamp(min=1).long()], owner.device)
    marked = torch.zeros_like(owner, dtype=torch.bool)
    # Spans of a sentence are sorted among themselves only, so `owner[order]` equals `owner`, and a rank can be
    # compared with its sentence's limit.
    marked[order] = rank < limit[owner]
    return marked


def pairs(left: Tensor, right: Tensor, sentences: int, total: int) -> tuple[Tensor, Tensor]:
    """Every left item with every right item of the same sentence.

    Args:
        left (K,), right (P,): sentence of each item, both sorted.
        total: how many pairs there are.

    Returns:
        For each pair the row of its left and of its right item, left-major.
    """
    # Right items of sentence s lie from bounds[s] to bounds[s + 1], because they are sorted by sentence.
    bounds = torch.searchsorted(right, torch.arange(sentences + 1, device=right.device))
    first = bounds[left]  # (K,)
    per_left = bounds[left + 1] - first
    row = torch.arange(len(left), device=left.device).repeat_interleave(per_left, output_size=total)
    # The pairs of a left item are numbered consecutively; adding its shift turns the running number into the row of
    # the right item.
    shift = first - (per_left.cumsum(0) - per_left)
    return row, torch.arange(len(row), device=left.device) + shift[row]


class SplitSpanLayer(nn.Module):
    """The first layer of a span network: W [start; end; width; pooled] + b, pooled = sum over the span / max_width.

    Args:
        inputs: H.
        size: of the layer.
        widths: the embedding of widths.
        extra_inputs: inputs that another part of the same (unsplit) layer has, for Xavier's bound.
    """

    def __init__(self, inputs: int, size: int, widths: nn.Embedding, extra_inputs: int = 0) -> None:
        super().__init__()
        self.words = Linear(inputs, 3 * size)  # start, end, pooled
        self.width = Linear(widths.embedding_dim, size, bias=False)
        self.max_width = widths.num_embeddings
        self.bound = math.sqrt(6 / (3 * inputs + widths.embedding_dim + extra_inputs + size))
        for weight in (self.words.weight, self.width.weight):
            nn.init.uniform_(weight, -self.bound, self.bound)

    def forward(self, encoded: Encoded, widths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parts by start word (N, size), by end word (N, size), by width (max_width, size)."""
        return self.hidden_of_all([self], encoded, widths)

    @staticmethod
    def hidden_of_all(
        layers: "Sequence[SplitSpanLayer]", encoded: Encoded, widths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of layers of one size beside each other: three matrices of ``size`` columns for each layer."""
        by_kind = [layer.words.weight.unflatten(0, (3, -1)) for layer in layers]
        # Several layers read the same words, so their matrices are joined and multiplied at once. The order is by
        # kind first, so that a chunk of the product holds one kind for all layers.
        weight = torch.cat(by_kind, dim=1).flatten(0, 1)  # all starts, all ends, all pooled
        bias = torch.cat([layer.words.bias.unflatten(0, (3, -1)) for layer in layers], dim=1).flatten()
        start, end, pooled = linear(encoded.words, weight, bias).chunk(3, dim=1)
        pooled = pooled.float() / layers[0].max_width
        # The sum over a span is the prefix sum at its end minus the prefix sum before its start, so spans of all
        # widths cost the same.
        prefix = pooled.cumsum(0)
        before = prefix - pooled
        # counted from each sentence's start: over a whole batch the sums outgrow bf16, and their differences are lost
        base = before.index_select(0, encoded.starts.index_select(0, encoded.owner))
        kind = start.dtype
        by_width = linear(widths, torch.cat([layer.width.weight for layer in layers])).to(kind)
        # The pooled part of a span is prefix(end) − before(start), so one half of it is added to the end's part and
        # the other subtracted from the start's: a span then needs three lookups and two additions.
        return (start - (before - base)).to(kind), (end + (prefix - base)).to(kind), by_width

    @staticmethod
    def gather(parts: tuple[Tensor, Tensor, Tensor], spans: Candidates, offset: Tensor) -> Tensor:
        """The layer's output for each span. (M, size)"""
        # An embedding lookup is a gather whose gradient is fast on CPUs, where index_select's is slow.
        embedding = nn.functional.embedding
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
        self.output_layers = scorer(size, 1, dropout)

    def forward(self, encoded: Encoded, spans: Candidates, widths: Tensor) -> Tensor:
        """(M,) scores, fp32"""
        hidden = self.first.gather(self.first(encoded, widths), spans, encoded.starts)
        return self.output_layers(hidden).float().squeeze(1)


class SpanScorerBiaffine(nn.Module):
    """Span scores by a biaffine form of the first and the last word, plus a score of the width: cheap."""

    def __init__(self, inputs: int, size: int, max_width: int) -> None:
        super().__init__()
        self.ends = Linear(inputs, 2 * size)
        # Zero, so that in the beginning all spans score alike and the gradient alone tells them apart.
        self.weight = nn.Parameter(torch.zeros(1, size + 1, size + 1))
        self.width = nn.Parameter(torch.zeros(max_width))

    def forward(self, encoded: Encoded, spans: Candidates, widths: Tensor) -> Tensor:
        """(M,) scores, fp32"""
        start, end = self.ends(encoded.words).chunk(2, dim=-1)  # (N, size) each
        scores = biaffine_table(start, self.weight, end, encoded.sizes).squeeze(2)  # (B, T, T)
        return scores[spans.sentence, spans.start, spans.end] + self.width[spans.end - spans.start]


def scorer(size: int, outputs: int, dropout: float) -> nn.Sequential:
    """The layers after a first one: ReLU, dropout, a second hidden layer, scores. Xavier weights, zero bias."""
    hidden, last = Linear(size, size), Linear(size, outputs)
    for layer in (hidden, last):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.ReLU(), Dropout(dropout), hidden, nn.ReLU(), Dropout(dropout), last)


# Labels of given pairs of rows: a head and its dependent, the two ends of a span. Never of all pairs.
# M rows (words, or fenceposts), P pairs of them, L labels.


class Pairs(NamedTuple):
    """Pairs of rows, also by left row, because a biaffine form is multiplied with each left row only once."""

    left: Tensor  # (P,)
    right: Tensor  # (P,)
    owner: Tensor  # (P,) the sentence
    slots: Tensor  # (P,) the place of each pair in `table`, counted through its rows
    table: Tensor  # (M, K): right rows that belong to each left row; 0 where there are fewer than K

    @classmethod
    def one_each(cls, right: Tensor, owner: Tensor) -> "Pairs":
        """The first P left rows, in order, with one right row each."""
        rows = torch.arange(len(right), device=right.device)
        return cls(rows, right, owner, rows, right.unsqueeze(1))

    @classmethod
    def by_left(cls, left: Tensor, right: Tensor, owner: Tensor, rows: int) -> "Pairs":
        """On the CPU, where ``K`` is counted, so that no device is waited for; ``rows``: M."""
        counts = left.bincount(minlength=rows)
        columns = max(1, int(counts.max()))
        order = left.argsort(stable=True)
        rank = torch.empty_like(left)
        rank[order] = torch.arange(len(left)) - (counts.cumsum(0) - counts)[left[order]]
        slots = left * columns + rank
        table = torch.zeros(rows * columns, dtype=torch.int64)
        table[slots] = right
        return cls(left, right, owner, slots, table.view(rows, columns))


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

    def score(self, vectors: Any, pairs: Pairs, sentences: int) -> Tensor:
        """Scores of the pairs of rows. (P, L), fp32"""
        left = vectors[0][: len(pairs.table)]
        by_left = biaffine_lists(left, self.weight, nn.functional.embedding(pairs.table, vectors[1]))
        return by_left.transpose(1, 2).flatten(0, 1).index_select(0, pairs.slots)


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

    def score(self, vectors: Any, pairs: Pairs, sentences: int) -> Tensor:
        """Scores of the pairs of rows. (P, L), fp32"""
        # As above: a gather whose gradient is fast on CPUs.
        gather = nn.functional.embedding
        hidden = nn.functional.leaky_relu(
            gather(pairs.left, vectors[0]) + gather(pairs.right, vectors[1]), negative_slope=0.1
        )
        if self.training and self.dropout:
            # One mask a sentence, shared by all of its pairs, as in variational dropout.
            mask = dropout_mask((sentences, self.size), self.dropout, hidden)
            hidden = hidden * mask.index_select(0, pairs.owner)
        return self.last(hidden).float()


def pair_scorer(kind: PairScorer, inputs: int, size: int, labels: int, dropout: float) -> BiaffinePairs | MLPPairs:
    """The scorer of that name; an MLP is twice as wide as the vectors of a biaffine form."""
    if kind == "biaffine":
        return BiaffinePairs(inputs, size, labels, dropout)
    return MLPPairs(inputs, 2 * size, labels, dropout)
