"""Do runs of one task share more heads than runs of two tasks? Runs are the units: their labels are permuted.

Letters: M runs, Q pairs of runs, P labellings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from math import factorial, prod

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mtlprune.analyses.claims.run_groups import RunGroup

Labels = NDArray[np.int64]  # (M,): which task each run was trained on
COLUMNS = ["pairs", "counted", "within", "between", "p", "least", "labellings", "exact"]


def label_tests(run_groups: Sequence[RunGroup], permutations: int, generator: np.random.Generator) -> pd.DataFrame:
    """Four tests: all pairs and pairs of unequal seeds, shared heads and what is beyond depth; none with one task or
    seed.

    Pairs of unequal seeds are tested apart only where there are equal ones, since then labels are permuted among the
    runs of one seed: that keeps what such runs have in common (the order of their batches) out of the test.

    Args:
        run_groups: single tasks, in any order.
        permutations: all labellings are enumerated where there are no more of them; 0 leaves the tests out.

    Returns:
        ``pairs`` (of runs: all, or unequal seeds); ``counted``: "shared heads", or "beyond depth", minus Σ over layers
        a·b/A, which the open heads a and b of the two runs in each layer explain; ``within`` and ``between``, means
        over pairs of runs of one task and of two; ``p``, the share of labellings whose within − between is as large or
        larger (NaN where no labelling changes it, or there are none); ``least``, the smallest p that is possible with
        these runs; ``labellings``, how many were looked at, and whether they are all (``exact``), otherwise drawn at
        random with the observed one counted in p.
    """
    runs = [(place, claim) for place, run_group in enumerate(run_groups) for claim in run_group.claims]
    labels = np.array([place for place, _ in runs], dtype=np.int64)
    if len(run_groups) < 2 or max(len(run_group.claims) for run_group in run_groups) < 2:
        return pd.DataFrame()
    seeds = np.array([claim.seed for _, claim in runs])
    opened = np.stack([claim.open for _, claim in runs]).astype(np.float64)  # (M, L, A)
    first, second = np.triu_indices(len(runs), 1)
    shared = (opened[first] * opened[second]).sum((1, 2))
    by_layer = opened.sum(2)
    depth = (by_layer[first] * by_layer[second]).sum(1) / opened.shape[2]
    unequal = seeds[first] != seeds[second]
    kinds: list[tuple[str, NDArray[np.bool_], list[NDArray[np.intp]]]] = [
        ("all", np.ones_like(unequal), [np.arange(len(runs))])
    ]
    if not unequal.all():
        kinds.append(("unequal seeds", unequal, [np.flatnonzero(seeds == seed) for seed in np.unique(seeds)]))
    found = []
    for name, used, blocks in kinds:
        drawn, exact = _labellings(labels, blocks, permutations, generator)
        for measure, values in (("shared heads", shared), ("beyond depth", shared - depth)):
            observed = _gap(labels[None], first[used], second[used], values[used])
            null = _gap(drawn, first[used], second[used], values[used])
            within, between = (float(side[0]) for side in observed)
            gaps = null[0] - null[1]
            p, least = (_p(gap, gaps, exact) for gap in (within - between, float(gaps.max(initial=-np.inf))))
            found.append((name, measure, within, between, p, least, len(drawn), exact))
    return pd.DataFrame(found, columns=COLUMNS)


def _gap(
    labels: NDArray[np.int64], first: NDArray[np.intp], second: NDArray[np.intp], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(P, M) labels → (P,) means of the values (Q,) over pairs of one label, and over pairs of two."""
    one = labels[:, first] == labels[:, second]  # (P, Q)
    number = one.sum(1)
    inside = one @ values
    with np.errstate(divide="ignore", invalid="ignore"):
        return inside / number, (values.sum() - inside) / (len(values) - number)


def _p(observed: float, null: NDArray[np.float64], exact: bool) -> float:
    if not len(null) or math.isnan(observed) or np.ptp(null) < 1e-9:
        return math.nan
    reached = int((null >= observed - 1e-9).sum())
    return reached / len(null) if exact else (1 + reached) / (1 + len(null))


def _labellings(
    labels: Labels, blocks: Sequence[NDArray[np.intp]], permutations: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], bool]:
    """(P, M): labels permuted within blocks of runs, all different ones where they are few; whether they are all."""
    number = prod(
        factorial(len(block)) // prod(factorial(int(n)) for n in np.bincount(labels[block])) for block in blocks
    )
    if number <= permutations:
        every = itertools.product(*(list(_arrangements(sorted(labels[block].tolist()))) for block in blocks))
        order = np.concatenate(blocks)
        made = np.array([list(itertools.chain(*parts)) for parts in every], dtype=np.int64)
        drawn = np.empty_like(made)
        drawn[:, order] = made
        return drawn, True
    drawn = np.repeat(labels[None], permutations, axis=0)
    for block in blocks:
        drawn[:, block] = generator.permuted(drawn[:, block], axis=1)
    return drawn, False


def _arrangements(values: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every different order of the values, each once."""
    if not values:
        yield ()
    for value in dict.fromkeys(values):
        rest = list(values)
        rest.remove(value)
        for tail in _arrangements(rest):
            yield (value, *tail)
