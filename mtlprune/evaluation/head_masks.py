"""Masks of attention heads, (L, A): the rule by which a gate leaves a head open, names of heads, and random masks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
"""Set of heads as a mask (L, A), with L layers of A heads, which is True for the heads of the set."""
OPEN_ABOVE = 1e-3
"""A head is open if its gate exceeds this value, and else closed, as in the released code of He and Choi (2021)."""


def head_names(mask: NDArray[Any]) -> list[str]:
    """Return the names LAYER-HEAD of all heads in a mask (L, A), both counted from 1, such as "3-7"."""
    return [f"{layer + 1}-{head + 1}" for layer, head in np.argwhere(mask)]


def single_heads(size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return a mask for each single head of L layers of A heads, (L · A, L, A)."""
    return np.eye(size[0] * size[1], dtype=bool).reshape(-1, *size)


def random_heads(counts: Sequence[int], heads: int, generator: np.random.Generator) -> Mask:
    """Draw a mask (L, heads) with ``counts[l]`` random heads in layer l, without replacement."""
    mask = np.zeros((len(counts), heads), bool)
    for layer, count in enumerate(counts):
        mask[layer, generator.choice(heads, count, replace=False)] = True
    return mask


def random_sets(heads: Mask, draws: int, generator: np.random.Generator) -> list[Mask]:
    """Draw ``draws`` random masks (L, A) with as many heads in each layer as ``heads``, which they may overlap."""
    return [random_heads(heads.sum(1).tolist(), heads.shape[1], generator) for _ in range(draws)]


def nested_heads(counts: Sequence[int], heads: int, seed: int) -> Mask:
    """Draw a mask (L, heads) with ``counts[l]`` random heads in layer l, so that masks of one seed are nested.

    The heads of a layer are the first ones in a random order that depends only on the seed, so a mask with smaller
    counts is a subset of a mask with larger counts.
    """
    generator = np.random.default_rng(seed)
    return np.stack([np.isin(np.arange(heads), generator.permutation(heads)[:count]) for count in counts])
