"""Heads by how many single tasks claim them: stem, exclusive and free ones, and how many there are by chance.

Letters: n tasks, L layers, A heads a layer, H = L·A, P permutations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtlprune.analyses.claims.claimants import Claimant
from mtlprune.statistics.permutation import permuted, tail

STEM_TASKS = 3
"""A stem head is claimed by so many single tasks or more."""


@dataclass(frozen=True)
class Head:
    """A head, and who claims it. Layers and heads are counted from 1."""

    layer: int
    head: int
    labels: tuple[str, ...]
    """Single tasks that claim it."""
    confidence: float
    """Share of bootstrap samples in which it is what it is listed as: claimed by STEM_TASKS tasks or more, by exactly
    one, or by none. NaN where no task has two seeds."""

    @property
    def name(self) -> str:
        """Such as 5-12: the twelfth head of the fifth layer."""
        return f"{self.layer}-{self.head}"


@dataclass(frozen=True)
class Chance:
    """Number of heads under one null."""

    expected: float
    """Exact."""
    p_more: float
    """Probability of so many or more."""
    p_fewer: float
    """Probability of so few or fewer."""


@dataclass(frozen=True)
class ClaimedBy:
    """How many heads k tasks or more claim."""

    tasks: int
    heads: int
    layers: Chance
    """Each task's heads fall anywhere within their layers."""
    uniform: Chance
    """Each task's heads fall anywhere."""


def claimed_by(
    claims: Sequence[NDArray[np.bool_]], permutations: int, within: np.random.Generator, uniform: np.random.Generator
) -> list[ClaimedBy]:
    """The number of heads claimed by ≥ k tasks, k = 1 … n, beside two nulls.

    Args:
        claims: one array (L, A) a task.
        within, uniform: generators for permutations within layers and over all heads.
    """
    if not claims:
        return []
    claimed = np.stack(claims)
    tasks = len(claimed)
    observed = _at_least(claimed.reshape(tasks, -1).sum(0)[None], tasks)[0]
    values = claimed[:, None].astype(np.float32)
    nulls = {}
    for name, generator in (("layers", within), ("uniform", uniform)):
        chunks = [np.empty((0, tasks), dtype=np.int64)]
        for chunk in permuted(values, permutations, generator, name == "layers"):
            chunks.append(_at_least(chunk[:, :, 0].sum(1), tasks))
        nulls[name] = np.concatenate(chunks)
    rates = claimed.mean(2)  # (n, L)
    everywhere = np.repeat(claimed.mean((1, 2))[:, None], rates.shape[1], axis=1)
    found = []
    for k in range(1, tasks + 1):
        chances = [
            Chance(
                _expected(probabilities, k, claimed.shape[2]),
                tail(observed[k - 1], null[:, k - 1]).p,
                tail(-observed[k - 1], -null[:, k - 1]).p,
            )
            for probabilities, null in ((rates, nulls["layers"]), (everywhere, nulls["uniform"]))
        ]
        found.append(ClaimedBy(k, int(observed[k - 1]), *chances))
    return found


def _at_least(counts: NDArray[Any], tasks: int) -> NDArray[np.int64]:
    """(P, H) tasks a head → (P, n) heads with ≥ 1 … n tasks."""
    return np.stack([(counts > k - 0.5).sum(1) for k in range(1, tasks + 1)], axis=1).astype(np.int64)


def _expected(rates: NDArray[np.floating], k: int, heads: int) -> float:
    """Expected heads with ≥ k tasks, if task i claims each of layer l with probability rates[i, l], independently."""
    return float(sum(heads * count_distribution(layer)[k:].sum() for layer in rates.T))


def count_distribution(probabilities: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """(n + 1,): probability that 0 … n of n independent events happen (Poisson binomial)."""
    distribution = np.ones(1)
    for p in probabilities:
        distribution = np.convolve(distribution, [1 - p, p])
    return distribution


def majority_probability(seeds: int, times: int) -> float:
    """Probability that a bootstrap sample of a task's seeds has a head open in more than half of them.

    Args:
        seeds: S, drawn S times with replacement.
        times: in how many of the seeds the head is open.
    """
    return float(stats.binom.sf(seeds // 2, seeds, times / seeds))


def claim_probabilities(claimants: Sequence[Claimant]) -> NDArray[np.float64]:
    """(n + 1, L, A): share of bootstrap samples in which exactly 0 … n tasks claim a head.

    A sample draws each task's seeds anew with replacement, tasks independently. The share over infinitely many samples
    has a closed form for a single head (binomial within a task, Poisson binomial over tasks), so none is drawn. NaN
    where no task has two seeds: resampling one seed gives itself.
    """
    times = np.stack([claimant.times for claimant in claimants])  # (n, L, A)
    if all(len(claimant.claims) < 2 for claimant in claimants):
        return np.full((len(times) + 1, *times.shape[1:]), math.nan)
    tables = [
        np.array([majority_probability(seeds, t) for t in range(seeds + 1)])
        for seeds in (len(claimant.claims) for claimant in claimants)
    ]
    rates = np.stack([table[t] for table, t in zip(tables, times, strict=True)])
    return np.apply_along_axis(count_distribution, 0, rates)


def list_heads(claimants: Sequence[Claimant]) -> tuple[list[Head], list[Head], list[Head]]:
    """Stem heads (≥ STEM_TASKS tasks; most tasks first), exclusive ones (one task) and free ones (none)."""
    if not claimants:
        return [], [], []
    claimed = np.stack([claimant.claimed for claimant in claimants])
    probabilities = claim_probabilities(claimants)
    stem: list[Head] = []
    exclusive: list[Head] = []
    free: list[Head] = []
    for layer, head in np.ndindex(*claimed.shape[1:]):
        labels = tuple(c.label for c, mine in zip(claimants, claimed[:, layer, head], strict=True) if mine)
        shares = probabilities[:, layer, head]
        if len(labels) >= STEM_TASKS:
            stem.append(Head(layer + 1, head + 1, labels, float(shares[STEM_TASKS:].sum())))
        elif len(labels) < 2:
            (exclusive if labels else free).append(Head(layer + 1, head + 1, labels, float(shares[len(labels)])))
    return sorted(stem, key=lambda found: -len(found.labels)), exclusive, free
