"""Result folders of probes as `mtlprune probe` writes them, with plausible numbers that a formula makes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

LABELS = {
    "pos": ["NN", "IN", "DT", "NNP", "JJ", ".", "NNS", "PRP", "RB", "VB", "VBD", "CC", "NFP", "LS", "AFX"],
    "ner": ["PERSON", "GPE", "ORG", "DATE", "CARDINAL", "NORP", "LAW", "LANGUAGE"],
    "dep": ["punct", "case", "det", "nsubj", "amod", "root", "obj", "obl", "conj", "acl:relcl", "iobj", "csubj"],
    "con": ["NP", "VP", "PP", "S", "ADVP", "ADJP", "SBAR", "UCP", "LST"],
    "srl": ["ARG1", "ARG0", "ARG2", "ARGM-TMP", "ARGM-MOD", "R-ARG1", "C-ARG1", "ARG5", "C-ARG3"],
}
"""The most frequent first; the last two have one item each."""
FEW = 20

Encoders = Sequence[tuple[str, int]]
USUAL: Encoders = (
    ("pretrained", 0),
    *((task, seed) for task in ("POS", "NER", "DEP", "CON", "SRL") for seed in (1, 2, 3)),
    *(("MTL-5", seed) for seed in (1, 2, 3)),
)


def write_probes(
    folder: Path,
    encoders: Encoders = USUAL,
    labels: Mapping[str, Sequence[str]] = LABELS,
    shape: tuple[int, int] = (6, 12),
    modes: Sequence[str] = ("sound", "as-released"),
    **changes: Any,
) -> Path:
    """A result folder; ``changes`` go into probes.json."""
    rows = [
        row
        for mode in modes
        for encoder, seed in encoders
        for task, names in labels.items()
        for place, label in enumerate(names)
        for row in _label_rows(encoder, seed, mode, task, label, place, shape)
    ]
    write_rows(folder, rows)
    summary = {
        "corpus": "ewt5",
        "fingerprint": "f" * 64,
        "splits": {"centroids": "train", "choice": "dev", "report": "test"},
        "specials": "kept",
        "encoders": [{"label": encoder, "seed": seed} for encoder, seed in encoders],
        "few": FEW,
        "summary": [],
    }
    (folder / "probes.json").write_text(json.dumps(summary | changes))
    return folder


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """probes.parquet of these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(folder / "probes.parquet")


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of probes.parquet, to damage and write back."""
    return pd.read_parquet(folder / "probes.parquet").to_dict("records")


def row(**values: Any) -> dict[str, Any]:
    """One row; what is not named is usual."""
    usual: dict[str, Any] = {"encoder": "pretrained", "run": "minilm", "seed": 0, "mode": "sound", "control": "none"}
    usual |= {"task": "pos", "label": "NN", "items": 100, "layer": 1, "head": 1, "dev": 50.0, "test": 50.0}
    return usual | {"best": False} | values


def _label_rows(
    encoder: str, seed: int, mode: str, task: str, label: str, place: int, shape: tuple[int, int]
) -> list[dict[str, Any]]:
    """Zipf's law for items; fine-tuning for the task lifts accuracies, joint training by less."""
    count = len(LABELS.get(task, "x" * 20))
    items = max(1, round(3000 / (1 + place) ** 1.6)) if place < count - 2 else 1
    number = sum(map(ord, task + label))
    generator = np.random.default_rng([number, seed, sum(map(ord, encoder + mode))])
    height = 25 + 60 * ((number * 7919) % 97) / 97
    lift = (0.5 if encoder == task.upper() else 0.2 if encoder.startswith("MTL") else 0.0) * (100 - height)
    talent = np.random.default_rng(number).uniform(0.3, 1, shape)
    found = np.clip((height + lift) * talent + generator.normal(0, 2, shape), 0, 100)
    step = 100 / items  # accuracies are fractions of items
    test = np.round(np.clip(found + generator.normal(0, 3, shape), 0, 100) / step) * step
    best = np.unravel_index(np.argmax(test if mode == "as-released" else found), shape)
    same = {"encoder": encoder, "run": f"runs/{encoder.lower()}-{seed}", "seed": seed, "mode": mode, "task": task}
    same |= {"label": label, "items": items}
    rows = [
        row(**same, layer=x + 1, head=y + 1, dev=float(found[x, y]), test=float(test[x, y]), best=(x, y) == best)
        for x, y in np.ndindex(*shape)
    ]
    at = {"layer": 1 + number % shape[0], "head": 1 + number % shape[1], "best": True}
    nowhere = {"layer": 0, "head": 0, "best": True}
    controls = {"shuffled_labels": (at, generator.uniform(8, 16))}
    if encoder == "pretrained":
        controls["random_encoder"] = at, np.clip(generator.normal(0.45 * height, 8), 0, 100)
        if task in ("dep", "srl"):
            controls |= {
                "offset": (nowhere, np.clip(generator.normal(0.7 * height, 15), 0, 100)),
                "chance": (nowhere, 9.0),
            }
    return rows + [row(**same, **here, control=name, dev=x, test=x) for name, (here, x) in controls.items()]
