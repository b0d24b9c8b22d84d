"""Parts of the decoders that score spans and pairs of rows: candidate spans, their scorers, and scorers of pairs.

A span network applies a linear layer to the concatenated vectors [start; end; width; pooled words] of a span. This
layer is split into parts that are computed once per word and added for each span: W[a; b] = W₁a + W₂b, and a sum over
the words of a span is a difference of prefix sums. This is exact and much cheaper than building span vectors.

Letters in shapes: B sentences, N words of all sentences together, M candidate spans, sorted by sentence.
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
    """The candidate spans of a batch."""

    sentence: Tensor
    """(M,) number of the sentence."""
    start: Tensor
    """(M,) first word, counted within the sentence."""
    end: Tensor
    """(M,) last word (inclusive), counted within the sentence."""

    def take(self, rows: Tensor) -> "Candidates":
        """Return the spans in the given rows."""
        return Candidates(*(column[rows] for column in self))


def candidates(encoded: Encoded, max_width: int) -> Candidates:
    """Return all spans of up to ``max_width`` words, sorted by sentence, first word and last word."""
    longest = max(encoded.sizes)
    start = torch.arange(longest, device=encoded.lengths.device)
    width = torch.arange(min(longest, max_width), device=encoded.lengths.device)
    end = start[:, None] + width
    fits = end < encoded.lengths[:, None, None]
    # The number of candidates follows from the lengths. With a given size, the host does not have to wait until the
    # device has counted.
    indices = fits.nonzero_static(size=sum(candidate_counts(encoded.sizes, max_width)))
    sentence, first, extra = indices.t().contiguous().unbind()
    return Candidates(sentence, first, first + extra)


def candidate_counts(sizes: Sequence[int], max_width: int) -> list[int]:
    """Return the number of candidate spans of each sentence, given the number of its words (``sizes``)."""
    widest = [min(size, max_width) for size in sizes]
    return [width * size - width * (width - 1) // 2 for size, width in zip(sizes, widest, strict=True)]


def best_of_each(scores: Tensor, owner: Tensor, lengths: Tensor, ratio: float) -> Tensor:
    """Mark the candidates of each sentence with the highest scores.

    Args:
        scores: (M,) score of each candidate.
        owner: (M,) sentence of each candidate, sorted.
        lengths: (B,) number of words of each sentence, on the CPU.
        ratio: number of candidates to mark per word: max(1, ⌊ratio · n⌋) in a sentence of n words.

    Returns:
        (M,) bool. Among candidates with equal scores, earlier ones are marked first.
    """
    order = scores.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]  # by sentence, best first
    first = torch.searchsorted(owner, torch.arange(len(lengths), device=owner.device))
    rank = torch.arange(len(owner), device=owner.device) - first[owner]
    (limit,) = move_together([(lengths * ratio).floor().clamp(min=1).long()], owner.device)
    marked = torch.zeros_like(owner, dtype=torch.bool)
    # `order` moves candidates within their sentence only, so that `owner[order]` equals `owner`, and position i of
    # `rank` belongs to a candidate of the sentence `owner[i]`.
    marked[order] = rank < limit[owner]
    return marked


def pairs(left: Tensor, right: Tensor, sentences: int, total: int) -> tuple[Tensor, Tensor]:
    """Pair every left item with every right item of the same sentence.

    Args:
        left: (K,) sentence of each left item, sorted.
        right: (P,) sentence of each right item, sorted.
        sentences: number of sentences.
        total: number of pairs, which the caller knows without waiting for the device.

    Returns:
        (pairs,) row of the left item and (pairs,) row of the right item of each pair, sorted by left item.
    """
    # The right items of sentence s have the rows bounds[s] to bounds[s + 1] − 1, because they are sorted by sentence.
    bounds = torch.searchsorted(right, torch.arange(sentences + 1, device=right.device))
    first = bounds[left]  # (K,)
    per_left = bounds[left + 1] - first
    row = torch.arange(len(left), device=left.device).repeat_interleave(per_left, output_size=total)
    # The pairs of a left item have consecutive numbers. Adding the item's shift to the number of a pair gives the row
    # of the right item.
    shift = first - (per_left.cumsum(0) - per_left)
    return row, torch.arange(len(row), device=left.device) + shift[row]


class SplitSpanLayer(nn.Module):
    """The first layer of a span network, W [start; end; width; pooled] + b, split into parts per word and per width.

    ``pooled`` is the sum of the span's word vectors, divided by ``max_width``.

    Args:
        inputs: hidden size H of the encoder.
        size: output size of the layer.
        widths: the embedding of span widths.
        extra_inputs: number of further inputs of the unsplit layer, which counts for the bound of Xavier
            initialisation.
    """

    def __init__(self, inputs: int, size: int, widths: nn.Embedding, extra_inputs: int = 0) -> None:
        super().__init__()
        self.words = Linear(inputs, 3 * size)  # outputs: start, end, pooled
        self.width = Linear(widths.embedding_dim, size, bias=False)
        self.max_width = widths.num_embeddings
        self.bound = math.sqrt(6 / (3 * inputs + widths.embedding_dim + extra_inputs + size))
        for weight in (self.words.weight, self.width.weight):
            nn.init.uniform_(weight, -self.bound, self.bound)

    def forward(self, encoded: Encoded, widths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the parts by start word (N, size), by end word (N, size) and by width (max_width, size)."""
        return self.hidden_of_all([self], encoded, widths)

    @staticmethod
    def hidden_of_all(
        layers: "Sequence[SplitSpanLayer]", encoded: Encoded, widths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the parts of several layers of the same size by one matrix product.

        Args:
            layers: L layers of the same size.
            encoded: the batch.
            widths: (max_width, width size) embedding vectors of all widths.

        Returns:
            The parts by start word (N, L · size), by end word (N, L · size) and by width (max_width, L · size).
        """
        weights = [layer.words.weight.unflatten(0, (3, -1)) for layer in layers]  # (3, size, inputs) each
        # The rows of the joined weight are sorted by kind (start, end, pooled) before layer, so that each chunk of the
        # product contains one kind for all layers.
        weight = torch.cat(weights, dim=1).flatten(0, 1)  # all starts, all ends, all pooled
        bias = torch.cat([layer.words.bias.unflatten(0, (3, -1)) for layer in layers], dim=1).flatten()
        start, end, pooled = linear(encoded.words, weight, bias).chunk(3, dim=1)
        pooled = pooled.float() / layers[0].max_width
        # The sum over a span is the prefix sum at its end minus the prefix sum before its start, so that spans of all
        # widths cost the same.
        prefix = pooled.cumsum(0)
        before = prefix - pooled
        # Prefix sums start again at each sentence. Over a whole batch they would become so large that their differences
        # would be lost in bf16.
        base = before.index_select(0, encoded.starts.index_select(0, encoded.owner))
        dtype = start.dtype
        by_width = linear(widths, torch.cat([layer.width.weight for layer in layers])).to(dtype)
        # The pooled part of a span is prefix(end) − before(start). Adding prefix to the end's part and subtracting
        # before from the start's part leaves three lookups and two additions for each span.
        return (start - (before - base)).to(dtype), (end + (prefix - base)).to(dtype), by_width

    @staticmethod
    def gather(parts: tuple[Tensor, Tensor, Tensor], spans: Candidates, offset: Tensor) -> Tensor:
        """Compute the output of the layers for each span: (M, columns of the parts).

        Args:
            parts: what ``forward`` or ``hidden_of_all`` returned.
            spans: M spans.
            offset: (B,) index of each sentence's first word.
        """
        # An embedding lookup is a gather whose gradient is fast on CPUs, where index_select's is slow.
        embedding = nn.functional.embedding
        begin = offset[spans.sentence]
        return (
            embedding(begin + spans.start, parts[0])
            + embedding(begin + spans.end, parts[1])
            + embedding(spans.end - spans.start, parts[2])
        )


class SpanScorerMLP(nn.Module):
    """Scorer of spans that applies two hidden layers to the span vector (He et al. 2018)."""

    def __init__(self, inputs: int, size: int, widths: nn.Embedding, dropout: float) -> None:
        super().__init__()
        self.first = SplitSpanLayer(inputs, size, widths)
        self.output_layers = scorer(size, 1, dropout)

    def forward(self, encoded: Encoded, spans: Candidates, widths: Tensor) -> Tensor:
        """Score each span: (M,), fp32."""
        hidden = self.first.gather(self.first(encoded, widths), spans, encoded.starts)
        return self.output_layers(hidden).float().squeeze(1)


class SpanScorerBiaffine(nn.Module):
    """Scorer of spans that adds a biaffine score of the first and the last word and a score of the width.

    It is many times cheaper than ``SpanScorerMLP``.
    """

    def __init__(self, inputs: int, size: int, max_width: int) -> None:
        super().__init__()
        self.ends = Linear(inputs, 2 * size)
        # With zeros, all spans have the same score in the beginning, and only the gradient distinguishes them.
        self.weight = nn.Parameter(torch.zeros(1, size + 1, size + 1))
        self.width = nn.Parameter(torch.zeros(max_width))

    def forward(self, encoded: Encoded, spans: Candidates, widths: Tensor) -> Tensor:
        """Score each span: (M,), fp32."""
        start, end = self.ends(encoded.words).chunk(2, dim=-1)  # (N, size) each
        scores = biaffine_table(start, self.weight, end, encoded.sizes).squeeze(2)  # (B, T, T)
        return scores[spans.sentence, spans.start, spans.end] + self.width[spans.end - spans.start]


def scorer(size: int, outputs: int, dropout: float) -> nn.Sequential:
    """Build the layers after the first layer of a scorer: ReLU, dropout, a second hidden layer, and the output layer.

    The weights have Xavier initialisation, and the biases are zero.
    """
    hidden, last = Linear(size, size), Linear(size, outputs)
    for layer in (hidden, last):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.ReLU(), Dropout(dropout), hidden, nn.ReLU(), Dropout(dropout), last)


# The rest of the file scores labels of given pairs of rows, such as a dependent and its head or the two ends of a span.
# Scoring all pairs would cost far more. Letters in shapes: M rows (words or fenceposts), P pairs of rows, L labels.


class Pairs(NamedTuple):
    """P pairs of rows, as a list and as a table with one line per left row.

    ``BiaffinePairs`` reads the table, because it multiplies its forms with each left row only once.
    """

    left: Tensor
    """(P,) the left row of each pair."""
    right: Tensor
    """(P,) the right row of each pair."""
    owner: Tensor
    """(P,) the sentence of each pair."""
    slots: Tensor
    """(P,) the position of each pair in the flattened table."""
    table: Tensor
    """(M, K) the right rows that are paired with each left row, filled up with 0."""

    @classmethod
    def one_each(cls, right: Tensor, owner: Tensor) -> "Pairs":
        """Pair the left rows 0 to P − 1 with one right row each."""
        rows = torch.arange(len(right), device=right.device)
        return cls(rows, right, owner, rows, right.unsqueeze(1))

    @classmethod
    def by_left(cls, left: Tensor, right: Tensor, owner: Tensor, rows: int) -> "Pairs":
        """Pair left rows with any number of right rows each.

        All tensors are on the CPU, so that K can be computed without waiting for a device.

        Args:
            left: (P,) the left row of each pair.
            right: (P,) the right row of each pair.
            owner: (P,) the sentence of each pair.
            rows: number of left rows M.
        """
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
    """Scorer of pairs by a biaffine form per label, with biases on both sides (Dozat and Manning 2017).

    The left and the right row pass through separate MLPs first.
    """

    def __init__(self, inputs: int, size: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.mlp = SharedMLP(inputs, [size, size], dropout)
        self.weight = nn.Parameter(torch.zeros(labels, size + 1, size + 1))

    def forward(self, rows: Tensor, owner: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
        """Compute the left and the right vectors of all rows, (M, size) each, which ``score`` combines."""
        return self.mlp(rows, owner, sentences)

    def label_rows(self) -> Tensor:
        """Return the flattened biaffine form of each label: (L, (size + 1)²)."""
        return self.weight.flatten(1)

    def score(self, vectors: Any, pairs: Pairs, sentences: int) -> Tensor:
        """Score every label for each pair: (P, L), fp32."""
        left = vectors[0][: len(pairs.table)]
        by_left = biaffine_lists(left, self.weight, nn.functional.embedding(pairs.table, vectors[1]))
        return by_left.transpose(1, 2).flatten(0, 1).index_select(0, pairs.slots)


class MLPPairs(nn.Module):
    """Scorer of pairs with an MLP, which has one hidden layer, over the concatenated rows.

    The first layer is split, W[a; b] = W₁a + W₂b, and applied to each row once, which is exact. The scorer is many
    times cheaper than ``BiaffinePairs``, which multiplies each row with L matrices.
    """

    def __init__(self, inputs: int, size: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.size, self.dropout = size, dropout
        self.first = Linear(inputs, 2 * size)
        self.last = Linear(size, labels)
        nn.init.xavier_uniform_(self.first.weight)
        nn.init.zeros_(self.first.bias)

    def forward(self, rows: Tensor, owner: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
        """Compute the left and the right part of the first layer for all rows, (M, size) each, which ``score`` adds."""
        return self.first(rows).chunk(2, dim=1)

    def label_rows(self) -> Tensor:
        """Return the weight of the last layer: (L, size)."""
        return self.last.weight

    def score(self, vectors: Any, pairs: Pairs, sentences: int) -> Tensor:
        """Score every label for each pair: (P, L), fp32."""
        # As above, an embedding lookup is a gather whose gradient is fast on CPUs.
        gather = nn.functional.embedding
        hidden = nn.functional.leaky_relu(
            gather(pairs.left, vectors[0]) + gather(pairs.right, vectors[1]), negative_slope=0.1
        )
        if self.training and self.dropout:
            # All pairs of a sentence share one mask, as in variational dropout.
            mask = dropout_mask((sentences, self.size), self.dropout, hidden)
            hidden = hidden * mask.index_select(0, pairs.owner)
        return self.last(hidden).float()


def pair_scorer(kind: PairScorer, inputs: int, size: int, labels: int, dropout: float) -> BiaffinePairs | MLPPairs:
    """Build the scorer of the given kind, where the hidden layer of an MLP is twice as wide as ``size``."""
    if kind == "biaffine":
        return BiaffinePairs(inputs, size, labels, dropout)
    return MLPPairs(inputs, 2 * size, labels, dropout)
