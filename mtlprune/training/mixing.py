"""The mini-batches of an epoch: sentences of similar length, with the tasks whose losses are computed on them.

A mini-batch serves all tasks (joint) or a single task that is drawn at random (sampled). All random numbers follow from
(seed, epoch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from mtlprune.config.config import TrainConfig


_IsAnnotated = Mapping[str, Sequence[bool]]
"""Task → whether each sentence has the layer of the task."""
ROWS = 8
"""Batches that the budget of sub-words limits have a multiple of this number of rows (see `_fitting`)."""
_LENGTH_NOISE = 0.1
"""The relative noise of lengths before sentences are sorted by length, so that batches differ between epochs."""


def batches(
    lengths: Sequence[int], sentences: int, tokens: int, generator: np.random.Generator, shuffle: bool = True
) -> list[list[int]]:
    """Divide sentences into batches of at most ``sentences`` sentences and ``tokens`` sub-words, including padding.

    Args:
        lengths: the number of sub-words of each sentence, including special tokens.
        sentences, tokens: the limits of a batch; a sentence of more than ``tokens`` sub-words is a batch of its own.
        shuffle: whether to shuffle the order of batches, and to exchange sentences of similar length between batches.

    Returns:
        Batches of indices into ``lengths``; every index occurs once.
    """
    size = np.asarray(lengths, dtype=np.float64)
    # Sentences of similar length share a batch, because padding costs time. Noise on the lengths makes sure that a
    # batch does not consist of the same sentences in every epoch.
    noise = generator.uniform(1 - _LENGTH_NOISE, 1 + _LENGTH_NOISE, len(size)) if shuffle else 1.0
    # The order is from long to short sentences; the batches are shuffled below.
    order = np.argsort(-size * noise, kind="stable").tolist()
    row_batches: list[list[int]] = []
    start = 0
    while start < len(order):
        rows = order[start : start + sentences]
        row_batches.append(rows[: _fitting([lengths[row] for row in rows], tokens)])
        start += len(row_batches[-1])
    return [row_batches[place] for place in generator.permutation(len(row_batches))] if shuffle else row_batches


def _fitting(lengths: Sequence[int], tokens: int) -> int:
    """Return how many of the first rows fit into ``tokens`` sub-words with padding, at least 1.

    If not all rows fit, the number is a multiple of `ROWS` where possible, so that shapes of batches repeat (see
    ``mtlprune.tasks.products``).
    """
    # Padding makes every row as long as the longest, so n rows cost n times the longest of them. The running maximum is
    # needed, because noise on the lengths disturbs their order.
    longest = np.maximum.accumulate(np.asarray(lengths))
    rows_that_fit = int((longest * np.arange(1, len(longest) + 1) <= tokens).sum())
    if rows_that_fit == len(lengths):
        return rows_that_fit
    return max(1, rows_that_fit // ROWS * ROWS if rows_that_fit > ROWS else rows_that_fit)


class MiniBatch(NamedTuple):
    """Indices of training sentences, and the tasks whose losses are computed on them."""

    tasks: tuple[str, ...]
    rows: list[int]


def plan(
    settings: TrainConfig, lengths: Sequence[int], is_annotated: _IsAnnotated, generator: np.random.Generator
) -> list[list[MiniBatch]]:
    """Return the mini-batches of an epoch, grouped into updates.

    With ``train.mixing: joint``, every sentence that has the layer of at least one task occurs once, and each
    mini-batch serves all tasks, but for tasks with a share in ``train.shares``. Mini-batches without a loss are left
    out. For ``train.mixing: sampled``, see
    `sampled`.

    Args:
        lengths: the number of sub-words of each training sentence, including special tokens.
        is_annotated: task → whether each training sentence has the layer of the task.
    """
    # The settings limit the size of an update. Gradient accumulation divides an update into mini-batches whose losses
    # are averaged, so it reduces the memory that is needed, but not the size of an update.
    sentences = max(1, settings.batch_sentences // settings.accumulate)
    tokens = max(1, settings.batch_tokens // settings.accumulate)
    if settings.mixing == "joint":
        rows = [row for row in range(len(lengths)) if any(has[row] for has in is_annotated.values())]
        row_batches = batches([lengths[row] for row in rows], sentences, tokens, generator, settings.shuffle)
        takes_part = {
            task: _batches_of_share(settings.shares[task], len(row_batches), generator)
            for task in is_annotated
            if task in settings.shares
        }
        flat = [
            MiniBatch(
                tuple(task for task in is_annotated if task not in takes_part or takes_part[task][number]),
                [rows[place] for place in batch],
            )
            for number, batch in enumerate(row_batches)
        ]
        # A batch has no loss if its sentences have layers only of tasks that do not take part.
        flat = [batch for batch in flat if any(is_annotated[task][row] for task in batch.tasks for row in batch.rows)]
    else:
        flat = sampled(lengths, is_annotated, sentences, tokens, generator, settings.tau, settings.shuffle)
    return [flat[place : place + settings.accumulate] for place in range(0, len(flat), settings.accumulate)]


def _batches_of_share(share: float, count: int, generator: np.random.Generator) -> np.ndarray:
    """Choose a share of batches that are spread evenly, from a random start, as an array (count,) of bool.

    The number of chosen batches is ``share * count``, rounded up or down at random so that this is its mean.
    """
    return np.diff(np.floor(np.arange(count + 1) * share + generator.random())) > 0


def sampled(
    lengths: Sequence[int],
    is_annotated: _IsAnnotated,
    sentences: int,
    tokens: int,
    generator: np.random.Generator,
    tau: float,
    shuffle: bool = True,
) -> list[MiniBatch]:
    """Return mini-batches of a single task each, which is drawn with probability p ∝ n^τ (He and Choi 2021).

    n is the number of batches of a task, and an epoch has Σ n draws. The batches of a task are taken in shuffled order;
    when all are used, they are formed and shuffled again. Without ``shuffle``, each task begins every epoch with its
    longest sentences, as in the code released by He and Choi.
    """
    rows_of_task = {task: [row for row, has in enumerate(rows) if has] for task, rows in is_annotated.items()}

    def shuffled(task: str) -> list[list[int]]:
        rows = rows_of_task[task]
        row_batches = batches([lengths[row] for row in rows], sentences, tokens, generator, shuffle)
        # The list is reversed, because `pop` takes batches from its end; taking them from the front would move all
        # others.
        return [[rows[place] for place in batch] for batch in reversed(row_batches)]

    queues = {task: shuffled(task) for task in rows_of_task}
    share = sampling_probabilities([len(queue) for queue in queues.values()], tau)
    names = list(queues)
    plan = []
    # All tasks of the epoch are drawn at once, so that their order does not depend on how often queues are refilled,
    # which draws further random numbers.
    for draw in generator.choice(len(names), size=sum(map(len, queues.values())), p=share).tolist():
        task = names[draw]
        if not queues[task]:
            queues[task] = shuffled(task)
        plan.append(MiniBatch((task,), queues[task].pop()))
    return plan


def sampling_probabilities(counts: Sequence[int], tau: float) -> np.ndarray:
    """Return the probability of each task, p_t = n_t^τ / Σ n^τ, from its count n_t, (number of tasks,)."""
    power = np.asarray(counts, dtype=np.float64) ** tau
    return power / power.sum()
