"""What closed heads of a finished run contribute, measured or fitted on training sentences."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
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
    other, so that one table serves all masks.

    Args:
        model: in evaluation mode, with gates for all tasks, which are fixed to masks here.
        sentences: of its training set; of them `SENTENCES` are drawn by the seed.
        masks: (L, A) each, 0 where a head is going to be closed.
    """
    encoder, constants = model.encoder, None
    if kind in CONSTANT:
        order = np.random.default_rng([seed, 37]).permutation(len(sentences))[:SENTENCES]
        chosen = [sentences[row] for row in order.tolist()]
        pieces = encoder.tokenize_all([sentence.words for sentence in chosen])
        constants = measure_means(encoder, pieces)
        if kind == "optimal":
            targets = {
                name: [known_target(cast(Task, task), one) for one in chosen] for name, task in model.tasks.items()
            }
            losses = []
            for place, rows in enumerate(batched(range(len(chosen)), BATCH)):
                own = {name: [of[row] for row in rows] for name, of in targets.items()}
                batch = model.collate([pieces[row] for row in rows], own)
                if batch.targets:
                    losses.append(partial(_loss, model, masks[place % len(masks)], batch))
            constants = fit_constants(encoder, losses, constants)
    set_substitute(encoder, kind, constants, seed)


def known_target(task: Task, sentence: Sentence) -> Target | None:
    """The target of a sentence; None where it lacks the layer, or has a label that the vocabulary lacks."""
    try:
        return task.target(sentence) if task.known(sentence) else None
    except KeyError:  # of an index of labels
        return None


def _loss(model: MultiTaskModel, mask: Tensor, batch: Batch) -> Tensor:
    cast(Gates, model.gates[SHARED]).fix(mask)
    return cast(Tensor, sum(model.losses(batch).values()))
