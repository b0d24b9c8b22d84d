"""Part-of-speech tagging: one linear layer, as in He and Choi (2021); facts in docs/tasks.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from mtlprune.encoder.model import Encoded
from mtlprune.sentence import Sentence
from mtlprune.tasks.base import LabelRows, Target, Task, joined, vocabulary
from mtlprune.tasks.products import Linear


class POS(Task):
    """Tags by a linear layer and argmax; loss: mean token cross-entropy."""

    name, kind = "pos", "tags"

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        self.scores = Linear(hidden_size, len(labels["tags"]))

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        return {"tags": vocabulary(Counter(tag for s in sentences for tag in s.get(layer) or ()))}

    def target(self, sentence: Sentence) -> Target:
        index = self.index["tags"]
        return {"tags": np.array([index[tag] for tag in sentence.get(self.layer)], dtype=np.int32)}

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        return {"tags": joined(targets, "tags")}  # (N,)

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.scores(encoded.words).float(), target["tags"])

    def label_rows(self) -> LabelRows:
        return LabelRows(self.labels["tags"], self.scores.weight)

    def label_places(self, target: Target) -> np.ndarray:
        return target["tags"]

    def decode(self, encoded: Encoded) -> list[tuple[str, ...]]:
        best = self.scores(encoded.words).argmax(-1).split(encoded.sizes)
        tags = self.labels["tags"]
        return [tuple(tags[place] for place in row.tolist()) for row in best]
