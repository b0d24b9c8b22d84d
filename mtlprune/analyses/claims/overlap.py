"""Do tasks claim the same heads, beyond what the depth of layers explains? Every figure beside its null.

overlap = measure(load_claims(["runs/pos-1", "runs/pos-2", "runs/dep-1", "runs/dep-2"]))
overlap.tasks.p, [head.name for head in overlap.stem]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mtlprune.analyses.claims.claimants import Claimant, group, notes
from mtlprune.analyses.claims.pairs import (
    BySeed,
    Pair,
    Sharing,
    compare_pairs,
    share_by_seed,
    share_over_pairs,
    share_within,
)
from mtlprune.analyses.claims.run_labels import LabelTest, label_tests
from mtlprune.analyses.claims.stem import STEM_TASKS, ClaimedBy, Head, claimed_by, list_heads
from mtlprune.analyses.claims.undefined import explain
from mtlprune.claimed_heads import OPEN_ABOVE, Claim
from mtlprune.statistics.agreement import Variance, WithinLabel, decompose, within_label
from mtlprune.statistics.permutation import shared_null


@dataclass(frozen=True)
class NamedRun:
    """A run as reports name it."""

    run: str
    seed: int
    open: int
    """Open heads."""


@dataclass(frozen=True)
class Label:
    """One task, or one joint setting, with all its seeds."""

    label: str
    joint: bool
    runs: tuple[NamedRun, ...]
    claimed: int
    """Heads open in more than half of the seeds."""
    claimed_by_layer: tuple[int, ...]
    within: WithinLabel
    sharing: Sharing
    """Open heads that two of its seeds share."""


@dataclass(frozen=True)
class Overlap:
    """All that is known of how claims overlap. NaN stands for what is not defined; ``undefined`` says why."""

    encoder: str
    layers: int
    heads: int
    """A layer."""
    open_above: float
    permutations: int
    seed: int
    labels: tuple[Label, ...]
    correlation: tuple[tuple[float, ...], ...]
    """Pearson of the labels' mean gates; on the diagonal WithinLabel.multiple_last, as in the original."""
    pairs: tuple[Pair, ...]
    tasks: Sharing
    """Averaged over all pairs of single tasks: the one answer to the question above."""
    by_seed: BySeed
    by_label: tuple[LabelTest, ...]
    """Pairs of runs of one single task against pairs of runs of two; empty where no task has two seeds."""
    claimed_by: tuple[ClaimedBy, ...]
    """Single tasks only, as all below."""
    variance: Variance
    stem_tasks: int
    stem: tuple[Head, ...]
    exclusive: tuple[Head, ...]
    free: tuple[Head, ...]
    notes: tuple[str, ...]
    undefined: tuple[str, ...]


def measure(claims: Iterable[Claim], permutations: int = 10_000, seed: int = 0) -> Overlap:
    """Compare claims.

    Args:
        claims: of one encoder, in any order; runs of one label are its seeds.
        permutations: how many; 0 leaves out what needs them.
        seed: of the permutations.

    Raises:
        ClaimError: no claim, or two of one label with the same seed.
    """
    claimants = group(claims)
    single = [claimant for claimant in claimants if not claimant.joint]  # they stand first
    between, within, layered, uniform, unequal, relabelled = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(6)
    )
    null = shared_null(np.stack([claimant.times for claimant in claimants]), permutations, between)
    pairs = compare_pairs(claimants, null)
    labels = tuple(_label(claimant, permutations, within) for claimant in claimants)
    stem, exclusive, free = list_heads(single)
    _, layers, heads = claimants[0].gates.shape
    return Overlap(
        encoder=claimants[0].claims[0].encoder,
        layers=layers,
        heads=heads,
        open_above=OPEN_ABOVE,
        permutations=permutations,
        seed=seed,
        labels=labels,
        correlation=_correlation(labels, pairs),
        pairs=tuple(pairs),
        tasks=share_over_pairs(single, null[:, : len(single), : len(single)]),
        by_seed=share_by_seed(single, permutations, unequal),
        by_label=tuple(label_tests(single, permutations, relabelled)),
        claimed_by=tuple(claimed_by([claimant.claimed for claimant in single], permutations, layered, uniform)),
        variance=decompose([claimant.gates for claimant in single]),
        stem_tasks=STEM_TASKS,
        stem=tuple(stem),
        exclusive=tuple(exclusive),
        free=tuple(free),
        notes=tuple(notes(claimants)),
        undefined=tuple(explain(claimants, pairs, permutations)),
    )


def _label(claimant: Claimant, permutations: int, generator: np.random.Generator) -> Label:
    seeds = len(claimant.claims)
    return Label(
        claimant.label,
        claimant.joint,
        tuple(NamedRun(claim.run, claim.seed, int(claim.open.sum())) for claim in claimant.claims),
        int(claimant.claimed.sum()),
        tuple(claimant.claimed.sum(1).tolist()),
        within_label(claimant.gates.reshape(seeds, -1), claimant.open.reshape(seeds, -1)),
        share_within(claimant, permutations, generator),
    )


def _correlation(labels: tuple[Label, ...], pairs: list[Pair]) -> tuple[tuple[float, ...], ...]:
    matrix = np.diag([label.within.multiple_last for label in labels])
    for (i, j), pair in zip(itertools.combinations(range(len(labels)), 2), pairs, strict=True):
        matrix[i, j] = matrix[j, i] = pair.pearson
    return tuple(tuple(row) for row in matrix.tolist())
