"""The decoder of semantic roles: end-to-end span ranking after He et al. (2018), which also predicts the predicates.

Letters in shapes: M candidate spans, K kept spans, N words of all sentences together, P kept predicates, R roles. In
this file the ends of spans are inclusive.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune.config.decoders import SRLOptions
from mtlprune.encoder.batch import HOST, Encoded, move_together
from mtlprune.sentence import NOT_ARGUMENTS, Predicate, Sentence, Span
from mtlprune.tasks import base, inference
from mtlprune.tasks.base import Dropout, LabelRows, Target, Task, joined, owners
from mtlprune.tasks.products import Linear
from mtlprune.tasks.spans import (
    Candidates,
    SpanScorerBiaffine,
    SpanScorerMLP,
    SplitSpanLayer,
    best_of_each,
    candidate_counts,
    candidates,
    pairs,
    scorer,
)


class Ranked(NamedTuple):
    """The scores of all possible arguments and predicates of a batch."""

    spans: Candidates
    argument: Tensor
    """(M,) score of each span as an argument."""
    predicate: Tensor
    """(N,) score of each word as a predicate."""


class SRL(Task):
    """Decoder of semantic roles: predicates, and their arguments, which do not overlap.

    The score of role r for predicate p and span a is argument(a) + predicate(p) + label(p, a, r), plus a bilinear score
    of p and a with the setting ``affinity``. The score of no role is 0.

    With ``predicates: ranked``, the loss is the mean cross-entropy of the roles of all kept pairs (p, a). With
    ``predicates: classified``, the loss is the sum of three terms: the mean binary cross-entropy of words as
    predicates, and, both summed and divided by the number of words, the binary cross-entropy of spans as arguments and
    the cross-entropy of pairs. The scores of pairs then do not contain predicate(p).
    """

    name, kind = "srl", "frames"
    Options = SRLOptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        size = options.size
        self.widths = nn.Embedding(options.max_width, options.width_size)
        self.width_dropout = Dropout(options.dropout)
        self.argument: nn.Module
        if options.argument_scorer == "mlp":
            self.argument = SpanScorerMLP(hidden_size, size, self.widths, options.dropout)
        else:
            self.argument = SpanScorerBiaffine(hidden_size, size, options.max_width)
        self.predicate = nn.Sequential(Linear(hidden_size, size), scorer(size, 1, options.dropout))
        self.label_span = SplitSpanLayer(hidden_size, size, self.widths, extra_inputs=hidden_size)
        self.label_predicate = Linear(hidden_size, size, bias=False)
        self.label = scorer(size, len(labels["roles"]), options.dropout)
        if options.affinity:
            self.match_span = SplitSpanLayer(hidden_size, size, self.widths)
            self.match_predicate = Linear(hidden_size, size)
            nn.init.zeros_(self.match_predicate.weight)
        nn.init.xavier_uniform_(self.predicate[0].weight)  # type: ignore[arg-type]
        # The bias starts low, so that few words count as predicates in the beginning. With a bias of 0, the first
        # updates would pair half of all words with every kept span.
        if not self.ranked:
            nn.init.constant_(self.predicate[1][-1].bias, -2.0)  # type: ignore[arg-type, index]
        nn.init.uniform_(self.label_predicate.weight, -self.label_span.bound, self.label_span.bound)

    @property
    def ranked(self) -> bool:
        """Whether a fixed ratio of the words is kept as predicates, instead of the words that a classifier accepts."""
        return self.options.predicates == "ranked"

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        ranked = self.rank(encoded)
        kept_spans, kept_predicates = self.keep(encoded, ranked)
        longest = max(encoded.sizes)
        start = encoded.starts[ranked.spans.sentence] + ranked.spans.start
        # This numbers spans as `collate` does. The numbers increase, so that targets can be looked up by bisection.
        span_number = start * longest + ranked.spans.end - ranked.spans.start
        if not self.ranked:
            # In training, gold spans and gold predicates are always kept, whatever their scores, because otherwise the
            # roles of missed arguments would never be learned.
            is_argument = torch.zeros_like(kept_spans)
            is_argument[torch.searchsorted(span_number, target["span"])] = True
            is_predicate = torch.zeros_like(kept_predicates)
            is_predicate[target["predicate"]] = True
            kept_spans, kept_predicates = kept_spans | is_argument, kept_predicates | is_predicate
        rows, total = self.selected(
            encoded, *move_together([kept_spans, kept_predicates], HOST)
        )  # only here does the host wait for the device
        scores, span, word = self.pair_scores(encoded, ranked, move_together(rows, kept_spans.device), total)
        role = _look_up(word * (len(encoded.words) * longest) + span_number[span], target["pair"], target["role"])
        # Class 0 means no role. Its score is fixed at 0, so that a role is predicted only if its score is above 0.
        scores = nn.functional.pad(scores, (1, 0))
        if self.ranked:
            return nn.functional.cross_entropy(scores, role)
        binary = nn.functional.binary_cross_entropy_with_logits
        words = binary(ranked.predicate, is_predicate.float())
        spans = binary(ranked.argument, is_argument.float(), reduction="sum")
        # Both sums are divided by the number of words, so that the loss does not depend on how many spans the maximum
        # width allows.
        pairs_and_spans = (spans + nn.functional.cross_entropy(scores, role, reduction="sum")) / len(encoded.words)
        return words + pairs_and_spans

    def decode(self, encoded: Encoded) -> list[Any]:
        ranked = self.rank(encoded)
        kept_spans, kept_predicates = move_together(self.keep(encoded, ranked), HOST)
        rows, total = self.selected(encoded, kept_spans, kept_predicates)
        kept_predicates = rows[1]
        layers: list[list[Predicate]] = [[] for _ in encoded.sizes]
        if not len(kept_predicates):
            return [tuple(layer) for layer in layers]
        scores, span, word = self.pair_scores(encoded, ranked, move_together(rows, ranked.predicate.device), total)
        # If no predicate of the training sentences has an argument, there is no role to score, and no pair gets a role.
        if not self.labels["roles"]:
            scores = scores.new_zeros(len(scores), 1)
        spans = ranked.spans.take(span)
        best, *candidates = move_together([*scores.max(1), word, spans.start, spans.end], HOST)
        positive = best > 0
        role, word, start, end = (column[positive] for column in candidates)
        columns = (word, start, end, best[positive], role)
        arguments: dict[int, list[tuple[int, int, float, str]]] = {row: [] for row in kept_predicates.tolist()}
        for row, start, end, score, label in zip(*(column.tolist() for column in columns), strict=True):
            arguments[row].append((start, end + 1, score, self.labels["roles"][label]))
        first, owner = base.offsets(encoded.sizes).tolist(), np.arange(len(encoded.sizes)).repeat(encoded.sizes)
        for row, scored in arguments.items():
            # Convert the row in the batch to a position in the sentence.
            index = row - first[owner[row]]
            # A predicate cannot be part of its arguments.
            free = [candidate for candidate in scored if not candidate[0] <= index < candidate[1]]
            chosen_spans = tuple(Span(start, end, label) for start, end, _, label in inference.nonoverlapping(free))
            if chosen_spans or not self.ranked:
                layers[owner[row]].append(Predicate(index, None, chosen_spans))
        return [tuple(layer) for layer in layers]

    def rank(self, encoded: Encoded) -> Ranked:
        """Score all candidate spans as arguments and all words as predicates."""
        spans = candidates(encoded, self.options.max_width)
        argument = self.argument(encoded, spans, self.width_dropout(self.widths.weight))
        predicate = self.predicate(encoded.words).float().squeeze(1)
        return Ranked(spans, argument, predicate)

    def keep(self, encoded: Encoded, ranked: Ranked) -> tuple[Tensor, Tensor]:
        """Mark the spans (M,) and the words (N,) whose pairs are labelled with roles."""
        options, lengths, predicate = self.options, torch.tensor(encoded.sizes), ranked.predicate.detach()
        spans = best_of_each(ranked.argument.detach(), ranked.spans.sentence, lengths, options.argument_ratio)
        if self.ranked:
            return spans, best_of_each(predicate, encoded.owner, lengths, options.predicate_ratio)
        return spans, predicate > 0

    def selected(self, encoded: Encoded, kept_spans: Tensor, kept_predicates: Tensor) -> tuple[list[Tensor], int]:
        """Return the rows of the marked spans and of the marked words, and the number of their pairs.

        Args:
            encoded: the batch.
            kept_spans: (M,) marked spans, on the host.
            kept_predicates: (N,) marked words, on the host.

        Returns:
            The rows (K,) of the spans and (P,) of the words, on the host, and the number of pairs within sentences.
        """
        ends = [np.cumsum(candidate_counts(encoded.sizes, self.options.max_width)), np.cumsum(encoded.sizes)]
        numbers = [
            # The number of marked items of each sentence is the difference of cumulative counts at the ends of
            # sentences. The number of pairs is the sum over sentences of spans times predicates. With this number, the
            # host does not have to wait for the device.
            np.diff(np.cumsum(mask.numpy())[end - 1], prepend=0)
            for mask, end in zip((kept_spans, kept_predicates), ends, strict=True)
        ]
        return [mask.nonzero().squeeze(1) for mask in (kept_spans, kept_predicates)], int(np.dot(*numbers))

    def pair_scores(
        self, encoded: Encoded, ranked: Ranked, rows: Sequence[Tensor], total: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score every role for all pairs of a kept span and a kept predicate of the same sentence.

        Args:
            encoded: the batch.
            ranked: the scores that ``rank`` returned.
            rows: the rows (K,) of spans and (P,) of words that ``selected`` returned, on the device.
            total: the number of pairs that ``selected`` returned.

        Returns:
            The scores (pairs, R), and of each pair the row of the span and the row of the word, (pairs,) each.
        """
        kept_spans, kept_predicates = rows
        spans = ranked.spans.take(kept_spans)
        span_row, word_row = pairs(spans.sentence, encoded.owner[kept_predicates], len(encoded.sizes), total)
        layers = [self.label_span, *([self.match_span] if self.options.affinity else [])]
        parts = SplitSpanLayer.hidden_of_all(layers, encoded, self.width_dropout(self.widths.weight))
        hidden_span, *keys = SplitSpanLayer.gather(parts, spans, encoded.starts).chunk(len(layers), dim=1)  # (K, size)
        predicates = encoded.words.index_select(0, kept_predicates)  # (P, H)
        hidden_predicate = self.label_predicate(predicates)
        embedding = nn.functional.embedding
        scores = self.label(embedding(span_row, hidden_span) + embedding(word_row, hidden_predicate)).float()
        span, word = kept_spans[span_row], kept_predicates[word_row]
        # As in He et al. (2018), the scores of span and predicate are added to the score of the role.
        scores = scores + ranked.argument[span, None]
        if self.options.affinity:
            queries = self.match_predicate(predicates)  # (P, size)
            match = embedding(span_row, keys[0]) * embedding(word_row, queries)
            scores = scores + match.float().sum(1, keepdim=True)
        if self.ranked:
            scores = scores + ranked.predicate[word, None]
        return scores, span, word

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        predicates = (predicate for sentence in sentences for predicate in sentence.get(layer) or ())
        labels = {span.label for predicate in predicates for span in predicate.arguments}
        return {"roles": sorted(labels - NOT_ARGUMENTS)}

    def target(self, sentence: Sentence) -> Target:
        index, frames = self.index["roles"], sentence.get(self.layer)
        # If a predicate has two arguments with the same span, the later argument is kept, because the loss allows a
        # pair of predicate and span only one role.
        rows = {
            (predicate.index, span.start, span.end - 1): index[span.label] + 1
            for predicate in frames
            for span in predicate.arguments
            if span.label not in NOT_ARGUMENTS and span.end - span.start <= self.options.max_width
        }
        table = [(*position, role) for position, role in sorted(rows.items())]
        return {
            "arguments": np.array(table, dtype=np.int32).reshape(-1, 4),
            "predicates": np.array([predicate.index for predicate in frames], dtype=np.int32),
        }

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        """Join the targets, in which words, spans and pairs are single numbers.

        The number of a word is its row among the N words. The number of a span is (row of its first word) · (length of
        the longest sentence) + (number of words − 1).
        """
        offset = base.offsets(sizes)
        longest = max(sizes)
        arguments, row_start = joined(targets, "arguments"), offset[owners(targets, "arguments")]
        span = (row_start + arguments[:, 1]) * longest + arguments[:, 2] - arguments[:, 1]
        # The number of a pair is (row of the predicate) · N · longest + (number of the span). The numbers are sorted
        # for the search in `_look_up`.
        pair = (row_start + arguments[:, 0]) * (sum(sizes) * longest) + span
        pair, order = pair.sort()
        return {
            "span": span.unique(),
            "pair": pair,
            "role": arguments[order, 3],
            "predicate": joined(targets, "predicates") + offset[owners(targets, "predicates")],
        }

    def label_rows(self) -> LabelRows:
        return LabelRows(self.labels["roles"], self.label[-1].weight)  # type: ignore[arg-type]

    def label_places(self, target: Target) -> np.ndarray:
        return target["arguments"][:, 3] - 1


def _look_up(keys: Tensor, known_keys: Tensor, values: Tensor) -> Tensor:
    """Return the value of each key, or 0 for keys that are not among the sorted ``known_keys``."""
    if not len(known_keys):
        return torch.zeros_like(keys)
    # If a key is known, it is at the position where it would be inserted. The clamp is for keys above the largest
    # known key, which then differ from the key at the last position.
    row = torch.searchsorted(known_keys, keys).clamp(max=len(known_keys) - 1)
    return torch.where(known_keys[row] == keys, values[row], torch.zeros_like(keys))
