"""How well a linear map explains what a feed-forward part does: r² from sums that are gathered batch by batch.

    sums = CrossMoments(H, H); sums.add(read, given); sums.fit().score(sums)      # in-sample; score(others): held out

Letters for shapes: N tokens, P features read, Q features given.

Source: Mickus, Paperno and Constant (2022), linear_structure: least squares with a constant, features z-scored (which
changes no r²), uniform average over outputs. They score the tokens that were fitted; a held-out value stands beside it
here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TINY = 1e-10
"""A feature whose variance is below this part of its mean square is constant."""


class CrossMoments:
    """Sums over tokens of [1, x, y] ⊗ [1, x, y], from which any least squares of y on x follows. float64."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs
        side = 1 + inputs
        self.within: Floats = np.zeros((side, side))
        self.across: Floats = np.zeros((side, outputs))
        self.sums: Floats = np.zeros(outputs)
        self.squares: Floats = np.zeros(outputs)

    @property
    def tokens(self) -> int:
        """N."""
        return int(self.within[0, 0])

    def add(self, x: Floats, y: Floats) -> None:
        """(N, P) and (N, Q)."""
        design = np.concatenate([np.ones((len(x), 1), x.dtype), x], axis=1)
        self.within += design.T @ design
        self.across += design.T @ y
        self.sums += y.sum(0, dtype=np.float64)
        self.squares += np.square(y, dtype=np.float64).sum(0)

    def __add__(self, other: CrossMoments) -> CrossMoments:
        found = CrossMoments(self.inputs, self.outputs)
        for name in ("within", "across", "sums", "squares"):
            setattr(found, name, getattr(self, name) + getattr(other, name))
        return found

    def fit(self) -> Floats:
        """(1 + P, Q): least-squares coefficients, the constant first; the smallest ones where they are not unique."""
        return np.linalg.pinv(self.within, rcond=1e-12, hermitian=True) @ self.across

    def r2(self, coefficients: Floats) -> float:
        """Mean over outputs of 1 − residual / total sum of squares on these tokens; NaN without tokens.

        An output that is constant counts 1 where it is met exactly and 0 otherwise, as scikit-learn has it.
        """
        if not self.tokens:
            return float("nan")
        crossed = np.einsum("pq,pq->q", coefficients, self.across)
        fitted = np.einsum("pq,pr,rq->q", coefficients, self.within, coefficients, optimize=True)
        residual = self.squares - 2 * crossed + fitted
        total = self.squares - self.sums**2 / self.tokens
        floor = TINY * np.maximum(self.squares, 1e-300)
        constant = total <= floor
        flat = np.where(residual <= 10 * floor, 1.0, 0.0)
        moving = 1 - np.maximum(residual, 0) / np.where(constant, 1, total)
        return float(np.where(constant, flat, moving).mean())


def linearity(halves: tuple[CrossMoments, CrossMoments]) -> dict[str, float]:
    """r² on the tokens that were fitted, and held out: each half scored by the map of the other, averaged."""
    one, other = halves
    whole = one + other
    held_out = (one.r2(other.fit()) + other.r2(one.fit())) / 2
    return {"in_sample": whole.r2(whole.fit()), "held_out": held_out, "tokens": whole.tokens}
