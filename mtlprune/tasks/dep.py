"""Dependencies: the biaffine parser of Dozat and Manning (2017); relations scored at the gold head only in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune import structs
from mtlprune.encoder.model import Encoded
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.tasks import base
from mtlprune.tasks.base import SharedMLP, Target, Task, biaffine_rows, joined, vocabulary, with_one


class DEPOptions(base.Options):
    """Dependency decoder."""

    arc_size: int = 500
    """Width of the arc MLPs."""
    relation_size: int = 100
    """Width of the relation MLPs."""
    dropout: float = 0.33
    """Dropout in the MLPs, shared across a sentence."""
    projective: bool = False
    """Decode projective trees only (Eisner), as the paper does; otherwise maximum spanning trees."""


class DEP(Task):
    """Heads by a biaffine form with a bias on the dependent's side, relations by one with both biases.

    Loss: mean cross-entropy of heads plus that of relations at the gold head, punctuation included.
    """

    name = "dep"
    Options = DEPOptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        arc, relation = options.arc_size, options.relation_size
        self.mlp = SharedMLP(hidden_size, [arc, relation, arc, relation], options.dropout)
        self.arc = nn.Parameter(torch.zeros(arc + 1, arc))
        self.relation = nn.Parameter(torch.zeros(len(labels["relations"]), relation + 1, relation + 1))

    @classmethod
    def collect(cls, sentences: Iterable[Sentence]) -> dict[str, list[str]]:
        relations = (relation for s in sentences if s.dep is not None for relation in s.dep.relations)
        return {"relations": vocabulary(Counter(relations))}

    def target(self, sentence: Sentence) -> Target:
        assert sentence.dep is not None
        index = self.index["relations"]
        return {
            "heads": np.array(sentence.dep.heads, dtype=np.int32),
            "relations": np.array([index[relation] for relation in sentence.dep.relations], dtype=np.int32),
        }

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        return {"heads": joined(targets, "heads"), "relations": joined(targets, "relations")}  # (N,) each

    def features(self, encoded: Encoded) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arc and relation vectors of dependents (N, ·), then of heads (N + B, ·): words first, the B roots last."""
        count = len(encoded.sizes)
        sentence = torch.arange(count, device=encoded.lengths.device)
        owner = torch.cat([sentence.repeat_interleave(encoded.lengths), sentence])
        rows = torch.cat([encoded.words, encoded.cls])  # (N + B, H)
        arc_dependent, relation_dependent, arc_head, relation_head = self.mlp(rows, owner, count)
        words = len(encoded.words)
        return arc_dependent[:words], relation_dependent[:words], arc_head, relation_head

    def arc_scores(self, encoded: Encoded, dependent: Tensor, head: Tensor) -> Tensor:
        """Score of head h for each word; column 0 is the root, impossible heads are −inf. (B, T, T + 1), fp32"""
        mixed = encoded.padded(with_one(dependent) @ self.arc)  # (B, T, arc)
        words = len(encoded.words)
        heads = torch.cat([head[words:].unsqueeze(1), encoded.padded(head[:words])], dim=1)  # (B, T + 1, arc)
        scores = torch.bmm(mixed, heads.transpose(1, 2).to(mixed.dtype)).float()
        place = torch.arange(scores.shape[2], device=scores.device)
        return scores.masked_fill((place > encoded.lengths[:, None])[:, None], float("-inf"))

    @staticmethod
    def head_rows(encoded: Encoded, heads: Tensor) -> Tensor:
        """Where the head of each word stands among the N + B head vectors; heads (N,) counted from 1, 0 the root."""
        count = len(encoded.sizes)
        sentence = torch.arange(count, device=heads.device).repeat_interleave(encoded.lengths)
        start = (encoded.lengths.cumsum(0) - encoded.lengths)[sentence]
        return torch.where(heads == 0, len(encoded.words) + sentence, start + heads - 1)

    def relation_scores(self, encoded: Encoded, dependent: Tensor, head: Tensor, heads: Tensor) -> Tensor:
        """Scores of every relation between each word and the given head. (N, R), fp32"""
        chosen = head.index_select(0, self.head_rows(encoded, heads))
        return biaffine_rows(with_one(dependent), self.relation, with_one(chosen)).float()

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        arc_dependent, relation_dependent, arc_head, relation_head = self.features(encoded)
        arcs = self.arc_scores(encoded, arc_dependent, arc_head)
        place = torch.arange(arcs.shape[1], device=arcs.device)
        arcs = arcs[place < encoded.lengths[:, None]]  # (N, T + 1)
        relations = self.relation_scores(encoded, relation_dependent, relation_head, target["heads"])
        cross_entropy = nn.functional.cross_entropy
        return cross_entropy(arcs, target["heads"]) + cross_entropy(relations, target["relations"])

    def decode(self, encoded: Encoded) -> list[Dependencies]:
        arc_dependent, relation_dependent, arc_head, relation_head = self.features(encoded)
        arcs = self.arc_scores(encoded, arc_dependent, arc_head)
        square = nn.functional.pad(arcs, (0, 0, 1, 0))  # (B, T + 1, T + 1): row 0 stands for the root itself
        heads = structs.mst(square, encoded.lengths, projective=self.options.projective)[:, 1:]
        place = torch.arange(heads.shape[1], device=heads.device)
        flat = heads[place < encoded.lengths[:, None]]  # (N,)
        relations = self.relation_scores(encoded, relation_dependent, relation_head, flat).argmax(-1)
        names = self.labels["relations"]
        return [
            Dependencies(tuple(h.tolist()), tuple(names[place] for place in r.tolist()))
            for h, r in zip(flat.split(encoded.sizes), relations.split(encoded.sizes), strict=True)
        ]
