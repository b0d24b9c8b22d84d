"""``Task``, the base class of all decoders, and the parts that several decoders use.

Letters in shapes: B sentences in the batch, N words of all sentences together, T words of the longest sentence, H
hidden size of the encoder. Word vectors have no padding: the words of all sentences follow one another in N rows.
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

Target = dict[str, np.ndarray]
"""The training targets of one sentence: small arrays by name."""


class LabelRows(NamedTuple):
    """The weights of a decoder's output layer, with one row for each label."""

    names: list[str]
    """The K labels, where "" is the class of items without a label."""
    rows: Tensor
    """(K, D): the weight matrix of a linear layer without its bias, or the flattened biaffine form of each label."""


class Task(nn.Module, ABC):
    """Base class of decoders: the loss, the decoding, the label vocabularies and the training targets of one task.

    All decoders of a model read the same word vectors (``Encoded``) of the shared encoder.

    Args:
        labels: the label vocabularies, by name. They are stored as JSON with a run.
        hidden_size: hidden size H of the encoder.
        options: an instance of this decoder's ``Options``.
    """

    name: ClassVar[str]
    """Name of the decoder, and of the layer of annotation that it predicts unless a configuration names another."""
    kind: ClassVar[str]
    """The kind of the predicted layer, such as ``tags`` or ``spans``, which fixes the type of its values."""
    cubic: ClassVar[bool] = False
    """True if the time for decoding grows with the third power of the sentence length."""
    Options: ClassVar[type[DecoderOptions]] = DecoderOptions
    """The class of this decoder's settings."""

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__()
        # By default a decoder learns the layer that has the decoder's name. The model overwrites this attribute if the
        # configuration uses the decoder for another layer of the same kind.
        self.layer = self.name
        self.labels = labels
        self.options = options
        self.index = {
            name: {label: index for index, label in enumerate(vocabulary)} for name, vocabulary in labels.items()
        }

    @abstractmethod
    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        """Compute the training loss of a batch, a scalar in fp32 that does not grow with the size of the batch.

        Args:
            encoded: vectors of the B sentences.
            target: what ``collate`` returned for these sentences, on the same device.
        """

    @abstractmethod
    def decode(self, encoded: Encoded) -> list[Any]:
        """Predict the layer: return its value for each of the B sentences, as ``Sentence`` stores it."""

    @classmethod
    @abstractmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = "") -> dict[str, list[str]]:
        """Collect the label vocabularies from training sentences.

        Args:
            sentences: training sentences. A sentence without the layer adds no label.
            layer: name of the layer, by default ``cls.name``.

        Returns:
            The vocabularies by name, which become the attribute ``labels``.
        """

    @abstractmethod
    def target(self, sentence: Sentence) -> Target:
        """Return the training targets of one sentence that is annotated with the layer ``self.layer``."""

    @abstractmethod
    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        """Join the targets of one batch into the tensors that ``loss`` receives.

        Args:
            targets: what ``target`` returned for each of the B sentences.
            sizes: number of words of each sentence.
        """

    def label_rows(self) -> LabelRows | None:
        """Return the label weights for analyses and regularisers, or None for a decoder without a row per label."""
        return None

    def label_places(self, target: Target) -> np.ndarray:
        """Return the row of ``label_rows`` that belongs to each labelled item of a sentence, for counting labels.

        Args:
            target: what ``target`` returned for the sentence.

        Returns:
            (items,) row indices.
        """
        return np.empty(0, dtype=np.int64)

    def linear(self) -> tuple[Linear, list[str]] | None:
        """Return the linear layer that labels each word, and its K labels.

        Export needs it to write a token classifier. Decoders that do not label each word by one linear layer return
        None.
        """
        return None

    def is_annotated(self, sentence: Sentence) -> bool:
        """Return whether the sentence is annotated with this task's layer."""
        return sentence.get(self.layer) is not None


class WordLabels(Task):
    """Base class of decoders that give each word one label of ``labels["tags"]`` by a linear layer and argmax.

    The loss is the mean cross-entropy over the words of the batch.
    """

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        self.scores = Linear(hidden_size, len(labels["tags"]))

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.scores(encoded.words).float(), target["tags"])

    def decode(self, encoded: Encoded) -> list[Any]:
        best = self.scores(encoded.words).argmax(-1).cpu()
        tags = self.labels["tags"]
        return [self.value(tuple(tags[index] for index in row.tolist())) for row in best.split(encoded.sizes)]

    @abstractmethod
    def words(self, sentence: Sentence) -> Sequence[str]:
        """Return the gold label of each word of a sentence that is annotated with the layer."""

    def value(self, tags: tuple[str, ...]) -> Any:
        """Convert the predicted labels of a sentence's words to the value of the layer."""
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
    """Concatenate the arrays that all targets of a batch store under ``key``, as an int64 tensor."""
    return torch.from_numpy(np.concatenate([target[key] for target in targets]).astype(np.int64, copy=False))


def owners(targets: Sequence[Target], key: str) -> Tensor:
    """Return the number of the sentence from which each row of ``joined(targets, key)`` comes: (rows,) int64."""
    return torch.from_numpy(np.repeat(np.arange(len(targets)), [len(target[key]) for target in targets]))


def offsets(sizes: Sequence[int]) -> Tensor:
    """Return the index of each sentence's first word among the N words of the batch: (B,) int64, on the CPU."""
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64))


class SharedMLP(nn.Module):
    """Several one-layer MLPs (linear, LeakyReLU, dropout) over the same input, computed as one matrix product.

    All rows of a sentence share one dropout mask, as in Dozat and Manning (2017). The weights of each MLP start
    orthogonal and its bias starts at zero, as in He and Choi (2021).

    Args:
        inputs: size of the input vectors.
        sizes: output size of each MLP.
        dropout: dropout rate.
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
        """Apply all MLPs to the rows of a batch.

        Args:
            flat: (M, inputs) input rows.
            owner: (M,) the sentence to which each row belongs.
            sentences: number of sentences in the batch.

        Returns:
            One tensor (M, size) for each MLP.
        """
        hidden = nn.functional.leaky_relu(self.linear(flat), negative_slope=0.1)
        if self.training and self.dropout:
            hidden = hidden * dropout_mask((sentences, hidden.shape[1]), self.dropout, hidden).index_select(0, owner)
        return hidden.split(self.sizes, dim=1)


class Dropout(nn.Module):
    """Dropout that draws one random byte for each element, so that its rate is rounded to a multiple of 1/256."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return hidden
        return hidden * dropout_mask(hidden.shape, self.rate, hidden)


def dropout_mask(shape: Sequence[int], rate: float, template: Tensor) -> Tensor:
    """Draw a dropout mask, scaled so that its expected value is 1.

    Args:
        shape: shape of the mask.
        rate: probability of a zero, rounded to a multiple of 1/256.
        template: tensor whose device and dtype the mask gets.

    Returns:
        A tensor of ``shape`` with 0 for dropped elements and 1 / (1 − rounded rate) for all others.
    """
    count = math.prod(shape)
    # One random byte is enough for each element, so that a random 64-bit number serves eight elements.
    numbers = torch.empty((count + 7) // 8, dtype=torch.int64, device=template.device).random_(-(2**63), None)
    dropped_of_256 = round(rate * 256)
    keep = numbers.view(torch.uint8)[:count].ge(dropped_of_256).view(shape)
    return (keep * (256 / (256 - dropped_of_256))).to(template.dtype)
