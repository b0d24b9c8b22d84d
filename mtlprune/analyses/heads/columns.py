"""Everything known of each head side by side, and which of it goes together within layers.

Letters: L layers, A heads a layer, K heads of which two columns both say something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mtlprune.claimed_heads import Claim, is_joint
from mtlprune.files import RunError, plain
from mtlprune.results import Result
from mtlprune.statistics.permutation import corrected, layered_rank_test

Floats = NDArray[np.float64]

CLAIMED_FROM = 0.5
"""A task claims a head where its mean gate reaches this."""
DIGITS = 6
"""Of numbers in heads.json."""
FEWEST = 3
"""Heads that two columns must share to be compared."""
MEANINGS = {"probes": "of the task's label that the head tells best: accuracy minus the best control, in points"}
"""By source, the reduction that makes all its columns."""


class HeadTableError(RunError):
    """Sources that cannot be joined; the message says which, why and what to do."""


@dataclass(frozen=True, eq=False)
class HeadColumn:
    """One number for each head.

    Attributes:
        source: where it comes from: claims, probes, gradients, syntax, smoothing, dissection, degeneration.
        values: (L, A), NaN where nothing is known of a head.
        tested: whether it takes part in correlations; what only restates another column does not.
        meaning: the reduction that makes it, where it is not that of MEANINGS.
    """

    name: str
    source: str
    values: Floats
    tested: bool = True
    meaning: str = ""


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


def claims_in(result: Result) -> list[Claim]:
    """The claims in a Result of their overlap."""
    return [
        Claim(one["run"], one["encoder"], one["seed"], one["kind"], result.grids(one)["gate"], [])
        for one in result.about["encoders"]
    ]


def claim_columns(claims: Sequence[Claim]) -> list[HeadColumn]:
    """By label the seeds with the head open and the mean gate; then how many single tasks claim it (mean gate of at
    least CLAIMED_FROM), and mean and spread of gates over all runs (sample standard deviation; not of one run)."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.label, []).append(claim)
    found: list[HeadColumn] = []

    def add(name: str, values: Floats, meaning: str, tested: bool = True) -> None:
        found.append(HeadColumn(name, "claims", values, tested, meaning))

    for label, group in groups.items():
        opened = np.sum([claim.open for claim in group], axis=0).astype(np.float64)
        add(f"open {label} (of {len(group)})", opened, f"seeds of {label} with the head open", tested=False)
        add(f"gate {label}", np.mean([claim.gates for claim in group], axis=0), f"mean gate over seeds of {label}")
    single = [np.mean([c.gates for c in group], axis=0) for label, group in groups.items() if not is_joint(label)]
    if len(single) > 1:
        claimed = np.sum([gates >= CLAIMED_FROM for gates in single], axis=0).astype(np.float64)
        add("tasks that claim", claimed, f"single tasks whose mean gate reaches {CLAIMED_FROM:g}")
    gates = np.array([claim.gates for claim in claims])
    add("gate mean", gates.mean(0), "mean gate over all runs")
    if len(gates) > 1:
        add("gate sd", gates.std(0, ddof=1), "sample standard deviation of gates over all runs")
    return found


def correlations(columns: Sequence[HeadColumn], permutations: int = 9999, seed: int = 0) -> pd.DataFrame:
    """Spearman's correlation within layers of every two tested columns, the surest first, those of two sources before.

    Returns:
        ``first``, ``second``; ``one_source``, whether both come from one source, and so may go together by
        construction; ``heads``, K; ``rho`` and ``p``, NaN where a column does not vary within any layer; ``q``,
        Benjamini and Hochberg over the pairs from one source or over those from two.
    """
    rows = []
    for one, other in combinations([column for column in columns if column.tested], 2):
        ranks = layered_rank_test(one.values, other.values, permutations, (seed, 7), FEWEST)
        rows.append((one.name, other.name, one.source == other.source, ranks.heads, ranks.value, ranks.p))
    found = pd.DataFrame(rows, columns=["first", "second", "one_source", "heads", "rho", "p"])
    found["q"] = found.groupby("one_source")["p"].transform(lambda p: corrected(p.to_numpy()))
    order = found.assign(size=-found["rho"].abs()).sort_values(["one_source", "p", "size"])
    return found.loc[order.index]


def tree(table: HeadTable, found: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What heads.json holds; NaN becomes null."""
    content = {
        "shape": table.shape,
        "settings": settings,
        "columns": [vars(c) | {"meaning": c.meaning or MEANINGS.get(c.source, "")} for c in table.columns],
        "words": table.words,
        "correlations": found.to_dict("records"),
        "notes": table.notes,
    }
    return dict(plain(content, DIGITS))
