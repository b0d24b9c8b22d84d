"""A table of text cells, as Markdown, as LaTeX (booktabs) and as HTML for notebooks."""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from typing import TYPE_CHECKING, Any, ParamSpec

from mtlprune.errors import printable, printable_lines

if TYPE_CHECKING:
    from mtlprune.analyses.frames import TableDeclaration

# What LaTeX would take for a command, and signs its text fonts lack.
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"${sign}$" for sign in "<>|"},
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "²": r"$^2$",
    "∩": r"$\cap$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "°": r"$^\circ$",
    "→": r"$\rightarrow$",
    "Δ": r"$\Delta$",
    "Φ": r"$\Phi$",
    "∞": r"$\infty$",
    "λ": r"$\lambda$",
}


_EMPHASIS = re.compile(r"\*(?=[^\s*])([^*]+)(?<=\S)\*")
_TAG, _ENTITY = re.compile("<(?=[A-Za-z/!?])"), re.compile(r"&(?=#?\w+;)")
_Params = ParamSpec("_Params")
LONG = 45
"""Rows that fit on a page; LaTeX breaks longer tables over pages."""


class Strong(str):
    """A cell in bold."""


@dataclass(frozen=True)
class Grid:
    """A header and rows of equally many cells; the first ``texts`` columns are words, the others numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    title: str = ""
    caption: str = ""
    """Sentences that say what its numbers are."""
    key: str = ""
    """Names it among the tables of a report."""
    texts_last: int = 0
    """So many columns at the end are words, too."""

    @property
    def numbers(self) -> Sequence[str]:
        """The headings of its numbers."""
        return self.header[self.texts : len(self.header) - self.texts_last]

    @classmethod
    def of(
        cls, title: str, frame: Any, columns: Mapping[str, str | tuple[str, Any]], caption: str, texts: int = 1
    ) -> Grid:
        """A table of a data frame.

        Args:
            columns: heading → a column shown as it is, or a column and what shows its numbers: how many decimals, a
                format string, or a function. – where the frame has no such column or no number.
        """
        chosen_columns = [(name, str) if isinstance(name, str) else name for name in columns.values()]
        rows = [
            [_format_value(row.get(name), formatter) for name, formatter in chosen_columns]
            for row in frame.to_dict("records")
        ]
        return cls(list(columns), rows, texts, title, caption)

    @classmethod
    def declared(cls, table: TableDeclaration, frame: Any, **values: Any) -> Grid:
        """A table of a data frame as its analysis declares it; ``values`` stand in the braces of title and caption."""
        columns = {
            heading: column if isinstance(column, str) else (column[0], _SHOWN_AS.get(column[1], column[1]))
            for heading, column in table.columns.items()
        }
        return cls.of(table.title.format(**values), frame, columns, table.caption.format(**values), table.texts)

    def words(self) -> str:
        """Title and caption as one text."""
        return f"{self.title}{'' if self.title.endswith(('?', '.')) else '.'} {self.caption}"

    def part(self) -> str:
        """Title, table and caption in Markdown."""
        return f"## {self.title}\n\n{self.markdown()}\n{self.caption}\n"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{''.join(f'<td>{_html(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        head = "".join(f"<th>{_html(title)}</th>" for title in self.header)
        title = f"<caption>{_html(self.title)}</caption>" * bool(self.title)
        return f"<table>{title}<tr>{head}</tr>{rows}</table>" + html([self.caption] * bool(self.caption))

    def markdown(self) -> str:
        """With columns of even width; bars in cells are escaped."""
        rows = [[_markdown(cell) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [
                cell.ljust(width) if place < self.texts else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("| " + " | ".join(cells) + " |")
        rule = [
            ":" + "-" * (width + 1) if place < self.texts else "-" * (width + 1) + ":"
            for place, width in enumerate(widths)
        ]
        return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]]) + "\n"

    def latex(self, label: str, caption: str | None = None) -> str:
        """A floating table; one over several pages where it is long. Needs the packages booktabs and longtable.
        ``caption``: else the table's own words."""
        import pandas as pd  # slow to load, and help on the terminal needs none of it

        cells = pd.DataFrame([list(map(_latex, row)) for row in self.rows], columns=list(map(escape, self.header)))
        table = cells.to_latex(
            index=False,
            column_format="l" * self.texts + "r" * (len(self.header) - self.texts),
            longtable=len(self.rows) > LONG,
            caption=_EMPHASIS.sub(r"\\emph{\1}", escape(self.words() if caption is None else caption)),
            label=label,
        )
        return table.replace("\\begin{table}\n", "\\begin{table}\n\\centering\n")  # not among pandas' options


def latex_document(remarks: Sequence[str], parts: Sequence[str]) -> str:
    """Tables for \\input into a document that loads booktabs and longtable, after remarks as comments."""
    head = ["% \\usepackage{booktabs,longtable}", *(f"% {' '.join(line.split())}" for line in remarks), ""]
    return printable_lines("\n".join([*head, *parts]))


def _format_value(value: Any, formatter: Any) -> str:
    if value is None or value != value:  # NaN
        return "–"
    if isinstance(formatter, int):
        return number(value, formatter)
    return formatter.format(value) if isinstance(formatter, str) else str(formatter(value))


def html(blocks: Iterable[Any]) -> str:
    """HTML for a notebook: of words, one paragraph each, and of what has HTML of its own, one below the other."""
    return "".join(f"<p>{emphasised(block)}</p>" if isinstance(block, str) else block._repr_html_() for block in blocks)


def emphasised(words: str) -> str:
    """HTML of a caption, whose *emphasised words* stand between asterisks as in Markdown."""
    return _EMPHASIS.sub(r"<em>\1</em>", _html(words))


def _html(words: str) -> str:
    plain = escape_html(printable_lines(words))
    return f"<b>{plain}</b>" if isinstance(words, Strong) and plain else plain


def markdown_document(make: Callable[_Params, str]) -> Callable[_Params, str]:
    """Wrap what makes a whole text in Markdown, so that no label of a corpus, name or file can put HTML into it."""

    @functools.wraps(make)
    def safe(*args: _Params.args, **options: _Params.kwargs) -> str:
        return _TAG.sub("&lt;", printable_lines(make(*args, **options)))

    return safe


def _markdown_cell(cell: str) -> str:
    """A cell's words, of which none ends the cell, is markup or steers a terminal."""
    words = _TAG.sub("&lt;", _ENTITY.sub("&amp;", printable(cell)))
    return words.replace("|", "\\|").replace("](", "]\\(")


def _markdown(cell: str) -> str:
    plain = _markdown_cell(cell)
    return f"**{plain}**" if isinstance(cell, Strong) and plain else plain


def _latex(cell: str) -> str:
    return f"\\textbf{{{escape(cell)}}}" if isinstance(cell, Strong) and cell else escape(cell)


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(sign, sign) for sign in printable(text))


def shown_label(label: str) -> str:
    """A label as it is drawn: in quotes where nothing but punctuation would be seen."""
    return label if any(c.isalnum() or c in "$#" for c in label) else f"“{label}”"


def number(value: float, digits: int = 2) -> str:
    """A number with so many decimals; – where it is not defined."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


DETECTABLE = (
    "*Detectable* is the effect that four of five such studies would find (two-sided 5 %, not corrected), and "
    "is printed if nothing is significant."
)


def power_clause(*detectable: float, unit: str = "points", before: str = "; ") -> str:
    """The clause after "not shown": the least and the largest minimum detectable effect; "" where none is known."""
    sorted_values = sorted(value for value in detectable if not math.isnan(value))
    if not sorted_values:
        return ""
    ends = " to ".join(
        dict.fromkeys(number(value, 1 if value >= 1 else 2) for value in (sorted_values[0], sorted_values[-1]))
    )
    return f"{before}a difference of {ends} {unit} or more would have been found in four of five studies"


def with_interval(row: Any) -> str:
    """The difference of a row with its interval."""
    return f"{number(row.estimate)} [{number(row.low)}, {number(row.high)}]"


def difference(name: str, *extra_columns: str) -> dict[str, Any]:
    """Columns (`Grid.of`) of a difference called ``name``, its interval and p; ``extra_columns``: also Holm,
    detectable."""
    numbers = {name: ("estimate", 2), "low": ("low", 2), "high": ("high", 2), "p": ("p", probability)}
    optional = {"Holm": ("p_holm", probability), "detectable": ("detectable", 2)}
    return {**numbers, **{name: optional[name] for name in extra_columns}}


def mean_sd(values: Sequence[float]) -> str:
    """The mean; with two values or more ± the sample standard deviation."""
    if len(values) < 2:
        return number(values[0]) if values else "–"
    return f"{number(statistics.mean(values))} ± {number(statistics.stdev(values))}"


def probability(value: float) -> str:
    """A p-value with four decimals; of smaller ones no number, because few runs cannot tell how far tails reach."""
    if math.isnan(value):
        return "–"
    return "<0.0001" if value < 5e-5 else f"{value:.4f}" if value < 0.99995 else "1"


def percent(share: float) -> str:
    """A share as a whole number of percent."""
    return f"{100 * share:.0f} %".replace("-", "−")


_SHOWN_AS: dict[int | str, Any] = {
    "p": probability,
    "percent": percent,
    "percent.1": lambda share: number(100 * share, 1),
    "upper": str.upper,
}
"""Words by which a declared table says how a column is shown, beside numbers of digits and format strings."""
