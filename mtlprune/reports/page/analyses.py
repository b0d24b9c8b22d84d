"""Sections of analyses from their records: the overlap of claims, results in folders, and the table of heads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.analysis import find, read
from mtlprune.analyses.claims import ANALYSIS as CLAIMS
from mtlprune.analyses.claims.measure import overlap
from mtlprune.analyses.claims.show import answer, claimed_by_several
from mtlprune.files import RunError, read_json, reading
from mtlprune.reports import analyses as shown
from mtlprune.reports import heads
from mtlprune.reports.page.gates import ClaimSet
from mtlprune.reports.page.render import Part

FILES = [*(f"{name}.json" for name in ANALYSES.values()), heads.FILE]
"""What an analysis, or the table of heads, leaves in its folder, in the order of sections."""

LEAD = "gradients"
"""The analysis whose maps stand on the first screen where no run has gates, and whose answer stands in short."""


def overlap_part(sets: Sequence[ClaimSet], permutations: int, seed: int) -> Part | None:
    """Overlap of claims, a section for each set of runs, those of other ways of pruning folded; None where nothing can
    be compared."""
    measured = [(one.title, overlap(one.claims, permutations, seed)) for one in sets if len(one.run_groups) > 1]
    if not measured:
        return None
    several = len(measured) > 1
    caveats = [f"{title}: {line}" if several else line for title, one in measured for line in one.about["notes"]]
    (title, first), *others = ((title, shown.section(CLAIMS, one, notes=False).blocks) for title, one in measured)
    found = f"{claimed_by_several(measured[0][1])} {answer(measured[0][1])}".strip()
    found += f" (Runs with {title}.)" if several else ""
    holds = {"title": title if several else "", "blocks": first, "others": others}
    return Part("overlap", "Overlap of claims", holds, caveats, [found])


def parts(folders: Sequence[Path], data: Collection[str] = ()) -> list[Part]:
    """A part for every analysis found in the folders, in the order of FILES.

    Args:
        data: fingerprints of the corpora of the page's runs; an analysis of another one is called so.

    Raises:
        RunError: a folder without results of any analysis.
    """
    every = list(dict.fromkeys(folders))
    for folder in every:
        if not any((folder / file).is_file() for file in FILES):
            raise RunError(
                f"{folder} holds no results of an analysis (none of {', '.join(FILES)}); name a folder that "
                "`mtlprune analyze ... --out DIR` wrote"
            )
    made: list[Part] = []
    for path in (folder / file for file in FILES for folder in every if (folder / file).is_file()):
        with reading(path, RunError, "make it anew"):
            found: list[str] = []
            if path.name == heads.FILE:
                section = heads.section(path.parent)
            else:
                analysis, result = find(path.stem), read(path.parent, path.stem)
                section = shown.section(analysis, result)
                found = analysis.show.findings(result)[:1] if path.stem == LEAD else []
        taken = {part.key for part in made}
        key = next(k for k in (section.key, *(f"{section.key}-{n}" for n in range(2, 1000))) if k not in taken)
        title = section.title if key == section.key else f"{section.title} ({path.parent})"
        told, caveats = read_json(path), []
        if data and told.get("fingerprint") not in (None, *data):
            of = told.get("corpus", told["fingerprint"][:8])
            caveats.append(f"{title}: made of another corpus than the runs were trained on ({of}).")
        drawn = [block for block in section.blocks if isinstance(block, shown.Figure)]
        lead = drawn[0] if drawn and path.stem == LEAD else None
        made.append(Part(key, title, {"blocks": section.blocks}, caveats, found, template="analysis", lead=lead))
    return made
