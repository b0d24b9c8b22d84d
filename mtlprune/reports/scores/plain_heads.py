"""Scores of plain fine-tuning, with which single-task runs are compared before anything is built on them."""

from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

from mtlprune.runs.columns import Columns
from mtlprune.runs.groups import updates_of


class PlainHead(NamedTuple):
    """A token-classification head on the same encoder, trained by the Trainer of transformers.

    Attributes:
        fingerprint: the corpus.
        encoder, split: what was trained, and which split was scored.
        updates: its number of updates.
        scores: task → mean score in percent over the seeds.
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
"""EWT5, 2,000 training sentences, four passes: results/baselines/peers.md, a test compares."""


def warnings(columns: Columns) -> Iterator[str]:
    """A sentence for each single task that lies below plain fine-tuning with no more updates than its runs had."""
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
