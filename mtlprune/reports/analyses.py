"""Views of any analysis, made from its record and its Result: Markdown, LaTeX, figures, the section of the HTML report,
and the display in notebooks."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtlprune.analyses.analysis import Analysis, find
from mtlprune.analyses.frames import FigureDeclaration, TableRows
from mtlprune.errors import plural
from mtlprune.figures.charts import (
    PLAIN,
    AnyChart,
    Chart,
    Drawing,
    Spec,
    Style,
    figure,
    notebook,
    render,
    series_in_words,
)
from mtlprune.figures.grid import Grid, html, latex_document, markdown_document
from mtlprune.io.files import write_bytes, write_text
from mtlprune.runs.results import Result


@dataclass(frozen=True)
class Figure:
    """A figure: the specification of its chart, a text alternative for readers who do not see it, and the caption."""

    spec: Spec
    alt: str
    caption: str = ""

    def _repr_html_(self) -> str:
        return notebook(self.spec) + html([self.caption] * bool(self.caption))


def tables(analysis: Analysis, result: Result) -> list[Grid]:
    """Return the tables of a Result that have rows.

    A function in the ``TABLES`` of an analysis returns the rows of the declared table with its name (as TableRows if
    title or caption have braces), a Grid if the columns depend on the data, a list of these, or None.
    """
    grids: list[Grid] = []
    for name, make in analysis.show.TABLES.items():
        grid_or_rows = make(result)
        for table in grid_or_rows if isinstance(grid_or_rows, list) else [grid_or_rows]:
            if isinstance(table, Grid):
                grids.append(table)
            elif table is not None:
                rows, words = table if isinstance(table, TableRows) else TableRows(table, {})
                grids.append(Grid.declared(analysis.declared.tables[name], rows, **words))
    return [grid for grid in grids if grid.rows]


def figures(analysis: Analysis, result: Result) -> dict[str, Figure]:
    """Return the figures of a Result by name, without figures that have nothing to show."""
    makers, declared = analysis.show.FIGURES, analysis.declared.figures
    makers = makers(result) if callable(makers) else makers
    charts_by_name = {
        name: make if isinstance(make, Chart) else _declared_chart(declared[name], make)
        for name, make in makers.items()
    }
    specs = ((name, chart.make(result), chart) for name, chart in charts_by_name.items())
    return {
        name: Figure(spec, f"{chart.alt.removesuffix('.')}.{series_in_words(spec)}", chart.caption)
        for name, spec, chart in specs
        if spec is not None
    }


def _declared_chart(declared: FigureDeclaration, draw: Callable[[Result], AnyChart | Drawing | None]) -> Chart:
    """Combine a declaration, which gives title, text alternative and explanation, with a function that draws the
    chart."""

    def make(result: Result) -> Spec | None:
        has_rows = not declared.frame or len(result.frame(declared.frame))
        drawing = draw(result) if has_rows else None
        if drawing is None:
            return None
        chart, words = drawing if isinstance(drawing, Drawing) else Drawing(drawing, {})
        title, *explained = (line.format(result=result, **words) for line in (declared.title, *declared.explained))
        return figure(chart, title, explained)

    return Chart(make, declared.alt, declared.alt)


@markdown_document
def markdown(analysis: Analysis, result: Result, findings_last: bool = False) -> str:
    """Return the content of NAME.md. ``findings_last``: put the findings at the end instead of the beginning."""
    show = analysis.show
    findings = [*(f"- {line}" for line in show.findings(result)), ""]
    lines = [f"# {analysis.title}\n", show.about(result) + "\n", *([] if findings_last else findings)]
    lines[1:1] = [f"**{note}**\n" for note in result.withdrawn]
    parts = ["\n".join(lines), *(table.part() for table in tables(analysis, result))]
    if result.about["notes"]:
        parts.append("## Notes\n\n" + "".join(f"- {note}\n" for note in result.about["notes"]))
    runs = "".join(
        f"- {name}: {entry['run']}\n" for name, entry in zip(result.names, result.about["encoders"], strict=True)
    )
    parts += [f"## Encoders\n\n{runs}"] if runs else []
    parts += ["## Findings\n\n" + "\n".join(findings)] if findings_last else []
    return "\n".join(parts)


def latex(analysis: Analysis, result: Result) -> str:
    """Return the tables of a Result as LaTeX, for \\input in a document with the packages booktabs and longtable. The
    label of a table is tab:NAME-TITLE."""
    show = analysis.show
    remarks = [show.about(result), *show.findings(result), *result.about["notes"]]
    labelled = [(re.sub(r"\W+", "-", table.title.lower()), table) for table in tables(analysis, result)]
    return latex_document(remarks, [table.latex(f"tab:{analysis.name}-{label}") for label, table in labelled])


def write_shown(
    analysis: Analysis, result: Result, folder: Path, formats: Sequence[str] = ("png", "svg"), style: Style = PLAIN
) -> None:
    """Write NAME.md, and each figure as NAME-FIGURE in each format. The format ``tex`` writes the tables as NAME.tex.

    Raises:
        RunError: a file could not be written, or the width of the style is too small for a figure.
    """
    pictures = {
        f"{analysis.name}-{name}.{kind}": render(figure.spec, kind, style)
        for name, figure in figures(analysis, result).items()
        for kind in formats
        if kind != "tex"
    }
    for name, content in pictures.items():
        write_bytes(folder / name, content)
    if "tex" in formats:
        write_text(folder / f"{analysis.name}.tex", latex(analysis, result))
    write_text(folder / f"{analysis.name}.md", markdown(analysis, result))


def section(analysis: Analysis, result: Result, notes: bool = True) -> list[str | Grid | Figure]:
    """Return the section of the HTML report: sentences (which the report escapes), then figures and tables. ``notes``:
    whether the notes of the Result are included; the report leaves them out if it shows them elsewhere."""
    show = analysis.show
    remarks = [note for note in result.about["notes"] if note not in result.withdrawn] if notes else ()
    words = [*result.withdrawn, show.about(result), *show.findings(result), *remarks]
    return [*words, *figures(analysis, result).values(), *tables(analysis, result)]


class ShownResult(Result):
    """A Result with a display in notebooks: sentences and figures, and below them the tables, folded."""

    def _repr_html_(self) -> str:
        analysis = find(self.analysis)
        blocks = section(analysis, self)
        visible, folded = ([block for block in blocks if isinstance(block, Grid) is kind] for kind in (False, True))
        tables = f"<details><summary>{plural(len(folded), 'table')}</summary>{html(folded)}</details>"
        return f"<h3>{analysis.title}</h3>{html(visible)}{tables}"
