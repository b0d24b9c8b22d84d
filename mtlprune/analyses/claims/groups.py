"""Do heads that many tasks claim differ from others of their layers? Permutation tests within layers.

Depth alone predicts both which heads tasks keep and most of what can be measured of them, so values are compared within
layers only. Groups are those of ``mtlprune overlap``: stem heads (claimed by STEM_TASKS single tasks or more),
exclusive ones (by one), free ones (by none).

Letters: L layers, A heads a layer, P permutations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from mtlprune.analyses.claims.maths import STEM_TASKS
from mtlprune.analyses.reading import Reading
from mtlprune.claimed_heads import Claim, ClaimError, RunGroup, group, is_joint, load_claims
from mtlprune.results import CLOSED_GATE, Result, head_rows
from mtlprune.statistics.permutation import corrected, permuted, tail

Grid = NDArray[np.float64]  # (L, A)

GROUPS = ("stem", "exclusive", "free")
PERMUTATIONS = 10_000
"""Of heads within layers."""


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

    def mean_gate(self) -> Grid:
        """(L, A): over the single tasks."""
        return np.mean([gate for label, gate in self.gates.items() if not is_joint(label)], axis=0)


def read_groups(claims: Sequence[Claim]) -> Groups:
    """Count claims of single tasks.

    Raises:
        ClaimError: no run of a single task is among them, or a run is there twice.
    """
    run_groups: list[RunGroup] = group(claims)
    single = [run_group for run_group in run_groups if not run_group.joint]
    if not single:
        raise ClaimError(
            f"stem heads are counted over single tasks, and {', '.join(c.label for c in run_groups)} is none; name "
            "runs with gates that were trained on one task each"
        )
    counts = np.stack([run_group.claimed for run_group in single]).sum(axis=0, dtype=np.int64)
    gates = {run_group.label: run_group.mean for run_group in run_groups}
    return Groups(claims[0].encoder, tuple(run_group.label for run_group in single), counts, gates)


def groups_of(claims: Sequence[str | Path], reading: Reading) -> Groups | None:
    """The groups that runs make; None without runs.

    Raises:
        ClaimError: claims that cannot be read, or that are of no encoder that is measured.
    """
    if not claims:
        return None
    groups = read_groups(load_claims(claims))
    if all(source.kind != groups.encoder for source in reading.sources):
        raise ClaimError(
            f"the claims are of {groups.encoder}, but none of the encoders to be measured is that one or began with it "
            f"({', '.join(sorted({source.kind for source in reading.sources}))}); heads of different encoders do not "
            "correspond"
        )
    return groups


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
    for one in result.about["encoders"]:
        grids = result.grids(one)
        if one["kind"] != groups.encoder or (one["layers"], one["heads"]) != groups.counts.shape:
            notes.append(
                f"{one['encoder']} ({one['run']}) is not compared with claims: they are of {groups.encoder}'s heads."
            )
            continue
        if closed := int((grids["gate"] <= CLOSED_GATE).sum()):
            notes.append(
                f"{one['encoder']} ({one['run']}) has {closed} heads closed; they take no part in its comparison with "
                "claims, so free heads may be missing."
            )
        keys = {key: one[key] for key in ("encoder", "run", "seed")}
        tests += [{**keys, **test} for test in compare(groups, grids, measures, permutations, seed, salt, gates)]
    for test, q in zip(tests, corrected([test["p"] for test in tests]), strict=True):
        test["q"] = float(q)
    if len(groups.labels) < STEM_TASKS:
        notes.append(
            f"Claims are of {', '.join(groups.labels)} only, and a stem head is claimed by {STEM_TASKS} single tasks "
            "or more, so there are none."
        )
    pooled = []
    for test in tests:
        if "pooled" in test:
            term, value = f"{test['term']}, pooled", test.pop("pooled")
            pooled.append({**test, "term": term, "value": value, "p": math.nan, "q": math.nan})
    each = [head_rows({"gate": gate}).assign(task=label) for label, gate in groups.gates.items()]
    claims = [*each, head_rows({"tasks": groups.counts.astype(np.float64)}).assign(task=None)]
    about["claims"] = {
        "encoder": groups.encoder,
        "tasks": list(groups.labels),
        "groups": {name: int(groups.of(name).sum()) for name in GROUPS},
    }
    about["notes"] = [*notes, *about["notes"]]
    frames = {**result.frames, "claims": pd.concat(claims, ignore_index=True)}
    return replace(
        result, about=about, frames={**frames, "tests": pd.DataFrame([*tests, *pooled])} if tests else frames
    )


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
    generator = np.random.default_rng([seed, salt])
    told = gates and not np.allclose(groups.mean_gate() * len(groups.labels), groups.counts)
    found = []
    for measure in measures:
        values = np.where(heads["gate"] > CLOSED_GATE, heads[measure], np.nan)
        tests = {
            f"{first} - {second}": difference(values, groups.of(first), groups.of(second), permutations, generator)
            for first, second in combinations(GROUPS, 2)
        }
        tests["tasks"] = rank(values, groups.counts, permutations, generator)
        if told:
            tests["gates"] = rank(values, groups.mean_gate(), permutations, generator)
        found += [{"measure": measure, "term": term, "n": test.pop("heads"), **test} for term, test in tests.items()]
    return found


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


def rank(
    values: Grid, counts: NDArray[np.int64] | Grid, permutations: int, generator: np.random.Generator
) -> dict[str, Any]:
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
