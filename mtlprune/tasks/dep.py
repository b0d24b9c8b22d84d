"""The decoder of dependency trees: the biaffine parser of Dozat and Manning (2017).

Relations are scored for one head of each word only: the gold head in training, and the predicted head in decoding.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune.config.decoders import DEPOptions
from mtlprune.encoder.batch import Encoded, move_together, slots, to_device
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.tasks import inference
from mtlprune.tasks.base import LabelRows, SharedMLP, Target, Task, joined, offsets
from mtlprune.tasks.products import form_table, table_side
from mtlprune.tasks.spans import Pairs, pair_scorer


class DEP(Task):
    """Decoder of dependencies: a biaffine scorer of arcs and a scorer of relations.

    The arc scorer has a bias on the dependent's side only. The relation scorer (``relation_scorer``) is biaffine with
    biases on both sides, or an MLP. The loss is the mean cross-entropy of heads plus the mean cross-entropy of
    relations at gold heads, and includes punctuation.
    """

    name, kind = "dep", "tree"
    Options = DEPOptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        arc = options.arc_size
        self.mlp = SharedMLP(hidden_size, [arc, arc], options.dropout)
        self.arc = nn.Parameter(torch.zeros(arc + 1, arc))
        self.relation = pair_scorer(
            options.relation_scorer, hidden_size, options.relation_size, len(labels["relations"]), options.dropout
        )

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        arcs, vectors = self.features(encoded)
        relations = self.relation_scores(encoded, vectors, target["rows"])
        cross_entropy = nn.functional.cross_entropy
        heads = cross_entropy(self.word_rows(encoded, arcs), target["heads"])
        return heads + cross_entropy(relations, target["relations"])

    def decode(self, encoded: Encoded) -> list[Any]:
        arcs, vectors = self.features(encoded)
        arcs = arcs.cpu()
        # (B, T + 1, T + 1): a row for the root is added in front, because decoding expects rows and columns that both
        # count the root as position 0.
        square = nn.functional.pad(arcs, (0, 0, 1, 0))
        heads = inference.mst(square, torch.tensor(encoded.sizes), projective=self.options.projective)
        flat = torch.cat([row[1 : size + 1] for row, size in zip(heads, encoded.sizes, strict=True)])  # (N,)
        (rows,) = move_together([_head_rows(flat, encoded.sizes)], encoded.words.device)
        relations = self.relation_scores(encoded, vectors, rows).argmax(-1).cpu()
        names = self.labels["relations"]
        return [
            Dependencies(tuple(h.tolist()), tuple(names[index] for index in r.tolist()))
            for h, r in zip(flat.split(encoded.sizes), relations.split(encoded.sizes), strict=True)
        ]

    def features(self, encoded: Encoded) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Compute the arc scores (B, T, T + 1), and the vectors from which relations are scored.

        The latter have N + B rows: the N words, followed by the roots of the B sentences.
        """
        count = len(encoded.sizes)
        sentences = np.arange(count)
        owner = to_device(np.concatenate([sentences.repeat(encoded.sizes), sentences]), encoded.words.device)
        rows = torch.cat([encoded.words, encoded.cls])  # (N + B, H)
        dependent, head = self.mlp(rows, owner, count)
        return self.arc_scores(encoded, dependent[: len(encoded.words)], head), self.relation(rows, owner, count)

    def arc_scores(self, encoded: Encoded, dependent: Tensor, head: Tensor) -> Tensor:
        """Score every head for each word: (B, T, T + 1), fp32.

        Column 0 is the root. Columns beyond the end of the sentence are −inf.

        Args:
            encoded: the batch.
            dependent: (N, arc size), the words as dependents.
            head: (N + B, arc size), the words and the B roots as heads.
        """
        longest, sizes = max(encoded.sizes), encoded.sizes
        side = table_side(longest + 1)
        rows = slots(sizes, side)
        word_slots, root_and_word_slots = move_together(
            [rows, torch.cat([rows + 1, torch.arange(len(sizes)) * side])], head.device
        )
        scores = form_table(dependent, self.arc, head, sizes, side, word_slots, root_and_word_slots)[
            :, :longest, : longest + 1
        ]
        position = torch.arange(scores.shape[2], device=scores.device)
        return scores.masked_fill((position > encoded.lengths[:, None])[:, None], float("-inf"))

    def relation_scores(self, encoded: Encoded, vectors: Any, rows: Tensor) -> Tensor:
        """Score every relation between each word and its head: (N, R), fp32.

        Args:
            encoded: the batch.
            vectors: the relation vectors that ``features`` returns.
            rows: (N,) the row of each word's head in these vectors, as ``_head_rows`` returns them.
        """
        return self.relation.score(vectors, Pairs.one_each(rows, encoded.owner), len(encoded.sizes))

    @staticmethod
    def word_rows(encoded: Encoded, values: Tensor) -> Tensor:
        """Return the rows of a padded tensor (B, T, ...) that belong to words: (N, ...)."""
        (rows,) = move_together([slots(encoded.sizes, values.shape[1])], values.device)
        return values.flatten(0, 1).index_select(0, rows)

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        trees = (tree for s in sentences if (tree := s.get(layer)) is not None)
        return {"relations": sorted({relation for tree in trees for relation in tree.relations})}

    def target(self, sentence: Sentence) -> Target:
        index, tree = self.index["relations"], sentence.get(self.layer)
        return {
            "heads": np.array(tree.heads, dtype=np.int32),
            "relations": np.array([index[relation] for relation in tree.relations], dtype=np.int32),
        }

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        heads, relations = joined(targets, "heads"), joined(targets, "relations")
        return {"heads": heads, "rows": _head_rows(heads, sizes), "relations": relations}  # (N,) each

    def label_rows(self) -> LabelRows:
        return LabelRows(self.labels["relations"], self.relation.label_rows())

    def label_places(self, target: Target) -> np.ndarray:
        return target["relations"]


def _head_rows(heads: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the row of each word's head among the N words followed by the B roots: (N,), on the CPU.

    Args:
        heads: (N,) positions in the sentence, counted from 1; 0 is the root.
        sizes: number of words of each sentence.
    """
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return torch.where(heads == 0, len(heads) + owner, offsets(sizes)[owner] + heads - 1)
