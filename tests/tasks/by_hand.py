"""Parts of formulas that the oracles of several decoders share."""

from __future__ import annotations

import torch


def with_one(rows: torch.Tensor) -> torch.Tensor:
    """A one behind each row, for biases."""
    return torch.cat([rows, rows.new_ones(*rows.shape[:-1], 1)], dim=-1)


def leaky(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values > 0, values, 0.1 * values)
