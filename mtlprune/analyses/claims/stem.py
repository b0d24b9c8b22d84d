"""Heads by how many single tasks claim them: stem, exclusive and free ones, and how many there are by chance.

Letters: n tasks, L layers, A heads a layer, H = L·A, P permutations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from mtlprune.analyses.claims.run_groups import RunGroup
from mtlprune.statistics.permutation import permuted, tail

STEM_TASKS = 3
"""A stem head is claimed by so many single tasks or more."""


def claimed_by(
    claims: Sequence[NDArray[np.bool_]], permutations: int, within: np.random.Generator, uniform: np.random.Generator
) -> pd.DataFrame:
    """The number of heads claimed by ≥ k tasks, k = 1 … n, beside two nulls.

    Args:
        claims: one array (L, A) a task.
        within, uniform: generators for permutations within layers and over all heads.

    Returns:
        A row for each k: ``tasks`` (k), ``heads``, and where each task's heads fall anywhere within their layers (NULL
        ``layers``) or anywhere (``uniform``): ``NULL_expected``, exact, and the probability of so many or more
        (``NULL_more``) and of so few or fewer (``NULL_fewer``).
    """
    if not claims:
        return pd.DataFrame()
    claimed = np.stack(claims)
    tasks = len(claimed)
    observed = _at_least(claimed.reshape(tasks, -1).sum(0)[None], tasks)[0]
    found = pd.DataFrame({"tasks": np.arange(1, tasks + 1), "heads": observed})
    values = claimed[:, None].astype(np.float32)
    rates = claimed.mean(2)  # (n, L)
    everywhere = np.repeat(claimed.mean((1, 2))[:, None], rates.shape[1], axis=1)
    for name, generator, probabilities in (("layers", within, rates), ("uniform", uniform, everywhere)):
        chunks = [np.empty((0, tasks), dtype=np.int64)]
        for chunk in permuted(values, permutations, generator, name == "layers"):
            chunks.append(_at_least(chunk[:, :, 0].sum(1), tasks))
        null = np.concatenate(chunks).T
        found[f"{name}_expected"] = [_expected(probabilities, k, claimed.shape[2]) for k in found["tasks"]]
        found[f"{name}_more"] = [tail(x, one).p for x, one in zip(observed, null, strict=True)]
        found[f"{name}_fewer"] = [tail(-x, -one).p for x, one in zip(observed, null, strict=True)]
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


def claim_probabilities(run_groups: Sequence[RunGroup]) -> NDArray[np.float64]:
    """(n + 1, L, A): share of bootstrap samples in which exactly 0 … n tasks claim a head.

    A sample draws each task's seeds anew with replacement, tasks independently. The share over infinitely many samples
    has a closed form for a single head (binomial within a task, Poisson binomial over tasks), so none is drawn. NaN
    where no task has two seeds: resampling one seed gives itself.
    """
    times = np.stack([run_group.times for run_group in run_groups])  # (n, L, A)
    if all(len(run_group.claims) < 2 for run_group in run_groups):
        return np.full((len(times) + 1, *times.shape[1:]), math.nan)
    tables = [
        np.array([majority_probability(seeds, t) for t in range(seeds + 1)])
        for seeds in (len(run_group.claims) for run_group in run_groups)
    ]
    rates = np.stack([table[t] for table, t in zip(tables, times, strict=True)])
    return np.apply_along_axis(count_distribution, 0, rates)


def list_heads(run_groups: Sequence[RunGroup]) -> pd.DataFrame:
    """Every head, by layer: who claims it, and whether it is a stem, exclusive or free one.

    Returns:
        ``layer`` and ``head`` from 1, ``tasks``: how many claim it, ``claimed_by``: which, ``group``: stem (STEM_TASKS
        or more), exclusive (one), free (none) or "" (in between), and ``confidence``: the share of bootstrap samples in
        which the head is in its group; NaN where it is in none, or no task has two seeds.
    """
    if not run_groups:
        return pd.DataFrame()
    claimed = np.stack([run_group.claimed for run_group in run_groups])
    probabilities = claim_probabilities(run_groups)
    rows = []
    for layer, head in np.ndindex(*claimed.shape[1:]):
        labels = [c.label for c, mine in zip(run_groups, claimed[:, layer, head], strict=True) if mine]
        shares, tasks = probabilities[:, layer, head], len(labels)
        group = "stem" if tasks >= STEM_TASKS else {0: "free", 1: "exclusive"}.get(tasks, "")
        confidence = shares[STEM_TASKS:].sum() if group == "stem" else shares[tasks] if group else math.nan
        rows.append((layer + 1, head + 1, tasks, ", ".join(labels), group, float(confidence)))
    return pd.DataFrame(rows, columns=["layer", "head", "tasks", "claimed_by", "group", "confidence"])
