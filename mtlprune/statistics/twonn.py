"""The intrinsic dimension of a cloud of points, estimated from distances to the two nearest neighbours (TwoNN).

Facco, d'Errico, Rodriguez and Laio (2017) show that the ratio mu = r2 / r1 of these distances follows a Pareto
distribution whose exponent is the dimension, if the density is constant over the distance of two neighbours. From about
ten dimensions on, the estimate is too low, so that only comparisons of estimates are meaningful. Use one point per
sentence, because the tokens of a sentence are not independent.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlprune.errors import MtlpruneError

_RELATIVE_TOLERANCE = 1e-6
"""Points count as copies if their distance is below this share of the cloud's radius, the precision of float32."""
_MIN_POINTS = 3


class DimensionError(MtlpruneError):
    """The dimension of these points cannot be estimated. The message gives the reason."""


@dataclass(frozen=True)
class Dimension:
    """A maximum-likelihood estimate of the intrinsic dimension.

    Attributes:
        likelihood: the estimate, N / Σ log mu.
        points: number of points N that were used.
        dropped: number of points that were left out as copies of other points.
    """

    likelihood: float
    points: int
    dropped: int = 0


def twonn(points: ArrayLike) -> Dimension:
    """Estimate the intrinsic dimension of a cloud of points.

    Copies of a point are left out, because a distance of 0 has no ratio.

    Args:
        points: (N, features) the points.

    Raises:
        DimensionError: there are fewer than three different points, or if the points form a lattice, where the two
            nearest neighbours of every point are equally far.
    """
    cloud = np.asarray(points, np.float64)
    if len(cloud) < _MIN_POINTS:
        raise DimensionError(f"a dimension needs at least {_MIN_POINTS} different points, found {len(cloud)}")
    cloud = cloud - cloud.mean(0)
    min_distance = _RELATIVE_TOLERANCE * float(np.sqrt((cloud**2).sum(1).mean()))
    distinct, nearest = cloud, _nearest(cloud)
    if (nearest[:, 0] <= min_distance).any():
        distinct = _distinct(cloud, min_distance)
        if len(distinct) < _MIN_POINTS:
            raise DimensionError(
                f"a dimension needs at least {_MIN_POINTS} different points, found {len(distinct)} "
                f"({len(cloud) - len(distinct)} of the {len(cloud)} given are copies)"
            )
        nearest = _nearest(distinct)
    logs = np.log(nearest[:, 1] / nearest[:, 0])
    if not logs.max() > 1e-9:
        raise DimensionError(
            "every point has two neighbours at the same distance, as on a lattice, so that the ratios do not determine "
            "a dimension; give other points"
        )
    return Dimension(len(logs) / float(np.sort(logs).sum()), len(nearest), len(cloud) - len(distinct))


def likelihood(points: ArrayLike) -> float:
    """Return the maximum-likelihood estimate of the dimension, or NaN if ``twonn`` raises DimensionError."""
    try:
        return twonn(points).likelihood
    except DimensionError:
        return math.nan


def _distinct(points: NDArray[np.float64], min_distance: float) -> NDArray[np.float64]:
    """Keep the first point of each group of points within ``min_distance``, in the original order."""
    neighbours = _neighbours(points).radius_neighbors(points, min_distance, return_distance=False)
    return points[[int(neighbour_rows.min()) == row for row, neighbour_rows in enumerate(neighbours)]]


def _nearest(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the distances of each point to its two nearest neighbours: (N, 2)."""
    return np.asarray(_neighbours(points).kneighbors(n_neighbors=2)[0])


def _neighbours(points: NDArray[np.float64]) -> Any:
    """Build scikit-learn's neighbour search.

    It computes distances from inner products, which is exact to 1e-8 of the cloud's radius, because the mean of the
    cloud is at 0.
    """
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(algorithm="brute").fit(points)
