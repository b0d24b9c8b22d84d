"""mtlprune plot: pictures and tables of what probes found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import say
from mtlprune.cli.plot_pretraining import pretraining

if TYPE_CHECKING:
    from mtlprune.analyses.probes.show.columns import ProbeColumn, ProbePanel
    from mtlprune.analyses.probes.show.results import ProbeResults
    from mtlprune.reports.drawing import Drawing
    from mtlprune.reports.grid import Grid

FORMATS = ("png", "svg")
MOST_PIXELS_A_UNIT = 8
PRETRAINED = "pretrained"

Entry = dict[str, Any]
Made = tuple[str, Callable[[], bytes]]
"""Name of a file, and what makes its content."""

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command("pretraining")(pretraining)


@app.callback()
def plot() -> None:
    """Draw results."""


@dataclass(frozen=True)
class _Picture:
    name: str
    entry: Entry
    """What plots.json says of it."""
    draw: Callable[[], Drawing]


@app.command("probes")
def probes(
    results: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders that mtlprune probe wrote.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where pictures and tables go.", show_default=False)],
    mode: Annotated[str, typer.Option(help="sound, or as-released (as the original's code did).")] = "sound",
    raw: Annotated[bool, typer.Option("--raw", help="Accuracy, not the gain over the best control.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            help="paper: He and Choi's numbers beside ours (of BERT; or paper:RoBERTa ...).", show_default=False
        ),
    ] = None,
    maps: Annotated[
        str, typer.Option(help="Whose heat maps: pretrained, STL, MTL-5, ... with commas; all; none.")
    ] = PRETRAINED,
    others: Annotated[bool, typer.Option("--others", help="Also encoders trained for other tasks only.")] = False,
    format_: Annotated[str, typer.Option("--format", help="png, svg, or both with a comma.")] = "png,svg",
    scale: Annotated[int, typer.Option(help="Pixels a unit of 1/96 inch, in PNG.")] = 2,
) -> None:
    """Scatter of best layers, differences to STL, heat maps of labels, tables: of what heads know, beside controls."""
    from mtlprune.analyses.probes.show.columns import panels
    from mtlprune.analyses.probes.show.paper import named_encoder
    from mtlprune.analyses.probes.show.reading import read_probes
    from mtlprune.analyses.probes.show.results import MODES
    from mtlprune.files import RunError

    formats = _checked(out, format_, scale)
    if mode not in MODES:
        raise RunError(f"--mode: expected {' or '.join(MODES)}, found {mode!r}")
    paper = named_encoder(against) if against is not None else None
    found = read_probes(results)
    shown = list(panels(found, mode, others))
    if not shown:
        there = ", ".join(sorted({key.mode for key in found.labels})) or "none"
        raise RunError(
            f"{', '.join(map(str, results))}: no results of the mode {mode} (there: {there}); name it with --mode"
        )
    other = [panel for name in MODES if name != mode for panel in panels(found, name, others)]
    pictures = list(_pictures(found, shown, raw, _wanted(maps, shown)))
    tables, notes = _tables(found, shown, paper, other)
    texts = _texts(found, shown, tables, notes)
    _write(out, pictures, texts, formats, scale, {"mode": mode, "results": list(found.folders), "notes": notes})
    say(f"{len(formats) * len(pictures)} pictures and tables.md, tables.tex in {out}; plots.json lists the pictures")
    for note in notes:
        say(f"note: {note}")


def _checked(out: Path, format_: str, scale: int) -> list[str]:
    """The formats. Raises RunError where an option cannot be meant."""
    from mtlprune.files import RunError

    formats = list(dict.fromkeys(part.strip() for part in format_.split(",")))
    if any(part not in FORMATS for part in formats):
        raise RunError(f"--format: expected png, svg or png,svg, found {format_!r}")
    if not 1 <= scale <= MOST_PIXELS_A_UNIT:
        raise RunError(f"--scale: expected a number from 1 to {MOST_PIXELS_A_UNIT}, found {scale}")
    file = next((place for place in (out, *out.parents) if place.exists() and not place.is_dir()), None)
    if file is not None:
        raise RunError(f"--out: {file} is a file; name a folder for the pictures")
    return formats


def _wanted(maps: str, shown: Sequence[ProbePanel]) -> set[str]:
    """Titles of the columns whose heat maps are drawn. Raises RunError at one that no task has."""
    from mtlprune.files import RunError

    there = {column.title: None for panel in shown for column in panel.columns}
    if maps in ("all", "none"):
        return set(there) if maps == "all" else set()
    named = [part.strip() for part in maps.split(",")]
    wrong = [name for name in named if name not in there and name != PRETRAINED]
    if wrong:
        raise RunError(f"--maps: found {wrong[0]!r}; expected all, none, or some of {', '.join(there)}")
    return set(named)


def _pictures(found: ProbeResults, shown: Sequence[ProbePanel], raw: bool, wanted: set[str]) -> Iterator[_Picture]:
    from mtlprune.analyses.probes.show.columns import STL
    from mtlprune.analyses.probes.show.differences import differences
    from mtlprune.analyses.probes.show.scatter import scatter

    setting = ", ".join(part for part in (found.encoder, Path(found.corpus).name) if part)
    for panel in shown:
        first = {"task": panel.task}
        column = panel.column(PRETRAINED)
        if column is not None:
            draw = _later(scatter, panel, column, raw, setting)
            yield _Picture(f"layers-{panel.task}", {"kind": "layers", **first, "encoder": PRETRAINED}, draw)
        if panel.column(STL) is not None and panel.compared:
            yield _Picture(
                f"differences-{panel.task}", {"kind": "differences", **first}, _later(differences, panel, setting)
            )
        for column in panel.columns:
            if column.title in wanted:
                yield from _maps(panel, column, raw, setting)


def _maps(panel: ProbePanel, column: ProbeColumn, raw: bool, setting: str) -> Iterator[_Picture]:
    from mtlprune.analyses.probes.show.maps import atlas, heat_map

    name = _slug(column.title)
    entry = {"task": panel.task, "encoder": column.title}
    yield _Picture(f"heads-{panel.task}-{name}", {"kind": "heads", **entry}, _later(atlas, panel, column, raw, setting))
    every = [*panel.labels, *([panel.root] if panel.root else [])]
    for rank, label in enumerate(every, 1):
        if any(label in labels for labels in column.seeds.values()):
            file = f"maps/{panel.task}-{name}-{rank:02d}-{_slug(label)}"
            draw = _later(heat_map, panel, column, label, raw, setting)
            yield _Picture(file, {"kind": "label", **entry, "label": label}, draw)


def _later(draw: Callable[..., Drawing], *arguments: Any) -> Callable[[], Drawing]:
    return lambda: draw(*arguments)


def _slug(words: str) -> str:
    """A part of a file name: labels hold colons, quotes and dots."""
    return re.sub(r"[^A-Za-z0-9-]", "_", words.replace("+", "with-"))


def _tables(
    found: ProbeResults, shown: Sequence[ProbePanel], paper: str | None, other: Sequence[ProbePanel]
) -> tuple[list[Grid], list[str]]:
    from mtlprune.analyses.probes.show.intervals import read_intervals
    from mtlprune.analyses.probes.show.paper import beside_paper
    from mtlprune.analyses.probes.show.tables import column_note, tables

    intervals = read_intervals(found.folders)
    notes = [*found.notes, *column_note(shown)]
    if intervals is None:
        notes.append(
            "No paired intervals: these results hold no differences to STL item by item; probe single-task runs and "
            "what they are compared with into one folder."
        )
    made = tables(shown, found.few, intervals, other)
    if paper is not None:
        beside = [(panel, beside_paper(panel, paper)) for panel in shown]
        made += [table for _, table in beside if table is not None]
        notes += [
            f"{panel.task.upper()}: nothing to set beside the paper's {paper} (no label or no encoder in common)."
            for panel, table in beside
            if table is None
        ]
    return made, notes


def _texts(
    found: ProbeResults, shown: Sequence[ProbePanel], tables: Sequence[Grid], notes: Sequence[str]
) -> dict[str, str]:
    from mtlprune.analyses.probes.show.tables import latex, markdown

    layers, heads = found.shape
    encoder = found.encoder or "pretrained encoder not among them"
    setting = [
        f"{encoder}, corpus {found.corpus} ({found.fingerprint[:8]}), {layers} layers × {heads} heads, mode "
        f"{shown[0].mode}; special tokens: {found.specials.rstrip('.')}."
    ]
    title = "What attention heads know"
    return {"tables.md": markdown(tables, title, setting, notes), "tables.tex": latex(tables, title, setting, notes)}


def _write(
    out: Path, pictures: Sequence[_Picture], texts: dict[str, str], formats: Sequence[str], scale: int, head: Entry
) -> None:
    """Each file whole or not at all; the list comes last, so that it never names what is not there."""
    from mtlprune.files import json_text, write_bytes, write_text
    from mtlprune.reports.canvas_png import png
    from mtlprune.reports.canvas_svg import svg

    entries = []
    for picture in pictures:
        drawing = picture.draw()
        made = {"png": lambda d=drawing: png(d, scale), "svg": lambda d=drawing: svg(d).encode()}
        names = [f"{picture.name}.{ending}" for ending in formats]
        for name, ending in zip(names, formats, strict=True):
            content = made[ending]()
            write_bytes(out / name, content)
        entries.append({"files": names, "title": drawing.title, **picture.entry})
    listed = json_text({**head, "pictures": entries})
    for name, text in {**texts, "plots.json": listed}.items():
        write_text(out / name, text)
