"""Reading what ``mtlprune analyze degeneration`` measured: ``degeneration.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtlprune.analyses.json_numbers import numbers
from mtlprune.files import RunError, read_json, reading

SUMMARY = "degeneration.json"
AGAIN = "run `mtlprune analyze degeneration` again"
NEEDED = ("corpus", "split", "sentences", "encoders", "decoders", "pairs", "claims", "notes", "settings", "rows")


def read_degeneration(folder: str | Path) -> dict[str, Any]:
    """The content of ``degeneration.json``, with NaN for numbers that are not defined; ``claims`` may be None.

    Raises:
        RunError: no such file, or not one that the verb wrote.
    """
    path = Path(folder) / SUMMARY
    if not path.is_file():
        raise RunError(f"{path} is missing; `mtlprune analyze degeneration ... --out {folder}` makes it")
    content = read_json(path, RunError, AGAIN)
    missing = [key for key in NEEDED if not isinstance(content, dict) or key not in content]
    if missing:
        raise RunError(f"{path}: expected {', '.join(missing)} in it; {AGAIN}")
    with reading(path, RunError, AGAIN):
        _fill(content)
    return content


def _fill(content: dict[str, Any]) -> None:
    """NaN for null."""
    for key in ("decoders", "pairs"):
        content[key] = numbers(content[key])
    for encoder in content["encoders"]:
        for key in ("embeddings", "hidden", "heads"):
            encoder[key] = numbers(encoder[key])
        if encoder["cone"] is not None:
            encoder["cone"] = numbers(encoder["cone"])
    if content["claims"] is not None:
        content["claims"]["tests"] = numbers(content["claims"]["tests"])
        for entry in content["claims"]["encoders"]:
            entry["means"] = numbers(entry["means"])


def decoder_name(content: Mapping[str, Any], decoder: Mapping[str, Any]) -> str:
    """What its encoder is called; of a run with a gate set a task, which is several encoders, the run's label."""
    called = zip(names(content), content["encoders"], strict=True)
    found = [name for name, encoder in called if encoder["run"] == decoder["run"]]
    if len(found) == 1:
        return found[0]
    runs = {other["run"] for other in content["decoders"] if other["label"] == decoder["label"]}
    return decoder["label"] if len(runs) == 1 else f"{decoder['label']}, seed {decoder['seed']}"


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
