"""Reading what ``mtlprune analyze smoothing`` measured: ``smoothing.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtlprune.files import RunError, read_json, reading

SUMMARY = "smoothing.json"
AGAIN = "run `mtlprune analyze smoothing` again"
NEEDED = ("corpus", "split", "sentences", "encoders", "claims", "notes", "settings", "tokens")


def read_smoothing(folder: str | Path) -> dict[str, Any]:
    """The content of ``smoothing.json``; null becomes NaN in numbers of layers, labels, heads and tests.

    Raises:
        RunError: no such file, or not one that the verb wrote.
    """
    path = Path(folder) / SUMMARY
    if not path.is_file():
        raise RunError(f"{path} is missing; `mtlprune analyze smoothing ... --out {folder}` makes it")
    content = read_json(path, RunError, AGAIN)
    missing = [key for key in NEEDED if not isinstance(content, dict) or key not in content]
    if missing:
        raise RunError(f"{path}: expected {', '.join(missing)} in it; {AGAIN}")
    with reading(path, RunError, AGAIN):
        for encoder in content["encoders"]:
            for key in ("layers", "labels", "heads"):
                encoder[key] = _numbers(encoder[key])
        if content["claims"] is not None:
            content["claims"]["tests"] = _numbers(content["claims"]["tests"])
    return content


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return math.nan if value is None else value


def names(content: Mapping[str, Any]) -> list[str]:
    """What each encoder is called: its label; with its seed, and if need be its run, where labels are not enough."""
    encoders = content["encoders"]
    labels = [encoder["label"] for encoder in encoders]
    found = []
    for encoder in encoders:
        name = encoder["label"]
        if labels.count(name) > 1:
            name += f", seed {encoder['seed']}"
        shut = sum(head["gate"] <= 1e-3 for head in encoder["heads"])
        if shut:
            name += f", {len(encoder['heads']) - shut} of {len(encoder['heads'])} heads"
        found.append(name)
    return found
