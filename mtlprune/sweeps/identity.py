"""What makes two runs the same: the settings that change a result, without those that do not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtlprune.blocks import Block
from mtlprune.config.config import Config
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import INFO
from mtlprune.files import read_json, reading

REFERENCES = (("train", "start"), ("pruning", "importance_of"), ("pruning", "layers_like"))
"""Settings that name another run."""
WITHOUT_EFFECT = ("threads", "device", "checkpoint_minutes", "tensorboard", "log_uas")
"""Settings of training that change how fast or how openly, not what is computed (threads: beyond rounding)."""


LETTERS = 8

Known = dict[int, tuple[Block, dict[str, Any]]]
"""Blocks that several configurations share, by their identity, and their settings that differ from the defaults."""


def digest(config: Config, fingerprint: str, others: Mapping[str, str]) -> str:
    """The first eight letters of :func:`whole_digest`, which name folders."""
    return whole_digest(config, fingerprint, others, {})[:LETTERS]


def whole_digest(config: Config, fingerprint: str, others: Mapping[str, str], known: Known) -> str:
    """A SHA-256: the same for configurations that give the same run, and for no others.

    The data count by their fingerprint, not by their path; other runs by their own digest; decoders of tasks that are
    not trained do not count. Only what differs from the defaults does, so that settings which later releases add
    change no digest.

    Args:
        fingerprint: of the corpus.
        others: ``train.start`` and the like → digest of the run they name.
        known: filled; makes digests of many configurations cheap.
    """
    tree = {key: found for key in Config.model_fields if (found := _changed(config, key, known))}
    decoders = {task: tree.get("decoders", {}).get(task) for task in config.tasks}
    train = {key: value for key, value in tree.get("train", {}).items() if key not in WITHOUT_EFFECT}
    if config.train.mixing != "sampled":
        train.pop("tau", None)
    if config.train.balance != "running_mean":
        train.pop("balance_window", None)
    identity: dict[str, Any] = {
        **{key: value for key, value in tree.items() if key != "name"},  # a new block counts without a line here
        "data": {**{key: value for key, value in tree["data"].items() if key != "path"}, "fingerprint": fingerprint},
        "tasks": list(config.tasks),
        "encoder": tree.get("encoder", {}),
        "decoders": {task: options for task, options in decoders.items() if options},
        "train": train,
        "pruning": tree.get("pruning", {}),
    }
    for block, key in REFERENCES:
        if key in identity[block]:
            identity[block][key] = others.get(f"{block}.{key}", identity[block][key])
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _changed(config: Config, key: str, known: Known) -> Any:
    """What differs from the defaults, as JSON has it; nothing where nothing does."""
    value = getattr(config, key)
    if not isinstance(value, Block):
        return None if value == Config.model_fields[key].default else value
    if id(value) not in known:
        known[id(value)] = value, value.model_dump(mode="json", exclude_defaults=True)
    return known[id(value)][1]


def data_noted(path: Path) -> tuple[str, list[str]]:
    """The fingerprint and the names of the splits of a stored corpus. Raises CorpusError where there is none."""
    if not (path / INFO).is_file():
        raise CorpusError(
            f"{path}: expected a corpus made by 'mtlprune data build', found none; build it, or name another with "
            "data.path=..."
        )
    with reading(path / INFO, CorpusError, "build the corpus anew"):
        info = read_json(path / INFO, CorpusError)
        return str(info["fingerprint"]), list(info["splits"])
