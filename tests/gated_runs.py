"""Small run folders with gates, written as training leaves them; and claims without folders."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mtlprune.io.files import SUMS, file_sha256
from mtlprune.runs.claims import Claim
from mtlprune.runs.folder import RunFolder


def write_run(
    path: Path,
    tasks: Sequence[str],
    gates: ArrayLike | Mapping[str, ArrayLike],
    *,
    seed: int = 1,
    encoder: str = "minilm",
    random: bool = False,
    rate: float = 1e-4,
    data: str = "f" * 64,
    finished: bool = True,
) -> RunFolder:
    """A run of three epochs (10 steps each); the best is the second, whose gates are ``gates``. Others are all 1."""
    folder = RunFolder(path)
    folder.path.mkdir(parents=True)
    named = gates if isinstance(gates, Mapping) else {"shared": gates}
    sets = {key: np.asarray(value) for key, value in named.items()}
    for epoch in (1, 2, 3):
        here = {key: (value if epoch == 2 else np.ones_like(value)) for key, value in sets.items()}
        append_gates(folder, epoch, here)
    folder.write_json("best.json", {name: {"epoch": 2, "score": 90.0} for name in ("joint", *tasks)})
    end = {"finished": {"epoch": 3}} if finished else {}
    folder.write_json("manifest.json", {"data": {"fingerprint": data}, **end})
    folder.write_config(
        {
            "name": path.name,
            "data": {"path": "data/x"},
            "tasks": list(tasks),
            "encoder": {"name": encoder, "random": random},
            "train": {"seed": seed, "encoder_rate": rate},
        }
    )
    return folder


def forget_hashes(path: Path) -> None:
    """Make a run one that trains on, whose manifest has no SHA-256 yet; weights are those that best.json means."""
    folder = RunFolder(path)
    folder.write_json("manifest.json", {k: v for k, v in folder.read_json("manifest.json").items() if k != "files"})
    best = folder.read_best()
    files = {key: folder.weights_path(one["epoch"]) for key, one in best.items()}
    folder.write_json("best.json", {key: {**one, "sha256": file_sha256(files[key])} for key, one in best.items()})
    (path / "encoder" / SUMS).unlink(missing_ok=True)


def append_gates(folder: RunFolder, epoch: int, sets: Mapping[str, Any]) -> None:
    """One more evaluation in gates.jsonl."""
    opened = {key: int((np.asarray(value) > 1e-3).sum()) for key, value in sets.items()}
    rows = {key: np.asarray(value, dtype=float).tolist() for key, value in sets.items()}
    record = {"epoch": epoch, "step": 10 * epoch, "open": opened, "expected": opened, "gates": rows}
    with (folder.path / "gates.jsonl").open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record) + "\n")


def write_selection(folder: RunFolder, frequencies: ArrayLike) -> None:
    """What ten halves of the data selected, of a run with pruning.method: stable."""
    shares = np.asarray(frequencies, dtype=float)
    selected = [np.flatnonzero(shares.ravel() > half / 10 + 0.05).tolist() for half in range(10)]
    tree = {"sentences": 5, "expected_false": 1.0, "frequencies": shares.tolist(), "selected": selected}
    folder.write_json("selection.json", tree)


def claim(label: str, seed: int, gates: ArrayLike) -> Claim:
    """A claim without a folder."""
    return Claim(f"runs/{label}-{seed}", label, seed, "minilm", np.asarray(gates, dtype=float), [])


def scattered(generator: np.random.Generator, each: Sequence[int], heads: int) -> np.ndarray:
    """(L, heads) of 0 and 1 with so many open heads in each layer, anywhere within it."""
    return np.stack([generator.permutation(np.arange(heads) < number) for number in each]).astype(float)
