"""Reference scores of plain fine-tuning, and warnings about single-task runs that score lower.

A comparison of joint and single-task training means little if the single-task runs are worse than plain fine-tuning.
"""

from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

from mtlprune.runs.columns import Columns
from mtlprune.runs.groups import updates_of


class PlainHead(NamedTuple):
    """Scores of a token-classification head on an encoder, trained by the Trainer of transformers.

    Attributes:
        fingerprint: fingerprint of the corpus.
        encoder: name of the encoder.
        split: split of the scores.
        updates: number of updates of the training.
        scores: task → mean score over seeds, in percent.
    """

    fingerprint: str
    encoder: str
    split: str
    updates: int
    scores: dict[str, float]


PLAIN_HEADS = (
    PlainHead(
        fingerprint="7ad0aa749f3d21adcd2a9e300447efa332cc6484410b3d82545b90367504510a",
        encoder="minilm",
        split="test",
        updates=252,
        scores={"pos": 93.41, "ner": 67.61},
    ),
)
"""Scores on EWT5 after four passes over 2,000 training sentences, from results/baselines/peers.md. A test checks that
they agree with this page."""


def warnings(columns: Columns) -> Iterator[str]:
    """Yield a warning for each column of single-task runs without pruning whose mean score is below that of plain
    fine-tuning with the same number of updates or fewer."""
    for column in columns.columns:
        for plain in (plain for plain in PLAIN_HEADS if plain.split == columns.split):
            for task, score in plain.scores.items():
                runs = [
                    run
                    for run in column.runs_of(task)
                    if run.tasks == (task,)
                    and not run.kind
                    and (run.fingerprint, run.config.encoder.name) == (plain.fingerprint, plain.encoder)
                    and run.config.pruning.method == "none"
                    and updates_of(run.manifest) >= plain.updates
                ]
                if runs and (mean_score := mean(run.scores[task] for run in runs)) < score:
                    yield (
                        f"Warning: {task.upper()} in {column.title} scores {mean_score:.2f}, below the {score:.2f} of "
                        f"plain fine-tuning with {plain.updates} updates; tune the settings before you compare runs "
                        "(docs/guides/tuning.md)."
                    )
