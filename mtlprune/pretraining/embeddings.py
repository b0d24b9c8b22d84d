"""Tied embeddings, which CosReg is put on (Gao et al. 2019)."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.config.config import ConfigError


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
