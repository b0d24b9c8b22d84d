"""The section of claimed heads in the HTML report, with maps and overlaps of each selection.

A selection is a set of claims whose heads were chosen in the same way: the gates of runs with the same kind of pruning,
or the claims in a folder of `mtlprune claims`. The selection whose seeds agree most comes first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from mtlprune.reports.page.answers import phi_of, phi_words, required_tasks
from mtlprune.reports.page.render import Part
from mtlprune.runs.claims import Claim, RunGroup, claims_of, group, labelled, tied_heads
from mtlprune.runs.folder import RunError
from mtlprune.runs.groups import DescribedRun, without_duplicates
from mtlprune.runs.results import Result
from mtlprune.statistics.permutation import benjamini_hochberg
from mtlprune.statistics.standard_errors import LEVEL


@dataclass(frozen=True, eq=False)
class Selection:
    """Claims that were made in the same way, so that they can be compared, with the Result that measures their
    overlap."""

    title: str
    claims: tuple[Claim, ...]
    result: Result

    @cached_property
    def run_groups(self) -> list[RunGroup]:
        """The claims grouped by label, so that a group differs only in seeds."""
        return group(self.claims)

    @property
    def single_task_groups(self) -> list[RunGroup]:
        """The groups of single-task runs, or all groups if there are none."""
        return [run_group for run_group in self.run_groups if not run_group.joint] or self.run_groups

    @cached_property
    def ties_by_run(self) -> dict[str, int]:
        """Run → number of heads that share a gate with heads that chance opened (see ``tied_heads``), if any."""
        claims = [claim for group in self.run_groups for claim in group.claims]  # claims of groups have names
        return {f"{claim.label}, seed {claim.name}": tie_count for claim in claims if (tie_count := tied_heads(claim))}

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key that increases with reliability: first whether no heads are tied, then Φ."""
        phi = phi_of(self.result)
        return not self.ties_by_run, phi[0] if phi else -np.inf


def selections(
    runs: Sequence[DescribedRun], by_folder: Sequence[tuple[Path, Mapping[str, Result]]], permutations: int
) -> tuple[list[Selection], list[str]]:
    """Return the selections of runs and of folders with Results of ``claims``, the most reliable first.

    Args:
        runs: runs, of which those with gates form selections.
        by_folder: folders, each with a mapping from names of analyses to Results.
        permutations: number of permutations of each test.

    Returns:
        the selections, and sentences on runs without a map. If a folder and the runs have the same claims, only the
        selection of the folder is returned.
    """
    sets, notes_of_missing = claim_sets(runs)
    claims_of_runs = {_key(claim): claim for _, claims in sets for claim in claims}
    selections_given = [
        _with_histories(_of_folder(folder, results[ANALYSIS.name]), claims_of_runs)
        for folder, results in by_folder
        if ANALYSIS.name in results
    ]
    claims_given = [{_key(claim) for claim in selection.claims} for selection in selections_given]
    measured = [
        Selection(title, claims, overlap(claims, permutations))
        for title, claims in sets
        if {_key(claim) for claim in claims} not in claims_given
    ]
    return sorted([*selections_given, *measured], key=lambda selection: selection.rank, reverse=True), notes_of_missing


def _key(claim: Claim) -> tuple[str, bytes]:
    """Return a key that identifies equal claims: the name of the run's folder, and the gates."""
    return Path(claim.run).name, claim.gates.tobytes()


def _with_histories(selection: Selection, claims_of_runs: Mapping[tuple[str, bytes], Claim]) -> Selection:
    """Add the gates of earlier evaluations, which show ties and which a Result does not store, from the runs."""
    claims = [
        replace(claim, history=run_claim.history, settings=run_claim.settings, step=run_claim.step)
        if (run_claim := claims_of_runs.get(_key(claim)))
        else claim
        for claim in selection.claims
    ]
    return replace(selection, claims=tuple(claims))


def _of_folder(folder: Path, result: Result) -> Selection:
    """Return the selection of a Result of ``claims``, whose title is the rule for stable heads or the folder."""
    stable = [entry["stable"] for entry in result.about["encoders"] if entry.get("stable")]
    rules = {f"stable heads, π ≥ {rule['threshold']:g}" for rule in stable}
    return Selection(", ".join(sorted(rules)) or str(folder), tuple(claims_in(result)), result)


def claim_sets(runs: Sequence[DescribedRun]) -> tuple[list[tuple[str, tuple[Claim, ...]]], list[str]]:
    """Group the claims of runs by encoder and kind of pruning.

    If the same tasks and seed occur twice within a kind of pruning, the runs are divided further by the settings in
    which they differ.

    Returns:
        the title and the claims of each set, and sentences on runs without a map.
    """
    claims: dict[DescribedRun, list[Claim]] = {}
    notes_of_missing = []
    for run in runs:
        if not run.folder.has("gates.jsonl"):
            continue
        if run.config.pruning.method == "given":
            notes_of_missing.append(
                f"There is no map of {run.path}, because its heads were given (pruning.heads), so no task claimed them"
            )
            continue
        try:
            claims[run] = claims_of(run)
        except RunError as error:
            notes_of_missing.append(f"There is no map of {run.path}: {error}")
    methods = get_args(PruningConfig.model_fields["method"].annotation)
    kinds: dict[tuple[str, int, str], list[DescribedRun]] = {}
    for run in claims:
        kind = run.encoder_title, methods.index(run.config.pruning.method), run.pruning
        kinds.setdefault(kind, []).append(run)
    encoders = {encoder for encoder, _, _ in kinds}
    sets = []
    for (encoder, _, pruning), members in sorted(kinds.items()):
        for distinction, runs_of_title in without_duplicates(members):
            title = ", ".join(filter(None, [encoder * (len(encoders) > 1), pruning or "heads by gates", distinction]))
            sets.append((title, tuple(labelled([(run.tasks, claims[run]) for run in runs_of_title]))))
    return sets, notes_of_missing


# -- the section -------------------------------------------------------------------------------------------------------


def part(all_selections: Sequence[Selection], notes_of_missing: Sequence[str]) -> Part | None:
    """Return the part of the report on claimed heads, or None without selections."""
    if not all_selections:
        return None
    caveats = list(notes_of_missing)
    for selection in all_selections:
        prefix = f"{selection.title}: " if len(all_selections) > 1 else ""
        caveats += [
            f"{prefix}{line}" for line in (*selection.result.about["notes"], *_reach(selection), *_ties(selection))
        ]
    holds: dict[str, Any] = {
        "overview": _overview(all_selections) if len(all_selections) > 1 else None,
        "sets": list(map(_render_selection, all_selections)),
    }
    holds |= {"open_above": f"{OPEN_ABOVE:g}", "best": all_selections[0].title}
    data = {"sets": [_data(selection) for selection in all_selections], "openAbove": OPEN_ABOVE}
    return Part("gates", "", holds, "claims", caveats, data=data)


def _overview(all_selections: Sequence[Selection]) -> Grid:
    """Return a table with a row for each selection, with the numbers of open and of shared heads."""
    rows = []
    for selection in all_selections:
        open_counts = [
            int(claim.open.sum()) for run_group in selection.single_task_groups for claim in run_group.claims
        ]
        numbers = selection.result.frames.get("numbers")
        counts = ["–", "–", "–"]
        if numbers is not None:
            row = numbers.set_index("tasks").loc[required_tasks(int(numbers["tasks"].max()))[0]]
            counts = [f"{row['heads']:.0f}", number(row["layers_expected"], 1), probability(row["layers_more"])]
        phi = phi_words(selection.result).removeprefix("Φ ") or "one seed"
        span = (
            f"{min(open_counts)} to {max(open_counts)}" if min(open_counts) < max(open_counts) else str(open_counts[0])
        )
        rows.append(
            [
                selection.title,
                f"{phi}{' (tied)' * bool(selection.ties_by_run)}",
                f"{span} of {selection.claims[0].gates.size}",
                *counts,
            ]
        )
    return Grid(
        ["selection", "Φ", "heads per run", "shared", "from depth alone", "p"],
        rows,
        1,
        "Selections of heads",
        "*Shared* is the number of heads that three tasks or more (with two tasks, both) claim in most seeds. The "
        "numbers differ because the selections keep different numbers of heads. The more heads each task keeps, the "
        "more heads are shared by chance, so compare each number with the one expected from depth alone. The first "
        "row, whose seeds agree most, is on the first screen.",
    )


def _render_selection(selection: Selection) -> dict[str, Any]:
    """Return the values of the template for a selection: maps of all labels and, with two labels or more, their
    overlap."""
    means = [gate_map for gate_map in claim_maps(selection.run_groups, "colourblind") if gate_map.kind == "mean"]
    maps = []
    for run_group, mean_map in zip(selection.run_groups, means, strict=True):
        open_counts = ", ".join(str(int(claim.open.sum())) for claim in run_group.claims)
        claimed_heads = ", ".join(head_names(run_group.claimed_by_most)) or "none"
        caption = f"{open_counts} of {run_group.claimed_by_most.size} heads are open"
        maps.append(
            {
                "title": run_group.label,
                "about": caption,
                "alt": f"{run_group.label}: {caption}. Claimed by most seeds: {claimed_heads}.",
                "cells": np.array(mean_map.cells).reshape(run_group.claimed_by_most.shape).tolist(),
            }
        )
    blocks = shown.section(ANALYSIS, selection.result, notes=False) if len(selection.run_groups) > 1 else ()
    return {
        "title": selection.title,
        "maps": maps,
        "words": [block for block in blocks if isinstance(block, str)],
        "blocks": [block for block in blocks if not isinstance(block, str)],
        "tied": "; ".join(f"{run} ({tie_count})" for run, tie_count in selection.ties_by_run.items()),
    }


def _ties(selection: Selection) -> Iterator[str]:
    """Yield a caveat if training did not separate the gates of the heads."""
    if selection.ties_by_run:
        runs = "; ".join(
            f"{run}: {tie_count} of {selection.claims[0].gates.size} tie"
            for run, tie_count in selection.ties_by_run.items()
        )
        yield (
            f"Gates do not distinguish heads ({runs} at the boundary of the heads that stay open, before they were "
            "fixed), so it is a matter of chance which of these heads stay open. Train gates longer, or choose heads "
            "of finished runs with pruning.method=fisher."
        )


def _reach(selection: Selection) -> Iterator[str]:
    """Yield a caveat on labels without a head whose number of seeds differs from chance, with the smallest possible p
    of each label."""
    silent = []
    for run_group in selection.run_groups:
        q = benjamini_hochberg(maths.by_maps(run_group.open)).min()
        if len(run_group.claims) > 1 and q > LEVEL:
            smallest = maths.least(run_group.open)
            silent.append(f"{run_group.label} (smallest q {float(q):.2g}, smallest p possible {smallest:.2g})")
    if silent:
        yield (
            f"For {', '.join(silent)}, no single head is open in more seeds than chance within its layer explains, "
            "after correction over all heads. Only all heads together show whether heads are shared (see the overlap)."
        )


# -- numbers for the script ------------------------------------------------------------------------------------------


def _data(selection: Selection) -> dict[str, Any]:
    """Return the gates and p-values of a selection, which the script shows for a chosen head.

    The arrays are flat, (L · A,). ``z`` are the gates of each seed, ``p`` is the probability that chance within the
    layer opens a head in as many seeds or more, and ``q`` is ``p`` after correction over all heads.
    """
    run_groups, single_task_groups = (
        selection.run_groups,
        [run_group for run_group in selection.run_groups if not run_group.joint],
    )
    layers, heads = run_groups[0].gates.shape[1:]
    tree: dict[str, Any] = {"title": selection.title, "layers": layers, "heads": heads, "labels": []}
    for run_group in run_groups:
        p = maths.by_maps(run_group.open)
        tree["labels"].append(
            {
                "label": run_group.label,
                "z": [_short(gates) for gates in run_group.gates],
                "p": _short(p),
                "q": _short(benjamini_hochberg(p)),
            }
        )
    if len(single_task_groups) > 1:
        p = maths.by_maps(np.stack([run_group.claimed_by_most for run_group in single_task_groups]))
        tree["tasks"] = {
            "claimed": np.sum([run_group.claimed_by_most for run_group in single_task_groups], axis=0).ravel().tolist(),
            "of": len(single_task_groups),
            "p": _short(p),
            "q": _short(benjamini_hochberg(p)),
        }
    return tree


def _short(values: NDArray[np.float64]) -> list[float]:
    """Flatten an array and round it to three significant digits, so that the report remains small."""
    return [float(f"{value:.3g}") for value in values.ravel()]
