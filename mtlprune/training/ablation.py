"""Closed heads of a finished run: what they contribute, measured or fitted on training sentences, and losses then."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.corpora.tables import batched
from mtlprune.encoder.gates import Gates
from mtlprune.encoder.interventions import CONSTANT, Closed, fit_constants, measure_means, set_substitute
from mtlprune.model import SHARED, Batch, MultiTaskModel
from mtlprune.sentence import Sentence
from mtlprune.tasks.base import Target, Task

BATCH, SENTENCES = 32, 256
"""Sentences of a batch, and as many as are drawn at most."""


def close_with(
    model: MultiTaskModel, kind: Closed, sentences: Sequence[Sentence], masks: Sequence[Tensor], seed: int = 0
) -> None:
    """Choose what closed heads of a model contribute from now on.

    Constants of kind optimal are fitted on the sum of all tasks' losses, batch after batch under one mask after the
    other until all batches and all masks had their turn, so that one table serves all masks.

    Args:
        model: in evaluation mode, with gates for all tasks, which are fixed to masks here.
        sentences: of its training set; of them `SENTENCES` are drawn by the seed.
        masks: (L, A) each, 0 where a head is going to be closed.
    """
    encoder, constants = model.encoder, None
    if kind in CONSTANT:
        order = np.random.default_rng([seed, 37]).permutation(len(sentences))[:SENTENCES]
        chosen = [sentences[row] for row in order.tolist()]
        constants = measure_means(encoder, encoder.tokenize_all([sentence.words for sentence in chosen]))
        if kind == "optimal":
            batches = _batches(model, chosen)
            turns = range(max(len(masks), len(batches)) if batches else 0)
            pairs = [(masks[turn % len(masks)], batches[turn % len(batches)]) for turn in turns]
            constants = fit_constants(encoder, [partial(_loss, model, *pair) for pair in pairs], constants)
    set_substitute(encoder, kind, constants, seed)


@torch.no_grad()
def closed_losses(
    model: MultiTaskModel, sentences: Sequence[Sentence], masks: Sequence[Tensor], on_batch: Callable[[], None]
) -> NDArray[np.float64]:
    """Mean losses after `close_with`, a row for each mask and a column for each task, mini-batches weighted by their
    words; NaN of a task whose layer no sentence has."""
    sums, words = np.zeros((len(masks), len(model.tasks))), np.zeros(len(model.tasks))
    for batch in _batches(model, sentences):
        has = np.array([name in batch.targets for name in model.tasks])
        words += batch.words * has
        for place, mask in enumerate(masks):
            cast(Gates, model.gates[SHARED]).fix(mask)
            losses = model.losses(batch)
            sums[place, has] += [batch.words * float(losses[name]) for name in model.tasks if name in losses]
        on_batch()
    return np.divide(sums, words, out=np.full_like(sums, np.nan), where=words > 0)


def _batches(model: MultiTaskModel, sentences: Sequence[Sentence]) -> list[Batch]:
    """Mini-batches of sentences that have a layer of the model's tasks, with known labels."""
    pieces = model.encoder.tokenize_all([sentence.words for sentence in sentences])
    targets = {name: [known_target(cast(Task, task), one) for one in sentences] for name, task in model.tasks.items()}
    batches = [
        model.collate([pieces[row] for row in rows], {name: [of[row] for row in rows] for name, of in targets.items()})
        for rows in batched(range(len(sentences)), BATCH)
    ]
    return [batch for batch in batches if batch.targets]


def known_target(task: Task, sentence: Sentence) -> Target | None:
    """The target of a sentence; None where it lacks the layer, or has a label that the vocabulary lacks."""
    try:
        return task.target(sentence) if task.known(sentence) else None
    except KeyError:  # of an index of labels
        return None


def _loss(model: MultiTaskModel, mask: Tensor, batch: Batch) -> Tensor:
    cast(Gates, model.gates[SHARED]).fix(mask)
    return cast(Tensor, sum(model.losses(batch).values()))
