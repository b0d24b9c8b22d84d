"""mtlprune maps: pictures of the heads that runs claim."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mtlprune.cli.console import FontSize, Scale, Title, Width, chosen_formats, say
from mtlprune.files import make_room, one_writer, remove, write_bytes, write_json

PLAIN, PLAIN_CELL = "plain", 8
"""The format that is cells alone, and units of such a cell."""


def maps(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs with gates, or sweeps.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the pictures go.")],
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
    from mtlprune.reports.charts import FORMATS, Style, render
    from mtlprune.reports.maps import Animation, claim_maps, left_out
    from mtlprune.sweeps.folder import expanded

    formats = chosen_formats(format_, (*FORMATS, PLAIN))
    make_room(out)
    claims = load_claims(expanded(runs, having="gates.jsonl"))
    run_groups = group(claims)
    said = [*notes(run_groups), *left_out(run_groups)]
    entries: list[dict[str, Any]] = []
    pending: dict[str, Callable[[], bytes]] = {}
    style = Style(width, font_size, title, scale)
    for one in claim_maps(run_groups, palette):
        spec = one.spec(values)
        files = {f"{one.name}.{kind}": partial(render, spec, kind, style) for kind in formats if kind != PLAIN}
        plain = {f"{one.name}-plain.png": partial(one.plain, PLAIN_CELL * scale)} if PLAIN in formats else {}
        entries.append({"files": [*files, *plain], **one.entry()})
        pending |= files | plain
    for animation in [Animation(claim) for each in run_groups for claim in each.claims] if animate else ():
        entries.append({"files": [f"{animation.name}.gif"], **animation.entry()})
        pending[f"{animation.name}.gif"] = partial(animation.gif, scale)
    layers, heads = claims[0].gates.shape
    head = {"encoder": claims[0].encoder, "layers": layers, "heads": heads, "palette": palette, "notes": said}
    with one_writer(out):  # where two commands write the same maps, the last one's stay, all of them
        remove(out / "maps.json")
        for name, make in pending.items():
            write_bytes(out / name, make())
        write_json(out / "maps.json", head | {"maps": entries})  # last, so that it never names what is not there
    say(f"{len(pending)} pictures of {len(entries)} maps in {out}; maps.json there lists them with their numbers")
    for caption in dict.fromkeys(entry["caption"] for entry in entries if entry.get("caption")):
        say(f"maps of seeds: {caption}")
    for note in said:
        say(f"note: {note}")
