"""Overlap of claims on the page: the record's section for each set of runs, those of other ways of pruning folded."""

from __future__ import annotations

from collections.abc import Sequence

from mtlprune.analyses.claims import ANALYSIS
from mtlprune.analyses.claims.measure import overlap
from mtlprune.analyses.claims.show import answer
from mtlprune.reports.analyses import section
from mtlprune.reports.page.gates import ClaimSet
from mtlprune.reports.page.render import Part


def part(sets: Sequence[ClaimSet], permutations: int, seed: int) -> Part | None:
    """The part of the page; None where nothing can be compared."""
    measured = [(one.title, overlap(one.claims, permutations, seed)) for one in sets if len(one.run_groups) > 1]
    if not measured:
        return None
    several = len(measured) > 1
    caveats = [f"{title}: {line}" if several else line for title, one in measured for line in one.about["notes"]]
    shown = [(title, section(ANALYSIS, one, notes=False).blocks) for title, one in measured]
    (title, first), *others = shown
    found = answer(measured[0][1]) + (f" (Runs with {title}.)" if several else "")
    holds = {"title": title if several else "", "blocks": first, "others": others}
    return Part("overlap", "Overlap of claims", holds, caveats, [found])
