"""Settings of runs as flat paths, such as train.seed, and the settings that are ignored when runs are grouped."""

from collections.abc import Container, Iterator, Mapping
from typing import Any

WITHOUT_EFFECT = (
    *("train.threads", "train.device", "train.checkpoint_minutes", "train.tensorboard", "train.log_uas"),
    *("train.log_train_loss", "encoder.checkpointing"),
)
"""Settings that change speed, memory or logs, but not what is computed (threads change rounding only)."""
REFERENCES = ("train.start", "pruning.importance_of", "pruning.layers_like")
"""Settings that name another run, in addition to those of `TreatmentConfig.runs`."""
_IGNORED = ("name", "tasks", "data.path", "train.seed", "pruning.draw", *WITHOUT_EFFECT, *REFERENCES)
_IGNORED_BELOW = ("treatment.distil.teachers.", "treatment.merge.sources.")  # name a run for each task and seed


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for every setting of a configuration tree."""
    for key, value in tree.items():
        key_path = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, key_path)
        else:
            yield key_path, value


def changes(old: Mapping[str, Any], new: Mapping[str, Any], free: Container[str]) -> list[str]:
    """Describe the settings in which two configuration trees differ, such as "train.epochs (was 3, is 5)".

    Settings whose paths are in ``free`` may differ and are left out.
    """
    before, after = ({path: value for path, value in flat(tree) if value != {}} for tree in (old, new))
    return [
        f"{path} (was {before.get(path)!r}, is {after.get(path)!r})"
        for path in sorted(before.keys() | after.keys())
        if path not in free and before.get(path) != after.get(path)
    ]


def is_ignored(path: str) -> bool:
    """Return True if a setting is ignored when runs are grouped.

    Ignored settings do not change what is trained, or groups account for them separately (tasks, seeds, other runs).
    """
    return path in _IGNORED or path.startswith(_IGNORED_BELOW)
