"""`mtlprune claims`: compares the heads that tasks claim, between tasks and seeds, in tables, figures and maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtlprune.cli.console import (
    ADVANCED,
    Resamples,
    Runs,
    Width,
    chosen_formats,
    named_runs,
    paper_style,
    say,
    seen_from_here,
    show_result,
)
from mtlprune.io.files import RunError, make_room, one_writer, read_json, remove, write_bytes, write_json

if TYPE_CHECKING:
    from mtlprune.figures.charts import Style
    from mtlprune.figures.maps import GateMap
    from mtlprune.runs.claims import Claim

_Palette = Literal["colourblind", "rgb"]
_MAPS, _MAPS_INDEX = "maps", "maps.json"
"""Names of the folder of maps in --out, and of the file in this folder that lists the maps."""


def claims(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write tables, figures and a map of each claim.")
    ] = None,
    formats: Annotated[
        str,
        typer.Option(
            "--format", help="Formats of figures (png, svg, pdf), separated by commas.", rich_help_panel=ADVANCED
        ),
    ] = "png,svg",
    palette: Annotated[
        _Palette,
        typer.Option(
            help="Colours of the maps of seeds. rgb uses the colours of He and Choi (2021).", rich_help_panel=ADVANCED
        ),
    ] = "colourblind",
    width: Width = None,
    animate: Annotated[
        bool,
        typer.Option(
            "--animate", help="Also draw each run's gates in the course of training, as a GIF and as a row of maps."
        ),
    ] = False,
    bare: Annotated[
        bool,
        typer.Option(
            "--bare", help="Also draw maps of seeds and means without axes and labels.", rich_help_panel=ADVANCED
        ),
    ] = False,
    permutations: Resamples = 10_000,
) -> None:
    """Compare the heads that runs claim (keep open) by stability and variance, with p-values for heads that several
    tasks claim.

    The runs must be trained with pruning. Maps show the gates of single runs, of several seeds in different colours,
    and of all tasks, and means and differences of gates.
    """
    from mtlprune.analyses.analysis import Request, find
    from mtlprune.cli.display import working
    from mtlprune.figures.charts import FORMATS
    from mtlprune.reports.analyses import write_shown
    from mtlprune.runs.claims import load_claims
    from mtlprune.runs.results import write_result

    formats_chosen = chosen_formats(formats, FORMATS)
    style = paper_style(width)
    if out is None and (animate or bare):
        raise RunError(
            f"--{'animate' if animate else 'bare'} draws maps into a folder, and none is named; give --out DIR"
        )
    if out is not None:
        make_room(out)
    analysis = find("claims")
    paths = [folder.path for folder in named_runs(seen_from_here(runs), "gates.jsonl")]
    options = analysis.options(permutations=permutations)  # type: ignore[call-arg]
    notes = []
    with working("comparing claims"):
        result = analysis.measure(Request(list(map(str, paths)), Path(), options))
        if out is not None:
            write_result(out, result)
            write_shown(analysis, result, out, [*formats_chosen, "tex"], style)
            notes = _draw(load_claims(paths), out / _MAPS, palette, formats_chosen, style, animate, bare)
    if out is None:
        show_result(analysis, result)
    else:
        for note in notes:
            say(note)
        say("to test a finished run with only these heads open: mtlprune analyze curve RUN --corpus DIR --claims RUNS")
        say("\n".join(analysis.show.findings(result)))


def _draw(
    claims: Sequence[Claim],
    out: Path,
    palette: _Palette,
    formats: Sequence[str],
    style: Style,
    animate: bool = False,
    bare: bool = False,
) -> list[str]:
    """Write all maps and the list of maps, after removing the maps of an earlier list; return notes to print."""
    from mtlprune.figures.maps import claim_maps, left_out, training_map
    from mtlprune.figures.pictures import gif
    from mtlprune.runs.claims import group
    from mtlprune.runs.claims import notes as shared_notes

    run_groups = group(claims)
    absent = left_out(run_groups)
    files = [(gate_map, _files(gate_map, formats, style, bare)) for gate_map in claim_maps(run_groups, palette)]
    for claim in (claim for run_group in run_groups for claim in run_group.claims if animate):
        gate_map = training_map(claim)
        files.append((gate_map, _files(gate_map, formats, style) | {f"{gate_map.name}.gif": partial(gif, claim)}))
    entries = [{"files": list(written), **gate_map.entry()} for gate_map, written in files]
    layers, heads = claims[0].gates.shape
    head = {
        "encoder": claims[0].encoder,
        "layers": layers,
        "heads": heads,
        "palette": palette,
        "notes": [*shared_notes(run_groups), *absent],
    }
    with one_writer(out):  # if two commands write maps at the same time, all maps of the last command remain
        if (out / _MAPS_INDEX).is_file():
            earlier = [name for entry in read_json(out / _MAPS_INDEX)["maps"] for name in entry["files"]]
            remove(out / _MAPS_INDEX, *(out / Path(name).name for name in earlier))
        for _, written in files:
            for name, make in written.items():
                write_bytes(out / name, make())
        write_json(out / _MAPS_INDEX, head | {"maps": entries})  # last, so that it never names a file that is missing
    captions = dict.fromkeys(entry["caption"] for entry in entries if entry.get("caption"))
    return [
        f"{sum(len(pictures) for _, pictures in files)} pictures of {len(files)} maps in {out}; {_MAPS_INDEX} lists "
        "them",
        *(f"maps of seeds: {caption}" for caption in captions),
        *(f"note: {note}" for note in absent),
    ]


def _files(
    gate_map: GateMap, formats: Sequence[str], style: Style, bare: bool = False
) -> dict[str, Callable[[], bytes]]:
    """Return a function for each file of a map, by its name, that renders the file."""
    from mtlprune.figures import pictures

    files: dict[str, Callable[[], bytes]] = {
        f"{gate_map.name}.{kind}": partial(_rendered, gate_map, kind, style) for kind in formats
    }
    if bare and gate_map.kind in ("seeds", "mean", "tasks"):
        files[f"bare-{gate_map.name}.png"] = lambda: pictures.png(pictures.bare(gate_map.colours))
    return files


def _rendered(gate_map: GateMap, kind: str, style: Style) -> bytes:
    from mtlprune.figures.charts import render

    return render(gate_map.spec(), kind, style)
