"""Claims on the page: selections of heads beside each other, the most stable first, with their maps and overlap.

A selection is all claims that were made in the same way: of runs with gates, or of a folder of `mtlprune claims`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.heads.claims import ANALYSIS, maths
from mtlprune.analyses.heads.claims.measure import overlap
from mtlprune.analyses.heads.claims.show import claims_in
from mtlprune.config.blocks import PruningConfig
from mtlprune.evaluation.head_masks import OPEN_ABOVE, head_names
from mtlprune.figures.grid import Grid, number, probability
from mtlprune.figures.maps import claim_maps
from mtlprune.reports import analyses as shown
from mtlprune.reports.page.answers import phi_of, phi_words, several
from mtlprune.reports.page.render import Part
from mtlprune.runs.claims import Claim, RunGroup, claims_of, group, labelled
from mtlprune.runs.folder import RunError
from mtlprune.runs.groups import DescribedRun, without_duplicates
from mtlprune.runs.results import Result
from mtlprune.statistics.permutation import corrected
from mtlprune.statistics.significance import LEVEL


@dataclass(frozen=True, eq=False)
class Selection:
    """Claims that were made in the same way, so that they may be compared, and how they overlap."""

    title: str
    claims: tuple[Claim, ...]
    result: Result

    @cached_property
    def run_groups(self) -> list[RunGroup]:
        return group(self.claims)

    @property
    def alone(self) -> list[RunGroup]:
        """Single tasks; all labels where there are none."""
        return [one for one in self.run_groups if not one.joint] or self.run_groups

    @cached_property
    def tied(self) -> dict[str, int]:
        """Run → heads that tie where wanted heads end; only runs that have not told heads apart."""
        claims = [claim for group in self.run_groups for claim in group.claims]  # which have names
        return {f"{claim.label}, seed {claim.name}": many for claim in claims if (many := undecided(claim))}

    @property
    def rank(self) -> tuple[bool, float]:
        """Rises with what can be believed: gates that tell heads apart, then Φ."""
        phi = phi_of(self.result)
        return not self.tied, phi[0] if phi else -np.inf


def undecided(claim: Claim) -> int:
    """Heads whose gates are equal where the wanted ones end, at the last evaluation that had gates between 0 and 1; 0
    where these are no more than a twentieth of all, so that ties hardly matter."""
    keep = claim.settings.get("pruning.keep")
    trained = [gates for _, gates in claim.history if ((gates > 0) & (gates < 1)).any()]
    if claim.settings.get("pruning.method") != "gates" or not isinstance(keep, int) or not trained:
        return 0
    ranked = np.sort(trained[-1], axis=None)[::-1]
    if not 0 < keep < ranked.size or not np.isclose(ranked[keep - 1], ranked[keep], atol=1e-6):
        return 0
    tied = int(np.isclose(ranked, ranked[keep], atol=1e-6).sum())
    out = int(np.isclose(ranked[keep:], ranked[keep], atol=1e-6).sum())  # of these, so many are left out by order
    return tied if min(out, tied - out) > max(1, ranked.size / 20) else 0


def selections(
    runs: Sequence[DescribedRun], by_folder: Sequence[tuple[Path, Mapping[str, Result]]], permutations: int
) -> tuple[list[Selection], list[str]]:
    """Selections of the runs and of folders with Results, the most stable first, and which runs have none and why."""
    sets, without = claim_sets(runs)
    given = [_of_folder(folder, results[ANALYSIS.name]) for folder, results in by_folder if ANALYSIS.name in results]
    known = [{_key(claim) for claim in one.claims} for one in given]
    measured = [
        Selection(title, claims, overlap(claims, permutations))
        for title, claims in sets
        if {_key(claim) for claim in claims} not in known
    ]
    return sorted([*given, *measured], key=lambda one: one.rank, reverse=True), without


def _key(claim: Claim) -> tuple[str, bytes]:
    return Path(claim.run).name, claim.gates.tobytes()


def _of_folder(folder: Path, result: Result) -> Selection:
    stable = [one["stable"] for one in result.about["encoders"] if one.get("stable")]
    rules = {f"stable heads, π ≥ {one['threshold']:g}" for one in stable}
    return Selection(", ".join(sorted(rules)) or str(folder), tuple(claims_in(result)), result)


def claim_sets(runs: Sequence[DescribedRun]) -> tuple[list[tuple[str, tuple[Claim, ...]]], list[str]]:
    """Title and claims by encoder and kind of pruning, and which runs have none and why.

    Where one task and seed comes twice in a kind of pruning, the settings in which such runs differ part them.
    """
    claims: dict[DescribedRun, list[Claim]] = {}
    without = []
    for run in runs:
        if not run.folder.gates_path.is_file():
            continue
        if run.tree["pruning"]["method"] == "given":
            without.append(f"No map of {run.path}: its heads were given (pruning.heads), so no task claimed them")
            continue
        try:
            claims[run] = claims_of(run)
        except RunError as error:
            without.append(f"No map of {run.path}: {error}")
    methods = get_args(PruningConfig.model_fields["method"].annotation)
    kinds: dict[tuple[str, int, str], list[DescribedRun]] = {}
    for run in claims:
        kind = run.encoder_title, methods.index(run.tree["pruning"]["method"]), run.pruning
        kinds.setdefault(kind, []).append(run)
    encoders = {encoder for encoder, _, _ in kinds}
    sets = []
    for (encoder, _, pruning), members in sorted(kinds.items()):
        for distinction, some in without_duplicates(members):
            title = ", ".join(filter(None, [encoder * (len(encoders) > 1), pruning or "heads by gates", distinction]))
            sets.append((title, tuple(labelled([(run.tasks, claims[run]) for run in some]))))
    return sets, without


# -- the section -------------------------------------------------------------------------------------------------------


def part(every: Sequence[Selection], without: Sequence[str]) -> Part | None:
    """The part of the page; None where no run has gates."""
    if not every:
        return None
    caveats = list(without)
    for one in every:
        where = f"{one.title}: " if len(every) > 1 else ""
        caveats += [f"{where}{line}" for line in (*one.result.about["notes"], *_reach(one), *_ties(one))]
    holds: dict[str, Any] = {"overview": _overview(every) if len(every) > 1 else None, "sets": list(map(_shown, every))}
    holds |= {"open_above": f"{OPEN_ABOVE:g}", "best": every[0].title}
    data = {"sets": [_data(one) for one in every], "openAbove": OPEN_ABOVE}
    return Part("gates", "", holds, "claims", caveats, data=data)


def _overview(every: Sequence[Selection]) -> Grid:
    """A row a selection; why their numbers of shared heads differ stands below."""
    rows = []
    for one in every:
        kept = [int(claim.open.sum()) for each in one.alone for claim in each.claims]
        numbers = one.result.frames.get("numbers")
        counts = ["–", "–", "–"]
        if numbers is not None:
            row = numbers.set_index("tasks").loc[several(int(numbers["tasks"].max()))[0]]
            counts = [f"{row['heads']:.0f}", number(row["layers_expected"], 1), probability(row["layers_more"])]
        phi = phi_words(one.result).removeprefix("Φ ") or "one seed"
        span = f"{min(kept)} to {max(kept)}" if min(kept) < max(kept) else str(kept[0])
        rows.append([one.title, f"{phi}{' (tied)' * bool(one.tied)}", f"{span} of {one.claims[0].gates.size}", *counts])
    return Grid(
        ["selection", "Φ", "heads a run", "shared", "from depth alone", "p"],
        rows,
        1,
        "Selections of heads",
        "Shared: heads that three tasks or more (of two: both) claim in most seeds. The counts differ because the "
        "selections keep different numbers of heads: the more each task keeps, the more are shared by chance, so read "
        "each beside its own expectation from depth alone. The first, whose seeds agree most, is on the first screen.",
    )


def _shown(one: Selection) -> dict[str, Any]:
    """Maps of every label, and the overlap where there are labels to compare."""
    means = [each for each in claim_maps(one.run_groups, "colourblind") if each.kind == "mean"]
    maps = []
    for run_group, drawn in zip(one.run_groups, means, strict=True):
        opened = ", ".join(str(int(claim.open.sum())) for claim in run_group.claims)
        claimed = ", ".join(head_names(run_group.claimed_by_most)) or "none"
        about = f"{opened} of {run_group.claimed_by_most.size} heads open"
        maps.append(
            {
                "title": run_group.label,
                "about": about,
                "alt": f"{run_group.label}: {about}. Claimed by most seeds: {claimed}.",
                "cells": np.array(drawn.cells).reshape(run_group.claimed_by_most.shape).tolist(),
            }
        )
    blocks = shown.section(ANALYSIS, one.result, notes=False) if len(one.run_groups) > 1 else ()
    return {
        "title": one.title,
        "maps": maps,
        "words": [block for block in blocks if isinstance(block, str)],
        "blocks": [block for block in blocks if not isinstance(block, str)],
        "tied": "; ".join(f"{run} ({many})" for run, many in one.tied.items()),
    }


def _ties(one: Selection) -> Iterator[str]:
    if one.tied:
        runs = "; ".join(f"{run}: {many} of {one.claims[0].gates.size} tie" for run, many in one.tied.items())
        yield (
            f"gates have not told heads apart ({runs} where the wanted heads end, before they were fixed): which of "
            "these heads stay open is no finding. Train gates longer, or choose heads of finished runs by "
            "pruning.method=fisher."
        )


def _reach(one: Selection) -> Iterator[str]:
    """Sentences on labels none of whose heads differs from chance, and the smallest p possible there."""
    silent = []
    for run_group in one.run_groups:
        q = corrected(maths.by_maps(run_group.open)).min()
        if len(run_group.claims) > 1 and q > LEVEL:
            smallest = maths.least(run_group.open)
            silent.append(f"{run_group.label} (smallest q {float(q):.2g}, smallest p possible {smallest:.2g})")
    if silent:
        yield (
            "no single head is open in more seeds than chance within its layer explains, corrected over all heads: "
            f"{', '.join(silent)}. Where heads are shared is a matter of all of them together (see the overlap)."
        )


# -- numbers for the script ------------------------------------------------------------------------------------------


def _data(one: Selection) -> dict[str, Any]:
    run_groups, alone = one.run_groups, [each for each in one.run_groups if not each.joint]
    layers, heads = run_groups[0].gates.shape[1:]
    tree: dict[str, Any] = {"title": one.title, "layers": layers, "heads": heads, "labels": []}
    for run_group in run_groups:
        p = maths.by_maps(run_group.open)
        tree["labels"].append(
            {
                "label": run_group.label,
                "z": [_short(gates) for gates in run_group.gates],
                "p": _short(p),
                "q": _short(corrected(p)),
            }
        )
    if len(alone) > 1:
        p = maths.by_maps(np.stack([run_group.claimed_by_most for run_group in alone]))
        tree["tasks"] = {
            "claimed": np.sum([run_group.claimed_by_most for run_group in alone], axis=0).ravel().tolist(),
            "of": len(alone),
            "p": _short(p),
            "q": _short(corrected(p)),
        }
    return tree


def _short(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.3g}") for value in values.ravel()]
