"""Batches of similar length within a budget, and the tasks each serves: all (joint), or one, drawn by size (sampled).

All of it is a function of (seed, epoch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from mtlprune.config.config import TrainConfig


_IsAnnotated = Mapping[str, Sequence[bool]]
"""Task → whether each sentence has its layer."""
ROWS = 8
_LENGTH_NOISE = 0.1  # lengths are compared up to this share, so that batches do not repeat from epoch to epoch


def batches(
    lengths: Sequence[int], sentences: int, tokens: int, generator: np.random.Generator, shuffle: bool = True
) -> list[list[int]]:
    """Cut sentences into batches of at most ``sentences`` sentences and ``tokens`` sub-words, padding counted.

    Args:
        lengths: sub-words of each sentence, special tokens included.
        sentences, tokens: the budget, whichever is hit first; a sentence over the budget stands alone.
        shuffle: shuffle the order of batches, and neighbours of similar length between batches.

    Returns:
        Rows of ``lengths``; every row once.
    """
    size = np.asarray(lengths, dtype=np.float64)
    # Sentences of similar length share a batch, because padding costs time. Lengths are blurred before sorting, so
    # that not the same sentences meet in every epoch.
    noise = generator.uniform(1 - _LENGTH_NOISE, 1 + _LENGTH_NOISE, len(size)) if shuffle else 1.0
    # Longest first: if memory is too small for a batch, training fails in the first minute and not in the last.
    # Batches are shuffled as wholes below.
    order = np.argsort(-size * noise, kind="stable").tolist()
    cut: list[list[int]] = []
    start = 0
    while start < len(order):
        rows = order[start : start + sentences]
        cut.append(rows[: fitting([lengths[row] for row in rows], tokens)])
        start += len(cut[-1])
    return [cut[place] for place in generator.permutation(len(cut))] if shuffle else cut


def fitting(lengths: Sequence[int], tokens: int) -> int:
    """The number of rows, from the first on, that stay within ``tokens`` sub-words with padding; at least one.

    Where the budget cuts, a multiple of ROWS is taken, so that shapes repeat (see ``mtlprune.tasks.products``).
    """
    # Padding makes every row as long as the longest, so n rows cost n times the maximum so far; the blurred order is
    # not quite sorted, hence the running maximum.
    longest = np.maximum.accumulate(np.asarray(lengths))
    rows_that_fit = int((longest * np.arange(1, len(longest) + 1) <= tokens).sum())
    if rows_that_fit == len(lengths):
        return rows_that_fit
    return max(1, rows_that_fit // ROWS * ROWS if rows_that_fit > ROWS else rows_that_fit)


class MiniBatch(NamedTuple):
    """Rows of the training set, and the tasks whose losses they feed."""

    tasks: tuple[str, ...]
    rows: list[int]


def plan(
    settings: TrainConfig, lengths: Sequence[int], is_annotated: _IsAnnotated, generator: np.random.Generator
) -> list[list[MiniBatch]]:
    """The mini-batches of an epoch, grouped into updates; arguments as for `batches`.

    joint: every sentence with at least one of the layers once; a batch feeds every task. sampled: see there.
    """
    # The budget is that of an update. Gradient accumulation cuts it into parts that are averaged, so the setting
    # changes memory and not the size of an update.
    sentences = max(1, settings.batch_sentences // settings.accumulate)
    tokens = max(1, settings.batch_tokens // settings.accumulate)
    if settings.mixing == "joint":
        rows = [row for row in range(len(lengths)) if any(has[row] for has in is_annotated.values())]
        cut = batches([lengths[row] for row in rows], sentences, tokens, generator, settings.shuffle)
        flat = [MiniBatch(tuple(is_annotated), [rows[place] for place in batch]) for batch in cut]
    else:
        flat = sampled(lengths, is_annotated, sentences, tokens, generator, settings.tau, settings.shuffle)
    return [flat[place : place + settings.accumulate] for place in range(0, len(flat), settings.accumulate)]


def sampled(
    lengths: Sequence[int],
    is_annotated: _IsAnnotated,
    sentences: int,
    tokens: int,
    generator: np.random.Generator,
    tau: float,
    shuffle: bool = True,
) -> list[MiniBatch]:
    """One task a batch, drawn with p ∝ n^τ; an epoch has Σ n draws (He and Choi 2021; n: the task's batches).

    Each task's batches are taken in shuffled order and begin anew, shuffled again, when they are used up. Without
    ``shuffle`` each task begins every epoch with its longest sentences, as the released code of He and Choi does.
    """
    rows_of_task = {task: [row for row, has in enumerate(rows) if has] for task, rows in is_annotated.items()}

    def shuffled(task: str) -> list[list[int]]:
        rows = rows_of_task[task]
        cut = batches([lengths[row] for row in rows], sentences, tokens, generator, shuffle)
        # Reversed, because batches are taken from the end of the list by `pop`, which costs nothing, while taking
        # from the front would move all others.
        return [[rows[place] for place in batch] for batch in reversed(cut)]

    queues = {task: shuffled(task) for task in rows_of_task}
    share = sampling_probabilities([len(queue) for queue in queues.values()], tau)
    names = list(queues)
    plan = []
    # All draws of the epoch are made at once and the queues are refilled in between, so the order of tasks does not
    # depend on how often a queue was used up before.
    for draw in generator.choice(len(names), size=sum(map(len, queues.values())), p=share).tolist():
        task = names[draw]
        if not queues[task]:
            queues[task] = shuffled(task)
        plan.append(MiniBatch((task,), queues[task].pop()))
    return plan


def sampling_probabilities(counts: Sequence[int], tau: float) -> np.ndarray:
    """p_t = n_t^τ / Σ n^τ. (tasks,)"""
    power = np.asarray(counts, dtype=np.float64) ** tau
    return power / power.sum()
