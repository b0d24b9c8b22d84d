"""Two-sided gates, roles and conflicts.

Letters for shapes: L layers, A heads a layer, V selections, T tasks.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.evaluation.head_masks import Mask
from mtlprune.statistics.permutation import permuted, tail

LIMIT, START = 4.0, 2.0
"""Logits stay within ± LIMIT, the clip of Nam et al. (2025); logits that the first fit starts from."""


def least_effect(strength: float, heads: int) -> float:
    """The smallest effect of a head, in nats of loss between closed and open, that holds its gate against a push.

    A push adds strength / heads to the gradient of each logit. A loss that changes by ``effect`` along the gate adds at
    most effect / 4, the slope of the sigmoid at 0. So a gate that starts at its own end stays on that side from
    effect = 4 · strength / heads on, and goes where it is pushed below.
    """
    return 4 * strength / heads


def fit_gates(
    loss: Callable[[Tensor, int], Tensor], start: Tensor, strength: float, updates: int, rate: float
) -> Tensor:
    """Logits within ± LIMIT that minimise loss(σ(logits), update) − strength · mean(logits) from ``start`` on, by Adam.

    Each step ends with a projection to ± LIMIT, because a clip in the objective alone has no gradient beyond it: the
    first fit drives logits there at any effect, however small, and no push would be felt any more. The source adds
    logits up; `least_effect` says what their mean makes of a strength.

    Args:
        loss: gates (L, A) in (0, 1) and the number of the update → a scalar.
        start: (L, A) float32.
    """
    logits = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=rate)
    for update in range(updates):
        total = loss(torch.sigmoid(logits), update) - strength * logits.mean()
        optimiser.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            logits.clamp_(-LIMIT, LIMIT)
    return logits.detach()


def two_sided(
    loss: Callable[[Tensor, int], Tensor], size: tuple[int, int], strength: float, updates: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Gates G⁺, pushed open, and G⁻, pushed closed, each from where gates end without a push; (L, A) each."""
    free = fit_gates(loss, torch.full(size, START), 0.0, updates, rate)
    opening, closed = (fit_gates(loss, free, sign * strength, updates, rate) for sign in (1, -1))
    return torch.sigmoid(opening), torch.sigmoid(closed)


def role_scores(opening: NDArray[np.float64], closed: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Scores in [0, 1] of the roles of heads whose gates are G⁺ and G⁻ (Nam et al. 2025, section 3)."""
    return {"facilitating": closed, "interfering": 1 - opening, "irrelevant": opening - closed}


def agreed(scores: NDArray[np.float64]) -> Mask:
    """Heads that have a role in every selection: (V, L, A) scores → (L, A)."""
    return np.asarray((scores > 0.5).all(0))


def conflict_heads(facilitating: Mask, interfering: Mask) -> Mask:
    """Heads that facilitate one task and interfere with another: (..., T, L, A) each → (..., L, A)."""
    pairs = facilitating.sum(-3) * interfering.sum(-3) - (facilitating & interfering).sum(-3)  # without t = u
    return np.asarray(pairs > 0)


def conflicts(
    facilitating: Mask, interfering: Mask, permutations: int, generator: np.random.Generator
) -> tuple[int, float, float]:
    """The number of conflict heads, its mean with the heads of each task permuted within layers, and p of so many.

    Args:
        facilitating, interfering: (T, L, A).
    """
    observed = int(conflict_heads(facilitating, interfering).sum())
    values = np.stack([facilitating, interfering], axis=1)  # (T, 2, L, A)
    null = np.concatenate(
        [
            conflict_heads(chunk[:, :, 0][..., None, :], chunk[:, :, 1][..., None, :]).sum((-2, -1))
            for chunk in permuted(values, permutations, generator)  # (C, T, 2, H)
        ]
    )
    return observed, float(null.mean()), tail(observed, null)
