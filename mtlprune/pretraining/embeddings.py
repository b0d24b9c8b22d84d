"""CosReg: the mean cosine between rows of a matrix, as a loss on tied embeddings (Gao et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from mtlprune.config import ConfigError


def mean_cosine(rows: Tensor) -> Tensor:
    """R = 1/N² Σ_i Σ_{j≠i} ŵ_i·ŵ_j = (‖Σ ŵ‖² − N) / N², from −1/N to (N − 1)/N; linear in N, in float32 at least.

    Args:
        rows: (N, H).

    Returns:
        ().
    """
    with torch.autocast(rows.device.type, enabled=False):
        unit = functional.normalize(rows if rows.dtype == torch.float64 else rows.float(), dim=1)
        number = len(rows)
        return (unit.sum(0).square().sum() - number) / number**2


def tied_embeddings(model: PreTrainedModel) -> Tensor:
    """(V, H), the table that reads pieces and predicts them.

    Raises:
        ConfigError: they are two tables.
    """
    head = model.get_output_embeddings()
    table = model.get_input_embeddings().weight
    if head is None or head.weight is not table:
        raise ConfigError(
            "cosreg: the theory is about embeddings that are read and predicted with one table, but this model "
            "predicts with another one; leave cosreg out"
        )
    return table
