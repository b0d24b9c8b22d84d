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
from mtlprune.evaluation.head_masks import Mask
from mtlprune.model import SHARED, Batch, MultiTaskModel
from mtlprune.sentence import Sentence
from mtlprune.tasks.base import Target, Task

BATCH, SENTENCES = 32, 256
"""Sentences of a batch, and as many as are drawn at most."""


def close(model: MultiTaskModel, heads: Mask) -> None:
    """Close these heads of a model with one gate set, and open all others."""
    cast(Gates, model.gates[SHARED]).fix(torch.from_numpy(~heads))


def close_with(
    model: MultiTaskModel, kind: Closed, sentences: Sequence[Sentence], closed: Sequence[Mask], seed: int = 0
) -> None:
    """Choose what closed heads of a model contribute from now on.

    Constants of kind optimal are fitted on the sum of all tasks' losses, batch after batch with one set of heads closed
    after the other until all batches and all sets had their turn, so that one table serves all sets.

    Args:
        model: in evaluation mode, with one gate set for all tasks, which is fixed to masks here.
        sentences: of its training set; of them `SENTENCES` are drawn by the seed.
        closed: sets of heads that are going to be closed.
    """
    encoder, constants = model.encoder, None
    if kind in CONSTANT:
        order = np.random.default_rng([seed, 37]).permutation(len(sentences))[:SENTENCES]
        chosen = [sentences[row] for row in order.tolist()]
        constants = measure_means(encoder, encoder.tokenize_all([sentence.words for sentence in chosen]))
        if kind == "optimal":
            batches = _batches(model, chosen)
            turns = range(max(len(closed), len(batches)) if batches else 0)
            pairs = [(closed[turn % len(closed)], batches[turn % len(batches)]) for turn in turns]
            constants = fit_constants(encoder, [partial(_loss, model, *pair) for pair in pairs], constants)
    set_substitute(encoder, kind, constants, seed)


@torch.no_grad()
def closed_losses(
    model: MultiTaskModel, sentences: Sequence[Sentence], closed: Sequence[Mask], on_batch: Callable[[], None]
) -> NDArray[np.float64]:
    """Mean losses after `close_with`, a row for each set of closed heads and a column for each task, mini-batches
    weighted by their words; NaN of a task whose layer no sentence has."""
    sums, words = np.zeros((len(closed), len(model.tasks))), np.zeros(len(model.tasks))
    for batch in _batches(model, sentences):
        has = np.array([name in batch.targets for name in model.tasks])
        words += batch.words * has
        for place, heads in enumerate(closed):
            close(model, heads)
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
        return task.target(sentence) if task.is_annotated(sentence) else None
    except KeyError:  # of an index of labels
        return None


def _loss(model: MultiTaskModel, heads: Mask, batch: Batch) -> Tensor:
    close(model, heads)
    return cast(Tensor, sum(model.losses(batch).values()))
