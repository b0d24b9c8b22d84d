"""Measures of the degeneration of a matrix of rows: cosines, cone, spectrum, isotropy and negative directions.

    moments = Moments(features)
    moments.add(rows)
    moments.mean_cosine()  # R of Gao et al.

Rows are token embeddings, label weights, head outputs or hidden states. :class:`Moments` computes all measures that
follow from first and second moments, batch by batch. Angles and the partition isotropy need the rows of a sample.

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

_TINY = 1e-12
"""Squared singular values, variances and lengths of means below this fraction of their scale count as 0."""


def angles_to_mean(rows: Tensor) -> Tensor:
    """Compute the angle in degrees between each row and the axis of the cone: (..., N, D) → (..., N).

    The axis is the mean of the rows scaled to length 1. The largest angle is the half-aperture of the cone around this
    axis. The angles are NaN if the scaled rows sum to 0.
    """
    units = unit_rows(rows)
    mean = units.mean(-2, keepdim=True)
    size = mean.norm(dim=-1)
    cosines = (units * mean).sum(-1) / torch.where(size > _TINY, size, math.nan)
    return torch.rad2deg(torch.acos(cosines.clamp(-1, 1)))


def positive_share(rows: Tensor) -> float:
    """Compute the share of pairs of different rows (N, D) that form an acute angle."""
    units = unit_rows(rows)
    number = len(units)
    pairs = sum(int((part @ units.T > 0).sum()) for part in units.split(1024))
    itself = int((units.square().sum(-1) > 0).sum())
    return (pairs - itself) / (number * (number - 1)) if number > 1 else math.nan


def _top_directions(second: Tensor, number: int = 2) -> Tensor:
    """Return the top right-singular directions, (D, number), of rows whose XᵀX is ``second``, (D, D)."""
    return torch.linalg.eigh(second).eigenvectors.flip(-1)[:, :number]


def projection(rows: Tensor, second: Tensor | None = None) -> Tensor:
    """Project rows on the two top right-singular directions of the *uncentred* matrix: (N, D) → (N, 2).

    The signs are such that the mean has positive coordinates. A degenerate cloud is a cone on one side of the origin.

    Args:
        rows: (N, D).
        second: (D, D), XᵀX of the rows that determine the directions; by default XᵀX of ``rows``.
    """
    points = rows @ _top_directions(rows.T @ rows if second is None else second)
    if points.shape[1] == 1:
        points = torch.cat([points, torch.zeros_like(points)], 1)
    return points * torch.where(points.mean(0) < 0, -1.0, 1.0).to(points)


def partition_isotropy(rows: Tensor, second: Tensor | None = None) -> float:
    """Compute I(W) = min_c Z(c) / max_c Z(c) with Z(c) = Σ_i exp(c · w_i); 1 means isotropic.

    The directions c are ± the unit eigenvectors of WᵀW, which is ``second``, (D, D), or by default that of ``rows``,
    (N, D).
    """
    directions = _top_directions(rows.T @ rows if second is None else second, rows.shape[1])
    scores = rows @ directions  # (N, D)
    logs = torch.cat([scores.logsumexp(0), (-scores).logsumexp(0)])
    return float((logs.min() - logs.max()).exp())


def spectrum(second: Tensor) -> Tensor:
    """Compute the singular values, in descending order, of rows whose XᵀX is ``second``: (..., D, D) → (..., D)."""
    values = torch.linalg.eigvalsh(second).flip(-1).clamp(min=0)
    return torch.where(values > _TINY * values[..., :1], values, 0.0).sqrt()


def top_share(singular: Tensor, number: int) -> Tensor:
    """Compute the share of Σ s² in the largest ``number`` singular values s: (..., D) → (...); NaN where all are 0."""
    squares = singular.square()
    return squares[..., :number].sum(-1) / squares.sum(-1)


def effective_rank(singular: Tensor) -> Tensor:
    """Compute exp of the entropy of s / Σ s for singular values s: (..., D) → (...).

    The result lies between 1 (one direction) and the number of features; NaN where all singular values are 0.
    """
    shares = singular / singular.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def _centred(second: Tensor, total: Tensor, number: int) -> Tensor:
    """Compute XᵀX of the rows minus their mean, (..., D, D), from XᵀX, the sum of rows and the number of rows.

    Entries of constant features are set to 0, because only rounding errors remain of them.
    """
    scatter = second - total[..., :, None] * total[..., None, :] / number
    size = second.diagonal(dim1=-2, dim2=-1)  # (..., D)
    rounding = scatter.diagonal(dim1=-2, dim2=-1) <= _TINY * size
    return scatter.masked_fill(rounding[..., :, None] | rounding[..., None, :], 0.0)


def isoscore(covariance: Tensor) -> Tensor:
    """Compute the IsoScore of a covariance matrix C at any scale: (..., D, D) → (...).

    The score is 0 if all variance lies in one direction, 1 if all directions have the same variance, and NaN for a
    single feature or if nothing varies. The published steps (isotropy defect of normalised variances, share of
    dimensions used) are equivalent to (tr²C / trC² − 1) / (D − 1), which needs no eigenvalues, because D − δ²(D − √D) =
    √D Σλ / ‖λ‖. With N ≤ D rows the score cannot exceed (N − 2)/(D − 1), so compare only clouds with equally many
    rows.

    Source: Rudman et al. (2022), algorithm 1.
    """
    features = covariance.shape[-1]
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    squared = covariance.square().sum((-2, -1))
    return (trace.square() / squared - 1) / (features - 1) if features > 1 else trace * math.nan


class Moments:
    """Float64 sums over rows, from which R, spectra and IsoScore follow without storing the rows.

    ``shape``, (..., D), is the shape of one row. Leading dimensions, such as heads, are separate clouds.
    """

    def __init__(self, *shape: int) -> None:
        self.rows = 0
        self.total = torch.zeros(shape, dtype=torch.float64)
        self.units = torch.zeros(shape, dtype=torch.float64)
        self.second = torch.zeros(*shape, shape[-1], dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Add rows, (N, ..., D)."""
        doubles = rows.detach().double().movedim(0, -2)  # (..., N, D)
        self.rows += len(rows)
        self.total += doubles.sum(-2).cpu()
        self.units += unit_rows(doubles).sum(-2).cpu()
        self.second += (doubles.mT @ doubles).cpu()

    def mean(self) -> Tensor:
        """Return the mean row, (..., D)."""
        return self.total / self.rows

    def mean_cosine(self) -> Tensor:
        """Return R = 1/N² Σ_i Σ_{j≠i} ŵ_i · ŵ_j = (‖Σ ŵ‖² − N) / N² (Gao et al. 2019). (...)

        R lies between −1/N and (N − 1)/N. It is NaN if all rows are 0, because zero vectors have no direction.
        """
        cosine = (self.units.square().sum(-1) - self.rows) / self.rows**2
        return torch.where(self.second.diagonal(dim1=-2, dim2=-1).sum(-1) > 0, cosine, math.nan)

    def cosine(self) -> Tensor:
        """Return the mean cosine of two different rows, the token similarity CosSim. (...)"""
        return self.mean_cosine() * self.rows / (self.rows - 1) if self.rows > 1 else self.mean_cosine() * math.nan

    def spectrum(self) -> Tensor:
        """Return the singular values in descending order, (..., D)."""
        return spectrum(self.second)

    def effective_rank(self) -> Tensor:
        """Return the effective rank of the uncentred rows, (...)."""
        return effective_rank(self.spectrum())

    def effective_rank_share(self) -> Tensor:
        """Return the effective rank of the centred rows, divided by its maximum min(N − 1, D). (...)"""
        room = min(self.rows - 1, self.second.shape[-1])
        rank = effective_rank(spectrum(_centred(self.second, self.total, self.rows)))
        return rank / room if room > 0 else rank * math.nan

    def isoscore(self) -> Tensor:
        """Return the IsoScore of the rows, (...)."""
        return isoscore(_centred(self.second, self.total, self.rows))


# -- uniformly negative directions -------------------------------------------------------------------------------------
#
# If a class never occurs, a softmax pushes its row ever further along a direction v that has a negative product with
# all hidden states (Gao et al. 2019, Theorem 1). Such a direction exists if and only if 0 is not in the convex hull of
# the hidden states (Theorem 2). With few vectors compared with their features, its existence is not informative: M
# random vectors have such a direction with the probability wendel(M, D), which is 1 for M ≤ D and ½ for M = 2 D.

_UNINFORMATIVE_FROM = 0.05
"""If random vectors have a negative direction with this probability or more, its existence is not informative."""


def negative_direction(rows: ArrayLike) -> tuple[NDArray[np.float64], float] | None:
    """Find the direction v, (D,) of length 1, with ⟨v, h⟩ < 0 for all rows h that has the widest margin.

    The margin is the smallest −⟨v, h⟩ / ‖h‖ over rows. v is −p / ‖p‖, where p is the point nearest to 0 in the convex
    hull of the rows scaled to length 1, and ‖p‖ is the margin. Non-negative least squares finds p: among the points Σ
    λ_i (h_i, 1), λ ≥ 0, the point nearest to (0, 1) is a multiple of (p, 1).

    Args:
        rows: (M, D), none of them 0; their lengths do not matter.

    Returns:
        v and its margin; None if 0 is in the convex hull, so that no such direction exists.
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
    """Compute the probability that M random vectors lie in an open half-space.

    For vectors in general position with a distribution symmetric around 0, the probability is
    2^(1 − M) Σ_{k < D} C(M − 1, k) (Wendel 1962). It is 1 for M ≤ D and ½ for M = 2 D, and nears 0 for larger M.
    """
    return float(stats.binom.cdf(features - 1, vectors - 1, 0.5)) if vectors > 0 else 1.0


def plane(gain: Tensor, bias: Tensor | None, rows: Tensor) -> dict[str, float]:
    """Describe the plane on which all outputs h of a LayerNorm with gain g and bias b lie: ⟨1/g, h⟩ = Σ b/g =: c.

    The direction v = −sign(c)/g has a negative product with all outputs, whatever the data are.

    Args:
        gain, bias: (D,); bias is None for a LayerNorm without one.
        rows: (M, D), some outputs of the LayerNorm, or means of outputs.

    Returns:
        ``plane_distance``, the distance of the plane from 0, |c| / ‖1/g‖; ``plane_angle``, the median angle in degrees
        between v and the rows, near 90 if v hardly matters; ``plane_largest``, the share of v's squared length in its
        largest feature, near 1 if a single feature has a tiny gain; ``plane_spread``, the largest |⟨1/g, h⟩ − c|
        divided by ‖1/g‖ ‖h‖, which is rounding error. Empty if a gain is 0, or without a bias, because c is then 0
        and v has no direction.
    """
    if bias is None or (gain == 0).any():
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
    """The words of a corpus whose vectors are stored, for measures that do not follow from moments.

    Attributes:
        starts: index of the first word of each sentence among all W words, followed by W.
        stored_words: ascending indices of the words whose vectors are stored.
        rows: positions among the stored words of the M words of the sample.
        one_a_sentence: positions among the stored words of one word for each sentence. TwoNN uses these words, because
            words of the same sentence are not independent draws.
    """

    starts: NDArray[np.int64]
    stored_words: NDArray[np.int64]
    rows: NDArray[np.int64]
    one_a_sentence: NDArray[np.int64]

    def of(self, sentences: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the stored words of a batch of sentences: their positions in the batch, and among the stored words."""
        words = np.concatenate([np.arange(self.starts[row], self.starts[row + 1]) for row in sentences])
        places = np.minimum(np.searchsorted(self.stored_words, words), len(self.stored_words) - 1)
        inside = self.stored_words[places] == words
        return np.flatnonzero(inside), places[inside]


def draw(sizes: list[int], rows: int, seed: int) -> Sample:
    """Draw a sample of ``rows`` words, and one word of each sentence, from sentences with ``sizes`` words."""
    generator = np.random.default_rng([seed, 71])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    sampled = np.sort(generator.permutation(starts[-1])[:rows])
    one_a_sentence = starts[:-1] + (generator.random(len(sizes)) * np.diff(starts)).astype(np.int64)
    rows_needed = np.union1d(sampled, one_a_sentence)
    return Sample(
        starts, rows_needed, np.searchsorted(rows_needed, sampled), np.searchsorted(rows_needed, one_a_sentence)
    )


def cloud(moments: Moments, rows: Tensor, one_a_sentence: Tensor | None = None) -> dict[str, float]:
    """Compute every measure of one cloud.

    Args:
        moments: moments of all its rows, (D,).
        rows: (M, D), a sample of the rows.
        one_a_sentence: (.., D), independent draws for TwoNN; without them the measure ``dimension`` is left out.
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
    """Compute the widest margin of a uniformly negative direction of rows (M, D); 0 if no such direction exists.

    The margin is NaN if random rows would often have such a direction (``_UNINFORMATIVE_FROM``), or if a row is 0.
    """
    if wendel(*rows.shape) >= _UNINFORMATIVE_FROM or bool((rows.norm(dim=1) == 0).any()):
        return math.nan
    direction = negative_direction(rows.numpy())
    return 0.0 if direction is None else direction[1]
