"""Find heads whose closing, each by itself, raises a task's score on both halves of the sentences.

Letters for shapes: L layers, A heads per layer, H = L·A heads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mtlprune.analyses.harness.ablation import AblatableRun
from mtlprune.evaluation.head_masks import Mask, single_heads
from mtlprune.runs.results import head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.resamples import System, resampled_scores
from mtlprune.statistics.significance import holm
from mtlprune.statistics.standard_errors import LEVEL, Floats, StandardError

Rows = NDArray[np.intp]
"""Indices of the sentences of one half."""


def halves(sentences: int, seed: int) -> tuple[Rows, Rows]:
    """Draw two halves of the sentences, the first to choose heads and the second to confirm them."""
    first, second = np.array_split(np.random.default_rng([seed, 16]).permutation(sentences), 2)
    return np.sort(first), np.sort(second)


def count_each(
    run: AblatableRun, heads: Sequence[int], sentences: Sequence[Sentence], on_batch: Callable[[], None] = lambda: None
) -> dict[str, list[System]]:
    """Return for each task its counts with all heads open, and then with each of ``heads`` closed by itself.

    Args:
        heads: numbers of the heads from 0 to H - 1, through all layers.
    """
    counts: dict[str, list[System]] = {}
    for counts_by_task in run.counts_each(list(single_heads(run.size)[list(heads)]), sentences):
        for task, system in counts_by_task.items():
            counts.setdefault(task, []).append(system)
        on_batch()
    return counts


def select_sentences(system: System, rows: Rows) -> System:
    """Return the counts of these sentences only."""
    return replace(system, counts=system.counts[:, rows])


def gains(systems: Sequence[System], resamples: int, seed: int) -> dict[str, Floats]:
    """Compute the gain of a task from closing each head.

    Errors are over sentences only, because there is one run.

    Args:
        systems: counts with all heads open, then with each head closed.

    Returns:
        ``gain`` in points, one-sided ``p`` of no gain, and the minimum ``detectable`` gain, (H,) each. p is NaN for
        heads whose closing changes nothing.
    """
    opening, *closed = resampled_scores(systems, resamples, seed)
    differences = [resampled - opening for resampled in closed]
    errors = [StandardError.of([difference.observed], [difference.booted]) for difference in differences]
    values = np.array([float(difference.observed[0]) for difference in differences])
    p = np.array([error.upper_tail(value) for error, value in zip(errors, values, strict=True)])
    return {"gain": values, "p": p, "detectable": np.array([error.detectable() for error in errors])}


def interfering(
    count: Callable[[int, Sequence[int]], Mapping[str, Sequence[System]]],
    size: tuple[int, int],
    resamples: int,
    seed: int,
    max_chosen: int | None = None,
    confirmed: str = "all",
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Mask]]:
    """Find the heads of one run that interfere with a task.

    A head is *chosen* for a task if closing it raises the score on the first half of the sentences (one-sided
    p < LEVEL). It *interferes* with the task if closing it also raises the score on the second half, after Holm's
    correction over all heads that are chosen in the run.

    Args:
        count: function from a half of the sentences (0 or 1) and numbers of heads to the counts of each task on this
            half, with all heads open and then with each of these heads closed.
        max_chosen: largest number of heads that are chosen for a task, those with the largest gains; None for no limit.
        confirmed: heads that are closed on the second half, "all" or "chosen" (those that are chosen for a task).

    Returns:
        The frame ``heads`` (``gain`` and ``detectable`` of every head by ``task`` and ``step``, which is 0 for the
        first half and 1 for the second, NaN for heads that are not closed there); the frame ``chosen``; and for each
        task the heads that interfere with it, (L, A), if there are any.
    """
    all_heads = range(size[0] * size[1])
    first = {task: gains(systems, resamples, seed) for task, systems in count(0, all_heads).items()}
    chosen_heads = {}
    for task, first_gains in first.items():
        by_gain = np.argsort(-first_gains["gain"], kind="stable")
        chosen_heads[task] = np.sort(by_gain[first_gains["p"][by_gain] < LEVEL][:max_chosen])
    closed = (
        all_heads if confirmed == "all" else sorted({int(head) for heads in chosen_heads.values() for head in heads})
    )
    second = {}
    for task, systems in count(1, closed).items():
        second[task] = {name: np.full(len(all_heads), np.nan) for name in ("gain", "p", "detectable")}
        for name, values in gains(systems, resamples, seed).items():
            second[task][name][list(closed)] = values
    parts, chosen_rows = [], []
    for task in (task for task in first if task in second):
        for step, half_gains in enumerate((first[task], second[task])):
            grids = {name: half_gains[name].reshape(size) for name in ("gain", "detectable")}
            parts.append(head_rows(grids).assign(task=task, step=step))
        for head in chosen_heads[task]:
            layer, head_in_layer = (int(index) + 1 for index in np.unravel_index(head, size))
            row = {"task": task, "layer": layer, "head": head_in_layer}
            row |= {"first": first[task]["gain"][head], "second": second[task]["gain"][head]}
            chosen_rows.append({**row, "p": second[task]["p"][head]})
    frame = pd.DataFrame(chosen_rows, columns=None if chosen_rows else ["task", "layer", "head", "p"])
    frame = frame.assign(p_holm=holm(frame["p"]))
    masks = {}
    for task, rows in frame[frame["p_holm"] < LEVEL].groupby("task", sort=False):
        masks[str(task)] = np.zeros(size, bool)
        masks[str(task)][rows["layer"] - 1, rows["head"] - 1] = True
    heads_frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["task"])
    return heads_frame, frame, masks
