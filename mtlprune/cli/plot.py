"""mtlprune plot: pictures and tables of what probes found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import say
from mtlprune.cli.plot_pretraining import pretraining

if TYPE_CHECKING:
    from mtlprune.analyses.probes.show.reading import ProbePanel
    from mtlprune.reports.grid import Grid
    from mtlprune.results import Result

MOST_PIXELS_A_UNIT = 8
PRETRAINED = "pretrained"

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command("pretraining")(pretraining)


@app.callback()
def plot() -> None:
    """Draw results."""


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
    format_: Annotated[str, typer.Option("--format", help="png, svg, pdf, with commas between.")] = "png,svg",
    scale: Annotated[int, typer.Option(help="Pixels a unit of 1/96 inch, in PNG.")] = 2,
) -> None:
    """Scatter of best layers, differences to STL, heat maps of labels, tables: of what heads know, beside controls."""
    from mtlprune.analyses.probes import MODES
    from mtlprune.analyses.probes.show import modes, pictures
    from mtlprune.analyses.probes.show.paper import named_encoder
    from mtlprune.analyses.probes.show.reading import panels, read_probes
    from mtlprune.files import RunError, json_text, make_room, write_bytes, write_text
    from mtlprune.reports.charts import FORMATS, Style, render

    formats = list(dict.fromkeys(part.strip() for part in format_.split(",")))
    if any(part not in FORMATS for part in formats):
        raise RunError(f"--format: expected some of {', '.join(FORMATS)}, with commas between, found {format_!r}")
    if not 1 <= scale <= MOST_PIXELS_A_UNIT:
        raise RunError(f"--scale: expected a number from 1 to {MOST_PIXELS_A_UNIT}, found {scale}")
    if mode not in MODES:
        raise RunError(f"--mode: expected {' or '.join(MODES)}, found {mode!r}")
    paper = named_encoder(against) if against is not None else None
    found = read_probes(results)
    shown = panels(found, mode, others)
    if not shown:
        raise RunError(
            f"{', '.join(map(str, results))}: no results of the mode {mode} (there: {', '.join(modes(found))}); name "
            "it with --mode"
        )
    drawn = list(pictures(found, shown, raw, _wanted(maps, shown), each=True))
    tables, notes = _tables(found, shown, paper, others)
    make_room(out)
    entries = []
    for picture in drawn:
        spec = picture.make()
        names = [f"{picture.name}.{kind}" for kind in formats]
        for name, kind in zip(names, formats, strict=True):
            write_bytes(out / name, render(spec, kind, Style(scale=scale)))
        entries.append({"files": names, "title": spec["title"]["text"], **picture.entry})
    for name, text in _texts(found, mode, tables, notes).items():
        write_text(out / name, text)
    listed = {"mode": mode, "results": found.about["folders"], "notes": notes, "pictures": entries}
    write_text(out / "plots.json", json_text(listed))  # last, so that it never names what is not there
    say(f"{len(formats) * len(drawn)} pictures and tables.md, tables.tex in {out}; plots.json lists the pictures")
    for note in notes:
        say(f"note: {note}")


def _wanted(maps: str, shown: list[ProbePanel]) -> set[str]:
    """Titles of the columns whose heat maps are drawn. Raises RunError at one that no task has."""
    from mtlprune.files import RunError

    there = dict.fromkeys(title for panel in shown for title in panel.titles)
    if maps in ("all", "none"):
        return set(there) if maps == "all" else set()
    named = [part.strip() for part in maps.split(",")]
    wrong = [name for name in named if name not in there and name != PRETRAINED]
    if wrong:
        raise RunError(f"--maps: found {wrong[0]!r}; expected all, none, or some of {', '.join(there)}")
    return set(named)


def _tables(found: Result, shown: list[ProbePanel], paper: str | None, others: bool) -> tuple[list[Grid], list[str]]:
    from mtlprune.analyses.probes.show import lacking, tables
    from mtlprune.analyses.probes.show.paper import beside_paper

    notes = [*found.about["notes"], *lacking(shown)]
    if "differences" not in found.frames:
        notes.append(
            "No paired intervals: these results hold no differences to STL item by item; probe single-task runs and "
            "what they are compared with into one folder."
        )
    made = tables(found, shown[0].mode, others)
    if paper is not None:
        beside = [(panel, beside_paper(panel, paper)) for panel in shown]
        made += [table for _, table in beside if table is not None]
        notes += [
            f"{panel.task.upper()}: nothing to set beside the paper's {paper} (no label or no encoder in common)."
            for panel, table in beside
            if table is None
        ]
    return made, notes


def _texts(found: Result, mode: str, tables: list[Grid], notes: list[str]) -> dict[str, str]:
    """The tables as Markdown, and for \\input into a document that loads booktabs."""
    from mtlprune.analyses.probes.show import pretrained
    from mtlprune.analyses.probes.show.reading import shape
    from mtlprune.reports.grid import latex_document, markdown_document

    layers, heads = shape(found)
    setting = (
        f"{pretrained(found) or 'pretrained encoder not among them'}, corpus {found.about['corpus']} "
        f"({found.about['fingerprint'][:8]}), {layers} layers × {heads} heads, mode {mode}; special tokens: "
        f"{found.about['specials'].rstrip('.')}."
    )
    title = "What attention heads know"
    parts = [f"# {title}\n", f"{setting}\n", *(["".join(f"- {note}\n" for note in notes)] if notes else [])]
    page = markdown_document(lambda: "\n".join([*parts, *(table.part() for table in tables)]))()
    latex = latex_document([title, setting, *notes], [table.latex(f"tab:probes-{table.key}") for table in tables])
    return {"tables.md": page, "tables.tex": latex}
