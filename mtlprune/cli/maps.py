"""mtlprune maps: pictures of the heads that runs claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import say

if TYPE_CHECKING:
    from mtlprune.analyses.claims.show.maps import Film, MapFigure
    from mtlprune.claimed_heads import Claim

FORMATS = ("png", "svg")
MOST_PIXELS_A_UNIT = 8

Entry = dict[str, Any]
Pending = tuple[str, Callable[[], bytes]]
"""Name of a file, and what makes its content."""


def maps(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs with gates, or sweeps.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the pictures go.", show_default=False)],
    values: Annotated[bool, typer.Option("--values", help="Write the numbers into the cells.")] = False,
    palette: Annotated[str, typer.Option(help="Of the maps of seeds: rgb or colourblind.")] = "rgb",
    format_: Annotated[str, typer.Option("--format", help="png, svg, or both with a comma.")] = "png,svg",
    scale: Annotated[int, typer.Option(help="Pixels a unit of 1/96 inch, in PNG and GIF.")] = 2,
    animate: Annotated[bool, typer.Option("--animate", help="Each run's gates over training, as a GIF.")] = False,
) -> None:
    """Draw which heads runs claim: each run, seeds by colour, means, all tasks, differences, training as a film."""
    from mtlprune.analyses.claims.claimants import group, notes
    from mtlprune.analyses.claims.show.maps import claim_figures, claim_films, left_out
    from mtlprune.claimed_heads import load_claims
    from mtlprune.reports.maps import colours_mean
    from mtlprune.sweeps.folder import expanded

    formats = _checked(out, palette, format_, scale)
    claims = load_claims(expanded(runs, having="gates.jsonl"))
    claimants = group(claims)
    said = [*notes(claimants), *left_out(claimants)]
    entries, pending = [], []
    for figure in claim_figures(claimants, palette):
        files = list(_figure_files(figure, values, formats, scale))
        entry = _figure_entry(figure, [name for name, _ in files])
        if figure.kind == "seeds":
            entry["caption"] = colours_mean(tuple(figure.shown.numbers), palette)
        entries.append(entry)
        pending += files
    for film in claim_films(claimants) if animate else ():
        entries.append(_film_entry(film))
        pending.append(_film_file(film, values, scale))
    _write(out, pending, _head(claims, palette, said) | {"maps": entries})
    say(f"{len(pending)} pictures of {len(entries)} maps in {out}; maps.json there lists them with their numbers")
    for caption in dict.fromkeys(entry["caption"] for entry in entries if entry.get("caption")):
        say(f"maps of seeds: {caption}")
    for note in said:
        say(f"note: {note}")


def _checked(out: Path, palette: str, format_: str, scale: int) -> list[str]:
    """The formats. Raises MapError where an option cannot be meant."""
    from mtlprune.reports.maps import MapError
    from mtlprune.reports.palettes import PALETTES

    formats = list(dict.fromkeys(part.strip() for part in format_.split(",")))
    wrong = [part for part in formats if part not in FORMATS]
    if wrong:
        raise MapError(f"--format: expected png, svg or png,svg, found {format_!r}")
    if palette not in PALETTES:
        raise MapError(f"--palette: expected {' or '.join(PALETTES)}, found {palette!r}")
    if not 1 <= scale <= MOST_PIXELS_A_UNIT:
        raise MapError(f"--scale: expected a number from 1 to {MOST_PIXELS_A_UNIT}, found {scale}")
    file = next((place for place in (out, *out.parents) if place.exists() and not place.is_dir()), None)
    if file is not None:
        raise MapError(f"--out: {file} is a file; name a folder for the pictures")
    return formats


def _figure_files(figure: MapFigure, values: bool, formats: Sequence[str], scale: int) -> Iterator[Pending]:
    from mtlprune.reports.canvas_png import png
    from mtlprune.reports.canvas_svg import svg
    from mtlprune.reports.maps import layout

    drawing = layout(figure.shown, values)
    if "png" in formats:
        yield f"{figure.name}.png", lambda: png(drawing, scale)
    if "svg" in formats:
        yield f"{figure.name}.svg", lambda: svg(drawing).encode()


def _film_file(film: Film, values: bool, scale: int) -> Pending:
    from mtlprune.reports.canvas_png import gif

    return f"{film.name}.gif", lambda: gif(film.drawings(values), scale)


def _head(claims: Sequence[Claim], palette: str, notes: list[str]) -> Entry:
    layers, heads = claims[0].gates.shape
    return {
        "encoder": claims[0].encoder,
        "layers": layers,
        "heads": heads,
        "palette": palette,
        "notes": notes,
    }


def _figure_entry(figure: MapFigure, files: list[str]) -> Entry:
    numbers = {f"seed {name}" if name else figure.kind: array for name, array in figure.shown.numbers.items()}
    return {
        "files": files,
        "kind": figure.kind,
        "title": figure.shown.title,
        "subtitle": list(figure.shown.subtitle),
        "runs": list(figure.runs),
        "numbers": {name: array.tolist() for name, array in numbers.items()},
    }


def _film_entry(film: Film) -> Entry:
    return {
        "files": [f"{film.name}.gif"],
        "kind": "training",
        "title": film.frames[0].title,
        "subtitle": [film.frames[0].subtitle[0]],
        "runs": [film.run],
        "steps": list(film.steps),
        "numbers": [frame.numbers[""].tolist() for frame in film.frames],
    }


def _write(out: Path, pending: Sequence[Pending], contents: Entry) -> None:
    """Each file whole or not at all; the list comes last, so that it never names what is not there.

    Where two commands write the same maps, the last one's stay, all of them.
    """
    from mtlprune.files import one_writer, remove, write_bytes, write_json

    with one_writer(out):
        remove(out / "maps.json")
        for name, content in pending:
            made = content()
            write_bytes(out / name, made)
        write_json(out / "maps.json", contents)
