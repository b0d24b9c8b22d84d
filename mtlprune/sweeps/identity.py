"""What makes two runs the same: the settings that change a result, without those that do not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtlprune.config import Config
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import INFO

REFERENCES = (("train", "start"), ("pruning", "importance_of"), ("pruning", "layers_like"))
"""Settings that name another run."""
WITHOUT_EFFECT = ("threads", "device", "checkpoint_minutes", "tensorboard", "log_uas")
"""Settings of training that change how fast or how openly, not what is computed (threads: beyond rounding)."""


def digest(config: Config, fingerprint: str, others: Mapping[str, str]) -> str:
    """Eight letters: the same for configurations that give the same run, and for no others.

    The data count by their fingerprint, not by their path; other runs by their own digest; decoders of tasks that are
    not trained do not count. Only what differs from the defaults does, so that settings which later releases add
    change no digest.

    Args:
        fingerprint: of the corpus.
        others: ``train.start`` and the like → digest of the run they name.
    """
    tree = config.model_dump(mode="json", exclude_defaults=True)
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
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def data_fingerprint(path: Path) -> str:
    """The fingerprint that a stored corpus has noted. Raises CorpusError where there is none."""
    return str(_noted(path, "fingerprint"))


def data_splits(path: Path) -> list[str]:
    """The names of the splits of a stored corpus. Raises CorpusError where there is none."""
    return list(_noted(path, "splits"))


def _noted(path: Path, key: str) -> Any:
    try:
        return json.loads((path / INFO).read_text(encoding="utf-8"))[key]
    except FileNotFoundError:
        raise CorpusError(
            f"{path}: expected a corpus made by 'mtlprune data build', found none; build it, or name another with "
            "data.path=..."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{path / INFO}: expected a corpus's description, found: {error!r}; build it anew") from None
