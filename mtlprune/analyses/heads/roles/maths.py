"""Two-sided gates, the roles of heads, and conflicts between tasks (Nam et al. 2025).

Letters for shapes: L layers, A heads per layer, H = L·A heads, V selections, T tasks, C a chunk of permutations.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.evaluation.head_masks import Mask
from mtlprune.statistics.permutation import permuted, tail

LIMIT, START = 4.0, 2.0
"""Bound ± LIMIT of logits, as in Nam et al. (2025), and the logits from which the first fit starts."""


def least_effect(strength: float, heads: int) -> float:
    """Return the smallest effect of a head that holds its gate against a push, in nats of loss between closed and open.

    A push adds strength / heads to the gradient of each logit. A loss that changes by ``effect`` as the gate opens adds
    effect / 4 or less, because the slope of the sigmoid is at most 1/4, at 0. A gate that starts on the side that its
    loss prefers therefore stays there if the effect is at least 4 · strength / heads, and otherwise follows the push.
    """
    return 4 * strength / heads


def fit_gates(
    loss: Callable[[Tensor, int], Tensor], start: Tensor, strength: float, updates: int, rate: float
) -> Tensor:
    """Fit the logits of gates to loss(σ(logits), update) − strength · mean(logits) with Adam; return them, (L, A).

    Each step ends with a projection to ± LIMIT. A clip in the objective alone has no gradient beyond the bound. Without
    a push, logits reach the bound for any effect, however small, and no later push could move them. Nam et al. add the
    logits up instead of taking their mean; `least_effect` explains the resulting scale of ``strength``.

    Args:
        loss: function from gates (L, A) in (0, 1) and the number of the update to the loss, a scalar.
        start: (L, A), float32, logits before the first update.
        strength: strength λ of the push, above 0 to open gates and below 0 to close them.
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
    """Fit the gates G⁺, pushed open, and G⁻, pushed closed, and return both, (L, A) each.

    Both fits start from gates that were fitted without a push.
    """
    free = fit_gates(loss, torch.full(size, START), 0.0, updates, rate)
    opening, closed = (fit_gates(loss, free, sign * strength, updates, rate) for sign in (1, -1))
    return torch.sigmoid(opening), torch.sigmoid(closed)


def role_scores(opening: NDArray[np.float64], closed: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return the scores of each role from the gates G⁺ and G⁻ of heads (Nam et al. 2025, section 3).

    Scores are in [0, 1], except that "irrelevant" is negative where G⁺ < G⁻.
    """
    return {"facilitating": closed, "interfering": 1 - opening, "irrelevant": opening - closed}


def agreed(scores: NDArray[np.float64]) -> Mask:
    """Return the heads that have a role in every selection, from its scores, (V, L, A) → (L, A)."""
    return np.asarray((scores > 0.5).all(0))


def conflict_heads(facilitating: Mask, interfering: Mask) -> Mask:
    """Return the heads that facilitate one task and interfere with another, (..., T, L, A) → (..., L, A)."""
    # The product counts ordered pairs of tasks. Pairs of a task with itself are subtracted.
    pairs = facilitating.sum(-3) * interfering.sum(-3) - (facilitating & interfering).sum(-3)
    return np.asarray(pairs > 0)


def conflicts(
    facilitating: Mask, interfering: Mask, permutations: int, generator: np.random.Generator
) -> tuple[int, float, float]:
    """Count conflict heads, and compare their number with permutations of each task's heads within layers.

    Args:
        facilitating, interfering: (T, L, A), heads that have these roles.

    Returns:
        The number of conflict heads, its mean over permutations, and the p of a number at least as large.
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
