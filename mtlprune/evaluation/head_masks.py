"""Masks of heads, (L, A): when a gate leaves a head open, how heads are named, and heads drawn at random."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPEN_ABOVE = 1e-3
"""A head is open where its gate exceeds this, else closed (He and Choi 2021, the released code)."""


def head_names(mask: NDArray[Any]) -> list[str]:
    """LAYER-HEAD, both counted from 1, of every head in a mask."""
    return [f"{layer + 1}-{head + 1}" for layer, head in np.argwhere(mask)]


def random_heads(counts: Sequence[int], heads: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """(L, heads): so many heads of each layer, drawn without replacement."""
    mask = np.zeros((len(counts), heads), bool)
    for layer, count in enumerate(counts):
        mask[layer, generator.choice(heads, count, replace=False)] = True
    return mask
