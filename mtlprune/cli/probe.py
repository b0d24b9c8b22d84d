"""mtlprune probe: measure what heads know, or draw and tabulate what was found (--plot)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.analyses.analysis import find
from mtlprune.analyses.probes import MODES
from mtlprune.cli.analyze import parameters_of, run
from mtlprune.cli.console import Scale, chosen_formats, say, with_parameters
from mtlprune.figures.grid import Grid, latex_document, markdown_document
from mtlprune.io.files import RunError, json_text, make_room, write_bytes, write_text

if TYPE_CHECKING:
    from mtlprune.analyses.probes.show.paper import PublishedProbes
    from mtlprune.analyses.probes.show.reading import ProbePanel
    from mtlprune.runs.results import Result

PRETRAINED = "pretrained"
PLOTTED: dict[str, tuple[Any, Any]] = {
    "plot": (
        Annotated[bool, typer.Option("--plot", help="Draw and tabulate what is in folders it wrote; probe nothing.")],
        False,
    ),
    "corpus": (Annotated[Path | None, typer.Option(help="Folder of a corpus.")], None),
    "against": (
        Annotated[str | None, typer.Option(help="Plot beside published numbers: a CSV table, or FILE:ENCODER.")],
        None,
    ),
    "maps": (
        Annotated[str, typer.Option(help="Plot heat maps of: pretrained, STL, MTL-5, ... with commas; all; none.")],
        PRETRAINED,
    ),
    "others": (
        Annotated[bool, typer.Option("--others", help="Plot encoders trained for other tasks only, too.")],
        False,
    ),
    "format_": (Annotated[str, typer.Option("--format", help="Of plots: png, svg, pdf, with commas.")], "png,svg"),
    "scale": (Scale, 2),
}
"""Options for --plot, and one that it does without: names → types and defaults."""


def _call(plot: bool, names: list[str], corpus: Path | None, **values: Any) -> None:
    options = {name: values.pop(name) for name in PLOTTED if name not in ("plot", "corpus")}
    if plot:
        _plot([Path(name) for name in names], values["out"], values["mode"], **options)
    elif corpus is None:
        raise RunError("probe: expected --corpus DIR, the corpus whose layers are probed")
    else:
        run(find("probes"), names=names, corpus=corpus, **values)


def _plot(
    results: list[Path],
    out: Path,
    mode: str,
    against: str | None,
    maps: str,
    others: bool,
    format_: str,
    scale: int,
) -> None:
    """Scatter of best layers, differences to STL, heat maps of labels, tables: of what heads know, beside controls."""
    from mtlprune.analyses.probes.show import modes, pictures
    from mtlprune.analyses.probes.show.paper import PublishedProbes
    from mtlprune.analyses.probes.show.reading import panels, read_probes
    from mtlprune.figures.charts import FORMATS, Style, render

    formats = chosen_formats(format_, FORMATS)
    if mode not in MODES:
        raise RunError(f"--mode: expected {' or '.join(MODES)}, found {mode!r}")
    published = PublishedProbes.read(against) if against is not None else None
    result = read_probes(results)
    shown = panels(result, mode, others)
    if not shown:
        raise RunError(
            f"{', '.join(map(str, results))}: no results of the mode {mode} (there: {', '.join(modes(result))}); name "
            "it with --mode"
        )
    drawn = list(pictures(result, shown, _wanted(maps, shown)))
    tables, notes = _tables(result, shown, published, others)
    make_room(out)
    entries = []
    for picture in drawn:
        spec = picture.make()
        names = [f"{picture.name}.{kind}" for kind in formats]
        for name, kind in zip(names, formats, strict=True):
            write_bytes(out / name, render(spec, kind, Style(scale=scale)))
        entries.append({"files": names, "title": spec["title"]["text"], **picture.entry})
    for name, text in _texts(result, mode, tables, notes).items():
        write_text(out / name, text)
    listed = {"mode": mode, "results": result.about["folders"], "notes": notes, "pictures": entries}
    write_text(out / "plots.json", json_text(listed))  # last, so that it never names what is not there
    say(f"{len(formats) * len(drawn)} pictures and tables.md, tables.tex in {out}; plots.json lists the pictures")
    for note in notes:
        say(f"note: {note}")


def _wanted(maps: str, shown: list[ProbePanel]) -> set[str]:
    """Titles of the columns whose heat maps are drawn. Raises RunError at one that no task has."""
    titles = dict.fromkeys(title for panel in shown for title in panel.titles)
    if maps in ("all", "none"):
        return set(titles) if maps == "all" else set()
    named = [part.strip() for part in maps.split(",")]
    if wrong := [name for name in named if name not in titles and name != PRETRAINED]:
        raise RunError(f"--maps: found {wrong[0]!r}; expected all, none, or some of {', '.join(titles)}")
    return set(named)


def _tables(
    result: Result, shown: list[ProbePanel], published: PublishedProbes | None, others: bool
) -> tuple[list[Grid], list[str]]:
    from mtlprune.analyses.probes.show import lacking, tables
    from mtlprune.analyses.probes.show.paper import beside_paper

    grids, notes = tables(result, shown[0].mode, others), [*result.about["notes"], *lacking(shown)]
    if "differences" not in result.frames:
        notes.append(
            "No paired intervals: these results hold no differences to STL item by item; probe single-task runs and "
            "what they are compared with into one folder."
        )
    for panel in shown:
        if published is None:
            break
        if table := beside_paper(panel, published):
            grids.append(table)
        else:
            words = f"nothing to set beside the published {published.encoder} (no label or no encoder in common)"
            notes.append(f"{panel.task.upper()}: {words}.")
    return grids, notes


def _texts(result: Result, mode: str, tables: list[Grid], notes: list[str]) -> dict[str, str]:
    """The tables as Markdown, and for \\input into a document that loads booktabs."""
    from mtlprune.analyses.probes.show import pretrained
    from mtlprune.analyses.probes.show.reading import shape

    layers, heads = shape(result)
    setting = (
        f"{pretrained(result) or 'pretrained encoder not among them'}, corpus {result.about['corpus']} "
        f"({result.about['fingerprint'][:8]}), {layers} layers × {heads} heads, mode {mode}; special tokens: "
        f"{result.about['specials'].rstrip('.')}."
    )
    title = "What attention heads know"
    listed = ["".join(f"- {note}\n" for note in notes)] if notes else []
    parts = [f"# {title}\n", f"{setting}\n", *listed, *(table.part() for table in tables)]
    latex = latex_document([title, setting, *notes], [table.latex(f"tab:probes-{table.key}") for table in tables])
    return {"tables.md": markdown_document("\n".join)(parts), "tables.tex": latex}


probe = with_parameters(_call, parameters_of("probe") | PLOTTED, find("probes").help)
