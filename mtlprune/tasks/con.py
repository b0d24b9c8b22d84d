"""Constituents: the two-stage tree CRF of Zhang et al. (2020); labels scored at gold spans only in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune import structs
from mtlprune.encoder.model import Encoded
from mtlprune.sentence import Sentence, Span
from mtlprune.tasks import base
from mtlprune.tasks.base import (
    SharedMLP,
    Target,
    Task,
    biaffine_rows,
    joined,
    offsets,
    owners,
    vocabulary,
    with_one,
)

DUMMY = "|<>"  # the mark of nodes that binarisation made
TOP = "TOP"  # stands for the root where no bracket covers the whole sentence


class CONOptions(base.Options):
    """Constituent decoder."""

    span_size: int = 500
    """Width of the span MLPs."""
    label_size: int = 100
    """Width of the label MLPs."""
    dropout: float = 0.33
    """Dropout in the MLPs, shared across a sentence."""


class CON(Task):
    """A tree CRF over unlabelled binary spans, and a label for each span of the tree.

    Loss: (log partition − gold score) / words of the batch, plus the mean label cross-entropy over gold spans.
    Decoding: CKY over the span marginals (minimum Bayes risk), then the best label of each span.
    """

    name = "con"
    Options = CONOptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        span, label = options.span_size, options.label_size
        # a fencepost is half of the word on its left beside half of the word on its right, as in the original
        self.mlp = SharedMLP(hidden_size // 2 * 2, [span, label, span, label], options.dropout)
        self.span = nn.Parameter(torch.zeros(span + 1, span))
        self.label = nn.Parameter(torch.zeros(len(labels["labels"]), label + 1, label + 1))

    @classmethod
    def collect(cls, sentences: Iterable[Sentence]) -> dict[str, list[str]]:
        counts: Counter[str] = Counter()
        for sentence in sentences:
            if sentence.con is not None:
                counts.update(label for _, _, label in binarise(sentence.con, len(sentence)))
        return {"labels": vocabulary(counts)}

    def target(self, sentence: Sentence) -> Target:
        assert sentence.con is not None
        index = self.index["labels"]
        rows = [(i, j, index[label]) for i, j, label in binarise(sentence.con, len(sentence))]
        return {"spans": np.array(rows, dtype=np.int32)}  # (2n − 1, 3)

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        spans = joined(targets, "spans")
        owner = owners(targets, "spans")
        side = max(sizes) + 1
        chart = torch.zeros(len(sizes), side, side, dtype=torch.bool)
        chart[owner, spans[:, 0], spans[:, 1]] = True
        return {"chart": chart, "sentence": owner, "left": spans[:, 0], "right": spans[:, 1], "labels": spans[:, 2]}

    def features(self, encoded: Encoded) -> tuple[list[int], tuple[Tensor, ...]]:
        """Fenceposts of each sentence, and for all N + B of them span left, label left, span right, label right."""
        half = encoded.words.shape[1] // 2
        forward = with_border(encoded.words[:, :half], encoded.cls[:, :half], encoded, before=True)
        backward = with_border(encoded.words[:, half : 2 * half], encoded.sep[:, half : 2 * half], encoded, before=False)
        posts = encoded.lengths + 1
        count = len(encoded.sizes)
        owner = torch.arange(count, device=posts.device).repeat_interleave(posts)
        return [size + 1 for size in encoded.sizes], self.mlp(torch.cat([forward, backward], dim=1), owner, count)

    def span_scores(self, sizes: list[int], left: Tensor, right: Tensor) -> Tensor:
        """Score of every pair of fenceposts. (B, T + 1, T + 1), fp32"""
        pad = nn.utils.rnn.pad_sequence
        mixed = pad((with_one(left) @ self.span).split(sizes), batch_first=True)
        ends = pad(right.split(sizes), batch_first=True)
        return torch.bmm(mixed, ends.transpose(1, 2).to(mixed.dtype)).float()

    def label_scores(
        self, sizes: list[int], left: Tensor, right: Tensor, sentence: Tensor, start: Tensor, end: Tensor
    ) -> Tensor:
        """Scores of every label for the given spans only. (spans, L), fp32

        The form is applied to each fencepost once (n + 1 of them, while a tree has 2n − 1 spans); pairing it with all
        right ends of the sentence then costs less than gathering the rows that are needed.
        """
        labels, a, b = self.label.shape
        pad = nn.utils.rnn.pad_sequence
        mixed = with_one(left) @ self.label.permute(1, 0, 2).reshape(a, labels * b)  # (N + B, L·b)
        mixed = pad(mixed.split(sizes), batch_first=True)  # (B, T + 1, L·b)
        count, posts, _ = mixed.shape
        ends = pad(with_one(right).to(mixed.dtype).split(sizes), batch_first=True)  # (B, T + 1, b)
        scores = torch.bmm(mixed.view(count, posts * labels, b), ends.transpose(1, 2))  # (B, (T + 1)·L, T + 1)
        return scores.view(count, posts, labels, posts)[sentence, start, :, end].float()

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        sizes, (span_left, label_left, span_right, label_right) = self.features(encoded)
        scores = self.span_scores(sizes, span_left, span_right)
        crf = structs.constituency_crf_loss(scores, target["chart"], encoded.lengths) / len(encoded.words)
        labels = self.label_scores(sizes, label_left, label_right, target["sentence"], target["left"], target["right"])
        return crf + nn.functional.cross_entropy(labels, target["labels"])

    def decode(self, encoded: Encoded) -> list[tuple[Span, ...]]:
        sizes, (span_left, label_left, span_right, label_right) = self.features(encoded)
        scores = self.span_scores(sizes, span_left, span_right)
        marginals = structs.constituency_marginals(scores, encoded.lengths)
        trees = structs.constituency_cky(marginals, encoded.lengths)
        sentence = np.arange(len(trees)).repeat([len(tree) for tree in trees])
        ends = np.array([span for tree in trees for span in tree]).T
        where = (torch.from_numpy(column).to(scores.device) for column in (sentence, *ends))
        best = self.label_scores(sizes, label_left, label_right, *where).argmax(-1).tolist()
        names = iter([self.labels["labels"][place] for place in best])
        return [debinarise([(i, j, next(names)) for i, j in tree]) for tree in trees]


def with_border(words: Tensor, special: Tensor, encoded: Encoded, *, before: bool) -> Tensor:
    """Put each sentence's special vector before (or after) its words. (N, h), (B, h) → (N + B, h)"""
    count = len(encoded.sizes)
    sentence = torch.arange(count, device=words.device)
    start = encoded.lengths.cumsum(0) - encoded.lengths  # (B,)
    total = len(words) + count
    is_special = torch.zeros(total, dtype=torch.bool, device=words.device)
    is_special[start + sentence + (0 if before else encoded.lengths)] = True
    rows = torch.empty(total, dtype=torch.long, device=words.device)
    rows[~is_special] = torch.arange(len(words), device=words.device)
    rows[is_special] = len(words) + sentence
    return torch.cat([words, special.to(words.dtype)]).index_select(0, rows)


def binarise(brackets: Sequence[Span], length: int) -> list[tuple[int, int, str]]:
    """The 2n − 1 labelled spans of the left-binarised tree, as in the facts of He and Choi (2021).

    Unary chains are joined by "+", upper label first. A bare word among several children, and every node that
    binarisation makes, is called after its parent with "|<>" behind.
    """
    chains: dict[tuple[int, int], str] = {}
    for start, end, label in brackets:  # pre-order: the upper label of a chain comes first
        chains[start, end] = f"{chains[start, end]}+{label}" if (start, end) in chains else label
    chains = {(0, length): TOP, **chains} if (0, length) not in chains else chains
    children: dict[tuple[int, int], list[tuple[int, int]]] = {}
    stack: list[tuple[int, int]] = []
    for span in chains:  # still in pre-order
        while stack and stack[-1][1] <= span[0]:
            stack.pop()
        if stack:
            children.setdefault(stack[-1], []).append(span)
        stack.append(span)
    spans: list[tuple[int, int, str]] = []
    for (start, end), chain in chains.items():
        spans.append((start, end, chain))
        if end - start == 1:
            continue
        parent = chain.rsplit("+", 1)[-1]
        place, ends = start, []
        for first, last in [*children.get((start, end), []), (end, end)]:
            while place < first:  # words that are children without a phrase of their own
                spans.append((place, place + 1, parent + DUMMY))
                place += 1
                ends.append(place)
            if first < end:
                place = last
                ends.append(place)
        spans.extend((start, stop, parent + DUMMY) for stop in ends[1:-1])
    return spans


def debinarise(spans: Iterable[tuple[int, int, str]]) -> tuple[Span, ...]:
    """The labelled brackets of a binary tree's spans: made nodes and TOP vanish, chains unfold; in pre-order."""
    brackets = []
    for start, end, label in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not label.endswith(DUMMY):
            brackets.extend(Span(start, end, part) for part in label.split("+") if part != TOP)
    return tuple(brackets)
