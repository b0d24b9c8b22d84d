"""Measures of the degeneration of any matrix of rows: cosines, cone, spectrum, isotropy, a negative direction.

    moments = Moments(features)
    moments.add(rows)
    moments.mean_cosine()  # R of Gao et al.

Rows are token embeddings, label weights, head outputs or hidden states. What follows from first and second moments is
computed by :class:`Moments`, batch by batch; angles and partitions need the rows themselves (a sample).

Letters for shapes: N rows, M rows of a sample, D features, W words of all sentences, ... any leading dimensions, such
as heads.

Sources: Gao, He, Tan, Qin, Wang and Liu (2019), Representation Degeneration Problem (R, projection, spectrum, uniformly
negative directions); Mu and Viswanath (2018) (partition isotropy); Rudman, Gillman, Rayne and Eickhoff (2022)
(IsoScore); Roy and Vetterli (2007) (effective rank).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import nnls
from torch import Tensor

from mtlprune.statistics import twonn
from mtlprune.training.cosreg import unit_rows

TINY = 1e-12
"""Of the largest squared singular value: what is smaller is rounding."""


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
    pairs = sum(int((part @ units.T > 0).sum()) for part in units.split(1024))
    itself = int((units.square().sum(-1) > 0).sum())
    return (pairs - itself) / (number * (number - 1)) if number > 1 else math.nan


def _top_directions(second: Tensor, number: int = 2) -> Tensor:
    """(D, number): the top right-singular directions of rows whose XᵀX is ``second`` (D, D)."""
    return torch.linalg.eigh(second).eigenvectors.flip(-1)[:, :number]


def projection(rows: Tensor, second: Tensor | None = None) -> Tensor:
    """(N, 2): rows on the two top right-singular directions of the *uncentred* matrix; the mean lies at positive
    coordinates. A degenerate cloud is a cone off to one side of the origin.

    Args:
        rows: (N, D).
        second: (D, D), XᵀX of the rows that set the directions; of these rows, if not given.
    """
    points = rows @ _top_directions(rows.T @ rows if second is None else second)
    if points.shape[1] == 1:
        points = torch.cat([points, torch.zeros_like(points)], 1)
    return points * torch.where(points.mean(0) < 0, -1.0, 1.0).to(points)


def partition_isotropy(rows: Tensor, second: Tensor | None = None) -> float:
    """I(W) = min_c Z(c) / max_c Z(c), Z(c) = Σ_i exp(c · w_i) over ± the unit eigenvectors c of WᵀW; 1: isotropic."""
    directions = _top_directions(rows.T @ rows if second is None else second, rows.shape[1])
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


def centred(second: Tensor, total: Tensor, number: int) -> Tensor:
    """(..., D, D): XᵀX after the mean row is taken away; rounding that is left of a constant feature is 0."""
    scatter = second - total[..., :, None] * total[..., None, :] / number
    size = second.diagonal(dim1=-2, dim2=-1)  # (..., D)
    rounding = scatter.diagonal(dim1=-2, dim2=-1) <= TINY * size
    return scatter.masked_fill(rounding[..., :, None] | rounding[..., None, :], 0.0)


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
    """Sums over rows, from which R, spectra and IsoScore follow without keeping the rows. float64. ``shape``: (..., D),
    of one row: leading dimensions are clouds of their own."""

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
        """(...): R = 1/N² Σ_i Σ_{j≠i} ŵ_i · ŵ_j = (‖Σ ŵ‖² − N) / N², from −1/N to (N − 1)/N (Gao et al. 2019). NaN
        where all rows are zeros, which have no direction."""
        cosine = (self.units.square().sum(-1) - self.rows) / self.rows**2
        return torch.where(self.second.diagonal(dim1=-2, dim2=-1).sum(-1) > 0, cosine, math.nan)

    def cosine(self) -> Tensor:
        """(...): mean cosine of two different rows, the token similarity CosSim."""
        return self.mean_cosine() * self.rows / (self.rows - 1) if self.rows > 1 else self.mean_cosine() * math.nan

    def spectrum(self) -> Tensor:
        """(..., D): singular values, falling."""
        return spectrum(self.second)

    def effective_rank(self) -> Tensor:
        """(...)."""
        return effective_rank(self.spectrum())

    def effective_rank_share(self) -> Tensor:
        """(...): effective rank of the centred rows by what it can reach, min(N − 1, D)."""
        room = min(self.rows - 1, self.second.shape[-1])
        rank = effective_rank(spectrum(centred(self.second, self.total, self.rows)))
        return rank / room if room > 0 else rank * math.nan

    def isoscore(self) -> Tensor:
        """(...)."""
        return isoscore(centred(self.second, self.total, self.rows))


# -- uniformly negative directions -------------------------------------------------------------------------------------
#
# A softmax pushes the row of a class that never occurs along a direction v in which all hidden states are negative, for
# ever (Gao et al. 2019, Theorem 1). It exists if and only if 0 is not in the convex hull of the hidden states (Theorem
# 2). With few vectors for their features an answer "yes" says nothing: M random vectors have one with the probability
# of wendel, near 1 for M ≤ 2 D.

CHANCE = 0.05
"""An answer "yes" that has this probability for random vectors, or more, is no finding."""


def negative_direction(rows: ArrayLike) -> tuple[NDArray[np.float64], float] | None:
    """The v (D,) of length 1 with ⟨v, h⟩ < 0 for all rows h that leaves the widest margin between the rows at length 1
    and 0, and this margin, the least of −⟨v, h⟩ / ‖h‖; None where 0 is in their convex hull, so that there is none.
    ``rows``: (M, D), none of them 0; their lengths do not matter.

    v is −p / ‖p‖ for the point p of the hull of the rows at length 1 that is nearest to 0; ‖p‖ is the margin. By
    non-negative least squares: of the points Σ λ_i (h_i, 1), λ ≥ 0, the nearest to (0, 1) is a multiple of (p, 1).
    """
    vectors = np.asarray(rows, np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
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
    return (vector, margin) if margin > 0 else None


def wendel(vectors: int, features: int) -> float:
    """Probability that M random vectors, symmetric around 0 and in general position, lie in an open half-space:
    2^(1 − M) Σ_{k < D} C(M − 1, k) (Wendel 1962). 1 for M ≤ D, ½ for M = 2 D, near 0 beyond."""
    return float(stats.binom.cdf(features - 1, vectors - 1, 0.5)) if vectors > 0 else 1.0


def plane(gain: Tensor, bias: Tensor, rows: Tensor) -> dict[str, float]:
    """The plane on which a LayerNorm (D,), (D,) puts its outputs, ⟨1/g, h⟩ = Σ b/g =: c, so that v = −sign(c)/g is
    negative for all of them whatever the data; empty where a gain is 0.

    Args:
        rows: (M, D), some of its outputs, or means of such.

    Returns:
        ``plane_distance`` of the plane from 0, |c| / ‖1/g‖; ``plane_angle``, median degrees between v and the rows:
        near 90 v hardly matters; ``plane_largest``, the share of v's squared length in its largest feature: near 1 it
        is one feature with a tiny gain; ``plane_spread``, the largest |⟨1/g, h⟩ − c| by ‖1/g‖ ‖h‖, which is rounding.
    """
    if (gain == 0).any():
        return {}
    normal = 1 / gain.detach().double().cpu()
    offset, size, lengths = float(bias.detach().double().cpu() @ normal), normal.norm(), rows.norm(dim=1)
    products = rows.double() @ normal
    angles = torch.rad2deg(torch.acos((-math.copysign(1, offset) * products / (size * lengths)).clamp(-1, 1)))
    measures = {"distance": abs(offset) / size, "angle": angles.median(), "largest": (normal.abs().max() / size) ** 2}
    measures["spread"] = ((products - offset).abs() / (size * lengths)).max()
    return {f"plane_{name}": float(value) for name, value in measures.items()}


# -- every measure of one cloud ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sample:
    """The words of a corpus whose vectors are kept, for measures that moments do not give.

    Attributes:
        starts: for each sentence the place of its first word among all W, and W at last.
        stored_words: rising places of the words whose vectors are stored.
        rows: which of the stored words are the M rows of the sample.
        one_a_sentence: which of the stored words are one word of every sentence: words of one sentence are no
            independent draws.
    """

    starts: NDArray[np.int64]
    stored_words: NDArray[np.int64]
    rows: NDArray[np.int64]
    one_a_sentence: NDArray[np.int64]

    def of(self, sentences: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The words of a batch of sentences that are kept, and their places among the kept."""
        words = np.concatenate([np.arange(self.starts[row], self.starts[row + 1]) for row in sentences])
        places = np.minimum(np.searchsorted(self.stored_words, words), len(self.stored_words) - 1)
        inside = self.stored_words[places] == words
        return np.flatnonzero(inside), places[inside]


def draw(sizes: list[int], rows: int, seed: int) -> Sample:
    """A sample of sentences of so many words."""
    generator = np.random.default_rng([seed, 71])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    sampled = np.sort(generator.permutation(starts[-1])[:rows])
    one_a_sentence = starts[:-1] + (generator.random(len(sizes)) * np.diff(starts)).astype(np.int64)
    rows_needed = np.union1d(sampled, one_a_sentence)
    return Sample(
        starts, rows_needed, np.searchsorted(rows_needed, sampled), np.searchsorted(rows_needed, one_a_sentence)
    )


def cloud(moments: Moments, rows: Tensor, one_a_sentence: Tensor | None = None) -> dict[str, float]:
    """Every measure of one cloud.

    Args:
        moments: of all its rows, (D,).
        rows: (M, D), a sample of them.
        one_a_sentence: (.., D), independent draws for TwoNN; none for no dimension.
    """
    doubles = rows.double().cpu()
    angles, singular, mean = angles_to_mean(doubles), moments.spectrum(), moments.mean()
    middle, upper_quantile = torch.quantile(angles, torch.tensor([0.5, 0.95], dtype=angles.dtype))
    measures: dict[str, Any] = {"rows": moments.rows, "features": rows.shape[1], "positive": positive_share(doubles)}
    measures |= {"mean_cosine": moments.mean_cosine(), "cosine": moments.cosine()}
    measures |= {"angle": middle, "angle_q95": upper_quantile, "angle_max": angles.max()}
    measures |= {f"top{k}": top_share(singular, k) for k in (1, 2, 10)}
    measures |= {"rank": moments.effective_rank(), "rank_share": moments.effective_rank_share()}
    measures |= {"partition": partition_isotropy(doubles, moments.second), "isoscore": moments.isoscore()}
    measures |= {"common": mean.square().sum() / (moments.second.trace() / moments.rows), "margin": margin(doubles)}
    measures |= {} if one_a_sentence is None else {"dimension": twonn.likelihood(one_a_sentence.double().cpu())}
    return {name: float(value) for name, value in measures.items()}


def margin(rows: Tensor) -> float:
    """The widest margin of a uniformly negative direction of rows (M, D), 0 where there is none; NaN where random rows
    would have one too, or a row is 0."""
    if wendel(*rows.shape) >= CHANCE or bool((rows.norm(dim=1) == 0).any()):
        return math.nan
    direction = negative_direction(rows.numpy())
    return 0.0 if direction is None else direction[1]
