"""Run folders as training and evaluation leave them, with counts of every sentence from which the scores follow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtlprune.evaluation.scores import SCORES, main_score
from mtlprune.layers import kind_of
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import LAYERS

SENTENCES = 60


def counts(task: str, skill: float, seed: int, sentences: int = SENTENCES) -> dict[str, list[Any]]:
    """Counts of the main score: gold and hard sentences are the same for all runs, what is found is the run's own."""
    corpus = np.random.default_rng([[*LAYERS].index(task), sentences])
    gold, hard = corpus.integers(1, 12, sentences), corpus.beta(4, 4, sentences)
    own = np.random.default_rng([seed, int(1000 * skill), [*LAYERS].index(task)])
    right = own.binomial(gold, np.clip(skill + 0.2 * (hard - 0.5), 0, 1))
    if task in ("pos", "dep"):
        return {{"pos": "correct", "dep": "arcs"}[task]: right.tolist(), "words": gold.tolist()}
    wrong = own.binomial(gold, 1 - skill)
    return {"correct": right.tolist(), "gold": gold.tolist(), "predicted": (right + wrong).tolist()}


def write_run(
    path: Path,
    skills: Mapping[str, float],
    *,
    seed: int = 1,
    split: str = "test",
    encoder: str = "minilm",
    ids: Sequence[str] | None = None,
    **settings: Any,
) -> RunFolder:
    """A run whose tasks are right so often; ``settings`` are paths such as "train.epochs"."""
    tree: dict[str, Any] = {
        "name": path.name,
        "data": {"path": "data/x"},
        "tasks": list(skills),
        "encoder": {"name": encoder, "random": False, "context": True},
        "decoders": {},
        "train": {"epochs": 3, "seed": seed},
        "pruning": {},
    }
    for key, value in settings.items():
        block, _, name = key.rpartition(".")
        tree[block][name] = value
    folder = RunFolder(path)
    folder.write_config(tree)
    folder.write_json("manifest.json", {"data": {"fingerprint": "f" * 64}, "finished": {"epoch": 3}})
    folder.write_json("best.json", {name: {"epoch": 3, "score": 50.0} for name in ("joint", *skills)})
    names = list(ids) if ids is not None else [f"s{i}" for i in range(SENTENCES)]
    write_counts(folder, split, names, {task: counts(task, s, seed, len(names)) for task, s in skills.items()})
    return folder


def write_counts(
    folder: RunFolder, split: str, ids: Sequence[str], columns: Mapping[str, dict[str, list[Any]]]
) -> None:
    """Counts, and the scores that follow from them; None: the layer of that sentence is unknown."""
    scores = {}
    for task, named in columns.items():
        sums = {name: sum(value for value in values if value is not None) for name, values in named.items()}
        name = main_score(task, {})
        scores[task] = {name: float(SCORES[kind_of(task)][name](sums))}
    folder.write_json(f"scores/{split}.json", scores)
    folder.write_text(f"counts/{split}.json", json.dumps({"ids": list(ids), "counts": columns}))
