"""Closed forms that several tests compare with."""

from __future__ import annotations

from torch import Tensor


def mean_cosine_gradient(rows: Tensor) -> Tensor:
    """∂R / ∂w_k = (2/N²) (I − ŵ_k ŵ_kᵀ) S / ‖w_k‖ with S = Σ ŵ: (N, D). At right angles to w_k, so norms stay."""
    units = rows / rows.norm(dim=1, keepdim=True)
    total = units.sum(0)
    return 2 / len(rows) ** 2 * (total - units * (units @ total)[:, None]) / rows.norm(dim=1, keepdim=True)
