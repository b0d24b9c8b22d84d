"""Semantic roles: end-to-end span ranking after He et al. (2018); predicates are not given.

Every network on spans or on predicate–argument pairs begins with a linear layer over joined vectors. That layer is
split into per-word parts which are added (W[a; b] = W₁a + W₂b; a sum over a span is a difference of prefix sums), so
no span vector is ever built: exact, and much cheaper. M candidate spans, K kept spans, P kept predicates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune import structs
from mtlprune.encoder.model import Encoded
from mtlprune.sentence import Predicate, Sentence, Span
from mtlprune.tasks import base
from mtlprune.tasks.base import Target, Task, joined, owners, vocabulary

NOT_ARGUMENTS = frozenset({"V", "C-V"})


class SRLOptions(base.Options):
    """Semantic-role decoder."""

    size: int = 150
    """Width of the two hidden layers of each scorer."""
    width_size: int = 20
    """Width of the embedding of a span's length."""
    max_width: int = 30
    """Spans of more words are no candidates."""
    dropout: float = 0.2
    """Dropout after each hidden layer."""
    argument_ratio: float = 0.8
    """Spans kept for labelling, per word of the sentence."""
    predicate_ratio: float = 0.4
    """Words kept as possible predicates, per word (predicates: ranked)."""
    predicates: Literal["classified", "ranked"] = "classified"
    """ranked: the paper's; the best words enter, and one that wins an argument is a predicate. classified: a binary
    loss decides for each word, labelling is trained on gold predicates, and gold spans are never pruned in training."""


class Candidates(NamedTuple):
    """Spans or words of a batch, sorted by sentence."""

    sentence: Tensor  # (M,)
    start: Tensor  # (M,) within the sentence
    end: Tensor  # (M,) the last word, within the sentence

    def take(self, rows: Tensor) -> Candidates:
        return Candidates(*(column[rows] for column in self))


class SRL(Task):
    """Scores of arguments, predicates and labels; score(p, a, l) = argument(a) + predicate(p) + label(p, a, l), none = 0."""

    name = "srl"
    Options = SRLOptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        size = options.size
        self.words = nn.Linear(hidden_size, 8 * size)  # first layers, all their per-word parts in one matrix
        self.widths = nn.Embedding(options.max_width, options.width_size)
        self.width_parts = nn.Linear(options.width_size, 2 * size, bias=False)
        self.argument = scorer(size, 1, options.dropout)
        self.predicate = scorer(size, 1, options.dropout)
        self.label = scorer(size, len(labels["roles"]), options.dropout)
        for weight in (self.words.weight, self.width_parts.weight):
            bound = math.sqrt(6 / (3 * hidden_size + options.width_size + size))  # Xavier of the unsplit layer
            nn.init.uniform_(weight, -bound, bound)

    @classmethod
    def collect(cls, sentences: Iterable[Sentence]) -> dict[str, list[str]]:
        counts: Counter[str] = Counter()
        for sentence in sentences:
            for predicate in sentence.srl or ():
                counts.update(span.label for span in predicate.arguments if span.label not in NOT_ARGUMENTS)
        return {"roles": vocabulary(counts)}

    def target(self, sentence: Sentence) -> Target:
        assert sentence.srl is not None
        index = self.index["roles"]
        rows = {  # two arguments of one predicate on the same span: the later one is kept
            (predicate.index, span.start, span.end - 1): index[span.label] + 1
            for predicate in sentence.srl
            for span in predicate.arguments
            if span.label not in NOT_ARGUMENTS and span.end - span.start <= self.options.max_width
        }
        return {
            "arguments": np.array([(*where, role) for where, role in sorted(rows.items())], dtype=np.int32).reshape(-1, 4),
            "predicates": np.array([predicate.index for predicate in sentence.srl], dtype=np.int32),
        }

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        arguments = joined(targets, "arguments")
        return {
            "sentence": owners(targets, "arguments"),
            "predicate": arguments[:, 0],
            "start": arguments[:, 1],
            "end": arguments[:, 2],
            "role": arguments[:, 3],
            "predicates": joined(targets, "predicates"),
            "predicate_sentence": owners(targets, "predicates"),
        }

    # -- scores ------------------------------------------------------------------------------------------------------

    def parts(self, encoded: Encoded) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, Tensor]:
        """First-layer parts by word: (start, end) of the argument scorer, of the label scorer, and the predicate's two.

        Pooling is the sum over the span divided by max_width, as in the original: prefix sums give the part of the end
        word, and the part of the word before the start with a minus. Every part: (N, size).
        """
        columns = self.words(encoded.words).chunk(8, dim=1)
        scale = 1 / self.options.max_width
        spans = []
        for start, end, pooled in (columns[0:3], columns[3:6]):
            prefix = pooled.float().cumsum(0) * scale
            spans.append((start.float() - (prefix - pooled.float() * scale), end.float() + prefix))
        return spans[0], spans[1], columns[6], columns[7]

    def candidates(self, encoded: Encoded) -> Candidates:
        """All spans of at most max_width words."""
        longest = max(encoded.sizes)
        start = torch.arange(longest, device=encoded.lengths.device)
        width = torch.arange(min(longest, self.options.max_width), device=encoded.lengths.device)
        end = start[:, None] + width
        sentence, first, extra = (end < encoded.lengths[:, None, None]).nonzero(as_tuple=True)
        return Candidates(sentence, first, first + extra)

    @staticmethod
    def gather(parts: tuple[Tensor, Tensor], width: Tensor, spans: Candidates, offset: Tensor) -> Tensor:
        """The first layer of a span network, (M, size): start part + end part + width part."""
        embedding = nn.functional.embedding  # a gather whose gradient is fast on CPUs
        start = offset[spans.sentence]
        return (
            embedding(start + spans.start, parts[0])
            + embedding(start + spans.end, parts[1])
            + embedding(spans.end - spans.start, width)
        )

    def kept(self, scores: Tensor, owner: Tensor, lengths: Tensor, ratio: float) -> Tensor:
        """Mark the best max(1, ⌊ratio · n⌋) candidates of each sentence. (M,) bool; ties go to the earlier one."""
        order = scores.argsort(descending=True, stable=True)
        order = order[owner[order].argsort(stable=True)]  # by sentence, best first
        counts = torch.bincount(owner, minlength=len(lengths))
        rank = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
        limit = (lengths * ratio).floor().clamp(min=1).long()
        marked = torch.zeros_like(owner, dtype=torch.bool)
        marked[order] = rank < limit[owner]  # owner is sorted, so owner[order] == owner
        return marked

    def pair_scores(
        self, encoded: Encoded, spans: Candidates, argument: Tensor, predicates: Tensor, predicate: Tensor, parts: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Every kept span with every kept predicate of its sentence.

        Args:
            spans: K kept spans; argument: their scores (K,).
            predicates: (P,) rows among the N words, sorted; predicate: their scores (P,).
        Returns:
            (pairs, roles) scores without the null label, and for each pair the row of its span and of its predicate.
        """
        label_parts, predicate_part, width, offset = parts
        owner = torch.arange(len(encoded.sizes), device=predicates.device).repeat_interleave(encoded.lengths)[predicates]
        counts = torch.bincount(owner, minlength=len(encoded.sizes))
        per_span = counts[spans.sentence]  # (K,) how many predicates each span meets
        span = torch.arange(len(per_span), device=per_span.device).repeat_interleave(per_span)
        first = (counts.cumsum(0) - counts)[spans.sentence] - (per_span.cumsum(0) - per_span)
        which = torch.arange(len(span), device=span.device) + first[span]
        hidden_span = self.gather(label_parts, width, spans, offset)  # (K, size)
        embedding = nn.functional.embedding
        hidden = embedding(span, hidden_span) + embedding(predicates[which], predicate_part.float())
        scores = self.label(hidden).float() + (argument[span] + predicate[which])[:, None]
        return scores, span, which

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        ranked = self.options.predicates == "ranked"
        argument_parts, label_parts, predicate_hidden, predicate_part = self.parts(encoded)
        width = self.width_parts(self.widths.weight).float()  # (max_width, 2 · size)
        argument_width, label_width = width.chunk(2, dim=1)
        offset = encoded.lengths.cumsum(0) - encoded.lengths
        spans = self.candidates(encoded)
        argument = self.argument(self.gather(argument_parts, argument_width, spans, offset)).float().squeeze(1)
        predicate = self.predicate(predicate_hidden).float().squeeze(1)  # (N,)
        word_sentence = torch.arange(len(encoded.sizes), device=offset.device).repeat_interleave(encoded.lengths)

        keep = self.kept(argument.detach(), spans.sentence, encoded.lengths, self.options.argument_ratio)
        gold_predicates = torch.zeros_like(predicate, dtype=torch.bool)
        gold_predicates[offset[target["predicate_sentence"]] + target["predicates"]] = True
        longest = max(encoded.sizes)
        span_key = (spans.sentence * longest + spans.start) * longest + spans.end
        gold_key = (target["sentence"] * longest + target["start"]) * longest + target["end"]
        if ranked:
            chosen = self.kept(predicate.detach(), word_sentence, encoded.lengths, self.options.predicate_ratio)
        else:
            chosen = gold_predicates | (predicate.detach() > 0)
            is_argument = torch.isin(span_key, gold_key)
            keep = keep | is_argument
        kept = keep.nonzero().squeeze(1)
        rows = chosen.nonzero().squeeze(1)
        parts = (label_parts, predicate_part, label_width, offset)
        scores, span, which = self.pair_scores(
            encoded, spans.take(kept), argument[kept], rows, predicate[rows] if ranked else predicate.new_zeros(len(rows)), parts
        )

        # the role of each pair, by looking its place up among the gold ones; 0 is none
        total = len(predicate)
        pair_key = rows[which] * longest * len(encoded.sizes) * longest + span_key[kept][span]
        gold_pair = (offset[target["sentence"]] + target["predicate"]) * longest * len(encoded.sizes) * longest + gold_key
        role = torch.zeros_like(pair_key)
        if len(gold_pair):
            gold_pair, order = gold_pair.sort()
            place = torch.searchsorted(gold_pair, pair_key).clamp(max=len(gold_pair) - 1)
            role = torch.where(gold_pair[place] == pair_key, target["role"][order][place], role)
        if not len(role):
            return predicate.sum() * 0
        scores = nn.functional.pad(scores, (1, 0))
        if ranked:
            return nn.functional.cross_entropy(scores, role)
        own = nn.functional.binary_cross_entropy_with_logits(predicate, gold_predicates.float())
        spans_loss = nn.functional.binary_cross_entropy_with_logits(argument, is_argument.float(), reduction="sum")
        pairs = nn.functional.cross_entropy(scores, role, reduction="sum")
        return own + (spans_loss + pairs) / total

    # -- decoding ----------------------------------------------------------------------------------------------------

    def decode(self, encoded: Encoded) -> list[tuple[Predicate, ...]]:
        ranked = self.options.predicates == "ranked"
        argument_parts, label_parts, predicate_hidden, predicate_part = self.parts(encoded)
        argument_width, label_width = self.width_parts(self.widths.weight).float().chunk(2, dim=1)
        offset = encoded.lengths.cumsum(0) - encoded.lengths
        spans = self.candidates(encoded)
        argument = self.argument(self.gather(argument_parts, argument_width, spans, offset)).float().squeeze(1)
        predicate = self.predicate(predicate_hidden).float().squeeze(1)
        word_sentence = torch.arange(len(encoded.sizes), device=offset.device).repeat_interleave(encoded.lengths)
        if ranked:
            chosen = self.kept(predicate, word_sentence, encoded.lengths, self.options.predicate_ratio)
        else:
            chosen = predicate > 0
        kept = self.kept(argument, spans.sentence, encoded.lengths, self.options.argument_ratio).nonzero().squeeze(1)
        rows = chosen.nonzero().squeeze(1)
        spans = spans.take(kept)
        parts = (label_parts, predicate_part, label_width, offset)
        own = predicate[rows] if ranked else predicate.new_zeros(len(rows))
        scores, span, which = self.pair_scores(encoded, spans, argument[kept], rows, own, parts)
        found: dict[int, list[tuple[int, int, float, str]]] = {} if ranked else {row: [] for row in rows.tolist()}
        if len(scores):
            best, role = scores.max(1)
            positive = (best > 0).nonzero().squeeze(1)
            chosen_spans = spans.take(span[positive])
            for row, start, end, score, label in zip(
                rows[which[positive]].tolist(),
                chosen_spans.start.tolist(),
                chosen_spans.end.tolist(),
                best[positive].tolist(),
                role[positive].tolist(),
                strict=True,
            ):
                found.setdefault(row, []).append((start, end + 1, score, self.labels["roles"][label]))
        layers: list[list[Predicate]] = [[] for _ in encoded.sizes]
        for row in sorted(found):
            sentence = int(word_sentence[row])
            index = row - int(offset[sentence])
            free = [span for span in found[row] if not span[0] <= index < span[1]]
            arguments = tuple(sorted(Span(start, end, label) for start, end, _, label in structs.nonoverlapping(free)))
            if arguments or not ranked:
                layers[sentence].append(Predicate(index, None, arguments))
        return [tuple(layer) for layer in layers]


def scorer(size: int, outputs: int, dropout: float) -> nn.Sequential:
    """What follows a split first layer: ReLU, dropout, a second hidden layer, scores. Xavier weights, zero bias."""
    hidden, last = nn.Linear(size, size), nn.Linear(size, outputs)
    for layer in (hidden, last):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.ReLU(), nn.Dropout(dropout), hidden, nn.ReLU(), nn.Dropout(dropout), last)
