"""Which maps there are of some runs' claims: one a run, the seeds and the mean of each label, all tasks, differences.

figures = claim_figures(group(load_claims(["runs/pos-1", "runs/pos-2", "runs/pos-3"])), "rgb")

The facts (He and Choi 2021): channel = 255 · (1 - z) for runs 1, 2, 3 in R, G, B; H = mean of z over tasks and runs,
drawn as black with opacity H. Letters: L layers, A heads a layer, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.claims.claimants import Claimant
from mtlprune.claimed_heads import OPEN_ABOVE, Claim
from mtlprune.reports.drawing import Drawing, text_width
from mtlprune.reports.maps import SUBTITLE, HeadMap, difference_map, grey_map, layout, seeds_map

SEEDS_SHOWN = 3


@dataclass(frozen=True)
class MapFigure:
    """A map, what it is called, and whose gates it shows."""

    kind: str
    """run, seeds, mean, tasks or difference."""
    name: str
    """Of the file, without its ending."""
    runs: tuple[str, ...]
    shown: HeadMap


@dataclass(frozen=True)
class Film:
    """The gates of a run at every evaluation."""

    name: str
    run: str
    steps: tuple[int, ...]
    frames: tuple[HeadMap, ...]

    def drawings(self, values: bool = False) -> list[Drawing]:
        """All frames, everything at the same place in each."""
        room = max(text_width(frame.subtitle[-1], SUBTITLE) for frame in self.frames)
        return [layout(frame, values, room) for frame in self.frames]


def claim_figures(claimants: Sequence[Claimant], palette: str) -> list[MapFigure]:
    """All maps of these claimants, in the order: runs, seeds, means, all tasks, differences.

    Args:
        claimants: from analyses.claimants.group.
        palette: of the maps of seeds, one of palettes.PALETTES.

    Raises:
        MapError: an unknown palette.
    """
    alone = [claimant for claimant in claimants if not claimant.joint]
    return [
        *(_run(claim) for claimant in claimants for claim in claimant.claims),
        *(_seeds(claimant, palette) for claimant in claimants if len(claimant.claims) > 1),
        *(_mean(claimant) for claimant in claimants),
        *([_tasks(alone)] if len(alone) > 1 else []),
        *(_difference(one, other) for one, other in combinations(claimants, 2) if comparable(one.label, other.label)),
    ]


def claim_films(claimants: Sequence[Claimant]) -> list[Film]:
    """One film a claim."""
    return [_film(claim) for claimant in claimants for claim in claimant.claims]


def left_out(claimants: Sequence[Claimant]) -> list[str]:
    """Which maps one might have expected and why they are not there, in sentences."""
    found = []
    for claimant in claimants:
        seeds = [str(claim.seed) for claim in claimant.claims]
        if len(seeds) == 1:
            found.append(f"{claimant.label} has one seed only, so no map shows its seeds in colours.")
        if len(seeds) > SEEDS_SHOWN:
            shown, rest = _listed(seeds[:SEEDS_SHOWN]), _listed(seeds[SEEDS_SHOWN:])
            found.append(f"The map of the seeds of {claimant.label} shows {shown}; it has no colour left for {rest}.")
    if sum(not claimant.joint for claimant in claimants) < 2:
        found.append("A map over all tasks needs single-task runs of two tasks or more, so there is none.")
    return found


def comparable(one: str, other: str) -> bool:
    """Whether two labels' difference has a map.

    Tasks and joint runs with each other; a task's own gate set in a joint run with the other sets of that run and with
    that task alone.
    """
    (run_one, _, task_one), (run_other, _, task_other) = one.partition(":"), other.partition(":")
    if task_one and task_other:
        return run_one == run_other
    return task_one == run_other or run_one == task_other if task_one or task_other else True


# -- one map each ----------------------------------------------------------------------------------------------------


def _run(claim: Claim) -> MapFigure:
    open_heads = f"{claim.open.sum()} of {claim.gates.size} heads open, sum of gates {claim.gates.sum():.1f}"
    subtitle = (encoder_line(claim), open_heads)
    shown = grey_map(f"{claim.label}, seed {claim.seed}", "Gate", claim.gates, subtitle)
    return MapFigure("run", f"run-{_file(claim.label)}-seed{claim.seed}", (claim.run,), shown)


def _seeds(claimant: Claimant, palette: str) -> MapFigure:
    claims = claimant.claims[:SEEDS_SHOWN]
    opened = claimant.open[: len(claims)]  # (S, L, A)
    counts = _listed([str(int(heads.sum())) for heads in opened])
    both = "both" if len(claims) == 2 else "all three"
    subtitle = (
        encoder_line(claims[0]),
        f"Open heads: {counts} of {opened[0].size}; {opened.all(0).sum()} in {both}, {opened.any(0).sum()} in any",
    )
    gates = {str(claim.seed): claim.gates for claim in claims}
    shown = seeds_map(f"{claimant.label}: heads used by each seed", gates, palette, subtitle)
    return MapFigure("seeds", f"{palette}-{_file(claimant.label)}", tuple(claim.run for claim in claims), shown)


def mean_gates(claimant: Claimant) -> NDArray[np.float64]:
    """(L, A): mean over the seeds."""
    return claimant.gates.mean(0)


def _mean(claimant: Claimant) -> MapFigure:
    seeds = [str(claim.seed) for claim in claimant.claims]
    number = f"mean gate over {len(seeds)} seeds" if len(seeds) > 1 else "gate of its one seed"
    opened = claimant.open
    within = (
        f"{opened.all(0).sum()} heads open in all, {opened.any(0).sum()} in any"
        if len(seeds) > 1
        else (f"{opened.sum()} heads open")
    )
    subtitle = (encoder_line(claimant.claims[0]), f"Seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}; {within}")
    ends = ("open in all", "closed in all") if len(seeds) > 1 else ("open", "closed")
    shown = grey_map(f"{claimant.label}: {number}", "Mean gate", mean_gates(claimant), subtitle, ends=ends)
    return MapFigure("mean", f"grey-{_file(claimant.label)}", tuple(claim.run for claim in claimant.claims), shown)


def _tasks(alone: Sequence[Claimant]) -> MapFigure:
    """H: the mean of z over tasks and seeds; with unequal numbers of seeds, tasks weigh equally."""
    runs = tuple(claim.run for claimant in alone for claim in claimant.claims)
    seeds = [len(claimant.claims) for claimant in alone]
    if len(set(seeds)) == 1:
        who = f"{_listed([claimant.label for claimant in alone])}, {_counted(seeds[0], 'seed')} each"
    else:
        who = _listed([f"{c.label} ({_counted(len(c.claims), 'seed')})" for c in alone]) + "; each task weighs the same"
    mean = np.mean([mean_gates(claimant) for claimant in alone], axis=0)
    title = f"Mean gate over {len(alone)} tasks, {len(runs)} runs"
    subtitle = (encoder_line(alone[0].claims[0]), who)
    shown = grey_map(title, "Mean gate H", mean, subtitle, ends=("open in all", "closed in all"))
    return MapFigure("tasks", "grey-all-tasks", runs, shown)


def _difference(one: Claimant, other: Claimant) -> MapFigure:
    means = mean_gates(one), mean_gates(other)
    runs = tuple(claim.run for claimant in (one, other) for claim in claimant.claims)
    about = _listed([f"{c.label} ({_counted(len(c.claims), 'seed')})" for c in (one, other)])
    sums = f"sums of mean gates {means[0].sum():.1f} and {means[1].sum():.1f} of {means[0].size}"
    subtitle = (encoder_line(one.claims[0]), f"{about}; {sums}")
    shown = difference_map(one.label, other.label, means[0] - means[1], subtitle)
    return MapFigure("difference", f"difference-{_file(one.label)}-{_file(other.label)}", runs, shown)


def _film(claim: Claim) -> Film:
    steps = tuple(step for step, _ in claim.history)
    frames = []
    for number, (step, gates) in enumerate(claim.history, 1):
        opened = f"{(gates > OPEN_ABOVE).sum()} of {gates.size} heads open"
        caption = f"Step {step:,}, evaluation {number} of {len(steps)}: {opened}"  # the number: no two frames are equal
        title = f"{claim.label}, seed {claim.seed}: gates during training"
        progress = min(step / max(max(steps), 1), 1.0)
        frames.append(grey_map(title, "Gate", gates, (encoder_line(claim), caption), progress))
    return Film(f"training-{_file(claim.label)}-seed{claim.seed}", claim.run, steps, tuple(frames))


def encoder_line(claim: Claim) -> str:
    """The encoder's name, of a local one the last folder only, and its size."""
    layers, heads = claim.gates.shape
    path, comma, rest = claim.encoder.partition(", ")
    name = (Path(path).name or path) if path.startswith(("/", "~", ".")) else path
    return f"{name}{comma}{rest}, {_counted(layers, 'layer')} of {_counted(heads, 'head')}"


def _file(label: str) -> str:
    """A label as part of a file name that every system takes."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "+-.") else "_" for c in label)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
