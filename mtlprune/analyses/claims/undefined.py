"""Why figures are not defined, in words: what a NaN in a result means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from mtlprune.analyses.claims.run_groups import RunGroup
from mtlprune.analyses.claims.stem import STEM_TASKS


def explain(run_groups: Sequence[RunGroup], pairs: pd.DataFrame, permutations: int) -> list[str]:
    """A sentence for every reason for which a figure of these run_groups and pairs is not defined."""
    single = [run_group for run_group in run_groups if not run_group.joint]
    reasons = [
        *(reason for run_group in run_groups for reason in _of_label(run_group)),
        *_of_pairs(run_groups, pairs, permutations),
        (permutations == 0, "No permutations were asked for, so there are no p-values from permutations."),
        (len(run_groups) < 2, "There is one label only, so there is nothing to compare it with."),
        (
            len(single) < 2,
            f"There is {'one' if single else 'no'} single-task label, so tasks cannot be compared, and their part of "
            "the variance is unknown.",
        ),
        (len(single) < STEM_TASKS, f"With fewer than {STEM_TASKS} single-task labels there can be no stem head."),
        (
            single and all(len(run_group.claims) < 2 for run_group in single),
            "No single-task label has two seeds, so seeds cannot be resampled, and their part of the variance lies in "
            "that of tasks by heads.",
        ),
        (
            single and np.ptp(np.concatenate([run_group.gates.ravel() for run_group in single])) == 0,
            "All gates are equal, so they have no variance to share out.",
        ),
        (
            single and 1 in single[0].gates.shape[1:],
            "With one layer, or one head a layer, layers and heads cannot be told apart in the variance.",
        ),
    ]
    return [sentence for holds, sentence in reasons if holds]


def _of_label(run_group: RunGroup) -> Iterator[tuple[object, str]]:
    name, gates, opened = run_group.label, run_group.gates, run_group.open
    seeds, layers, heads = gates.shape
    flat = ", ".join(str(claim.seed) for claim in run_group.claims if np.ptp(claim.gates) == 0)
    empty = ", ".join(str(claim.seed) for claim in run_group.claims if not claim.open.any())
    even = "the heads of each layer open equally often"
    even = "no open head" if not opened.any() else "all heads open" if opened.all() else even
    claimed = int(run_group.claimed.sum())
    same = f"{name} has the same mean gate for all heads, so no correlation with it is defined."
    yield np.ptp(gates.mean(0)) == 0, same
    yield seeds == 1, f"{name} has one seed, so nothing is known of the agreement within it."
    yield seeds > 1 and flat, f"{name}: all gates of seed {flat} are equal, so they correlate with nothing."
    many = f"{name} has as many seeds as heads or more, so that one seed cannot be regressed on the others."
    yield 1 < seeds >= layers * heads, many
    without = "overlap coefficients leave it out, and Jaccard where the other set is empty too."
    yield empty, f"{name} has no open head in seed {empty}; {without}"
    nothing = "so permuting heads within layers changes nothing and gives no p-value for it."
    yield _is_even(run_group), f"{name} has {even}, {nothing}"
    whole = f"{name} claims {'all heads' if claimed else 'no head'}, so it has no hypergeometric p-value."
    yield claimed in (0, run_group.claimed.size), whole


def _is_even(run_group: RunGroup) -> bool:
    return not np.ptp(run_group.times, axis=1).any()


def _of_pairs(run_groups: Sequence[RunGroup], pairs: pd.DataFrame, permutations: int) -> Iterator[tuple[object, str]]:
    """What the sentences about either label do not explain."""
    even = {run_group.label for run_group in run_groups if _is_even(run_group)}
    for pair in pairs.itertuples():
        names = f"{pair.encoder} and {pair.other}"
        apart = permutations and np.isnan(pair.p)
        if not even & {pair.encoder, pair.other}:
            yield (
                apart,
                f"{names} choose among the heads of no layer both, so permuting within layers gives them no p-value.",
            )
            same = "does not depend on permuting within layers, so it has no p-value."
            yield not apart and np.isnan(pair.p_layers), f"What majorities of {names} claim {same}"
