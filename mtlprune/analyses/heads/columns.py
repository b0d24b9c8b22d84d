"""Everything known of each head side by side, and which of it goes together within layers.

Letters: L layers, A heads a layer, K heads of which two columns both say something.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.claimed_heads import Claim, is_joint
from mtlprune.files import RunError, plain
from mtlprune.statistics.permutation import corrected, layered_rank_test

Floats = NDArray[np.float64]

CLAIMED_FROM = 0.5
"""A task claims a head where its mean gate reaches this."""
DIGITS = 6
"""Of numbers in heads.json."""
FEWEST = 3
"""Heads that two columns must share to be compared."""


class HeadTableError(RunError):
    """Sources that cannot be joined; the message says which, why and what to do."""


@dataclass(frozen=True, eq=False)
class HeadColumn:
    """One number for each head.

    Attributes:
        source: where it comes from: claims, probes, gradients, syntax, smoothing, dissection, degeneration.
        values: (L, A), NaN where nothing is known of a head.
        tested: whether it takes part in correlations; what only restates another column does not.
    """

    name: str
    source: str
    values: Floats
    tested: bool = True


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation of two columns within layers."""

    first: str
    second: str
    one_source: bool
    """Whether both come from one source, and so may go together by construction."""
    heads: int
    """K."""
    rho: float
    p: float
    q: float
    """Benjamini and Hochberg, over the pairs from one source or over those from two."""


@dataclass(eq=False)
class HeadTable:
    """The join; row (l, a) is head a + 1 of layer l + 1 in the encoder's original numbering."""

    columns: list[HeadColumn] = field(default_factory=list)
    words: dict[str, list[list[str]]] = field(default_factory=dict)
    """Heading → (L, A) of text."""
    notes: list[str] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        layers, heads = self.columns[0].values.shape
        return layers, heads

    def add(self, columns: Iterable[HeadColumn], where: str) -> None:
        """Add columns. Raises HeadTableError: other layers or heads than before, or a heading that is there already."""
        for column in columns:
            if self.columns and column.values.shape != self.shape:
                (layers, heads), (here, a_layer) = self.shape, column.values.shape
                raise HeadTableError(
                    f"{where} is about an encoder of {here} × {a_layer} heads, but {self.columns[0].name!r} about one "
                    f"of {layers} × {heads}; heads of different encoders do not correspond, so leave one out"
                )
            if any(column.name == other.name for other in self.columns):
                raise HeadTableError(f"{where}: {column.name!r} is there twice; name one folder of each analysis")
            self.columns.append(column)


def claim_columns(claims: Sequence[Claim]) -> list[HeadColumn]:
    """By label the seeds with the head open and the mean gate; then how many single tasks claim it (mean gate of at
    least CLAIMED_FROM), and mean and spread of gates over all runs (sample standard deviation; not of one run)."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.label, []).append(claim)
    found: list[HeadColumn] = []
    for label, group in groups.items():
        opened = np.sum([claim.open for claim in group], axis=0).astype(np.float64)
        found.append(HeadColumn(f"open {label} (of {len(group)})", "claims", opened, tested=False))
        found.append(HeadColumn(f"gate {label}", "claims", np.mean([claim.gates for claim in group], axis=0)))
    single = [np.mean([c.gates for c in group], axis=0) for label, group in groups.items() if not is_joint(label)]
    if len(single) > 1:
        claimed = np.sum([gates >= CLAIMED_FROM for gates in single], axis=0).astype(np.float64)
        found.append(HeadColumn("tasks that claim", "claims", claimed))
    gates = np.array([claim.gates for claim in claims])
    found.append(HeadColumn("gate mean", "claims", gates.mean(0)))
    if len(gates) > 1:
        found.append(HeadColumn("gate sd", "claims", gates.std(0, ddof=1)))
    return found


def correlations(columns: Sequence[HeadColumn], permutations: int = 9999, seed: int = 0) -> list[Correlation]:
    """Spearman's correlation within layers of every two tested columns, the surest first.

    Where a column does not vary within any layer, ρ and p are NaN.
    """
    found = []
    for one, other in combinations([column for column in columns if column.tested], 2):
        ranks = layered_rank_test(one.values, other.values, permutations, (seed, 7), FEWEST)
        same = one.source == other.source
        found.append(Correlation(one.name, other.name, same, ranks.heads, ranks.value, ranks.p, math.nan))
    return _with_q(found)


def _with_q(found: Sequence[Correlation]) -> list[Correlation]:
    result: list[Correlation] = []
    for one_source in (False, True):
        family = [pair for pair in found if pair.one_source is one_source]
        q = corrected([pair.p for pair in family])
        whole = [replace(pair, q=float(value)) for pair, value in zip(family, q, strict=True)]
        result += sorted(whole, key=lambda pair: (math.isnan(pair.p), pair.p, -abs(pair.rho)))
    return result


def tree(table: HeadTable, found: Sequence[Correlation], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What heads.json holds; NaN becomes null."""
    content = {
        "shape": table.shape,
        "settings": settings,
        "columns": [
            {"name": c.name, "source": c.source, "tested": c.tested, "values": c.values} for c in table.columns
        ],
        "words": table.words,
        "correlations": [vars(pair) for pair in found],
        "notes": table.notes,
    }
    return dict(plain(content, DIGITS))
