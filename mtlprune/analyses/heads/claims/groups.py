"""Do heads that many tasks claim differ from others of their layers? Permutation tests within layers.

Depth alone predicts both which heads tasks keep and most of what can be measured of them, so values are compared within
layers only. Groups are those of ``mtlprune claims``: stem heads (claimed by STEM_TASKS single tasks or more),
exclusive ones (by one), free ones (by none).

Letters: L layers, A heads a layer, P permutations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mtlprune.analyses.harness.reading import Source
from mtlprune.analyses.heads.claims.maths import STEM_TASKS, add_pooled_rows
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.claims import Claim, ClaimError, group, load_claims
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result, head_rows
from mtlprune.statistics.permutation import corrected, layer_orders, layered_rank_test, spearman, tail

Grid = NDArray[np.float64]  # (L, A)

GROUPS = ("stem", "exclusive", "free")
PERMUTATIONS = 10_000
"""Permutations of heads within layers."""


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

    def fit(self, encoder: Mapping[str, Any]) -> bool:
        """True where they are of the heads of one of ``about["encoders"]``."""
        return encoder["kind"] == self.encoder and (encoder["layers"], encoder["heads"]) == self.counts.shape

    def mean_gate(self) -> Grid:
        """(L, A): over the single tasks."""
        return np.mean([gate for label, gate in self.gates.items() if not is_joint(label)], axis=0)


def _read_groups(claims: Sequence[Claim]) -> Groups:
    """Count claims of single tasks.

    Raises:
        ClaimError: no run of a single task is among them, or a run is there twice.
    """
    run_groups = group(claims)
    single = [run_group for run_group in run_groups if not run_group.joint]
    if not single:
        raise ClaimError(
            "stem heads are counted over single tasks: expected runs with gates that were trained on one task each, "
            f"found {', '.join(c.label for c in run_groups)}; name other runs"
        )
    counts = np.stack([run_group.claimed_by_most for run_group in single]).sum(axis=0, dtype=np.int64)
    gates = {run_group.label: run_group.mean for run_group in run_groups}
    return Groups(claims[0].encoder, tuple(run_group.label for run_group in single), counts, gates)


def groups_of(claims: Sequence[str | Path], sources: Sequence[Source]) -> Groups | None:
    """The groups that runs make; None without runs.

    Raises:
        ClaimError: claims that cannot be read, or that are of no encoder that is measured.
    """
    if not claims:
        return None
    groups, kinds = _read_groups(load_claims(claims)), sorted({source.kind for source in sources})
    if groups.encoder not in kinds:
        raise ClaimError(
            f"the claims are of {groups.encoder}: expected this encoder or one that started from it, found "
            f"{', '.join(kinds)}; name such an encoder, because heads of different encoders do not correspond"
        )
    return groups


def claimed_heads(claims: Sequence[str | Path], sources: Sequence[Source]) -> dict[str, NDArray[np.bool_]]:
    """Label of runs → the heads (L, A) that they claim.

    Raises:
        ClaimError: as `groups_of`; no claims, or a label that claims no head or all.
    """
    if groups_of(claims, sources) is None:
        raise ClaimError("expected runs with gates or with stable claims, found none; name them with --claims")
    claimed_by_label = {run_group.label: run_group.claimed_by_most for run_group in group(load_claims(claims))}
    for label, heads in claimed_by_label.items():
        if heads.all() or not heads.any():
            number = "all heads" if heads.any() else "no head"
            raise ClaimError(f"{label} claims {number}, so no other heads are left for comparison; name other runs")
    return claimed_by_label


def compared(
    result: Result,
    groups: Groups | None,
    measures: Sequence[str],
    seed: int,
    *,
    salt: int = 62,
    permutations: int = PERMUTATIONS,
    gates: bool = False,
) -> Result:
    """A Result whose ``heads`` are compared by claims, with two frames more; without groups ``claims`` is None.

    - ``claims``: by head and task the mean ``gate``; ``tasks``, how many single tasks claim the head.
    - ``tests``: ``term`` is "stem - free", ... or "tasks"; q over all of them; "tasks, pooled" is Spearman's
      correlation over all heads without regard to layers, and no test.

    Args:
        salt, permutations, gates: of ``compare``.
    """
    settings = {**result.about["settings"], "head_permutations": permutations}
    about: dict[str, Any] = {**result.about, "settings": settings, "claims": None}
    if groups is None:
        return replace(result, about=about)
    tests: list[dict[str, Any]] = []
    notes = []
    for entry in result.about["encoders"]:
        grids, name = result.grids(entry), f"{entry['encoder']} ({entry['run']})"
        if not groups.fit(entry):
            notes.append(
                f"{name} is not compared with claims, because the claims are of the heads of {groups.encoder}."
            )
            continue
        if closed := int((grids["gate"] <= OPEN_ABOVE).sum()):
            notes.append(
                f"{name} has {closed} closed heads, which are left out of its comparison with claims, so free heads "
                "may be missing."
            )
        keys = {key: entry[key] for key in ("encoder", "run", "seed")}
        tests += [{**keys, **test} for test in compare(groups, grids, measures, permutations, seed, salt, gates)]
    if len(groups.labels) < STEM_TASKS:
        notes.append(
            f"There are no stem heads, because the claims are only of {', '.join(groups.labels)}, and a stem head is "
            f"claimed by {STEM_TASKS} single tasks or more."
        )
    claim_frames = [head_rows({"gate": gate}).assign(task=label) for label, gate in groups.gates.items()]
    claims = [*claim_frames, head_rows({"tasks": groups.counts.astype(np.float64)}).assign(task=None)]
    about["claims"] = {
        "encoder": groups.encoder,
        "tasks": list(groups.labels),
        "groups": {name: int(groups.of(name).sum()) for name in GROUPS},
    }
    about["notes"] = [*notes, *about["notes"]]
    frames = {**result.frames, "claims": pd.concat(claims, ignore_index=True)}
    if tests:
        frames["tests"] = add_pooled_rows(pd.DataFrame(tests).assign(q=corrected([test["p"] for test in tests])))
    return replace(result, about=about, frames=frames)


def compare(
    groups: Groups,
    heads: Mapping[str, Grid],
    measures: Sequence[str],
    permutations: int,
    seed: int,
    salt: int = 62,
    gates: bool = False,
) -> list[dict[str, Any]]:
    """Every measure by pairs of groups, and against the number of tasks that claim a head; heads of one encoder.

    Args:
        heads: ``measures`` and ``gate``, (L, A); NaN where there is no head. Closed heads are left out.
        salt: with the seed, what the permutations are drawn from; each analysis has its own.
        gates: whether also, as the term "gates", against the mean gate of single tasks, where it says more than claims.

    Returns:
        One entry a test: ``measure``, ``term`` ("stem - free", ..., or "tasks"), ``value`` (difference of means within
        layers; for "tasks" Spearman within layers), ``n`` heads that count, ``p`` (two-sided), and for "tasks" also
        ``pooled``, Spearman over all heads without regard to layers.
    """
    against: dict[str, Grid] = {"tasks": groups.counts.astype(np.float64)}
    if gates and not np.allclose(groups.mean_gate() * len(groups.labels), groups.counts):
        against["gates"] = groups.mean_gate()
    tests: list[dict[str, Any]] = []
    for measure in measures:
        values = np.where(heads["gate"] > OPEN_ABOVE, heads[measure], np.nan)
        for first, second in combinations(GROUPS, 2):
            value, p, n = difference(values, groups.of(first), groups.of(second), permutations, (seed, salt))
            tests.append({"measure": measure, "term": f"{first} - {second}", "n": n, "value": value, "p": p})
        known_count = int((~np.isnan(values)).sum())
        for term, variable in against.items():
            ranks = layered_rank_test(values, variable, permutations, (seed, salt))
            test = {"measure": measure, "term": term, "n": known_count, "value": ranks.value, "p": ranks.p}
            tests.append({**test, "pooled": spearman(values, variable)})
    return tests


def difference(
    values: Grid, first: NDArray[np.bool_], second: NDArray[np.bool_], permutations: int, seed: tuple[int, ...]
) -> tuple[float, float, int]:
    """Mean of the first minus that of the second group, within layers; its two-sided p; how many heads take part.

    A layer that has n₁ and n₂ of them weighs n₁ n₂ / (n₁ + n₂), as if layers had their own means; heads of other groups
    take no part. Values are permuted within layers, among the heads of the two groups.
    """
    members = [(group & ~np.isnan(values)).astype(np.float64) for group in (first, second)]
    first_count, two = (member.sum(1, keepdims=True) for member in members)  # (L, 1)
    weights = first_count * two / np.maximum(first_count + two, 1)
    contrast = weights * (members[0] / np.maximum(first_count, 1) - members[1] / np.maximum(two, 1))
    used = contrast != 0
    if not used.any():
        return math.nan, math.nan, 0
    x, c = values[used], contrast[used] / weights.sum()
    null = x[layer_orders(np.nonzero(used)[0], permutations, seed)] @ c
    return float(x @ c), tail(abs(float(x @ c)), np.abs(null)), len(x)
