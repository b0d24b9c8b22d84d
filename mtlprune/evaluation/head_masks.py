"""Masks of heads, (L, A): when a gate leaves a head open, how heads are named, and heads drawn at random."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
"""(L, A), True for the heads of a set."""
OPEN_ABOVE = 1e-3
"""A head is open where its gate exceeds this, else closed (He and Choi 2021, the released code)."""


def head_names(mask: NDArray[Any]) -> list[str]:
    """LAYER-HEAD, both counted from 1, of every head in a mask."""
    return [f"{layer + 1}-{head + 1}" for layer, head in np.argwhere(mask)]


def random_heads(counts: Sequence[int], heads: int, generator: np.random.Generator) -> Mask:
    """(L, heads): so many heads of each layer, drawn without replacement."""
    mask = np.zeros((len(counts), heads), bool)
    for layer, count in enumerate(counts):
        mask[layer, generator.choice(heads, count, replace=False)] = True
    return mask


def random_sets(heads: Mask, draws: int, generator: np.random.Generator) -> list[Mask]:
    """So many draws (L, A) of as many random heads of each layer, whether they are among ``heads`` or not."""
    return [random_heads(heads.sum(1).tolist(), heads.shape[1], generator) for _ in range(draws)]


def nested_heads(counts: Sequence[int], heads: int, seed: int) -> Mask:
    """(L, heads): the first so many heads of each layer in a random order that depends on the seed alone, so that draws
    of one seed lie inside each other."""
    generator = np.random.default_rng(seed)
    return np.stack([np.isin(np.arange(heads), generator.permutation(heads)[:count]) for count in counts])
