"""Reading what ``mtlprune analyze degeneration`` measured: ``degeneration.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtlprune.files import RunError, read_made, reading, undefined

SUMMARY = "degeneration.json"
COMMAND = "mtlprune analyze degeneration"
NEEDED = ("corpus", "split", "sentences", "encoders", "decoders", "pairs", "claims", "notes", "settings", "rows")


def read_degeneration(folder: str | Path) -> dict[str, Any]:
    """The content of ``degeneration.json``, with NaN for numbers that are not defined; ``claims`` may be None.

    Raises:
        RunError: no such file, or not one that the verb wrote.
    """
    path = Path(folder) / SUMMARY
    content = read_made(path, COMMAND, NEEDED)
    with reading(path, RunError, f"run `{COMMAND}` again"):
        _fill(content)
    return content


def _fill(content: dict[str, Any]) -> None:
    """NaN for null."""
    for key in ("decoders", "pairs"):
        content[key] = undefined(content[key])
    for encoder in content["encoders"]:
        for key in ("embeddings", "hidden", "heads"):
            encoder[key] = undefined(encoder[key])
        if encoder["cone"] is not None:
            encoder["cone"] = undefined(encoder["cone"])
    if content["claims"] is not None:
        content["claims"]["tests"] = undefined(content["claims"]["tests"])
        for entry in content["claims"]["encoders"]:
            entry["means"] = undefined(entry["means"])


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
