"""Columns of the table of heads from a joint run: do its tasks pull a head's weights one way, and who needs it?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mtlprune.analyses.analysis import HeadColumn
from mtlprune.config.config import build_config
from mtlprune.corpora.store import load_corpus
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunError, RunFolder
from mtlprune.training.pruning.head_gradients import agreement, derivatives

BATCH = 32


def gradient_columns(name: str | Path, corpus: Path | None, sentences: int, seed: int = 0) -> list[HeadColumn]:
    """Mean cosine over pairs of tasks, the share of pairs that oppose each other, the mean cosine of a task with itself
    on the other half of the sentences (what noise leaves of 1), and by task the mean of |∂L/∂ξ|.

    Args:
        corpus: else the run's own.
        sentences: so many of the training split that know all of the run's tasks, drawn by ``seed``.

    Raises:
        RunError: a run of one task, another corpus than the run's, no such sentence.
        RunError, CorpusError: what cannot be read.
    """
    folder = RunFolder.with_weights(name)
    config = build_config(folder.read_config(), str(folder.config_path))
    if len(config.tasks) < 2:
        raise RunError(f"--gradients: {name} is a run of {config.tasks[0]} alone; expected one of several tasks")
    stored = load_corpus(corpus or Path(config.data.path))
    if stored.fingerprint != folder.read_manifest()["data"]["fingerprint"]:
        raise RunError(f"--gradients: {name} was trained on another corpus than {stored.path}; name that one")
    model = MultiTaskModel.load(name).eval()
    tasks = {task: model.tasks[task] for task in config.tasks}
    fit = [s for s in stored[config.data.train] if all(task.known(s) for task in tasks.values())]  # type: ignore[operator]
    if not fit:
        raise RunError(f"--gradients: no training sentence of {stored.path} has all of {', '.join(tasks)}")
    order = np.random.default_rng([seed, 8]).permutation(len(fit))[:sentences]
    chosen = [fit[place] for place in order.tolist()]
    pieces = model.encoder.tokenize_all([sentence.words for sentence in chosen])
    targets = {name: [task.target(s) for s in chosen] for name, task in tasks.items()}  # type: ignore[operator]
    told = agreement(model, pieces, targets, BATCH)
    found: list[HeadColumn] = []

    def add(name: str, values: NDArray[np.float64], meaning: str, tested: bool = True) -> None:
        found.append(HeadColumn(name, "gradients", values, tested, meaning))

    add("gradient cosine", told.mean(), "cosine of two tasks' gradients, mean over pairs of tasks")
    add("tasks opposed", told.opposed(), "share of pairs of tasks whose gradients oppose each other")
    if len(chosen) > BATCH:  # with one batch there is no other half
        halves = "cosine of a task's gradients on two halves of the sentences, mean over tasks"
        add("gradient halves", told.halves.mean(0), halves, tested=False)
    gone = np.isnan(told.mean())
    for task, wanted in targets.items():
        sums = torch.zeros(gone.shape)
        for start in range(0, len(chosen), BATCH):
            part = slice(start, start + BATCH)
            sums += derivatives(model, pieces[part], {task: wanted[part]}).abs().sum(0)
        mean = sums.double().numpy() / len(chosen)
        add(f"importance {task.upper()}", np.where(gone, np.nan, mean), "mean of |∂L/∂ξ| over sentences")
    return found
