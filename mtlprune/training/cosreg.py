"""CosReg on label weights: a price on the cosines between the rows of a decoder's last layer (Gao et al. 2019).

    L = Σ losses + γ · Σ over the tasks of the batch of R(label rows)

R is the mean cosine of all pairs of rows; its gradient turns rows and leaves their lengths alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from mtlprune.analyses.degeneration import mean_cosine
from mtlprune.config import Config, ConfigError
from mtlprune.model import MultiTaskModel


def cosreg(config: Config, model: MultiTaskModel, tasks: Iterable[str], leads: bool = True) -> list[Tensor]:
    """γ · R for each task of a batch; nothing where γ is 0.

    Args:
        leads: whether this process adds it: gradients of all processes of a run are summed, so it comes from one.
    """
    strength = config.train.cosreg
    if not strength or not leads:
        return []
    found = [model.tasks[task].label_rows() for task in tasks]  # type: ignore[operator]
    return [strength * mean_cosine(labels.rows) for labels in found]


def check_cosreg(config: Config, model: MultiTaskModel) -> None:
    """Raises ConfigError where train.cosreg is given and a task has no label rows to turn."""
    if not config.train.cosreg:
        return
    for task in config.tasks:
        if model.tasks[task].label_rows() is None:  # type: ignore[operator]
            raise ConfigError(
                f"train.cosreg: the decoder of {task} has no matrix of label weights; leave it out, or that task"
            )
