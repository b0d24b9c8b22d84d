"""Is there a direction in which all hidden states are negative? After LayerNorm there nearly always is.

A softmax pushes the row of a class that never occurs along such a direction v for ever (Gao et al. 2019, Theorem 1); it
exists if and only if 0 is not in the convex hull of the hidden states (Theorem 2). LayerNorm h = g · x̂ + b puts all of
them on the hyperplane Σ h_j / g_j = Σ b_j / g_j =: c, so v = −sign(c) / g serves whatever the data, with margin |c|.

With few vectors for their features an answer "yes" says nothing: M random vectors have one with the probability of
:func:`wendel`, near 1 for M ≤ 2 D.

Letters for shapes: M vectors, D features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import nnls
from torch import Tensor

from mtlprune.runs import RunError

CHANCE = 0.05
"""An answer "yes" that has this probability for random vectors, or more, is no finding."""


class DirectionError(RunError):
    """What has no negative direction by construction; the message says why."""


@dataclass(frozen=True, eq=False)
class Hyperplane:
    """Where a LayerNorm puts all that it gives.

    Attributes:
        normal: (D,), 1 / g.
        offset: c; ⟨normal, h⟩ is c for every output h.
    """

    normal: Tensor
    offset: float

    @property
    def direction(self) -> Tensor:
        """(D,): v = −sign(c) / g; ⟨v, h⟩ = −|c| for every h. Zeros where c = 0."""
        return -math.copysign(1.0, self.offset) * self.normal if self.offset else torch.zeros_like(self.normal)

    @property
    def largest(self) -> float:
        """Share of v's squared length in its largest feature: near 1, v is one feature with a tiny gain."""
        return float(self.normal.abs().max() / self.normal.norm()) ** 2

    @property
    def distance(self) -> float:
        """Of the hyperplane from 0: |c| / ‖1/g‖, in units of h."""
        return abs(self.offset) / float(self.normal.norm())

    def spread(self, rows: Tensor) -> float:
        """Largest |⟨normal, h⟩ − c| over rows (M, D), by ‖normal‖ ‖h‖: 0 but for rounding where they come from it."""
        miss = (rows.double() @ self.normal - self.offset).abs()
        return float((miss / (self.normal.norm() * rows.double().norm(dim=1))).max())

    def angles(self, rows: Tensor) -> Tensor:
        """(M,): degrees between v and each row; above 90 where c ≠ 0, the less above the less v matters."""
        cosines = rows.double() @ self.direction / (self.normal.norm() * rows.double().norm(dim=1))
        return torch.rad2deg(torch.acos(cosines.clamp(-1, 1)))


def layernorm_hyperplane(gain: Tensor, bias: Tensor) -> Hyperplane:
    """The hyperplane of a LayerNorm's outputs.

    Args:
        gain, bias: (D,).

    Raises:
        DirectionError: a gain is 0.
    """
    if (gain == 0).any():
        place = int((gain == 0).nonzero()[0])
        raise DirectionError(
            f"feature {place} of this LayerNorm has gain 0, so 1/g is not defined; its outputs are constant there, and "
            "that feature alone is a uniformly negative direction unless its bias is 0"
        )
    normal = 1 / gain.detach().double().cpu()
    return Hyperplane(normal, float(bias.detach().double().cpu() @ normal))


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction in which all rows are negative, the one with the widest margin.

    Attributes:
        vector: (D,), v of length 1.
        margin: the least of −⟨v, h⟩ / ‖h‖ over the rows; near 0 all rows are nearly at right angles to v.
    """

    vector: NDArray[np.float64]
    margin: float


def negative_direction(rows: ArrayLike) -> Direction | None:
    """The v with ⟨v, h⟩ < 0 for all rows h that leaves the widest margin between the rows at length 1 and 0; None where
    0 is in their convex hull, so that there is none.

    v is −p / ‖p‖ for the point p of the hull of the rows at length 1 that is nearest to 0; ‖p‖ is the margin. By
    non-negative least squares: of the points Σ λ_i (h_i, 1), λ ≥ 0, the nearest to (0, 1) is a multiple of (p, 1).

    Args:
        rows: (M, D); their lengths do not matter.

    Raises:
        DirectionError: a row of zeros, which no direction is negative for, or no rows.
    """
    given = np.asarray(rows, np.float64)
    if given.ndim != 2 or not given.size:
        raise DirectionError(f"expected vectors as rows of numbers, found an array of shape {given.shape}")
    lengths = np.linalg.norm(given, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise DirectionError("a vector is 0 or not finite; a uniformly negative direction is asked of others only")
    units = given / lengths
    lifted = np.vstack([units.T, np.ones(len(units))])  # (D + 1, M)
    goal = np.zeros(len(lifted))
    goal[-1] = 1.0
    weights, _ = nnls(lifted, goal, maxiter=50 * max(lifted.shape))
    nearest = weights @ units / weights.sum()
    size = float(np.linalg.norm(nearest))
    if size < 1e-9:
        return None
    vector = -nearest / size
    margin = -float((units @ vector).max())
    return Direction(vector, margin) if margin > 0 else None


def wendel(vectors: int, features: int) -> float:
    """Probability that M random vectors, symmetric around 0 and in general position, lie in an open half-space:
    2^(1 − M) Σ_{k < D} C(M − 1, k) (Wendel 1962). 1 for M ≤ D, ½ for M = 2 D, near 0 beyond."""
    return float(stats.binom.cdf(features - 1, vectors - 1, 0.5)) if vectors > 0 else 1.0


def telling(vectors: int, features: int) -> bool:
    """Whether a direction found for so many vectors says anything."""
    return wendel(vectors, features) < CHANCE
