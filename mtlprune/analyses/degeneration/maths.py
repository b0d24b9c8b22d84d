"""How degenerate a cloud of rows is: cosines, cone, spectrum, isotropy. For any matrix of rows.

    mean_cosine(model.tasks["pos"].label_rows().rows)  # R of Gao et al.; CosReg is γ · R

Rows are token embeddings, label weights, head outputs or hidden states. What follows from first and second moments is
read off :class:`Moments`, which rows are added to as they come; angles and partitions need the rows (a sample).

Letters for shapes: N rows, D features, ... any leading dimensions, such as heads.

Sources: Gao, He, Tan, Qin, Wang and Liu (2019), Representation Degeneration Problem (R, CosReg, projection, spectrum);
Mu and Viswanath (2018) (partition isotropy); Rudman, Gillman, Rayne and Eickhoff (2022) (IsoScore); Roy and Vetterli
(2007) (effective rank).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mtlprune.training.optimisation import mean_cosine as mean_cosine
from mtlprune.training.optimisation import unit_rows

TINY = 1e-12
"""Of the largest squared singular value: what is smaller is rounding."""


def mean_cosine_gradient(rows: Tensor) -> Tensor:
    """∂R / ∂w_k = (2/N²) (I − ŵ_k ŵ_kᵀ) S / ‖w_k‖ with S = Σ ŵ: (N, D). At right angles to w_k, so norms stay."""
    units = unit_rows(rows)
    total = units.sum(-2)
    across = total - units * (units @ total)[:, None]
    return 2 / len(rows) ** 2 * across / rows.norm(dim=-1, keepdim=True)


def angles_to_mean(rows: Tensor) -> Tensor:
    """(..., N): angle in degrees between each row and the mean of the rows at length 1, the axis of the cone.

    The largest is the half-aperture of the cone around that axis. NaN where the rows cancel out.
    """
    units = unit_rows(rows)
    mean = units.mean(-2, keepdim=True)
    size = mean.norm(dim=-1)
    cosines = (units * mean).sum(-1) / torch.where(size > TINY, size, math.nan)
    return torch.rad2deg(torch.acos(cosines.clamp(-1, 1)))


def positive_share(rows: Tensor) -> float:
    """Share of pairs of rows (N, D) at an acute angle."""
    units = unit_rows(rows)
    number = len(units)
    found = sum(int((part @ units.T > 0).sum()) for part in units.split(1024))
    itself = int((units.square().sum(-1) > 0).sum())
    return (found - itself) / (number * (number - 1)) if number > 1 else math.nan


def top_directions(second: Tensor, number: int = 2) -> Tensor:
    """(D, number): the top right-singular directions of rows whose XᵀX is ``second`` (D, D)."""
    return torch.linalg.eigh(second).eigenvectors.flip(-1)[:, :number]


def projection(rows: Tensor, second: Tensor | None = None) -> Tensor:
    """(N, 2): rows on the two top right-singular directions of the *uncentred* matrix; the mean lies at positive
    coordinates. A degenerate cloud is a cone off to one side of the origin.

    Args:
        rows: (N, D).
        second: (D, D), XᵀX of the rows that set the directions; of these rows, if not given.
    """
    found = rows @ top_directions(rows.T @ rows if second is None else second)
    if found.shape[1] == 1:
        found = torch.cat([found, torch.zeros_like(found)], 1)
    return found * torch.where(found.mean(0) < 0, -1.0, 1.0).to(found)


def partition_isotropy(rows: Tensor, second: Tensor | None = None) -> float:
    """I(W) = min_c Z(c) / max_c Z(c), Z(c) = Σ_i exp(c · w_i) over ± the unit eigenvectors c of WᵀW; 1: isotropic."""
    directions = top_directions(rows.T @ rows if second is None else second, rows.shape[1])
    scores = rows @ directions  # (N, D)
    logs = torch.cat([scores.logsumexp(0), (-scores).logsumexp(0)])
    return float((logs.min() - logs.max()).exp())


def spectrum(second: Tensor) -> Tensor:
    """(..., D): singular values, falling, of rows whose XᵀX is ``second`` (..., D, D)."""
    values = torch.linalg.eigvalsh(second).flip(-1).clamp(min=0)
    return torch.where(values > TINY * values[..., :1], values, 0.0).sqrt()


def top_share(singular: Tensor, number: int) -> Tensor:
    """(...): share of Σ s² that the largest ``number`` singular values (..., D) have; NaN where all are 0."""
    squares = singular.square()
    return squares[..., :number].sum(-1) / squares.sum(-1)


def effective_rank(singular: Tensor) -> Tensor:
    """(...): exp of the entropy of s / Σ s, from 1 (one direction) to the number of features; NaN where all are 0."""
    shares = singular / singular.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def effective_rank_share(second: Tensor, total: Tensor, number: int) -> Tensor:
    """(...): effective rank of the centred rows by what it can reach, min(N − 1, D).

    Args:
        second, total: (..., D, D) and (..., D), XᵀX and the sum of the rows.
    """
    room = min(number - 1, second.shape[-1])
    return effective_rank(spectrum(centred(second, total, number))) / room if room > 0 else total.sum(-1) * math.nan


def centred(second: Tensor, total: Tensor, number: int) -> Tensor:
    """(..., D, D): XᵀX after the mean row is taken away; rounding that is left of a constant feature is 0."""
    found = second - total[..., :, None] * total[..., None, :] / number
    size = second.diagonal(dim1=-2, dim2=-1)  # (..., D)
    rounding = found.diagonal(dim1=-2, dim2=-1) <= TINY * size
    return found.masked_fill(rounding[..., :, None] | rounding[..., None, :], 0.0)


def isoscore(covariance: Tensor) -> Tensor:
    """(...): IsoScore of a covariance matrix C (..., D, D), at any scale: 0 where all lies in one direction, 1 where
    all directions have the same variance; NaN for one feature, or where nothing varies.

    The published steps (isotropy defect of normalised variances, share of dimensions used) come to
    (tr²C / trC² − 1) / (D − 1), which needs no eigenvalues: D − δ²(D − √D) = √D Σλ / ‖λ‖.
    From N ≤ D rows it cannot exceed about (N − 2)/(D − 1): compare equally many rows only.

    Source: Rudman et al. (2022), algorithm 1.
    """
    features = covariance.shape[-1]
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    squared = covariance.square().sum((-2, -1))
    return (trace.square() / squared - 1) / (features - 1) if features > 1 else trace * math.nan


class Moments:
    """Sums over rows, from which R, spectra and IsoScore follow without keeping the rows. float64.

    Args:
        shape: (..., D), of one row: leading dimensions are clouds of their own.
    """

    def __init__(self, *shape: int) -> None:
        self.rows = 0
        self.total = torch.zeros(shape, dtype=torch.float64)
        self.units = torch.zeros(shape, dtype=torch.float64)
        self.second = torch.zeros(*shape, shape[-1], dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """(N, ..., D)."""
        doubles = rows.detach().double().movedim(0, -2)  # (..., N, D)
        self.rows += len(rows)
        self.total += doubles.sum(-2).cpu()
        self.units += unit_rows(doubles).sum(-2).cpu()
        self.second += (doubles.mT @ doubles).cpu()

    def mean(self) -> Tensor:
        """(..., D)."""
        return self.total / self.rows

    def mean_cosine(self) -> Tensor:
        """(...): R, as of :func:`mean_cosine`. Rows of zeros, which have no direction, give NaN."""
        found = (self.units.square().sum(-1) - self.rows) / self.rows**2
        return torch.where(self.second.diagonal(dim1=-2, dim2=-1).sum(-1) > 0, found, math.nan)

    def cosine(self) -> Tensor:
        """(...): mean cosine of two different rows."""
        return self.mean_cosine() * self.rows / (self.rows - 1) if self.rows > 1 else self.mean_cosine() * math.nan

    def spectrum(self) -> Tensor:
        """(..., D): singular values, falling."""
        return spectrum(self.second)

    def effective_rank(self) -> Tensor:
        """(...)."""
        return effective_rank(self.spectrum())

    def effective_rank_share(self) -> Tensor:
        """(...)."""
        return effective_rank_share(self.second, self.total, self.rows)

    def isoscore(self) -> Tensor:
        """(...)."""
        return isoscore(centred(self.second, self.total, self.rows))
