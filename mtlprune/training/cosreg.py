"""CosReg on label weights: a price on the cosines between the rows of a decoder's last layer (Gao et al. 2019).

    L = Σ losses + γ · Σ over the tasks of the batch of R(label rows)

R is the mean cosine of all pairs of rows; its gradient turns rows and leaves their lengths alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mtlprune.config.config import Config, ConfigError
from mtlprune.model import MultiTaskModel

if TYPE_CHECKING:
    from mtlprune.training.setup import Beginning


def unit_rows(rows: Tensor) -> Tensor:
    """(..., N, D): every row at length 1; a row of zeros has no direction and stays, without a gradient."""
    squares = rows.square().sum(-1, keepdim=True)
    return rows * torch.where(squares > 0, squares, 1.0).rsqrt() * (squares > 0)


def mean_cosine(rows: Tensor) -> Tensor:
    """R = 1/N² Σ_i Σ_{j≠i} ŵ_i · ŵ_j = (‖Σ ŵ‖² − N) / N², from −1/N to (N − 1)/N. In float32 at least; differentiable.

    The token similarity CosSim of the same rows is R · N / (N − 1).

    Args:
        rows: (..., N, D).

    Returns:
        (...).

    Source: Gao et al. (2019), the regulariser of MLE-CosReg.
    """
    number = rows.shape[-2]
    with torch.autocast(rows.device.type, enabled=False):
        total = unit_rows(rows if rows.dtype == torch.float64 else rows.float()).sum(-2)
        return (total.square().sum(-1) - number) / number**2


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


def check_cosreg(run: Beginning) -> None:
    """Raises ConfigError where train.cosreg is given and a task has no label rows to turn."""
    for task in run.config.tasks if run.config.train.cosreg else ():
        if run.model.tasks[task].label_rows() is None:  # type: ignore[operator]
            raise ConfigError(
                f"train.cosreg: the decoder of {task} has no matrix of label weights; leave it out, or that task"
            )
