"""CosReg, a penalty on rows of a matrix that point the same way (Gao et al. 2019): R, and the callback that adds it.

    R(W) = 1/N² Σ_i Σ_{j≠i} ŵ_i · ŵ_j = (‖Σ ŵ‖² − N) / N²        ŵ: row at length 1; N rows

Letters for shapes: N rows, D features, ... any leading dimensions.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mtlprune.config.config import ConfigError
from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.run import NewRun


def unit_rows(rows: Tensor) -> Tensor:
    """(..., N, D): every row at length 1; a row of zeros has no direction and stays, without a gradient."""
    squares = rows.square().sum(-1, keepdim=True)
    return rows * torch.where(squares > 0, squares, 1.0).rsqrt() * (squares > 0)


def mean_cosine(rows: Tensor) -> Tensor:
    """R of rows (..., N, D), from −1/N to (N − 1)/N: (...), differentiable, in float32 at least.

    The sum over N² pairs is the squared length of one sum, so that the cost is linear in N.
    """
    number = rows.shape[-2]
    with torch.autocast(rows.device.type, enabled=False):
        total = unit_rows(rows if rows.dtype == torch.float64 else rows.float()).sum(-2)
        return (total.square().sum(-1) - number) / number**2


class CosReg(Callback):
    """γ · R, summed over the tasks of a mini-batch, added to their losses after these are weighed.

    Args:
        strength: γ.
        rows_of: task → its matrix, as it is now.
    """

    def __init__(self, strength: float, rows_of: Callable[[str], Tensor]) -> None:
        self.strength, self.rows_of = strength, rows_of

    def terms(self, losses: Losses) -> None:
        cosines = torch.stack([mean_cosine(self.rows_of(task)) for task in losses.mini_batch.tasks]).sum()
        losses.logged["cosreg"] = cosines.detach()
        losses.penalties["cosreg"] = self.strength * cosines


def tied_table(full_model: nn.Module) -> Tensor:
    """(V, D), the embeddings by which a language model reads pieces and predicts them. Raises ConfigError: it predicts
    by another table, or by none."""
    head, table = full_model.get_output_embeddings(), full_model.get_input_embeddings().weight  # type: ignore[operator]
    if head is None or head.weight is not table:
        raise ConfigError(
            "cosreg: expected a model that reads and predicts pieces by one table (tied embeddings), found one that "
            "predicts by another table; leave cosreg out"
        )
    return table


def check_cosreg(run: NewRun) -> None:
    """Refuse train.cosreg for a decoder that has no label rows, or one alone. Raises ConfigError."""
    for task in run.config.tasks if run.config.train.cosreg else ():
        labels = run.model.tasks[task].label_rows()  # type: ignore[operator]
        if labels is None or len(labels.names) < 2:
            problem = "no matrix of label weights" if labels is None else f"label weights of {len(labels.names)} label"
            raise ConfigError(
                f"train.cosreg: expected rows of two labels or more in each decoder, found {problem} in that of "
                f"{task}; leave train.cosreg out, or that task"
            )
