"""Settings of runs by their paths, such as train.seed, and which of them matter."""

from collections.abc import Iterator, Mapping
from typing import Any

_ASIDE = (
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
    *("train.tensorboard", "train.log_uas"),
    *("train.start", "pruning.importance_of", "pruning.layers_like"),  # runs of the same seed
)
_ASIDE_BELOW = ("treatment.distil.teachers.", "treatment.merge.sources.")  # a run for each task


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Path → value of every setting of a configuration."""
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, here)
        else:
            yield here, value


def is_aside(path: str) -> bool:
    """True where a setting changes nothing of what is trained, or is told apart otherwise: tasks, seed, other runs."""
    return path in _ASIDE or path.startswith(_ASIDE_BELOW)
