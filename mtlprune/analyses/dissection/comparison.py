"""What decompositions of several encoders say side by side; plain arrays, nothing of torch.

Which term carries the loss of multi-task learning; do gates keep the heads with the largest shares; is what the heads
of the joint encoder add a compromise between those of single-task ones.

Letters for shapes: W words, L layers, A heads a layer, T = 4 terms, S = 16 subsets, X sentences, M sampled words,
H hidden size, k encoders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from mtlprune.statistics.permutation import layered_hypergeometric_p, layered_rank_test

Floats = NDArray[np.float64]
RESAMPLES = 1000
PERMUTATIONS = 2000


def mu_correlations(one: NDArray, other: NDArray) -> tuple[Floats, Floats]:
    """Spearman and Pearson over the same words of μ in two encoders: (W, L + 1, T) twice to (L + 1, T) twice.

    NaN where μ is constant, such as that of heads before the first layer.
    """
    columns = [np.asarray(side, np.float64).reshape(len(side), -1) for side in (one, other)]
    ranks = [stats.rankdata(side, axis=0) for side in columns]
    return _columnwise(*ranks).reshape(one.shape[1:]), _columnwise(*columns).reshape(one.shape[1:])


def _columnwise(one: Floats, other: Floats) -> Floats:
    a, b = one - one.mean(0), other - other.mean(0)
    norms = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    flat = (np.ptp(one, axis=0) == 0) | (np.ptp(other, axis=0) == 0)
    return np.where(flat, math.nan, (a * b).sum(0) / np.where(flat, 1, norms))


# -- heads -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GatesAgainstShares:
    """Do gates keep the heads with the largest shares?

    Attributes:
        rho: correlation of ranks within layers (Spearman, layers taken out), two-sided p by permuting within layers.
        shared: heads that are open and among as many of largest share in their layer; expected by chance, upper-tail p.
    """

    rho: float
    rho_p: float
    open: int
    shared: int
    expected: float
    shared_p: float


def gates_against_shares(gates: NDArray, shares: NDArray, seed: int = 0) -> GatesAgainstShares:
    """Gates (L, A) in [0, 1] against mean μ of heads (L, A) in some encoder; a head is open at 0.5."""
    found = layered_rank_test(gates, shares, PERMUTATIONS, (seed, 12))
    opened = gates >= 0.5
    numbers = opened.sum(1)
    order = np.argsort(np.argsort(-shares, axis=1, kind="stable"), axis=1)
    shared = int((opened & (order < numbers[:, None])).sum())
    expected = float((numbers**2).sum() / gates.shape[1])
    upper = layered_hypergeometric_p(numbers, numbers, gates.shape[1], shared)
    return GatesAgainstShares(found.value, found.p, int(numbers.sum()), shared, expected, upper)


def lost_share(single: NDArray, joint: NDArray, claimed: NDArray) -> dict[str, float]:
    """Mean of μ in the joint encoder minus μ in a task's own, over heads that only this task keeps, and over the rest.

    Args:
        single, joint: (L, A), mean μ of heads.
        claimed: (L, A) bool, heads that this task keeps and no other.
    """
    change = joint - single
    return {
        "heads": int(claimed.sum()),
        "exclusive": float(change[claimed].mean()) if claimed.any() else math.nan,
        "others": float(change[~claimed].mean()) if not claimed.all() else math.nan,
    }


# -- subsets ---------------------------------------------------------------------------------------------------------


def losses(single: NDArray[np.int64], joint: NDArray[np.int64], seed: int = 0) -> dict[str, Floats]:
    """How much less of a task each subset of terms holds in the joint encoder than in the task's own.

    Args:
        single, joint: (S, X, 3), counts (correct, predicted, gold) of the same sentences.

    Returns:
        ``difference`` (S,): F1 of the single-task encoder minus F1 of the joint one; ``low``, ``high`` (S,): 2.5th and
        97.5th percentile when sentences are drawn anew, the same for both encoders and all subsets. The interval
        covers the choice of sentences, neither seeds of encoders nor of decoders.
    """
    sentences = single.shape[1]
    generator = np.random.default_rng([seed, 13])
    times = generator.multinomial(sentences, np.full(sentences, 1 / sentences), RESAMPLES).astype(np.float64)  # (R, X)
    drawn = [_f1(np.einsum("rx,sxc->rsc", times, side.astype(np.float64), optimize=True)) for side in (single, joint)]
    low, high = np.percentile(drawn[0] - drawn[1], (2.5, 97.5), axis=0)
    return {"difference": _f1(single.sum(1)) - _f1(joint.sum(1)), "low": low, "high": high}


def _f1(counts: NDArray) -> Floats:
    return 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


# -- compositions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Composition:
    """A term of one encoder as a sum of the same term in others, with weights that are not negative.

    Attributes:
        weights: a, by encoder.
        unexplained: ‖target − Σ a · other‖² / ‖target‖²; NaN where the target is 0.
        centred, centred_unexplained: the same after the mean over words is taken from all.
        rotated, rotated_unexplained: the same (not centred) after each other is turned onto the target by the best
            orthogonal map: the control for encoders that differ by a rotation only.
    """

    weights: Mapping[str, float]
    unexplained: float
    centred: Mapping[str, float]
    centred_unexplained: float
    rotated: Mapping[str, float]
    rotated_unexplained: float


def composition(target: NDArray, others: Mapping[str, NDArray]) -> Composition:
    """Non-negative least squares over words and features: (M, H) each."""
    goal = np.asarray(target, np.float64)
    given = {name: np.asarray(values, np.float64) for name, values in others.items()}
    turned = {name: values @ procrustes(values, goal) for name, values in given.items()}
    centred = {name: values - values.mean(0) for name, values in given.items()}
    plain = _weights(goal, given)
    return Composition(*plain, *_weights(goal - goal.mean(0), centred), *_weights(goal, turned))


def procrustes(moved: Floats, goal: Floats) -> Floats:
    """The orthogonal (H, H) R that minimises ‖moved R − goal‖ (Schönemann 1966)."""
    left, _, right = np.linalg.svd(moved.T @ goal)
    return left @ right


def _weights(goal: Floats, given: Mapping[str, Floats]) -> tuple[dict[str, float], float]:
    whole = float((goal**2).sum())
    if whole == 0:
        return dict.fromkeys(given, math.nan), math.nan
    columns = [*(values.ravel() for values in given.values()), goal.ravel()]
    small = np.asarray(np.linalg.qr(np.column_stack(columns), mode="r"))  # the same sums of squares, in k + 1 rows
    found, rest = optimize.nnls(small[:, :-1], small[:, -1])
    return dict(zip(given, found.tolist(), strict=True)), float(rest**2 / whole)


def mean_of(values: Sequence[float]) -> float:
    """Mean of what is defined; NaN where nothing is."""
    kept = [value for value in values if not math.isnan(value)]
    return sum(kept) / len(kept) if kept else math.nan
