"""Gate maps of the page: small ones that need no script, and the numbers from which the script draws the large one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.claims import head_chance
from mtlprune.analyses.claims.claimants import Claimant, group
from mtlprune.analyses.claims.show.maps import SEEDS_SHOWN, left_out
from mtlprune.claimed_heads import OPEN_ABOVE, Claim, load_claims
from mtlprune.reports import palettes
from mtlprune.reports.maps import colours_mean
from mtlprune.reports.page.html import Html, element, folded, joined, paragraph
from mtlprune.reports.page.parts import Part
from mtlprune.reports.page.runs import ReadRun, flat
from mtlprune.runs import ASIDE, RunError
from mtlprune.statistics.significance import LEVEL

CELL = 13
_METHODS = ("gates", "importance", "random")
_BY_TASK = ("tasks", "decoders", "train.freeze")


@dataclass(frozen=True)
class ClaimSet:
    """Claims that were made in the same way, so that they may be compared."""

    title: str
    claims: tuple[Claim, ...]

    @property
    def claimants(self) -> list[Claimant]:
        return group(self.claims)

    @property
    def alone(self) -> list[Claimant]:
        """Single tasks."""
        return [claimant for claimant in self.claimants if not claimant.joint]


def claim_sets(runs: Sequence[ReadRun]) -> tuple[list[ClaimSet], list[str]]:
    """Claims by encoder and kind of pruning, and which runs have none and why.

    Where one task and seed comes twice in a kind of pruning, the settings in which such runs differ part them.
    """
    ready: dict[tuple[str, str], list[ReadRun]] = {}
    without = []
    for run in runs:
        if not run.folder.gates_path.is_file():
            continue
        try:
            load_claims([run.path])
        except RunError as error:
            without.append(f"No map of {run.path}: {error}")
            continue
        ready.setdefault((run.encoder, run.pruning), []).append(run)
    several = len({encoder for encoder, _ in ready}) > 1
    made = []
    for (encoder, pruning), members in sorted(ready.items(), key=_order):
        for distinction, some in _without_twins(members):
            parts = [
                *([encoder] if several else []),
                pruning or "heads by gates",
                *([distinction] if distinction else []),
            ]
            made.append(ClaimSet(", ".join(parts), tuple(load_claims([run.path for run in some]))))
    return made, without


def _order(item: tuple[tuple[str, str], list[ReadRun]]) -> tuple[str, int, str]:
    (encoder, pruning), runs = item
    return encoder, _METHODS.index(runs[0].tree["pruning"]["method"]), pruning


def _without_twins(runs: Sequence[ReadRun]) -> Iterator[tuple[str, list[ReadRun]]]:
    names = [(run.tasks, run.seed) for run in runs]
    if len(set(names)) == len(names):
        yield "", list(runs)
        return
    settings = [
        {p: repr(v) for p, v in flat(run.tree) if p not in ASIDE and not p.startswith(_BY_TASK)}
        | {"data": run.manifest["data"]["fingerprint"][:8]}
        for run in runs
    ]
    paths = sorted({path for one in settings for path in one})
    differing = [path for path in paths if len({one.get(path) for one in settings}) > 1]
    groups: dict[str, list[ReadRun]] = {}
    for run, one in zip(runs, settings, strict=True):
        groups.setdefault(", ".join(f"{path}={one.get(path)}" for path in differing), []).append(run)
    yield from groups.items()


def part(sets: Sequence[ClaimSet], without: Sequence[str]) -> Part | None:
    """The part of the page; None where no run has gates."""
    if not sets:
        return None
    first = (
        "Each cell is a head: rows are layers, 1 at the top, columns are heads, from 1. The more ink, the more "
        f"open its gate z; a head is open where z exceeds {OPEN_ABOVE:g}."
    )
    hint = paragraph(
        "Move over a head, or reach it with the arrow keys, to read its gates in every run and how likely chance opens "
        "it as often. Choosing a head holds it.",
        class_="script-only note",
    )
    body = joined(paragraph(first), hint, element("div", id="explorer", class_="script-only"), _all_plates(sets))
    data = {"sets": [_data(one) for one in sets], "openAbove": OPEN_ABOVE, "corners": _corners()}
    caveats = [*without, *(f"{one.title}: {line}" for one in sets for line in (*left_out(one.claimants), *_reach(one)))]
    return Part("gates", "Gate maps", body, tuple(caveats), data=data)


# -- maps without a script -------------------------------------------------------------------------------------------


def _all_plates(sets: Sequence[ClaimSet]) -> Html:
    """The first set in sight, the others folded."""
    first, *others = sets
    heading = element("h3", first.title[:1].upper() + first.title[1:])
    rest = (folded(one.title, _plates(one)) for one in others)
    return joined(heading, _plates(first), _colours(sets), rest)


def _colours(sets: Sequence[ClaimSet]) -> Html | None:
    """What the colours of the small maps mean, for as many seeds as they have."""
    numbers = sorted({len(c.claims) for one in sets for c in one.claimants if 2 <= len(c.claims) <= SEEDS_SHOWN})
    lists = []
    for seeds in numbers:
        corners = palettes.corners(seeds, "colourblind")
        chips = []
        for used in sorted(np.ndindex(*(2,) * seeds), key=lambda used: (-sum(used), used[::-1])):
            red, green, blue = (int(part) for part in corners[used].round())
            which = " and ".join(("first", "second", "third")[k] for k, on in enumerate(used) if on)
            words = "all" if all(used) else which or "none"
            chips.append(
                element(
                    "li", element("i", style=f"background:#{red:02x}{green:02x}{blue:02x}", aria_hidden="true"), words
                )
            )
        lists.append(element("ul", element("li", f"Open in which of {seeds} seeds:"), chips, class_="legend chips"))
        named = ("1", "2", "3")[:seeds]
        caption = f"In the large map's RGB, seeds counted by rising number: {colours_mean(named, 'rgb')}"
        lists.append(paragraph(caption, class_="note"))
    return joined(lists) if lists else None


def _plates(one: ClaimSet) -> Html:
    figures = []
    for claimant in one.claimants:
        seeds = len(claimant.claims)
        number = f"mean of {seeds} seeds" if seeds > 1 else f"seed {claimant.claims[0].seed}"
        opened = ", ".join(str(int(claim.open.sum())) for claim in claimant.claims)
        words = f"{opened} of {claimant.gates[0].size} heads open"
        maps = [_small(claimant.gates.mean(0), None, f"{claimant.label}, {number}: {words}.{_named(claimant)}")]
        if 2 <= seeds <= SEEDS_SHOWN:
            corners = palettes.corners(seeds, "colourblind")
            colours = palettes.mixed(list(claimant.gates), corners)
            maps.append(
                _small(claimant.gates.mean(0), colours, f"{claimant.label}: which seeds use each head, in colours")
            )
        caption = element("figcaption", element("strong", claimant.label), f" {number}; {words}")
        figures.append(element("figure", element("div", maps, class_="pair"), caption))
    if len(one.alone) > 1:
        mean = np.mean([claimant.gates.mean(0) for claimant in one.alone], axis=0)
        names = ", ".join(claimant.label for claimant in one.alone)
        caption = element("figcaption", element("strong", "All tasks"), f" mean over {names}")
        figures.append(
            element("figure", element("div", _small(mean, None, f"Mean gate over {names}"), class_="pair"), caption)
        )
    return element("div", figures, class_="maps")


def _named(claimant: Claimant) -> str:
    """Heads open in the majority of seeds, for those who do not see the map."""
    names = [f"{layer + 1}-{head + 1}" for layer, head in zip(*np.nonzero(claimant.claimed), strict=True)]
    return f" Claimed by most seeds: {', '.join(names) or 'none'}."


def _small(gates: NDArray[np.float64], colours: NDArray[np.uint8] | None, alt: str) -> Html:
    """Ink with the opacity z on the page's own paper, or colours on white."""
    layers, heads = gates.shape
    cells = []
    for layer, head in np.ndindex(layers, heads):
        z = float(gates[layer, head])
        if colours is None and z == 0:
            continue
        x, y = head * CELL, layer * CELL
        if colours is None:
            title = element("title", f"layer {layer + 1}, head {head + 1}: {z:.2f}")
            paint = {} if z == 1 else {"fill_opacity": f"{z:.3g}"}
            cells.append(element("rect", title, x=x, y=y, width=CELL - 1, height=CELL - 1, **paint))
        else:
            red, green, blue = (int(part) for part in colours[layer, head])
            if (red, green, blue) != (255, 255, 255):
                fill = f"#{red:02x}{green:02x}{blue:02x}"
                cells.append(element("rect", x=x, y=y, width=CELL - 1, height=CELL - 1, fill=fill))
    width, height = heads * CELL - 1, layers * CELL - 1
    ground = element("rect", x=-2, y=-2, width=width + 4, height=height + 4, class_="ground")
    box = {"viewBox": f"-3 -3 {width + 6} {height + 6}", "class_": "map" if colours is None else "map colours"}
    return element("svg", ground, *cells, role="img", aria_label=alt, **box)


# -- numbers for the script ------------------------------------------------------------------------------------------


def _corners() -> dict[str, Any]:
    """Palette → number of seeds → colours of the corners, as palettes.mixed reads them, flattened."""
    return {
        name: {
            str(seeds): palettes.corners(seeds, name).reshape(-1, 3).round().astype(int).tolist() for seeds in (2, 3)
        }
        for name in palettes.PALETTES
    }


def _data(one: ClaimSet) -> dict[str, Any]:
    claimants, alone = one.claimants, one.alone
    layers, heads = claimants[0].gates.shape[1:]
    tree: dict[str, Any] = {"title": one.title, "layers": layers, "heads": heads, "labels": []}
    for claimant in claimants:
        p = head_chance.by_maps(claimant.open)
        tree["labels"].append(
            {
                "label": claimant.label,
                "joint": claimant.joint,
                "seeds": [claim.seed for claim in claimant.claims],
                "z": [[round(float(z), 6) for z in gates.ravel()] for gates in claimant.gates],
                "p": _short(p),
                "q": _short(head_chance.over_all_heads(p)),
            }
        )
    if len(alone) > 1:
        p = head_chance.by_tasks([claimant.claimed for claimant in alone])
        tree["tasks"] = {
            "claimed": np.sum([claimant.claimed for claimant in alone], axis=0).ravel().tolist(),
            "of": len(alone),
            "p": _short(p),
            "q": _short(head_chance.over_all_heads(p)),
        }
    return tree


def _short(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.3g}") for value in values.ravel()]


def _reach(one: ClaimSet) -> Iterator[str]:
    """What the p of single heads can and cannot show: labels none of whose heads is told from chance."""
    silent = []
    for claimant in one.claimants:
        q = head_chance.over_all_heads(head_chance.by_maps(claimant.open)).min()
        if len(claimant.claims) > 1 and q > LEVEL:
            smallest = head_chance.least(claimant.open)
            silent.append(f"{claimant.label} (smallest q {float(q):.2g}, smallest p possible {smallest:.2g})")
    if silent:
        yield (
            "no single head is open in more seeds than chance within its layer explains, corrected over all heads: "
            f"{', '.join(silent)}. Where heads are shared is a matter of all of them together (see the overlap)."
        )
