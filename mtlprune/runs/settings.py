"""Settings of runs by their paths, such as train.seed, and which of them matter."""

from collections.abc import Container, Iterator, Mapping
from typing import Any

_IGNORED = (
    *(
        "name",
        "tasks",
        "data.path",
        "train.seed",
        "pruning.draw",
        "train.device",
        "train.threads",
        "train.checkpoint_minutes",
    ),
    *("train.tensorboard", "train.log_uas", "train.log_train_loss"),
    *("train.start", "pruning.importance_of", "pruning.layers_like"),  # runs of the same seed
)
_ASIDE_BELOW = ("treatment.distil.teachers.", "treatment.merge.sources.")  # a run for each task


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Path → value of every setting of a configuration."""
    for key, value in tree.items():
        key_path = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, key_path)
        else:
            yield key_path, value


def changes(old: Mapping[str, Any], new: Mapping[str, Any], free: Container[str]) -> list[str]:
    """Settings in which two whole configurations differ, but for those that are free to: train.epochs (was 3, is 5)."""
    before, after = ({path: value for path, value in flat(tree) if value != {}} for tree in (old, new))
    return [
        f"{path} (was {before.get(path)!r}, is {after.get(path)!r})"
        for path in sorted(before.keys() | after.keys())
        if path not in free and before.get(path) != after.get(path)
    ]


def is_ignored(path: str) -> bool:
    """True where a setting changes nothing of what is trained, or is told apart otherwise: tasks, seed, other runs."""
    return path in _IGNORED or path.startswith(_ASIDE_BELOW)
