"""Decoders of whole sentences: a label, a number or a set of labels, from one linear layer over a sentence vector.

Letters in shapes: B sentences, N words of all sentences together, H hidden size of the encoder, K labels.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune.config.decoders import SentenceOptions
from mtlprune.encoder.batch import Encoded
from mtlprune.sentence import Sentence
from mtlprune.tasks.base import Dropout, LabelRows, Target, Task, joined, owners
from mtlprune.tasks.products import Linear


class SentenceTask(Task):
    """Base class of sentence decoders: dropout and a linear layer with ``outputs`` outputs over the sentence vector."""

    Options = SentenceOptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any, outputs: int) -> None:
        super().__init__(labels, hidden_size, options)
        self.dropout = Dropout(options.dropout)
        self.scores = Linear(hidden_size, outputs)

    def linear_of_sentence(self) -> tuple[nn.Linear, list[str]]:
        """Return the linear layer that export writes as sequence classifier, and the names of its outputs."""
        return self.scores, self.labels["labels"]

    def logits(self, encoded: Encoded) -> Tensor:
        """Compute the outputs of the linear layer: (B, outputs), fp32."""
        return self.scores(self.dropout(self.pooled(encoded))).float()

    def pooled(self, encoded: Encoded) -> Tensor:
        """Return the vector of each sentence, either the first special token or the mean of its words: (B, H)."""
        if self.options.pooling == "first":
            return encoded.cls
        # The words of all sentences follow one another without special tokens, and `owner` is the sentence of each
        # word.
        sums = torch.zeros_like(encoded.cls).index_add(0, encoded.owner, encoded.words)
        return sums / encoded.lengths[:, None]


class LABEL(SentenceTask):
    """Decoder that gives each sentence one label: the label with the highest score.

    The loss is the mean cross-entropy over sentences.
    """

    name, kind = "label", "label"

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options, len(labels["labels"]))

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.logits(encoded), target["label"])

    def decode(self, encoded: Encoded) -> list[Any]:
        best = self.logits(encoded).argmax(-1).cpu()
        return [self.labels["labels"][index] for index in best.tolist()]

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        return {"labels": sorted({label for s in sentences if (label := s.get(layer)) is not None})}

    def target(self, sentence: Sentence) -> Target:
        return {"label": np.array([self.index["labels"][sentence.get(self.layer)]], dtype=np.int32)}

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        return {"label": joined(targets, "label")}  # (B,)

    def label_rows(self) -> LabelRows:
        return LabelRows(self.labels["labels"], self.scores.weight)

    def label_places(self, target: Target) -> np.ndarray:
        return target["label"]


class NUMBER(SentenceTask):
    """Decoder that gives each sentence a number.

    The numbers are standardised by their mean and standard deviation on the training sentences. The loss is the mean
    squared error of the standardised numbers. The vocabulary "scale" stores the mean and the standard deviation as
    text, because a run stores only the vocabularies of its training sentences.
    """

    name, kind = "number", "number"

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options, 1)
        self.mean, self.deviation = map(float, labels["scale"])

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(self.logits(encoded).squeeze(1), target["number"])

    def decode(self, encoded: Encoded) -> list[Any]:
        numbers = self.logits(encoded).squeeze(1).cpu()
        return [self.mean + self.deviation * number for number in numbers.tolist()]

    def linear_of_sentence(self) -> tuple[nn.Linear, list[str]]:
        """Return the linear layer that export writes, and the name of its output.

        The weights of this layer include the mean and the standard deviation of the training sentences, so that it
        predicts numbers in the units of the corpus.
        """
        # An exported model has no vocabulary "scale", so its weights must do what `decode` does with the scale.
        layer = nn.Linear(self.scores.in_features, 1)
        with torch.no_grad():
            layer.weight.copy_(self.deviation * self.scores.weight)
            layer.bias.copy_(self.deviation * self.scores.bias + self.mean)
        return layer, [self.layer]

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        numbers = [number for s in sentences if (number := s.get(layer)) is not None]
        mean = math.fsum(numbers) / max(1, len(numbers))
        variance = math.fsum((number - mean) ** 2 for number in numbers) / max(1, len(numbers))
        # The unit is 1 if all numbers are equal, because a deviation of 0 cannot scale them.
        return {"scale": [repr(mean), repr(math.sqrt(variance) or 1.0)]}

    def target(self, sentence: Sentence) -> Target:
        return {"number": np.array([(sentence.get(self.layer) - self.mean) / self.deviation], dtype=np.float32)}

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        return {"number": torch.from_numpy(np.concatenate([target["number"] for target in targets]))}  # (B,)


class LABELS(SentenceTask):
    """Decoder that gives each sentence any number of labels, including none: the labels with a positive score.

    The loss is the mean binary cross-entropy over sentences and labels.
    """

    name, kind = "labels", "labels"

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options, len(labels["labels"]))

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.logits(encoded), target["labels"])

    def decode(self, encoded: Encoded) -> list[Any]:
        positive = (self.logits(encoded) > 0).cpu()
        names = self.labels["labels"]
        return [tuple(name for name, has in zip(names, row, strict=True) if has) for row in positive.tolist()]

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        return {"labels": sorted({label for s in sentences for label in s.get(layer) or ()})}

    def target(self, sentence: Sentence) -> Target:
        return {"labels": np.array([self.index["labels"][x] for x in sentence.get(self.layer)], dtype=np.int32)}

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        hot = torch.zeros(len(targets), len(self.labels["labels"]))
        hot[owners(targets, "labels"), joined(targets, "labels")] = 1
        return {"labels": hot}  # (B, K)

    def label_rows(self) -> LabelRows:
        return LabelRows(self.labels["labels"], self.scores.weight)

    def label_places(self, target: Target) -> np.ndarray:
        return target["labels"]
