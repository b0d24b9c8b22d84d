"""Batches of similar length within a budget, shuffled anew each epoch; all of it a function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROWS = 8
LENGTH_NOISE = 0.1  # lengths are compared up to this share, so that batches do not repeat from epoch to epoch


def batches(
    lengths: Sequence[int], sentences: int, tokens: int, generator: np.random.Generator, shuffle: bool = True
) -> list[list[int]]:
    """Cut sentences into batches of at most ``sentences`` sentences and ``tokens`` sub-words, padding counted.

    Args:
        lengths: sub-words of each sentence, special tokens included.
        sentences, tokens: the budget, whichever is hit first; a sentence over the budget stands alone.
        generator: the epoch's own.
        shuffle: shuffle the order of batches, and neighbours of similar length between batches.

    Returns:
        Rows of ``lengths``; every row once.
    """
    size = np.asarray(lengths, dtype=np.float64)
    noise = generator.uniform(1 - LENGTH_NOISE, 1 + LENGTH_NOISE, len(size)) if shuffle else 1.0
    order = np.argsort(-size * noise, kind="stable").tolist()
    cut: list[list[int]] = []
    while order:
        count = fitting([lengths[row] for row in order[:sentences]], tokens)
        cut.append(order[:count])
        order = order[count:]
    return [cut[place] for place in generator.permutation(len(cut))] if shuffle else cut


def fitting(lengths: Sequence[int], tokens: int) -> int:
    """How many rows, from the first on, stay within ``tokens`` sub-words with padding; at least one.

    Where the budget cuts, a multiple of ROWS is taken, so that shapes repeat (see ``mtlprune.tasks.products``).
    """
    longest = np.maximum.accumulate(np.asarray(lengths))
    within = int((longest * np.arange(1, len(longest) + 1) <= tokens).sum())
    if within == len(lengths):
        return within
    return max(1, within // ROWS * ROWS if within > ROWS else within)
