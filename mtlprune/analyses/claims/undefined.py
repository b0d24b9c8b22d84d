"""Why figures are not defined, in words: what a NaN in a result means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.claims.claimants import Claimant
from mtlprune.analyses.claims.stem import STEM_TASKS


def explain(claimants: Sequence[Claimant], pairs: pd.DataFrame, permutations: int) -> list[str]:
    """A sentence for every reason for which a figure of these claimants and pairs is not defined."""
    found = []
    for claimant in claimants:
        found += [*_correlation(claimant), *_sets(claimant)]
    found += [sentence for pair in pairs.itertuples() for sentence in _pair(pair, claimants, permutations)]
    if permutations == 0:
        found.append("No permutations were asked for, so there are no p-values from permutations.")
    if len(claimants) < 2:
        found.append("There is one label only, so there is nothing to compare it with.")
    return found + _single([claimant for claimant in claimants if not claimant.joint])


def _correlation(claimant: Claimant) -> list[str]:
    name, gates = claimant.label, claimant.gates
    seeds, layers, heads = gates.shape
    found = []
    if np.ptp(gates.mean(0)) == 0:
        found.append(f"{name} has the same mean gate for all heads, so no correlation with it is defined.")
    if seeds == 1:
        return [*found, f"{name} has one seed, so nothing is known of the agreement within it."]
    flat = [str(claim.seed) for claim in claimant.claims if np.ptp(claim.gates) == 0]
    if flat:
        found.append(f"{name}: all gates of seed {', '.join(flat)} are equal, so they correlate with nothing.")
    if seeds >= layers * heads:
        found.append(f"{name} has as many seeds as heads or more, so that one seed cannot be regressed on the others.")
    return found


def _sets(claimant: Claimant) -> list[str]:
    name = claimant.label
    found = []
    empty = [str(claim.seed) for claim in claimant.claims if not claim.open.any()]
    if empty:
        found.append(
            f"{name} has no open head in seed {', '.join(empty)}; overlap coefficients leave it out, and Jaccard where "
            "the other set is empty too."
        )
    if _is_even(claimant):
        what = "no open head" if not claimant.open.any() else "all heads open" if claimant.open.all() else None
        found.append(
            f"{name} has {what or 'the heads of each layer open equally often'}, so permuting heads within layers "
            "changes nothing and gives no p-value for it."
        )
    claimed = int(claimant.claimed.sum())
    if claimed in (0, claimant.claimed.size):
        found.append(f"{name} claims {'all heads' if claimed else 'no head'}, so it has no hypergeometric p-value.")
    return found


def _is_even(claimant: Claimant) -> bool:
    return not np.ptp(claimant.times, axis=1).any()


def _pair(pair: Any, claimants: Sequence[Claimant], permutations: int) -> list[str]:
    """What the sentences about either label do not explain."""
    both = [claimant for claimant in claimants if claimant.label in (pair.encoder, pair.other)]
    if any(_is_even(claimant) for claimant in both):
        return []
    names = f"{pair.encoder} and {pair.other}"
    if permutations and math.isnan(pair.p):
        return [f"{names} choose among the heads of no layer both, so permuting within layers gives them no p-value."]
    if math.isnan(pair.p_layers):
        return [f"What majorities of {names} claim does not depend on permuting within layers, so it has no p-value."]
    return []


def _single(single: Sequence[Claimant]) -> list[str]:
    found = []
    if len(single) < 2:
        number = "one single-task label" if single else "no single-task label"
        found.append(f"There is {number}, so tasks cannot be compared, and their part of the variance is unknown.")
    if len(single) < STEM_TASKS:
        found.append(f"With fewer than {STEM_TASKS} single-task labels there can be no stem head.")
    if single and all(len(claimant.claims) < 2 for claimant in single):
        found.append(
            "No single-task label has two seeds, so seeds cannot be resampled, and their part of the variance lies in "
            "that of tasks by heads."
        )
    if single and np.ptp(np.concatenate([claimant.gates.ravel() for claimant in single])) == 0:
        found.append("All gates are equal, so they have no variance to share out.")
    if single and 1 in single[0].gates.shape[1:]:
        found.append("With one layer, or one head a layer, layers and heads cannot be told apart in the variance.")
    return found
