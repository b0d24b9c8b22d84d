"""The decoder of named entities: a biaffine classifier of all spans (Yu et al. 2020) with greedy decoding."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune.config.decoders import NEROptions
from mtlprune.encoder.batch import HOST, Encoded, move_together
from mtlprune.sentence import Sentence, Span
from mtlprune.tasks.base import LabelRows, Target, Task, joined, owners
from mtlprune.tasks.products import Linear, biaffine_table

_NO_SPAN = -100  # target of chart cells that are not a span of the sentence; the loss ignores them


class NER(Task):
    """Decoder of flat named entities that classifies every span of a sentence, of any length.

    Label 0 means that a span is not an entity. The loss is the cross-entropy summed over all spans of the batch and
    divided by the number of words or spans (``loss_per``). Decoding takes the spans whose best label is not 0 in order
    of decreasing score, and skips spans that overlap a span that was accepted before.
    """

    name, kind = "ner", "spans"
    Options = NEROptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        size = options.size
        # The projections of start words and end words share one matrix, because one product is faster than two.
        self.ends = Linear(hidden_size, 2 * size)
        self.weight = nn.Parameter(torch.zeros(len(labels["types"]) + 1, size + 1, size + 1))

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        scores = self.span_scores(encoded).flatten(0, 1)  # (B · T, L, T)
        chart = target["chart"].flatten(0, 1)  # (B · T, T)
        total = nn.functional.cross_entropy(scores, chart, ignore_index=_NO_SPAN, reduction="sum")
        return total / (len(encoded.words) if self.options.loss_per == "word" else (chart != _NO_SPAN).sum())

    def decode(self, encoded: Encoded) -> list[Any]:
        scores = self.span_scores(encoded)
        best, label = scores.max(2)  # (B, T, T)
        best, label = move_together([best, label * self.candidates(encoded.lengths, scores.shape[1])], HOST)
        is_entity = label > 0
        sentence, start, end = is_entity.nonzero(as_tuple=True)
        rows = zip(
            sentence.tolist(),
            best[is_entity].tolist(),
            start.tolist(),
            end.tolist(),
            label[is_entity].tolist(),
            strict=True,
        )
        candidates_of: list[list[tuple[float, Span]]] = [[] for _ in encoded.sizes]
        for owner, score, first, last, kind in rows:
            candidates_of[owner].append((score, Span(first, last + 1, self.labels["types"][kind - 1])))
        return [_flat_entities(spans) for spans in candidates_of]

    def span_scores(self, encoded: Encoded) -> Tensor:
        """Score every label for every span, which is given by its first and last word: (B, T, L, T), fp32."""
        start, end = self.ends(encoded.words).chunk(2, dim=-1)  # (N, size) each
        return biaffine_table(start, self.weight, end, encoded.sizes)

    @staticmethod
    def candidates(lengths: Tensor, longest: int) -> Tensor:
        """Mark the pairs (first word, last word) that form a span of the sentence: (B, T, T) bool."""
        position = torch.arange(longest, device=lengths.device)
        return (position[:, None] <= position) & (position < lengths[:, None, None])

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        return {"types": sorted({span.label for s in sentences for span in s.get(layer) or ()})}

    def target(self, sentence: Sentence) -> Target:
        index = self.index["types"]
        rows = [(span.start, span.end - 1, index[span.label] + 1) for span in sentence.get(self.layer)]
        return {"spans": np.array(rows, dtype=np.int32).reshape(-1, 3)}

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        longest = max(sizes)
        spans = joined(targets, "spans")
        spans_of_sentence = self.candidates(torch.tensor(sizes), longest)
        chart = torch.full((len(sizes), longest, longest), _NO_SPAN).masked_fill_(spans_of_sentence, 0)
        chart[owners(targets, "spans"), spans[:, 0], spans[:, 1]] = spans[:, 2]
        return {"chart": chart}  # (B, T, T)

    def label_rows(self) -> LabelRows:
        return LabelRows(["", *self.labels["types"]], self.weight.flatten(1))

    def label_places(self, target: Target) -> np.ndarray:
        return target["spans"][:, 2]


def _flat_entities(scored: list[tuple[float, Span]]) -> tuple[Span, ...]:
    """Accept spans by decreasing score, skipping spans that overlap an accepted span, and return them in text order.

    Among spans with equal scores, the earlier span comes first.
    """
    accepted: list[Span] = []
    for _, span in sorted(scored, key=lambda pair: (-pair[0], pair[1])):
        if all(span.end <= accepted_span.start or accepted_span.end <= span.start for accepted_span in accepted):
            accepted.append(span)
    return tuple(sorted(accepted))
