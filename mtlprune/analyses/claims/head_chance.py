"""How likely a single head is claimed so often by chance, if all that is kept is how many heads each layer has open.

p = by_seeds(run_group.open)              # of a task: open in so many of its seeds
p = by_tasks([c.claimed for c in alone]) # claimed by so many tasks

Letters: S seeds or tasks, L layers, A heads a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.claims.stem import count_distribution
from mtlprune.statistics.permutation import corrected


def tails(open_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(L, S + 1): probability that a given head of a layer is open in 0, 1, ... S or more of S maps (S, L, A).

    Each map's open heads fall anywhere within their layer, independently of the other maps: so a head of layer l is
    open in map s with probability (open heads of the layer) / A, and their number is Poisson-binomial. Exact.
    """
    rates = open_.mean(2)  # (S, L)
    each = np.stack([count_distribution(layer) for layer in rates.T])  # (L, S + 1)
    return np.minimum(np.cumsum(each[:, ::-1], axis=1)[:, ::-1], 1.0)


def by_maps(open_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(L, A): probability that chance opens a head in as many of the maps (S, L, A) as it is open in, or more."""
    reached = tails(open_)
    times = open_.sum(0)  # (L, A)
    return np.take_along_axis(reached, times, axis=1)


def by_tasks(claimed: Sequence[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """(L, A): probability that chance gives a head as many tasks as claim it, or more; one map (L, A) a task."""
    return by_maps(np.stack(claimed))


def over_all_heads(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """(L, A): p after Benjamini-Hochberg over all heads."""
    return np.asarray(corrected(p.ravel().tolist())).reshape(p.shape)


def least(open_: NDArray[np.bool_]) -> float:
    """The smallest p that any head could have: open in every map that opens any of its layer, where that is rarest."""
    reached = tails(open_)
    most = (open_.any(2)).sum(0)  # (L,): maps that open a head of the layer
    return float(np.take_along_axis(reached, most[:, None], axis=1).min())
