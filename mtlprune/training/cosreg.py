"""CosReg (Gao et al. 2019), a penalty R on the cosine similarity of the rows of a matrix, and its callback.

    R(W) = 1/N² Σ_i Σ_{j≠i} ŵ_i · ŵ_j = (‖Σ ŵ‖² − N) / N²        ŵ: row scaled to length 1

Letters for shapes: N rows, D features, V sub-words of the vocabulary, ... any leading dimensions.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mtlprune.config.config import ConfigError
from mtlprune.training.callbacks import Callback, Losses
from mtlprune.training.run import NewRun


def unit_rows(rows: Tensor) -> Tensor:
    """Scale every row to length 1, (..., N, D) → (..., N, D); rows of zeros stay zero and get no gradient."""
    squares = rows.square().sum(-1, keepdim=True)
    return rows * torch.where(squares > 0, squares, 1.0).rsqrt() * (squares > 0)


def mean_cosine(rows: Tensor) -> Tensor:
    """Compute R of a matrix, (..., N, D) → (...), which lies between −1/N and (N − 1)/N.

    The result is differentiable and has at least float32 precision. The sum over N² pairs of rows is computed as the
    squared length of the sum of rows, so the cost is linear in N.
    """
    number = rows.shape[-2]
    with torch.autocast(rows.device.type, enabled=False):
        total = unit_rows(rows if rows.dtype == torch.float64 else rows.float()).sum(-2)
        return (total.square().sum(-1) - number) / number**2


class CosReg(Callback):
    """Callback that adds γ · R, summed over the tasks of a mini-batch, to their weighted losses.

    Args:
        strength: γ.
        rows_of: function that returns the current matrix of a task.
    """

    def __init__(self, strength: float, rows_of: Callable[[str], Tensor]) -> None:
        self.strength, self.rows_of = strength, rows_of

    def terms(self, losses: Losses) -> None:
        cosines = torch.stack([mean_cosine(self.rows_of(task)) for task in losses.mini_batch.tasks]).sum()
        losses.logged["cosreg"] = cosines.detach()
        losses.penalties["cosreg"] = self.strength * cosines


def tied_table(full_model: nn.Module) -> Tensor:
    """Return the embedding table (V, D) that a language model uses both as input and as output embeddings.

    Raises ConfigError if the output embeddings are another table or missing.
    """
    head, table = full_model.get_output_embeddings(), full_model.get_input_embeddings().weight  # type: ignore[operator]
    if head is None or head.weight is not table:
        raise ConfigError(
            "cosreg: expected a model that reads and predicts pieces by one table (tied embeddings), found one that "
            "predicts by another table; leave cosreg out"
        )
    return table


def check_cosreg(run: NewRun) -> None:
    """Raise ConfigError if ``train.cosreg`` is set and a decoder has no matrix of label weights or only one label."""
    for task in run.config.tasks if run.config.train.cosreg else ():
        labels = run.model.tasks[task].label_rows()  # type: ignore[operator]
        if labels is None or len(labels.names) < 2:
            problem = "no matrix of label weights" if labels is None else f"label weights of {len(labels.names)} label"
            raise ConfigError(
                f"train.cosreg: expected rows of two labels or more in each decoder, found {problem} in that of "
                f"{task}; leave train.cosreg out, or that task"
            )
