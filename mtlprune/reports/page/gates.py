"""Gate maps of the page: small ones that need no script, and the numbers from which the script makes the large one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.claims import maths
from mtlprune.config.blocks import PruningConfig
from mtlprune.evaluation.head_masks import OPEN_ABOVE, head_names
from mtlprune.figures.charts import figure
from mtlprune.figures.maps import GateMap, claim_maps, gallery, left_out, maps_chart, side_by_side
from mtlprune.reports.analyses import Figure
from mtlprune.reports.page.render import Part
from mtlprune.runs.claims import Claim, RunGroup, claims_of, group, labelled
from mtlprune.runs.folder import RunError
from mtlprune.runs.groups import DescribedRun, without_duplicates
from mtlprune.statistics.significance import LEVEL


@dataclass(frozen=True)
class ClaimSet:
    """Claims that were made in the same way, so that they may be compared."""

    title: str
    claims: tuple[Claim, ...]

    @cached_property
    def run_groups(self) -> list[RunGroup]:
        return group(self.claims)

    @property
    def alone(self) -> list[RunGroup]:
        """Single tasks."""
        return [run_group for run_group in self.run_groups if not run_group.joint]


def claim_sets(runs: Sequence[DescribedRun]) -> tuple[list[ClaimSet], list[str]]:
    """Claims by encoder and kind of pruning, and which runs have none and why.

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
    several = len({encoder for encoder, _, _ in kinds}) > 1
    sets = []
    for (encoder, _, pruning), members in sorted(kinds.items()):
        for distinction, some in without_duplicates(members):
            title = ", ".join(filter(None, [encoder * several, pruning or "heads by gates", distinction]))
            sets.append(ClaimSet(title, tuple(labelled([(run.tasks, claims[run]) for run in some]))))
    return sets, without


def part(sets: Sequence[ClaimSet], without: Sequence[str]) -> Part | None:
    """The part of the page; None where no run has gates."""
    if not sets:
        return None
    data = {"sets": [_data(one) for one in sets], "openAbove": OPEN_ABOVE}
    caveats = [
        *without,
        *(f"{one.title}: {line}" for one in sets for line in (*left_out(one.run_groups), *_reach(one))),
    ]
    holds = {
        "open_above": f"{OPEN_ABOVE:g}",
        "sets": [(one.title, *_maps(one)) for one in sets],
    }
    return Part("gates", "Gate maps", holds, caveats, data=data, lead=_lead(sets[0]))


def _maps(one: ClaimSet) -> tuple[list[Figure], list[Figure]]:
    """Mean gates of every label and of all tasks in one chart; and which seeds use a head, in colours."""
    maps = claim_maps(one.run_groups, "colourblind")
    names, texts = [], []
    for run_group in one.run_groups:
        seeds = len(run_group.claims)
        number = f"mean of {seeds} seeds" if seeds > 1 else f"seed {run_group.claims[0].seed}"
        opened = ", ".join(str(int(claim.open.sum())) for claim in run_group.claims)
        names.append(f"{run_group.label}: {number}\n{opened} of {run_group.claimed.size} heads open")
        claimed = head_names(run_group.claimed)
        words = names[-1].replace("\n", "; ")
        texts.append(f"{words}. Claimed by most seeds: {', '.join(claimed) or 'none'}.")
    means, *by_seeds = side_by_side(maps)
    if len(means) > len(names):
        names.append(f"All tasks: mean over\n{', '.join(run_group.label for run_group in one.alone)}")
        texts.append(names[-1].replace("\n", " ") + ".")
    colours = [_gallery(some, [each.title.partition(": ")[0] for each in some]) for some in by_seeds]
    halves = [each for each in maps if each.kind == "frequency"]
    shown = [_gallery(halves, [each.title for each in halves])] if halves else []
    return [_gallery(means, names, " ".join(texts)), *shown], colours


def _lead(one: ClaimSet) -> Figure:
    """Which heads each label claims, small, for the first screen."""
    maps = [each for each in claim_maps(one.run_groups, "colourblind") if each.kind == "mean"]
    chart = maps_chart(maps, [run_group.label for run_group in one.run_groups], across=3, cell=10, legend=False)
    several = max(len(run_group.claims) for run_group in one.run_groups) > 1
    which = "open in all seeds, white ones in none" if several else "open, white ones closed"
    text = f"Which heads each task claims ({one.title}): black heads are {which}; rows are layers, 1 at the top."
    return Figure(figure(chart), text, text)


def _gallery(maps: Sequence[GateMap], names: Sequence[str], alt: str = "") -> Figure:
    """With words for those who do not see it."""
    alt = alt or " ".join(". ".join((one.title, *one.subtitle)) + "." for one in maps)
    return Figure(gallery(maps, names), alt)


# -- numbers for the script ------------------------------------------------------------------------------------------


def _data(one: ClaimSet) -> dict[str, Any]:
    run_groups, alone = one.run_groups, one.alone
    layers, heads = run_groups[0].gates.shape[1:]
    tree: dict[str, Any] = {"title": one.title, "layers": layers, "heads": heads, "labels": []}
    tree["maps"] = list(_shown_maps(run_groups))
    for run_group in run_groups:
        p = maths.by_maps(run_group.open)
        tree["labels"].append(
            {
                "label": run_group.label,
                "joint": run_group.joint,
                "seeds": [claim.name for claim in run_group.claims],
                "z": [[round(float(z), 6) for z in gates.ravel()] for gates in run_group.gates],
                "p": _short(p),
                "q": _short(maths.over_all_heads(p)),
            }
        )
    if len(alone) > 1:
        p = maths.by_maps(np.stack([run_group.claimed for run_group in alone]))
        tree["tasks"] = {
            "claimed": np.sum([run_group.claimed for run_group in alone], axis=0).ravel().tolist(),
            "of": len(alone),
            "p": _short(p),
            "q": _short(maths.over_all_heads(p)),
        }
    return tree


_KINDS = {"mean": "Mean gates", "tasks": "Mean gates", "colourblind": "Seeds in colours", "rgb": "Seeds in RGB"}
_KINDS |= {"difference": "Differences of mean gates", "frequency": "Selected on halves", "run": "Gates of one run"}
"""Kind of a map, or palette of a map of seeds → its heading among those to choose from, in this order."""


def _shown_maps(run_groups: Sequence[RunGroup]) -> Iterator[dict[str, Any]]:
    """The maps among which the large one is chosen."""
    every = claim_maps(run_groups, "colourblind")
    every += [one for one in claim_maps(run_groups, "rgb") if one.palette]
    for one in sorted(every, key=lambda one: list(_KINDS).index(one.palette or one.kind)):
        numbers = np.stack(list(one.numbers.values()), -1).reshape(len(one.cells), -1).round(3).tolist()
        group = _KINDS[one.palette or one.kind]
        heading = one.heading.replace("\n", "; ")
        about = {"name": one.name, "title": one.title, "group": group, "heading": heading, "caption": one.caption}
        yield about | {"cells": one.cells, "key": one.key, "numbers": numbers}


def _short(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.3g}") for value in values.ravel()]


def _reach(one: ClaimSet) -> Iterator[str]:
    """Sentences on labels none of whose heads is told from chance, and the smallest p possible there."""
    silent = []
    for run_group in one.run_groups:
        q = maths.over_all_heads(maths.by_maps(run_group.open)).min()
        if len(run_group.claims) > 1 and q > LEVEL:
            smallest = maths.least(run_group.open)
            silent.append(f"{run_group.label} (smallest q {float(q):.2g}, smallest p possible {smallest:.2g})")
    if silent:
        yield (
            "no single head is open in more seeds than chance within its layer explains, corrected over all heads: "
            f"{', '.join(silent)}. Where heads are shared is a matter of all of them together (see the overlap)."
        )
