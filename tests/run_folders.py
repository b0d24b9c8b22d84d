"""Run folders as training and evaluation leave them: settings, gates, counts and their scores; claims without folders.

Counts are of every sentence, and the scores follow from them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mtlprune.evaluation.scores import SCORES, main_score
from mtlprune.io.files import SUMS, file_sha256
from mtlprune.layers import kind_of
from mtlprune.runs.claims import Claim
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import LAYERS

SENTENCES = 60


def write_run(
    path: Path,
    tasks: Sequence[str] | Mapping[str, float],
    gates: ArrayLike | Mapping[str, ArrayLike] | None = None,
    *,
    seed: int = 1,
    encoder: str = "minilm",
    split: str = "test",
    ids: Sequence[str] = tuple(f"s{place}" for place in range(SENTENCES)),
    data: str = "f" * 64,
    finished: bool = True,
    **settings: Any,
) -> RunFolder:
    """A run of three epochs (10 steps each), of which the second is the best.

    Args:
        tasks: their names; or also how often each is right, then the run is scored on ``split``.
        gates: those of the best epoch; in the others all are 1.
        ids: of the sentences of the split.
        data: fingerprint of the corpus.
        settings: paths such as "train.epochs".
    """
    folder = RunFolder(path)
    tree: dict[str, Any] = {
        "name": path.name,
        "data": {"path": "data/x"},
        "tasks": list(tasks),
        "encoder": {"name": encoder, "random": False, "context": True},
        "decoders": {},
        "train": {"epochs": 3, "seed": seed, "encoder_rate": 1e-4},
        "pruning": {},
    }
    for key, value in settings.items():
        block, _, name = key.rpartition(".")
        tree[block][name] = value
    folder.write_config(tree)
    end = {"finished": {"epoch": 3}} if finished else {}
    folder.write_json("manifest.json", {"data": {"fingerprint": data}, **end})
    folder.write_json("best.json", {name: {"epoch": 2, "score": 90.0} for name in ("joint", *tasks)})
    if gates is not None:
        sets = gates if isinstance(gates, Mapping) else {"shared": gates}
        ones = {key: np.ones(np.shape(one)) for key, one in sets.items()}
        for epoch in (1, 2, 3):
            append_gates(folder, epoch, sets if epoch == 2 else ones)
    if isinstance(tasks, Mapping):
        write_counts(folder, split, ids, {task: counts(task, skill, seed, len(ids)) for task, skill in tasks.items()})
    return folder


def write_runs(
    root: Path, sets: Sequence[Mapping[str, float]], seeds: Iterable[int] = (1,), **settings: Any
) -> list[RunFolder]:
    """Runs of tasks that are right so often, for each seed."""
    made = [(skills, seed, root / f"{'-'.join(skills)}-{seed}") for seed in seeds for skills in sets]
    return [write_run(path, skills, seed=seed, **settings) for skills, seed, path in made]


def change_json(path: Path, **values: Any) -> None:
    """Give keys of the object in a file other values."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_config(folder: RunFolder, **changes: Any) -> RunFolder:
    """Write other settings into the configuration of a run: blocks keep what is not named."""
    tree = folder.read_config()
    for key, value in changes.items():
        tree[key] = {**tree.get(key, {}), **value} if isinstance(value, Mapping) else value
    folder.write_config(tree)
    return folder


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


def forget_hashes(path: Path) -> None:
    """Make a run one that trains on, whose manifest has no SHA-256 yet; weights are those that best.json means."""
    folder = RunFolder(path)
    folder.write_json("manifest.json", {k: v for k, v in folder.read_json("manifest.json").items() if k != "files"})
    best = folder.read_best()
    files = {key: folder.weights_path(one["epoch"]) for key, one in best.items()}
    folder.write_json("best.json", {key: {**one, "sha256": file_sha256(files[key])} for key, one in best.items()})
    (path / "encoder" / SUMS).unlink(missing_ok=True)


def append_gates(folder: RunFolder, epoch: int, sets: Mapping[str, Any]) -> None:
    opened = {key: int((np.asarray(value) > 1e-3).sum()) for key, value in sets.items()}
    rows = {key: np.asarray(value, dtype=float).tolist() for key, value in sets.items()}
    record = {"epoch": epoch, "step": 10 * epoch, "open": opened, "expected": opened, "gates": rows}
    with folder.gates_path.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record) + "\n")


def write_selection(folder: RunFolder, frequencies: ArrayLike) -> None:
    """What ten halves of the data selected, of a run with pruning.method: stable."""
    shares = np.asarray(frequencies, dtype=float)
    selected = [np.flatnonzero(shares.ravel() > half / 10 + 0.05).tolist() for half in range(10)]
    tree = {"sentences": 5, "expected_false": 1.0, "frequencies": shares.tolist(), "selected": selected}
    folder.write_json("selection.json", tree)


def claim(label: str, seed: int, gates: ArrayLike) -> Claim:
    return Claim(f"runs/{label}-{seed}", label, seed, "minilm", np.asarray(gates, dtype=float), [])


def scattered(generator: np.random.Generator, each: Sequence[int], heads: int) -> np.ndarray:
    """(L, heads) of 0 and 1 with so many open heads in each layer, anywhere within it."""
    return np.stack([generator.permutation(np.arange(heads) < number) for number in each]).astype(float)
