"""Tables of text cells, as Markdown, LaTeX (booktabs) and HTML for notebooks, and functions that format numbers."""

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

# Characters that LaTeX would read as commands, or that its text fonts lack → their LaTeX.
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
"""Number of rows that fit on a page. Longer tables become a longtable, which LaTeX breaks over pages."""


class Strong(str):
    """A cell in bold."""


@dataclass(frozen=True)
class Grid:
    """A table of text cells with a title and a caption.

    Attributes:
        header: headings of the columns.
        rows: cells of each row, as many as headings.
        texts: number of columns at the left that hold words instead of numbers.
        title: title of the table.
        caption: sentences that explain the numbers.
        key: name by which the report refers to the table.
        texts_last: number of columns at the right that hold words.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    title: str = ""
    caption: str = ""
    key: str = ""
    texts_last: int = 0

    @property
    def numbers(self) -> Sequence[str]:
        """Headings of the columns that hold numbers."""
        return self.header[self.texts : len(self.header) - self.texts_last]

    @classmethod
    def of(
        cls, title: str, frame: Any, columns: Mapping[str, str | tuple[str, Any]], caption: str, texts: int = 1
    ) -> Grid:
        """Make a table from a data frame.

        Args:
            title: title of the table.
            frame: the data frame.
            columns: heading → column of the frame, or a pair of the column and its format: a number of decimals, a
                format string, or a function. Cells without a value, or of a column that the frame lacks, have a dash.
            caption: sentences that explain the numbers.
            texts: number of columns at the left that hold words.
        """
        chosen_columns = [(name, str) if isinstance(name, str) else name for name in columns.values()]
        rows = [
            [_format_value(row.get(name), formatter) for name, formatter in chosen_columns]
            for row in frame.to_dict("records")
        ]
        return cls(list(columns), rows, texts, title, caption)

    @classmethod
    def declared(cls, table: TableDeclaration, frame: Any, **values: Any) -> Grid:
        """Make a table from a data frame according to a declaration. ``values`` replace the braces in title and
        caption."""
        columns = {
            heading: column if isinstance(column, str) else (column[0], _SHOWN_AS.get(column[1], column[1]))
            for heading, column in table.columns.items()
        }
        return cls.of(table.title.format(**values), frame, columns, table.caption.format(**values), table.texts)

    def words(self) -> str:
        """Return title and caption as one text."""
        return f"{self.title}{'' if self.title.endswith(('?', '.')) else '.'} {self.caption}"

    def part(self) -> str:
        """Return title, table and caption in Markdown."""
        return f"## {self.title}\n\n{self.markdown()}\n{self.caption}\n"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{''.join(f'<td>{_html(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        head = "".join(f"<th>{_html(title)}</th>" for title in self.header)
        title = f"<caption>{_html(self.title)}</caption>" * bool(self.title)
        return f"<table>{title}<tr>{head}</tr>{rows}</table>" + html([self.caption] * bool(self.caption))

    def markdown(self) -> str:
        """Return the table in Markdown, with padded columns and escaped cells, without title and caption."""
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
        """Return the table in LaTeX, as a floating table, or as a longtable over several pages if it is long. The
        document needs the packages booktabs and longtable.

        Args:
            label: label for references to the table.
            caption: the caption; title and caption of the table if not given.
        """
        import pandas as pd  # imported here, because it is slow to load and the command line's help does not need it

        cells = pd.DataFrame([list(map(_latex, row)) for row in self.rows], columns=list(map(escape, self.header)))
        table = cells.to_latex(
            index=False,
            column_format="l" * self.texts + "r" * (len(self.header) - self.texts),
            longtable=len(self.rows) > LONG,
            caption=_EMPHASIS.sub(r"\\emph{\1}", escape(self.words() if caption is None else caption)),
            label=label,
        )
        # pandas has no option that centres a table.
        return table.replace("\\begin{table}\n", "\\begin{table}\n\\centering\n")


def latex_document(remarks: Sequence[str], parts: Sequence[str]) -> str:
    """Join LaTeX tables into a file that a document with the packages booktabs and longtable can load with \\input.
    ``remarks`` become comments at the top."""
    head = ["% \\usepackage{booktabs,longtable}", *(f"% {' '.join(line.split())}" for line in remarks), ""]
    return printable_lines("\n".join([*head, *parts]))


def _format_value(value: Any, formatter: Any) -> str:
    if value is None or value != value:  # NaN
        return "–"
    if isinstance(formatter, int):
        return number(value, formatter)
    return formatter.format(value) if isinstance(formatter, str) else str(formatter(value))


def html(blocks: Iterable[Any]) -> str:
    """Return blocks below each other as HTML for a notebook. Text becomes a paragraph, and other objects are shown by
    their ``_repr_html_``."""
    return "".join(f"<p>{emphasised(block)}</p>" if isinstance(block, str) else block._repr_html_() for block in blocks)


def emphasised(words: str) -> str:
    """Return a caption as HTML, in which words between asterisks are emphasised, as in Markdown."""
    return _EMPHASIS.sub(r"<em>\1</em>", _html(words))


def _html(words: str) -> str:
    plain = escape_html(printable_lines(words))
    return f"<b>{plain}</b>" if isinstance(words, Strong) and plain else plain


def markdown_document(make: Callable[_Params, str]) -> Callable[_Params, str]:
    """Decorate a function that returns a Markdown document, so that no label, name or file of a user can put HTML into
    the document."""

    @functools.wraps(make)
    def safe(*args: _Params.args, **options: _Params.kwargs) -> str:
        return _TAG.sub("&lt;", printable_lines(make(*args, **options)))

    return safe


def _markdown_cell(cell: str) -> str:
    """Escape the text of a cell, so that no character ends the cell, is read as markup, or controls a terminal."""
    words = _TAG.sub("&lt;", _ENTITY.sub("&amp;", printable(cell)))
    return words.replace("|", "\\|").replace("](", "]\\(")


def _markdown(cell: str) -> str:
    plain = _markdown_cell(cell)
    return f"**{plain}**" if isinstance(cell, Strong) and plain else plain


def _latex(cell: str) -> str:
    return f"\\textbf{{{escape(cell)}}}" if isinstance(cell, Strong) and cell else escape(cell)


def escape(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in printable(text))


def shown_label(label: str) -> str:
    """Return a label for display, with quotation marks if it consists only of punctuation other than $ and #."""
    return label if any(c.isalnum() or c in "$#" for c in label) else f"“{label}”"


def number(value: float, digits: int = 2) -> str:
    """Format a number with ``digits`` decimals; NaN is a dash."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def points(margin: float) -> str:
    """Format a margin in words, such as ``one point`` or ``0.3 points``."""
    return "one point" if margin == 1 else f"{margin:g} points"


DETECTABLE = (
    "*Detectable* is the effect that four of five such studies would find (two-sided 5 %, not corrected), and "
    "is printed if nothing is significant."
)


def power_clause(*detectable: float, unit: str = "points", before: str = "; ") -> str:
    """Return a clause about the minimum detectable effects, which follows a sentence about an effect that was not
    found.

    Args:
        detectable: the minimum detectable effects, of which the smallest and the largest are named. NaN is left out.
        unit: unit of the effects.
        before: text between the sentence and the clause.

    Returns:
        the clause, or "" if all effects are NaN.
    """
    sorted_values = sorted(value for value in detectable if not math.isnan(value))
    if not sorted_values:
        return ""
    ends = " to ".join(
        dict.fromkeys(number(value, 1 if value >= 1 else 2) for value in (sorted_values[0], sorted_values[-1]))
    )
    return f"{before}a difference of {ends} {unit} or more would have been found in four of five studies"


def with_interval(row: Any) -> str:
    """Format the estimate of a row of contrasts with its interval, such as ``−2.80 [−3.80, −1.70]``."""
    return f"{number(row.estimate)} [{number(row.low)}, {number(row.high)}]"


def difference(name: str, *extra_columns: str) -> dict[str, Any]:
    """Return the columns, for `Grid.of`, of an estimate under the heading ``name``, its interval and its p-value.
    ``extra_columns``: further columns, any of ``Holm`` and ``detectable``."""
    numbers = {name: ("estimate", 2), "low": ("low", 2), "high": ("high", 2), "p": ("p", probability)}
    optional = {"Holm": ("p_holm", probability), "detectable": ("detectable", 2)}
    return {**numbers, **{name: optional[name] for name in extra_columns}}


def mean_sd(values: Sequence[float]) -> str:
    """Format the mean of values, with ± the sample standard deviation if there are at least two values."""
    if len(values) < 2:
        return number(values[0]) if values else "–"
    return f"{number(statistics.mean(values))} ± {number(statistics.stdev(values))}"


def probability(value: float) -> str:
    """Format a p-value with four decimals. Smaller p-values are shown as <0.0001, because with few runs their size
    depends on tails of the distribution about which the data say nothing."""
    if math.isnan(value):
        return "–"
    return "<0.0001" if value < 5e-5 else f"{value:.4f}" if value < 0.99995 else "1"


def percent(share: float) -> str:
    """Format a share as a whole number of percent."""
    return f"{100 * share:.0f} %".replace("-", "−")


_SHOWN_AS: dict[int | str, Any] = {
    "p": probability,
    "percent": percent,
    "percent.1": lambda share: number(100 * share, 1),
    "upper": str.upper,
}
"""Name of a format in the declaration of a table → function that formats a cell."""
