"""Task: a loss, decoding, a label space, targets. One file a task, nothing else changes.

Letters: B sentences, N = all their words one after another, T the longest sentence, H the encoder's width.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune.config.decoders import DecoderOptions
from mtlprune.encoder.batch import Encoded
from mtlprune.sentence import Sentence
from mtlprune.tasks.products import Linear

Target = dict[str, np.ndarray]  # one sentence's targets, small integer arrays


class LabelRows(NamedTuple):
    """The rows of a decoder's last layer, one a class of its softmax."""

    names: list[str]
    """K labels; "" is the class of items that carry none."""
    rows: Tensor
    """(K, D): weights of a linear layer without its bias, or whole biaffine forms one after another."""


class Task(nn.Module, ABC):
    """A task on the shared encoder.

    Args:
        labels: the vocabularies, name → list of labels; stored as JSON with a run.
        hidden_size: H.
        options: this task's own Options.
    """

    name: ClassVar[str]
    """The decoder; also the layer that it gives where a configuration does not say otherwise."""
    kind: ClassVar[str]
    """The kind of the layer."""
    cubic: ClassVar[bool] = False
    """True where decoding takes time of the third power of a sentence's length."""
    Options: ClassVar[type[DecoderOptions]] = DecoderOptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__()
        # A configuration may give a decoder to another layer of the same kind; by default it reads the layer of its
        # own name.
        self.layer = self.name
        self.labels = labels
        self.options = options
        self.index = {kind: {label: place for place, label in enumerate(all_)} for kind, all_ in labels.items()}

    @abstractmethod
    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        """A scalar in fp32, comparable between batches of different size."""

    @abstractmethod
    def decode(self, encoded: Encoded) -> list[Any]:
        """One value of the layer for each sentence."""

    @classmethod
    @abstractmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = "") -> dict[str, list[str]]:
        """The vocabularies, read off training sentences that know the layer, ``cls.name`` if not given.

        Those of a corpus too large for memory know no other layer here.
        """

    @abstractmethod
    def target(self, sentence: Sentence) -> Target:
        """The targets of one training sentence whose layer ``self.layer`` is known, as small arrays."""

    @abstractmethod
    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        """Join the targets of one batch; ``sizes`` are its sentence lengths in words."""

    def label_rows(self) -> LabelRows | None:
        """The label weights, to be measured or regularised; None for a decoder that has no such matrix."""
        return None

    def label_places(self, target: Target) -> np.ndarray:
        """The row of ``label_rows`` of each labelled item of a sentence's targets, to count labels. (items,)"""
        return np.empty(0, dtype=np.int64)

    def linear(self) -> tuple[Linear, list[str]] | None:
        """The linear layer that labels each word by itself, and its K labels; None for a decoder that is more."""
        return None

    def is_annotated(self, sentence: Sentence) -> bool:
        """True where the sentence carries this task's layer."""
        return sentence.get(self.layer) is not None


class WordLabels(Task):
    """One label a word out of ``labels["tags"]``, by a linear layer and argmax; loss: mean token cross-entropy."""

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        self.scores = Linear(hidden_size, len(labels["tags"]))

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.scores(encoded.words).float(), target["tags"])

    def decode(self, encoded: Encoded) -> list[Any]:
        best = self.scores(encoded.words).argmax(-1).cpu()
        tags = self.labels["tags"]
        return [self.value(tuple(tags[place] for place in row.tolist())) for row in best.split(encoded.sizes)]

    @abstractmethod
    def words(self, sentence: Sentence) -> Sequence[str]:
        """The label of each word of a sentence that has the layer."""

    def value(self, tags: tuple[str, ...]) -> Any:
        """The layer's value for the labels of a sentence."""
        return tags

    def target(self, sentence: Sentence) -> Target:
        index = self.index["tags"]
        return {"tags": np.array([index[tag] for tag in self.words(sentence)], dtype=np.int32)}

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        return {"tags": joined(targets, "tags")}  # (N,)

    def label_rows(self) -> LabelRows:
        return LabelRows(self.labels["tags"], self.scores.weight)

    def label_places(self, target: Target) -> np.ndarray:
        return target["tags"]

    def linear(self) -> tuple[Linear, list[str]]:
        return self.scores, self.labels["tags"]


def joined(targets: Sequence[Target], key: str) -> Tensor:
    """One array of every target, one after another, as int64."""
    return torch.from_numpy(np.concatenate([target[key] for target in targets]).astype(np.int64, copy=False))


def owners(targets: Sequence[Target], key: str) -> Tensor:
    """The sentence that each row of ``joined(targets, key)`` comes from. (rows,) int64"""
    return torch.from_numpy(np.repeat(np.arange(len(targets)), [len(target[key]) for target in targets]))


def offsets(sizes: Sequence[int]) -> Tensor:
    """The place of each sentence's first word among the N words of the batch. (B,) int64, on the CPU"""
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64))


class SharedMLP(nn.Module):
    """Several one-layer MLPs on the same input as one matrix: linear, LeakyReLU, dropout shared by a sentence's rows.

    Dozat and Manning (2017). Orthogonal weights and zero bias for each part, as in He and Choi (2021).
    """

    def __init__(self, inputs: int, sizes: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.sizes = list(sizes)
        self.dropout = dropout
        self.linear = Linear(inputs, sum(sizes))
        with torch.no_grad():
            for part in self.linear.weight.split(self.sizes):
                nn.init.orthogonal_(part)
        nn.init.zeros_(self.linear.bias)

    def forward(self, flat: Tensor, owner: Tensor, sentences: int) -> tuple[Tensor, ...]:
        """flat (M, inputs), owner (M,) the sentence of each row → one (M, size) for each part."""
        hidden = nn.functional.leaky_relu(self.linear(flat), negative_slope=0.1)
        if self.training and self.dropout:
            hidden = hidden * dropout_mask((sentences, hidden.shape[1]), self.dropout, hidden).index_select(0, owner)
        return hidden.split(self.sizes, dim=1)


class Dropout(nn.Module):
    """Dropout whose mask costs an eighth: one random byte an element, so the rate is rounded to a multiple of 1/256."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return hidden
        return hidden * dropout_mask(hidden.shape, self.rate, hidden)


def dropout_mask(shape: Sequence[int], rate: float, template: Tensor) -> Tensor:
    """0 with probability ``rate`` (to 1/256), else 1 / (1 − that); eight elements from each random 64-bit number."""
    count = math.prod(shape)
    numbers = torch.empty((count + 7) // 8, dtype=torch.int64, device=template.device).random_(-(2**63), None)
    dropped_of_256 = round(rate * 256)
    keep = numbers.view(torch.uint8)[:count].ge(dropped_of_256).view(shape)
    return (keep * (256 / (256 - dropped_of_256))).to(template.dtype)
