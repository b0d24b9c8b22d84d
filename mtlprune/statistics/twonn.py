"""Intrinsic dimension of a cloud of points from the ratio of each one's two nearest distances (TwoNN).

Facco, d'Errico, Rodriguez and Laio (2017): mu = r2 / r1 follows a Pareto law whose exponent is the dimension, where the
density is even over the distance of two neighbours. It is biased low from about ten dimensions on: compare, do not
read off. One point a sentence, never the tokens of one sentence, which are no independent draws.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtlprune.errors import MtlpruneError

_RELATIVE_TOLERANCE = 1e-6
"""Points nearer than this times the cloud's radius are one: float32 does not place them better."""
_MIN_POINTS = 3


class DimensionError(MtlpruneError):
    """No dimension can be had of these points; the message says why."""


@dataclass(frozen=True)
class Dimension:
    """An estimate of maximum likelihood.

    Attributes:
        likelihood: N / Σ log mu.
        points: N, how many were used.
        dropped: how many were copies of another one and were left out.
    """

    likelihood: float
    points: int
    dropped: int = 0


def twonn(points: ArrayLike) -> Dimension:
    """Estimate the dimension of points.

    Copies of a point (see :data:`SAME`) are dropped and counted: a distance of 0 has no ratio.

    Args:
        points: (N, features).

    Raises:
        DimensionError: fewer than three different points, or a lattice, where every point has two equally near
            neighbours.
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
    """The dimension of maximum likelihood; NaN where ``twonn`` finds none."""
    try:
        return twonn(points).likelihood
    except DimensionError:
        return math.nan


def _distinct(points: NDArray[np.float64], min_distance: float) -> NDArray[np.float64]:
    """One of each group of points no further apart than ``min_distance``, the first; the order is kept."""
    neighbours = _neighbours(points).radius_neighbors(points, min_distance, return_distance=False)
    return points[[int(neighbour_rows.min()) == place for place, neighbour_rows in enumerate(neighbours)]]


def _nearest(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 2): distances of the two nearest others."""
    return np.asarray(_neighbours(points).kneighbors(n_neighbors=2)[0])


def _neighbours(points: NDArray[np.float64]) -> Any:
    """scikit-learn's. Distances are from inner products, exact to 1e-8 of the cloud's radius as its mean is at 0."""
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(algorithm="brute").fit(points)
