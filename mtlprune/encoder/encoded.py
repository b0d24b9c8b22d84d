"""What the encoder says about a batch: a vector a word.

Letters for shapes: B sentences, N words over the batch, T words of the longest sentence, H the hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mtlprune.encoder.batch import table
from mtlprune.encoder.pieces import EncoderError


@dataclass(eq=False)
class Encoded:
    """What the encoder says about a batch, in float32 whatever autocast does.

    Attributes:
        words: (N, H), the words of all sentences one after another, no padding.
        cls: (B, H), the first special token of each sentence.
        sep: (B, H), the last special token.
        lengths: (B,) int64, words per sentence.
        sizes: the same as a list.
    """

    words: Tensor
    cls: Tensor
    sep: Tensor
    lengths: Tensor
    sizes: list[int]

    @cached_property
    def starts(self) -> Tensor:
        """(B,) int64, where in ``words`` each sentence begins."""
        return self.lengths.cumsum(0) - self.lengths

    def padded(self, flat: Tensor | None = None) -> Tensor:
        """Lay words out by sentence: (N, ...) to (B, T, ...), zero where a sentence has no word; gradients pass.

        Args:
            flat: something by word, ``words`` if not given.
        """
        return table(self.words if flat is None else flat, self.sizes, max(self.sizes))

    def select(self, sentences: Sequence[int]) -> Encoded:
        """Only these sentences, in this order.

        Raises:
            EncoderError: none is asked for, or one that is not in the batch.
        """
        chosen = np.asarray(sentences, np.int64)
        if not chosen.size or chosen.min() < 0 or chosen.max() >= len(self.sizes):
            raise EncoderError(
                f"expected at least one sentence between 0 and {len(self.sizes) - 1}, found {list(sentences)}"
            )
        if np.array_equal(chosen, np.arange(len(self.sizes))):
            return self
        sizes = np.array(self.sizes, np.int64)
        starts, picked = (np.cumsum(sizes) - sizes)[chosen], sizes[chosen]
        words = np.arange(picked.sum()) + np.repeat(starts - (np.cumsum(picked) - picked), picked)
        device = self.words.device
        at, of = torch.from_numpy(words).to(device), torch.from_numpy(chosen).to(device)
        return Encoded(
            self.words.index_select(0, at),
            self.cls.index_select(0, of),
            self.sep.index_select(0, of),
            self.lengths.index_select(0, of),
            picked.tolist(),
        )
