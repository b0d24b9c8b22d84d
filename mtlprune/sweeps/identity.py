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

Known = dict[tuple[Any, ...], tuple[Block, str]]
"""Blocks that several configurations share, by their identity and what else matters, and what counts of them."""


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
    told = others.get
    beside: dict[str, tuple[Any, ...]] = {"data": (fingerprint,), "decoders": config.tasks}
    for block, key in REFERENCES:
        beside[block] = (*beside.get(block, ()), (key, told(f"{block}.{key}")))
    shown = []
    for part, name, default in PARTS:
        text = _text(part, getattr(config, part), beside.get(part, ()), known)
        if part in ALWAYS or (text != "{}" and text != default):
            shown.append(f"{name}: {text}")
    return hashlib.sha256(f"{{{', '.join(shown)}}}".encode()).hexdigest()


ALWAYS = ("tasks", "data", "encoder", "decoders", "train", "pruning")
"""Parts of a configuration that stand in its identity though nothing in them differs from the defaults."""


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


PARTS = [
    (part, _as_json(part), _as_json(None if field.is_required() or isinstance(field.default, Block) else field.default))
    for part, field in sorted(Config.model_fields.items())
    if part != "name"
]
"""Every part of a configuration that counts, its name as JSON, and what it is where nothing is said."""


def _text(part: str, value: Any, beside: tuple[Any, ...], known: Known) -> str:
    """The JSON of what counts of a part of a configuration; ``beside`` is what that depends on, too."""
    if not isinstance(value, Block):
        return _as_json(value)
    name = (id(value), *beside)
    if name not in known:
        known[name] = value, _as_json(_counted(part, value, beside))
    return known[name][1]


def _counted(part: str, block: Any, beside: tuple[Any, ...]) -> dict[str, Any]:
    tree = block.model_dump(mode="json", exclude_defaults=True)
    if part == "data":
        return {**{key: value for key, value in tree.items() if key != "path"}, "fingerprint": beside[0]}
    if part == "decoders":
        return {task: tree[task] for task in beside if tree.get(task)}
    if part == "train":
        without = {*WITHOUT_EFFECT}
        without |= {"tau"} if block.mixing != "sampled" else set()
        without |= {"balance_window"} if block.balance != "running_mean" else set()
        tree = {key: value for key, value in tree.items() if key not in without}
    if part in ("train", "pruning"):
        tree |= {key: other for key, other in beside if key in tree and other is not None}
    return tree


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
