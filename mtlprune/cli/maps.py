"""mtlprune maps: pictures of the heads that runs claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mtlprune.cli.console import FontSize, Scale, Title, Width, chosen_formats, say

if TYPE_CHECKING:
    from mtlprune.reports.charts import Style
    from mtlprune.reports.maps import Animation, GateMap

PLAIN, PLAIN_CELL = "plain", 8
"""The format that is cells alone, and units of such a cell."""

Entry = dict[str, Any]
Pending = tuple[str, Callable[[], bytes]]
"""Name of a file, and what makes its content."""


def maps(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs with gates, or sweeps.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the pictures go.", show_default=False)],
    values: Annotated[bool, typer.Option("--values", help="Write the numbers into the cells.")] = False,
    palette: Annotated[Literal["colourblind", "rgb"], typer.Option(help="Of the maps of seeds.")] = "colourblind",
    format_: Annotated[
        str, typer.Option("--format", help="png, svg, pdf, plain (a PNG of the cells alone), with commas between.")
    ] = "png,svg",
    scale: Scale = 2,
    animate: Annotated[bool, typer.Option("--animate", help="Each run's gates over training, as a GIF.")] = False,
    width: Width = None,
    font_size: FontSize = 11,
    title: Title = True,
) -> None:
    """Draw which heads runs claim: each run, seeds by colour, means, all tasks, differences, training animated."""
    from mtlprune.claimed_heads import group, load_claims, notes
    from mtlprune.files import make_room, one_writer, remove, write_bytes, write_json
    from mtlprune.reports.charts import FORMATS, Style
    from mtlprune.reports.maps import Animation, claim_maps, left_out
    from mtlprune.sweeps.folder import expanded

    formats = chosen_formats(format_, (*FORMATS, PLAIN))
    make_room(out)
    claims = load_claims(expanded(runs, having="gates.jsonl"))
    run_groups = group(claims)
    said = [*notes(run_groups), *left_out(run_groups)]
    entries: list[Entry] = []
    pending: list[Pending] = []
    for one in claim_maps(run_groups, palette):
        files = list(_files(one, values, formats, Style(width, font_size, title, scale)))
        entries.append(_entry(one, [name for name, _ in files]))
        pending += files
    for claim in [claim for run_group in run_groups for claim in run_group.claims] if animate else ():
        animation = Animation(claim)
        entries.append(_animation_entry(animation))
        pending.append((f"{animation.name}.gif", partial(animation.gif, scale)))
    layers, heads = claims[0].gates.shape
    head = {"encoder": claims[0].encoder, "layers": layers, "heads": heads, "palette": palette, "notes": said}
    with one_writer(out):  # where two commands write the same maps, the last one's stay, all of them
        remove(out / "maps.json")
        for name, make in pending:
            write_bytes(out / name, make())
        write_json(out / "maps.json", head | {"maps": entries})  # last, so that it never names what is not there
    say(f"{len(pending)} pictures of {len(entries)} maps in {out}; maps.json there lists them with their numbers")
    for caption in dict.fromkeys(entry["caption"] for entry in entries if entry.get("caption")):
        say(f"maps of seeds: {caption}")
    for note in said:
        say(f"note: {note}")


def _files(one: GateMap, values: bool, formats: Sequence[str], style: Style) -> Iterator[Pending]:
    from mtlprune.reports.charts import render
    from mtlprune.reports.pictures import packed, plain

    spec = one.spec(values)
    for kind in formats:
        if kind == PLAIN:
            yield f"{one.name}-plain.png", lambda: packed(plain(one.colours, PLAIN_CELL * round(style.scale)))
        else:
            yield f"{one.name}.{kind}", partial(render, spec, kind, style)


def _entry(one: GateMap, files: list[str]) -> Entry:
    return {
        "files": files,
        "kind": one.kind,
        "title": one.title,
        "subtitle": list(one.subtitle),
        "runs": list(one.runs),
        "numbers": {one.kind if name == "gate" else name: array.tolist() for name, array in one.numbers.items()},
        **({"caption": one.caption} if one.caption else {}),
    }


def _animation_entry(animation: Animation) -> Entry:
    from mtlprune.reports.maps import encoder_line

    return {
        "files": [f"{animation.name}.gif"],
        "kind": "training",
        "title": animation.title,
        "subtitle": [encoder_line(animation.claim)],
        "runs": [animation.claim.run],
        "steps": [step for step, _ in animation.claim.history],
        "numbers": [gates.tolist() for _, gates in animation.claim.history],
    }
