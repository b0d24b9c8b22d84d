"""Test whether heads that many tasks claim differ from the other heads of their layers.

Other analyses use this module to compare their measures of heads by claims. Layer depth alone predicts both which heads
tasks keep open and most properties of a head, so heads are compared, and permuted, within their layers only. The groups
are those of ``mtlprune claims``: stem heads (claimed by STEM_TASKS or more single tasks), exclusive heads (claimed by
exactly one) and free heads (claimed by none).

Letters for shapes: L layers, A heads per layer.
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
from mtlprune.runs.results import Grid, Result, head_rows
from mtlprune.statistics.permutation import benjamini_hochberg, layer_orders, layered_rank_test, spearman, tail

GROUPS = ("stem", "exclusive", "free")
_PERMUTATIONS = 10_000
"""Default number of permutations of heads within layers."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Heads grouped by how many single tasks claim them.

    Attributes:
        encoder: name of the encoder from which the runs started.
        labels: labels of the single tasks.
        counts: (L, A), number of single tasks that claim each head.
        gates: for each label, of single tasks and of joint runs, the mean gate of each head over seeds, (L, A).
        masks: for each label, the heads that most of its runs claim, (L, A).
    """

    encoder: str
    labels: tuple[str, ...]
    counts: NDArray[np.int64]
    gates: dict[str, Grid]
    masks: dict[str, NDArray[np.bool_]]

    def of(self, name: str) -> NDArray[np.bool_]:
        """Return the mask (L, A) of the heads in the group ``name``, one of GROUPS."""
        if name == "stem":
            return self.counts >= STEM_TASKS
        return self.counts == (1 if name == "exclusive" else 0)

    def fit(self, encoder: Mapping[str, Any]) -> bool:
        """Return whether these groups describe the heads of ``encoder``, an entry of ``about["encoders"]``."""
        return encoder["kind"] == self.encoder and (encoder["layers"], encoder["heads"]) == self.counts.shape

    def mean_gate(self) -> Grid:
        """Return the mean gate of each head over the single tasks, (L, A)."""
        return np.mean([gate for label, gate in self.gates.items() if not is_joint(label)], axis=0)


def _read_groups(claims: Sequence[Claim]) -> Groups:
    """Count how many single tasks claim each head.

    Raises:
        ClaimError: no claim comes from a run of a single task, or if a run occurs twice.
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
    masks = {run_group.label: run_group.claimed_by_most for run_group in run_groups}
    return Groups(claims[0].encoder, tuple(run_group.label for run_group in single), counts, gates, masks)


def groups_of(claims: Sequence[str | Path], sources: Sequence[Source]) -> Groups | None:
    """Read the runs of ``claims`` and group their heads; return None if no run is named.

    Args:
        claims: run folders with gates.
        sources: the encoders and runs that the analysis measures.

    Raises:
        ClaimError: the claims cannot be read, or come from an encoder that is not measured.
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
    """Return, for each label, the mask (L, A) of the heads that most of its runs claim.

    Raises:
        ClaimError: as in `groups_of`; also if no run is named, or if a label claims no head or all heads.
    """
    if (groups := groups_of(claims, sources)) is None:
        raise ClaimError("expected runs with gates or with stable claims, found none; name them with --claims")
    for label, heads in groups.masks.items():
        if heads.all() or not heads.any():
            number = "all heads" if heads.any() else "no head"
            raise ClaimError(f"{label} claims {number}, so no other heads are left for comparison; name other runs")
    return groups.masks


def compared(
    result: Result,
    groups: Groups | None,
    measures: Sequence[str],
    seed: int,
    *,
    salt: int = 62,
    permutations: int = _PERMUTATIONS,
    gates: bool = False,
) -> Result:
    """Return ``result`` with a comparison of the measures of its frame ``heads`` by claims.

    The returned Result has two more frames, and ``about["claims"]`` describes the groups. Without groups there are no
    new frames, and ``about["claims"]`` is None.

    - ``claims``: the mean ``gate`` of each head for each label, and ``tasks``, the number of single tasks that claim
      the head.
    - ``tests``: the tests of `compare`, with ``q`` over all of them (Benjamini and Hochberg). The row "tasks, pooled"
      is Spearman's correlation over all heads regardless of layer, and has no p-value.

    Args:
        measures: names of the measures that are compared.
        salt, permutations, gates: as in `compare`.
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
        frames["tests"] = add_pooled_rows(
            pd.DataFrame(tests).assign(q=benjamini_hochberg([test["p"] for test in tests]))
        )
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
    """Compare every measure between groups of heads, and correlate it with the number of tasks that claim a head.

    Args:
        groups: groups of the heads of one encoder.
        heads: for each of ``measures``, and for ``gate``, a value for each head, (L, A); NaN where there is no head.
            Closed heads are left out.
        salt: mixed into the seed, so that different analyses draw different permutations.
        gates: whether measures are also correlated with the mean gate of the single tasks (term "gates"). The test is
            skipped if these means are proportional to the numbers of tasks, because it would repeat the test "tasks".

    Returns:
        One dict for each test: ``measure``; ``term`` ("stem - exclusive", "stem - free", "exclusive - free", "tasks" or
        "gates"); ``value`` (the difference of means within layers, or Spearman's correlation within layers); ``n``, the
        number of heads used; the two-sided ``p``; and for correlations also ``pooled``, Spearman's correlation over all
        heads regardless of layer.
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
        count = int((~np.isnan(values)).sum())
        for term, variable in against.items():
            ranks = layered_rank_test(values, variable, permutations, (seed, salt))
            test = {"measure": measure, "term": term, "n": count, "value": ranks.value, "p": ranks.p}
            tests.append({**test, "pooled": spearman(values, variable)})
    return tests


def difference(
    values: Grid, first: NDArray[np.bool_], second: NDArray[np.bool_], permutations: int, seed: tuple[int, ...]
) -> tuple[float, float, int]:
    """Compute the difference of the means of two groups of heads, with layers as strata.

    The difference within a layer with n₁ and n₂ heads of the two groups has the weight n₁ n₂ / (n₁ + n₂), as in a
    regression with an intercept for each layer. The test permutes values within layers among the heads of the two
    groups.

    Returns:
        The mean of the first group minus the mean of the second; its two-sided p; and the number of heads used. The
        result is (NaN, NaN, 0) if no layer has heads of both groups.
    """
    members = [(group & ~np.isnan(values)).astype(np.float64) for group in (first, second)]
    first_count, second_count = (member.sum(1, keepdims=True) for member in members)  # (L, 1)
    weights = first_count * second_count / np.maximum(first_count + second_count, 1)
    contrast = weights * (members[0] / np.maximum(first_count, 1) - members[1] / np.maximum(second_count, 1))
    used = contrast != 0
    if not used.any():
        return math.nan, math.nan, 0
    x, c = values[used], contrast[used] / weights.sum()
    null = x[layer_orders(np.nonzero(used)[0], permutations, seed)] @ c
    return float(x @ c), tail(abs(float(x @ c)), np.abs(null)), len(x)
