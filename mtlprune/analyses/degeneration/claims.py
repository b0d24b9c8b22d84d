"""Are heads that many tasks claim more isotropic than others of their layers? Permutation tests within layers.

The groups and tests are those of claims/groups.py; here they are asked of HEAD_MEASURES, and of mean gates too.

Letters: L layers, A heads a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.claims.groups import GROUPS, Groups, difference, rank
from mtlprune.analyses.degeneration.survey import HEAD_MEASURES, Degeneration
from mtlprune.claimed_heads import is_joint
from mtlprune.statistics.permutation import corrected

Floats = NDArray[np.float64]


def compare(groups: Groups, heads: Mapping[str, Floats], permutations: int, seed: int) -> list[dict[str, Any]]:
    """Every measure by pairs of groups, against the number of tasks, and against the mean gate of single tasks
    where gates say more than claims.

    Args:
        heads: HEAD_MEASURES, (L, A) each; NaN where there is no head.

    Returns:
        One entry a test, as its ``compare`` gives them; ``test`` may be "gates", too.
    """
    generator = np.random.default_rng([seed, 75])
    gates = np.mean([gates for label, gates in groups.gates.items() if not is_joint(label)], axis=0)
    told = not np.allclose(gates * len(groups.labels), groups.counts)  # else they are the number of tasks once more
    found = []
    for measure in HEAD_MEASURES:
        values = heads[measure]
        for first, second in combinations(GROUPS, 2):
            tested = difference(values, groups.of(first), groups.of(second), permutations, generator)
            found.append({"measure": measure, "test": f"{first} - {second}"} | tested)
        found.append({"measure": measure, "test": "tasks"} | rank(values, groups.counts, permutations, generator))
        if told:
            found.append({"measure": measure, "test": "gates"} | rank(values, gates, permutations, generator))
    return found


def means(groups: Groups, heads: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
    """Measure → group → mean over its heads, whatever their layers; NaN where it has none."""
    return {measure: {name: _mean(heads[measure][groups.of(name)]) for name in GROUPS} for measure in HEAD_MEASURES}


def cone_by_group(groups: Groups, found: Degeneration) -> dict[str, float] | None:
    """Share of the last layer's mean vector that comes from the heads of each group; None where it is not known."""
    if found.cone is None:
        return None
    return {
        **{name: float(found.cone.heads[groups.of(name)].sum()) for name in GROUPS},
        "others": float(found.cone.heads[~np.any([groups.of(name) for name in GROUPS], axis=0)].sum()),
    }


def correct(tests: list[dict[str, Any]]) -> None:
    """Add ``q`` (Benjamini and Hochberg 1995) over all tests that were made, in place."""
    for test, q in zip(tests, corrected([test["p"] for test in tests]), strict=True):
        test["q"] = float(q)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
