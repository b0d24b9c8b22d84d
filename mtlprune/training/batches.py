"""Batches of similar length within a budget, shuffled anew each epoch; all of it a function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LENGTH_NOISE = 0.1  # lengths are compared up to this share, so that batches do not repeat from epoch to epoch


def batches(
    lengths: Sequence[int], sentences: int, tokens: int, generator: np.random.Generator, shuffle: bool = True
) -> list[list[int]]:
    """Cut sentences into batches of at most ``sentences`` sentences and ``tokens`` sub-words.

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
    cut: list[list[int]] = []
    rows: list[int] = []
    total = 0
    for row in np.argsort(-size * noise, kind="stable").tolist():
        if rows and (len(rows) >= sentences or total + lengths[row] > tokens):
            cut.append(rows)
            rows, total = [], 0
        rows.append(row)
        total += lengths[row]
    if rows:
        cut.append(rows)
    return [cut[place] for place in generator.permutation(len(cut))] if shuffle else cut
