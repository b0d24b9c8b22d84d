"""Result folders of probes as `mtlprune analyze probes` writes them, with plausible numbers that a formula makes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.probes import RESULT, TRUE_LABELS, labels_of
from mtlprune.layers import LAYERS, in_order, kind_of
from mtlprune.runs.results import Result, read_result, write_result

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
    differences: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """A result folder; ``differences`` to single-task runs are rows of that frame."""
    rows = [
        row
        for mode in modes
        for encoder, seed in encoders
        for task, names in labels.items()
        for place, label in enumerate(names)
        for row in _label_rows(encoder, seed, mode, task, label, place, shape)
    ]
    return write_rows(folder, rows, differences=differences)


def write_rows(
    folder: Path, rows: Sequence[Mapping[str, Any]], few: int = FEW, differences: Sequence[Mapping[str, Any]] = ()
) -> Path:
    accuracy = pd.DataFrame(rows)
    accuracy.attrs["exact"] = True
    kinds = {task: kind_of(LAYERS.get(task, "tags")) for task in in_order(accuracy["task"].unique())}
    labels, notes = labels_of(accuracy.round({"test": 4}), few, kinds)
    probe = accuracy[accuracy["control"] == TRUE_LABELS]
    size = {"layers": int(probe["layer"].max()), "heads": int(probe["head"].max())}
    encoders = [
        {**dict(zip(RESULT[:3], map(str, keys[:2]), strict=False)), "seed": int(keys[2]), **size}
        | {"open": len(heads.drop_duplicates(["layer", "head"]))}
        for keys, heads in probe.groupby(RESULT[:3], sort=False)
    ]
    about = {"corpus": "ewt5", "fingerprint": "f" * 64, "specials": "kept", "few": few, "kinds": kinds}
    frames = {"accuracy": accuracy, "labels": labels}
    if differences:
        frames["differences"] = pd.DataFrame(differences)
    write_result(folder, Result("probes", {**about, "encoders": encoders, "notes": notes}, frames))
    return folder


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return read_result(folder / "probes.json").frames["accuracy"].to_dict("records")


def row(**values: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"encoder": "pretrained", "run": "minilm", "seed": 0, "mode": "sound", "control": "none"}
    usual |= {"task": "pos", "label": "NN", "items": 100, "layer": 1, "head": 1, "dev": 50.0, "test": 50.0}
    return usual | {"best": False, "distance": math.nan} | values


def _label_rows(
    encoder: str, seed: int, mode: str, task: str, label: str, place: int, shape: tuple[int, int]
) -> list[dict[str, Any]]:
    """Zipf's law for items; any accuracies."""
    count = len(LABELS.get(task, "x" * 20))
    items = max(1, round(3000 / (1 + place) ** 1.6)) if place < count - 2 else 1
    number = sum(map(ord, task + label))
    generator = np.random.default_rng([number, seed, sum(map(ord, encoder + mode))])
    found = generator.uniform(10, 90, shape)
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
        controls["random_encoder"] = at, generator.uniform(10, 50)
        if task in ("dep", "srl"):
            controls |= {"offset": (nowhere, generator.uniform(10, 60)), "chance": (nowhere, 9.0)}
    return rows + [row(**same, **here, control=name, dev=x, test=x) for name, (here, x) in controls.items()]
