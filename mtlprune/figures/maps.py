"""Maps of the heads that runs claim: for each run, for the seeds and the mean of each label, for all tasks, and for
differences between labels.

Colours follow He and Choi (2021). In maps of seeds with the palette ``rgb``, runs 1, 2 and 3 set the red, green and
blue channel to 255 · (1 − z), where z is the gate. In maps of means, H is the mean of z over tasks and runs, and a cell
is black with opacity H. Numbers in [0, 1] or [−1, 1] become 8-bit sRGB.

Letters for shapes: L layers, A heads of a layer, S or K seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from PIL import ImageColor

from mtlprune.errors import plural
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.figures.charts import DIVERGING, Spec, figure, head_map, notebook
from mtlprune.figures.grid import html
from mtlprune.runs.claims import Claim, RunGroup

_SEEDS_SHOWN = 3
"""Number of seeds that a map of seeds shows, one for each colour channel."""
CELL, _SMALL, _TINY = 26, 20, 15
"""Side of a cell in pixels: in a single map, in a map among a few others, and in a map among many."""
_MAX_EVALUATIONS_SHOWN = 12
"""The largest number of evaluations of a run that a map of training shows, evenly spread over the training."""


@dataclass(frozen=True)
class GateMap:
    """A map of gates of heads, with its title and the runs that it shows.

    Attributes:
        kind: run, frequency, seeds, mean, tasks, difference or training.
        name: name of the file, without its ending.
        runs: paths of the runs.
        title: title of the figure.
        subtitle: lines below the title.
        heading: title of the legend, which says what the numbers are.
        numbers: name → numbers (L, A) that the cells show. A map with one number for each head has the name "gate". A
            map of seeds has the names "seed 1", "seed 2" and so on. A map of training has a name for each evaluation,
            which is shown above the numbers of the evaluation.
        palette: palette of a map of seeds, one of "rgb" and "colourblind"; "" for other maps.
    """

    kind: str
    name: str
    runs: tuple[str, ...]
    title: str
    subtitle: tuple[str, ...]
    heading: str
    numbers: Mapping[str, NDArray[np.float64]] = field(repr=False)
    palette: str = ""

    @property
    def caption(self) -> str:
        """Sentences that explain the colours of a map of seeds; "" for other maps."""
        return (
            _colours_mean([name.removeprefix("seed ") for name in self.numbers], self.palette) if self.palette else ""
        )

    @property
    def colours(self) -> "Colours":
        """The colours of the cells: (L, A, 3)."""
        arrays = list(self.numbers.values())
        if self.palette:
            return mixed(arrays, corners(len(arrays), self.palette))
        return diverging(arrays[0]) if self.kind == "difference" else opacity(arrays[0])

    @property
    def cells(self) -> list[str]:
        """The colours of the cells as #rrggbb, layer by layer."""
        return hexes(self.colours)

    def spec(self) -> Spec:
        """Return the specification of a figure of the map, with the numbers of layers and heads. The figure of a map of
        training shows its evaluations next to each other."""
        if self.kind == "training":
            maps = [replace(self, kind="run", numbers={"gate": gates}) for gates in self.numbers.values()]
            maps_figure = _maps_chart(maps, list(self.numbers), columns=_columns_of_grid(maps), cell=_TINY, axes=True)
            return figure(maps_figure, self.title, self.subtitle)
        chart = _maps_chart([self], [""], cell=CELL, words=False, axes=True)
        return figure(chart, self.title, [*self.subtitle, *([self.caption] if self.caption else [])])

    def _repr_html_(self) -> str:
        return notebook(self.spec())

    def entry(self) -> dict[str, Any]:
        """Return the entry of the map in the file maps.json."""
        numbers = {self.kind if name == "gate" else name: array.tolist() for name, array in self.numbers.items()}
        caption = {"caption": self.caption} if self.caption else {}
        return (
            {key: getattr(self, key) for key in ("kind", "title", "subtitle", "runs")} | {"numbers": numbers} | caption
        )


class GateMaps(dict[str, GateMap]):
    """A dictionary from names of files to maps. Notebooks show the maps of ``side_by_side``, and list the names of the
    maps of single runs and of differences."""

    def __repr__(self) -> str:
        return f"maps: {', '.join(self)}"

    def _repr_html_(self) -> str:
        parts: list[str] = []
        for group in side_by_side(self.values()):
            names = [gate_map.title.partition(": ")[0] for gate_map in group]
            chart = _maps_chart(group, names, columns=_columns_of_grid(group), cell=_SMALL, axes=True)
            parts += [notebook(figure(chart)), html([group[0].caption])]
        further_names = [name for name, gate_map in self.items() if gate_map.kind in ("run", "difference")]
        return "".join(parts) + html([f"Further maps: {', '.join(further_names)}."])


def side_by_side(maps: Iterable[GateMap]) -> list[list[GateMap]]:
    """Group maps that can share a chart: first the means of labels and of all tasks, then the maps of seeds, grouped by
    their seeds. Maps of other kinds are left out."""
    by_seeds: dict[tuple[str, ...], list[GateMap]] = {}
    for gate_map in maps:
        if gate_map.kind in ("mean", "tasks", "seeds"):
            by_seeds.setdefault(tuple(gate_map.numbers), []).append(gate_map)
    return [by_seeds.pop(("gate",)), *by_seeds.values()]


def _columns_of_grid(maps: Sequence[GateMap]) -> int:
    return max(2, min(3, len(maps), 900 // (_SMALL * maps[0].colours.shape[1] + 30)))


def _maps_chart(maps: Sequence[GateMap], names: Sequence[str], **look: Any) -> Any:
    """Draw maps of the same kind and seeds as one chart with one legend. ``look``: further arguments of
    ``charts.head_map``."""
    first, frames = maps[0], []
    signed = first.kind == "difference"
    for gate_map, name in zip(maps, names, strict=True):
        arrays = {key: array.ravel() for key, array in gate_map.numbers.items()}
        layers, heads = np.indices(next(iter(gate_map.numbers.values())).shape).reshape(2, -1) + 1
        frame = pd.DataFrame({"layer": layers, "head": heads, **arrays, "name": name})
        if first.palette:
            frame["colour"] = gate_map.cells
        frames.append(frame)
    cells = pd.concat(frames, ignore_index=True).assign(name=lambda all_: pd.Categorical(all_["name"], list(names)))
    first_key = next(iter(first.numbers))
    subsets = _subsets(first) if first.palette else None
    return head_map(cells, first_key, limit=1.0, diverging=signed, heading=first.heading, subsets=subsets, **look)


def _subsets(gate_map: GateMap) -> dict[str, str]:
    """Return the legend of a map of seeds: the colour of each set of seeds that can use a head, the set of all seeds
    first. Sets are given in words."""
    seeds = [name.removeprefix("seed ") for name in gate_map.numbers]
    colour_of = corners(len(seeds), gate_map.palette)
    combinations_of_use = sorted(product((1, 0), repeat=len(seeds)), key=lambda used: -sum(used))
    words = [
        _join_words([seed for seed, uses in zip(seeds, used, strict=True) if uses] or ["none"])
        for used in combinations_of_use
    ]
    return dict(zip(words, hexes(_eight_bit(np.stack([colour_of[used] for used in combinations_of_use]))), strict=True))


def hexes(colours: "Colours") -> list[str]:
    """Convert colours (..., 3) to a flat list of #rrggbb."""
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours.reshape(-1, 3).tolist()]


def claim_maps(run_groups: Sequence[RunGroup], palette: str) -> list[GateMap]:
    """Make all maps of groups of runs, in the order runs, frequencies, seeds, means, all tasks, differences.

    ``palette``: palette of the maps of seeds, "rgb" or "colourblind".
    """
    single_task_groups = [run_group for run_group in run_groups if not run_group.joint]
    return [
        *(_run(claim) for run_group in run_groups for claim in run_group.claims),
        *(_frequency(claim) for group in run_groups for claim in group.claims if claim.frequencies is not None),
        *(_seeds(run_group, palette) for run_group in run_groups if len(run_group.claims) > 1),
        *(_mean(run_group) for run_group in run_groups),
        *([_tasks(single_task_groups)] if len(single_task_groups) > 1 else []),
        *(
            _difference(first, second)
            for first, second in combinations(run_groups, 2)
            if _comparable(first.label, second.label)
        ),
    ]


def left_out(run_groups: Sequence[RunGroup]) -> list[str]:
    """Return sentences on maps and seeds that a reader may expect, and why they are missing."""
    reasons = []
    for run_group in run_groups:
        seeds = [claim.name for claim in run_group.claims]
        if len(seeds) == 1:
            reasons.append(f"{run_group.label} has only one seed, so no map shows its seeds in colours.")
        if len(seeds) > _SEEDS_SHOWN:
            shown_seeds, remaining_seeds = _join_words(seeds[:_SEEDS_SHOWN]), _join_words(seeds[_SEEDS_SHOWN:])
            reasons.append(
                f"The map of the seeds of {run_group.label} shows {shown_seeds}; there is no colour left for "
                f"{remaining_seeds}."
            )
    if sum(not run_group.joint for run_group in run_groups) < 2:
        reasons.append("There is no map over all tasks, because it needs single-task runs of two or more tasks.")
    return reasons


def _comparable(first_label: str, second_label: str) -> bool:
    """Return whether the difference of two labels has a map.

    Labels of single tasks and of joint runs are comparable with each other. If a joint run has gates for each task, the
    gates of a task (label ``RUN:TASK``) are comparable with the gates of the run's other tasks, and with single-task
    runs of the task.
    """
    (run_one, _, task_one), (run_other, _, task_other) = first_label.partition(":"), second_label.partition(":")
    if task_one and task_other:
        return run_one == run_other
    return task_one == run_other or run_one == task_other if task_one or task_other else True


# -- the kinds of maps -------------------------------------------------------------------------------------------------


_GATE_HEADING = "Gate\n1: open, 0: closed"


def _map(
    kind: str, name: str, claims: Sequence[Claim], title: str, caption: str, heading: str, **options: Any
) -> GateMap:
    """Make a map of claims, whose subtitle has the encoder on one line and the caption on the next."""
    runs = tuple(claim.run for claim in claims)
    return GateMap(kind, name, runs, title, (_encoder_line(claims[0]), caption), heading, **options)


def _run(claim: Claim) -> GateMap:
    caption = f"{claim.open.sum()} of {claim.gates.size} heads are open; sum of gates {claim.gates.sum():.1f}"
    name, title = f"run-{_file(claim.label)}-seed{_file(claim.name)}", f"{claim.label}, seed {claim.name}"
    return _map("run", name, [claim], title, caption, _GATE_HEADING, numbers={"gate": claim.gates})


def training_map(claim: Claim) -> GateMap:
    """Make a map of the gates of a run during training, with numbers for each evaluation that is shown."""
    places = np.linspace(0, len(claim.history) - 1, min(_MAX_EVALUATIONS_SHOWN, len(claim.history))).round().astype(int)
    numbers = {
        f"update {step:,}: {(gates > OPEN_ABOVE).sum()} of {gates.size} open": gates
        for step, gates in (claim.history[place] for place in places)
    }
    name, title = f"training-{_file(claim.label)}-seed{_file(claim.name)}", f"{claim.label}, seed {claim.name}"
    caption = f"{len(numbers)} of {plural(len(claim.history), 'evaluation')}"
    return _map("training", name, [claim], f"{title}: gates over updates", caption, _GATE_HEADING, numbers=numbers)


def _frequency(claim: Claim) -> GateMap:
    shares = cast("NDArray[np.float64]", claim.frequencies)
    caption = f"{claim.open.sum()} of {shares.size} heads claimed, {shares.sum():.1f} selected on each half"
    name = f"frequency-{_file(claim.label)}-seed{_file(claim.name)}"
    title = f"{claim.label}, seed {claim.name}: selected"
    heading = "Selected\n1: on all halves, 0: on none"
    return _map("frequency", name, [claim], title, caption, heading, numbers={"gate": shares})


def _seeds(run_group: RunGroup, palette: str) -> GateMap:
    claims = run_group.claims[:_SEEDS_SHOWN]
    open_heads = run_group.open[: len(claims)]  # (S, L, A)
    counts = _join_words([str(int(heads.sum())) for heads in open_heads])
    all_words = "both" if len(claims) == 2 else "all three"
    in_all, in_any = open_heads.all(0).sum(), open_heads.any(0).sum()
    caption = f"Open heads: {counts} of {open_heads[0].size}; {in_all} in {all_words}, {in_any} in any"
    numbers = {f"seed {claim.name}": claim.gates for claim in claims}
    name, title = f"{palette}-{_file(run_group.label)}", f"{run_group.label}: heads used by each seed"
    return _map("seeds", name, claims, title, caption, "Head used by seed", numbers=numbers, palette=palette)


def _mean(run_group: RunGroup) -> GateMap:
    seeds = [claim.name for claim in run_group.claims]
    has_seeds, open_heads = len(seeds) > 1, run_group.open
    description = f"mean gate over {len(seeds)} seeds" if has_seeds else "gate of its one seed"
    all_and_any = f"{open_heads.all(0).sum()} heads are open in all seeds, and {open_heads.any(0).sum()} in any seed"
    open_words = all_and_any if has_seeds else f"{open_heads.sum()} heads open"
    caption = f"Seed{'s' if has_seeds else ''} {_join_words(seeds)}; {open_words}"
    heading = "Mean gate\n1: open in all, 0: closed in all" if has_seeds else _GATE_HEADING
    name, title = f"grey-{_file(run_group.label)}", f"{run_group.label}: {description}"
    return _map("mean", name, run_group.claims, title, caption, heading, numbers={"gate": run_group.mean})


def _tasks(run_groups: Sequence[RunGroup]) -> GateMap:
    """Make the map of H, the mean gate over tasks and seeds. Every task has the same weight, even if tasks have
    different numbers of seeds."""
    claims = [claim for run_group in run_groups for claim in run_group.claims]
    if len({len(run_group.claims) for run_group in run_groups}) == 1:
        seeds_words = plural(len(run_groups[0].claims), "seed")
        caption = f"{_join_words([run_group.label for run_group in run_groups])}, {seeds_words} each"
    else:
        members = _join_words([f"{c.label} ({plural(len(c.claims), 'seed')})" for c in run_groups])
        caption = f"{members}; each task has the same weight"
    mean = np.mean([run_group.mean for run_group in run_groups], axis=0)
    runs = len({claim.run for claim in claims})  # a run with gates for each task has several claims
    title = f"Mean gate over {len(run_groups)} tasks, {runs} runs"
    heading = "Mean gate H\n1: open in all, 0: closed in all"
    return _map("tasks", "grey-all-tasks", claims, title, caption, heading, numbers={"gate": mean})


def _difference(first: RunGroup, second: RunGroup) -> GateMap:
    members = _join_words([f"{c.label} ({plural(len(c.claims), 'seed')})" for c in (first, second)])
    caption = f"{members}; sums of mean gates {first.mean.sum():.1f} and {second.mean.sum():.1f} of {first.mean.size}"
    name, title = f"difference-{_file(first.label)}-{_file(second.label)}", f"{first.label} minus {second.label}"
    heading = f"Difference of mean gates\n1: only {first.label}, −1: only {second.label}"
    claims = [*first.claims, *second.claims]
    return _map("difference", name, claims, title, caption, heading, numbers={"gate": first.mean - second.mean})


def _encoder_line(claim: Claim) -> str:
    """Describe the encoder of a claim by its name (for a local encoder, the name of its folder) and its size."""
    layers, heads = claim.gates.shape
    path, comma, revision = claim.encoder.partition(", ")
    name = (Path(path).name or path) if path.startswith(("/", "~", ".")) else path
    return f"{name}{comma}{revision}, {plural(layers, 'layer')} of {plural(heads, 'head')}"


def _file(label: str) -> str:
    """Replace the characters of a label that are not allowed in file names on every system."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "+-.") else "_" for c in label)


def _join_words(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# -- colours of gates --------------------------------------------------------------------------------------------------


_Colour = tuple[int, int, int]
Colours = NDArray[np.uint8]  # (..., 3)


NEGATIVE, POSITIVE = (ImageColor.getrgb(end)[:3] for end in (DIVERGING[0], DIVERGING[-1]))

WHITE: _Colour = (255, 255, 255)
BLACK: _Colour = (0, 0, 0)

# Colour of a head by the seeds that use it, where the key is (seed 1 uses it, seed 2 uses it, seed 3 uses it). The
# colours of single seeds are sky blue, yellow and orange after Okabe and Ito (2008), and the other colours are mixtures
# of them, as with paints. All were shifted until any two of the eight colours differ by at least 29 in CIELAB for
# trichromats, protanopes, deuteranopes and tritanopes (for the RGB palette, the smallest difference is 8), and until
# more seeds always mean a darker colour.
_BLIND_SAFE = {
    (0, 0, 0): WHITE,
    (1, 0, 0): (97, 202, 244),
    (0, 1, 0): (255, 213, 0),
    (0, 0, 1): (237, 153, 67),
    (1, 1, 0): (22, 135, 93),
    (0, 1, 1): (146, 43, 6),
    (1, 0, 1): (14, 55, 142),
    (1, 1, 1): BLACK,
}


def opacity(values: ArrayLike) -> Colours:
    """Return the colours of black drawn on white with the opacities ``values``: (...) in [0, 1] → (..., 3)."""
    grey = _eight_bit(255 * (1 - np.asarray(values, float)))
    return np.stack([grey] * 3, axis=-1)


def diverging(values: ArrayLike) -> Colours:
    """Return diverging colours, which are blue at −1, white at 0 and red at 1, and interpolated linearly in sRGB:
    (...) in [−1, 1] → (..., 3)."""
    v = np.asarray(values, float)[..., None]
    ends = np.where(v < 0, np.array(NEGATIVE), np.array(POSITIVE))
    return _eight_bit(255 + np.abs(v) * (ends - 255))


def corners(seeds: int, palette: str) -> NDArray[np.float64]:
    """Return the colours of heads that each seed either uses (gate 1) or does not use (gate 0).

    Args:
        seeds: number of seeds K, 2 or 3.
        palette: ``rgb`` darkens the red, green and blue channel for seeds 1, 2 and 3, as in Figure 1a of He and Choi
            (2021). With two seeds, each of them darkens blue by half, so that black still means all seeds, and white no
            seed. ``colourblind`` uses colours that colour-blind readers can distinguish.

    Returns:
        (2,) * K + (3,), indexed by whether each seed uses the head.
    """
    colours = np.empty((2,) * seeds + (3,))
    for used in np.ndindex(*(2,) * seeds):
        if palette == "colourblind":
            # Two seeds have the colours of seeds 1 and 3, and a head that both use is black.
            first_use, *middle, last = used
            colours[used] = _BLIND_SAFE[(first_use, middle[0] if middle else first_use * last, last)]
        else:
            channels = [*used, sum(used) / 2] if seeds == 2 else used
            colours[used] = 255 * (1 - np.asarray(channels, float))
    return colours


def mixed(gates: Sequence[ArrayLike], at_corners: NDArray[np.float64]) -> Colours:
    """Mix the colours of ``corners`` according to the gates of K seeds, by multilinear interpolation: (L, A, 3).

    With the palette ``rgb``, the result is 255 · (1 − z) in each channel.

    Args:
        gates: K arrays (L, A) in [0, 1].
        at_corners: (2,) * K + (3,), from ``corners``.
    """
    colour = at_corners[..., None, None, :]  # (2,) * K + (1, 1, 3)
    for values in gates:
        z = np.asarray(values, float)[..., None]  # (L, A, 1)
        # Each step mixes the colours along the axis of one seed and removes this axis. The two axes of size 1 become
        # (L, A) by broadcasting.
        colour = (1 - z) * colour[0] + z * colour[1]
    # Noise in the last bit could move a half to either side. Rounding to nine digits first removes it, so that the
    # result equals that of 255 · (1 − z).
    return _eight_bit(np.round(colour, 9))


def _eight_bit(values: NDArray[np.float64]) -> Colours:
    return np.rint(values).astype(np.uint8)


def _colours_mean(seeds: Sequence[str], palette: str) -> str:
    """Return the caption of a map of seeds, which explains the colours."""
    if palette != "rgb":
        return (
            "A head that only one seed uses has the colour of that seed. The more seeds use a head, the darker it is."
        )
    pure, other_colours = ("pink", "the other") if len(seeds) == 2 else ("pure red", "the others")
    channel_names = [f"seed {seed}" for seed in seeds] + (["their mean"] if len(seeds) == 2 else [])
    channels = ", ".join(
        f"{colour} of {name}" for colour, name in zip(("red", "green", "blue"), channel_names, strict=True)
    )
    return (
        f"A channel is 255 · (1 − z), where z is the gate ({channels}). A {pure} head is closed by seed {seeds[0]} "
        f"and kept by {other_colours}. Black heads are kept by all seeds, and white heads are closed by all seeds."
    )
