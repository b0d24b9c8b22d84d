"""Reads what ``mtlprune analyze dissect`` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtlprune.files import read_made

JSON = "dissection.json"


def read_dissection(folder: Path) -> dict[str, Any]:
    """The results in a folder.

    Raises:
        RunError: there are none, or they are damaged.
    """
    return read_made(folder / JSON, "mtlprune analyze dissect", ("encoders", "head", "losses", "gates"))


def short(key: str, found: Mapping[str, Any]) -> str:
    """The name of an encoder as figures write it: without its seed where all runs have the same one."""
    seeds = {encoder["seed"] for encoder in found["encoders"] if encoder["tasks"]}
    label, _, _ = key.partition(", seed ")
    return label if len(seeds) < 2 else key.replace(", seed ", "·")


def about(found: Mapping[str, Any]) -> str:
    """Where sentences come from."""
    head = found["head"]
    return f"{head['sentences']} sentences of {head['split']} of {head['corpus']}"


def scores_by_task(found: Mapping[str, Any]) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Task to the encoders that were scored on it, in order, with their scores."""
    tasks: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for encoder in found["encoders"]:
        for scores in encoder["scores"]:
            tasks.setdefault(scores["task"], []).append((encoder["key"], scores))
    return tasks


WHAT = {
    "pos": "POS accuracy",
    "ner": "NER entity F1",
    "dep": "DEP relation accuracy",
    "con": "CON label accuracy",
    "srl": "SRL role accuracy",
    "wsd": "rolesets, learned net",
    "wsd-knn": "rolesets, 5 neighbours",
    "mlm": "masked sub-words, own head",
}
