"""Overlap of claims on the page: the answer in words, the matrix of correlations, shared heads, stem heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mtlprune.analyses.claims.overlap import Overlap, measure
from mtlprune.analyses.claims.show.overlap import answer, listed, sections
from mtlprune.reports.grid import number, probability
from mtlprune.reports.page.gates import ClaimSet
from mtlprune.reports.page.render import Part, grid_rows


def part(sets: Sequence[ClaimSet], permutations: int, seed: int) -> Part | None:
    """The part of the page; None where nothing can be compared."""
    measured = [(one.title, measure(one.claims, permutations, seed)) for one in sets if len(one.claimants) > 1]
    if not measured:
        return None
    several = len(measured) > 1
    caveats = [
        f"{title}: {line}" if several else line
        for title, overlap in measured
        for line in (*overlap.notes, *overlap.undefined)
    ]
    title, first = measured[0]
    found = answer(first) + (f" (Runs with {title}.)" if several else "")
    return Part(
        "overlap", "Overlap of claims", {"sets": [(title, _one(one)) for title, one in measured]}, caveats, [found]
    )


def _one(overlap: Overlap) -> dict[str, Any]:
    made = {section.key: section for section in sections(overlap)}
    correlation = made.pop("correlation")
    names = [label.label for label in overlap.labels]
    return {
        "answer": answer(overlap),
        "correlation": correlation,
        "names": names,
        "matrix": [
            (name, [(number(value), *_shade(value)) for value in values])
            for name, values in zip(names, overlap.correlation, strict=True)
        ],
        "sections": [(key, one.title, grid_rows(one, one.title), one.caption) for key, one in made.items()],
        "stem": _stem(overlap) if "stem" in made else "",
        "listed": list(listed(overlap)),
    }


def _stem(overlap: Overlap) -> str:
    """How many stem heads there are beside chance, and their names."""
    row = next(row for row in overlap.claimed_by if row.tasks == overlap.stem_tasks)
    names = ", ".join(head.name for head in overlap.stem)
    more = "" if math.isnan(row.layers.p_more) else f" (p of so many or more {probability(row.layers.p_more)})"
    return (
        f"{row.heads} heads are claimed by {overlap.stem_tasks} tasks or more; {number(row.layers.expected, 1)} are "
        f"expected from layer depth alone{more}. Named layer-head: {names}."
    )


def _shade(value: float) -> tuple[float, str]:
    """Strength and colour; the style sheet mixes them with the page's paper."""
    return (0, "above") if math.isnan(value) else (round(min(abs(value), 1), 2), "below" if value < 0 else "above")
