"""Do heads that many tasks claim smooth more than others of their layers? Permutation tests within layers.

Depth alone predicts both which heads tasks keep and how much heads mix tokens, so values are compared within layers
only. Groups are those of ``mtlprune overlap``: stem heads (claimed by STEM_TASKS single tasks or more), exclusive ones
(by one), free ones (by none).

Letters: L layers, A heads a layer, P permutations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtlprune.analyses.claims.claimants import Claimant, group
from mtlprune.analyses.claims.stem import STEM_TASKS
from mtlprune.claimed_heads import Claim, ClaimError
from mtlprune.statistics.permutation import corrected, permuted, tail

Grid = NDArray[np.float64]  # (L, A)

GROUPS = ("stem", "exclusive", "free")
MEASURES = ("mixing", "amplification", "effect", "effect_last", "cosine_effect", "cosine_effect_last")


@dataclass(frozen=True, eq=False)
class Groups:
    """Heads by how many single tasks claim them.

    Attributes:
        encoder: that the runs began with.
        labels: the single tasks.
        counts: (L, A), how many of them claim a head.
        gates: label → mean gate over seeds, (L, A), joint labels too.
    """

    encoder: str
    labels: tuple[str, ...]
    counts: NDArray[np.int64]
    gates: dict[str, Grid]

    def of(self, name: str) -> NDArray[np.bool_]:
        """(L, A): the heads of one of GROUPS."""
        if name == "stem":
            return self.counts >= STEM_TASKS
        return self.counts == (1 if name == "exclusive" else 0)


def read_groups(claims: Sequence[Claim]) -> Groups:
    """Count claims of single tasks.

    Raises:
        ClaimError: no run of a single task is among them, or a run is there twice.
    """
    claimants: list[Claimant] = group(claims)
    single = [claimant for claimant in claimants if not claimant.joint]
    if not single:
        raise ClaimError(
            f"stem heads are counted over single tasks, and {', '.join(c.label for c in claimants)} is none; name runs "
            "with gates that were trained on one task each"
        )
    counts = np.stack([claimant.claimed for claimant in single]).sum(axis=0, dtype=np.int64)
    gates = {claimant.label: claimant.gates.mean(0) for claimant in claimants}
    return Groups(claims[0].encoder, tuple(claimant.label for claimant in single), counts, gates)


def compare(groups: Groups, heads: Mapping[str, Grid], permutations: int, seed: int) -> list[dict[str, Any]]:
    """Every measure by pairs of groups, and against the number of tasks that claim a head; heads of one encoder.

    Args:
        heads: MEASURES and ``gate``, (L, A); NaN where there is no head. Shut heads are left out.

    Returns:
        One entry a test: ``measure``, ``test`` ("stem - free", ..., or "tasks"), ``value`` (difference of means within
        layers; for "tasks" Spearman within layers), ``heads`` that count, ``p`` (two-sided), and for "tasks" also
        ``pooled``, Spearman over all heads without regard to layers.
    """
    generator = np.random.default_rng([seed, 62])
    found = []
    for measure in MEASURES:
        values = np.where(heads["gate"] > 1e-3, heads[measure], np.nan)
        for first, second in combinations(GROUPS, 2):
            found.append(
                {"measure": measure, "test": f"{first} - {second}"}
                | difference(values, groups.of(first), groups.of(second), permutations, generator)
            )
        found.append({"measure": measure, "test": "tasks"} | rank(values, groups.counts, permutations, generator))
    return found


def correct(tests: Sequence[dict[str, Any]]) -> None:
    """Add ``q`` (Benjamini and Hochberg 1995) over all tests that were made, in place."""
    for test, q in zip(tests, corrected([test["p"] for test in tests]), strict=True):
        test["q"] = float(q)


def difference(
    values: Grid,
    first: NDArray[np.bool_],
    second: NDArray[np.bool_],
    permutations: int,
    generator: np.random.Generator,
) -> dict[str, Any]:
    """Mean of the first minus that of the second group, within layers.

    A layer that has n₁ and n₂ of them weighs n₁ n₂ / (n₁ + n₂), as if layers had their own means; heads of other groups
    take no part. Values are permuted within layers, among the heads of the two groups.
    """
    known = ~np.isnan(values)
    contrast = np.zeros(values.shape)
    total = 0.0
    for layer in range(len(values)):
        one, two = first[layer] & known[layer], second[layer] & known[layer]
        if one.any() and two.any():
            weight = one.sum() * two.sum() / (one.sum() + two.sum())
            contrast[layer] = weight * (one / one.sum() - two / two.sum())
            total += weight
    used = contrast != 0
    if not total:
        return {"value": math.nan, "heads": 0, "p": math.nan}
    contrast /= total
    null = _shuffled(values, used, contrast, permutations, generator)
    observed = float((contrast[used] * values[used]).sum())
    return {"value": observed, "heads": int(used.sum()), "p": tail(abs(observed), np.abs(null)).p}


def rank(values: Grid, counts: NDArray[np.int64], permutations: int, generator: np.random.Generator) -> dict[str, Any]:
    """Spearman between values and the number of tasks, from ranks within layers; permuted within layers."""
    known = ~np.isnan(values)
    x, y = np.zeros(values.shape), np.zeros(values.shape)
    for layer, here in enumerate(known):
        if here.any():
            x[layer, here] = stats.rankdata(values[layer, here]) - (here.sum() + 1) / 2
            y[layer, here] = stats.rankdata(counts[layer, here]) - (here.sum() + 1) / 2
    size = math.sqrt(float((x**2).sum() * (y**2).sum()))
    pooled = math.nan
    if known.sum() > 1 and len(set(counts[known].tolist())) > 1 and len(set(values[known].tolist())) > 1:
        pooled = float(stats.spearmanr(values[known], counts[known]).statistic)
    if not size:
        return {"value": math.nan, "heads": int(known.sum()), "p": math.nan, "pooled": pooled}
    null = _shuffled(x, known, y / size, permutations, generator)
    observed = float((x * y).sum()) / size
    return {
        "value": observed,
        "heads": int(known.sum()),
        "p": tail(abs(observed), np.abs(null)).p,
        "pooled": pooled,
    }


def _shuffled(
    values: Grid, used: NDArray[np.bool_], weights: Grid, permutations: int, generator: np.random.Generator
) -> Grid:
    """Σ weights · values with the used values of each layer in random orders. (P,)"""
    sums = np.zeros(permutations)
    for layer in range(len(values)):
        here = used[layer]
        if here.sum() > 1:
            row, weight = values[layer, here][None, None, None], weights[layer, here]  # (1, 1, 1, used)
            parts = [part[:, 0, 0] @ weight for part in permuted(row, permutations, generator)]
            sums += np.concatenate(parts) if parts else 0.0
        elif here.any():
            sums += float(values[layer, here][0] * weights[layer, here][0])
    return sums
