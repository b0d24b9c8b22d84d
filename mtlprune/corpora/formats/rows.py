"""Read tables with one sentence or pair of texts per row: TSV and CSV with a header, and rows of data sets.

read_rows(Path("reviews.tsv"), parse_row_columns("text=words,stars=rating:number"))

Raw text is split into words as follows. A word is a run of letters, digits and underscores, which may contain one of
' ’ . , - between two of them (don't, 3.5, mother-in-law). Every other character except white space is a word by
itself. Text that is already a list of words is not split.
"""

import csv
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mtlprune.corpora import CorpusError, formats
from mtlprune.corpora.formats.columns import FileColumn
from mtlprune.layers import OF_SENTENCES, Layer, LayerError, check_layer
from mtlprune.sentence import Sentence

WORDS, ID = "words", "id"  # contents of columns that are not layers
_WORD = re.compile(r"\w+(?:['’.,-]\w+)*|[^\w\s]")
_FORM = (
    "write NAME=words and NAME=LAYER, NAME=LAYER:number or NAME=LAYER:labels, such as text=words,stars=rating:number"
)


def describes_texts(columns: str | None) -> bool:
    """Return True if ``--columns`` describes a table of texts, and not a file with one word per line."""
    return f"={WORDS}" in (columns or "").replace(" ", "")


def parse_row_columns(text: str) -> dict[str, FileColumn]:
    """Return the content of each column by its name, from text such as ``text=words,stars=rating:number``.

    Two columns of words are a pair of texts. The default kind of a layer is label. Raises CorpusError.
    """
    columns: dict[str, FileColumn] = {}
    for part in text.split(","):
        name, _, layer = part.strip().rpartition("=")
        layer, _, kind = layer.partition(":")
        kind = layer if layer in (WORDS, ID) else kind or "label"
        try:
            if layer not in (WORDS, ID):
                check_layer(layer, kind)
        except LayerError as error:
            raise CorpusError(f"--columns {part.strip()}: {error}; {_FORM}") from None
        if not name or name in columns or kind not in (WORDS, ID, *OF_SENTENCES):
            finding = "it twice" if name in columns else repr(part.strip())
            raise CorpusError(
                f"--columns: expected the name and the content of each column once, found {finding}; {_FORM}"
            )
        columns[name] = FileColumn(layer, kind)
    layers = [column.name for column in columns.values() if column.name != WORDS]
    texts = len(columns) - len(layers)
    if texts not in (1, 2) or len(set(layers)) < len(layers):
        finding = f"{texts} columns of words" if texts not in (1, 2) else f"a layer twice in {text!r}"
        raise CorpusError(
            f"--columns: expected one or two columns of words, and each layer once, found {finding}; {_FORM}"
        )
    return columns


def read_rows(
    path: Path,
    columns: Mapping[str, FileColumn],
    skip: formats.Skip | None = None,
    unread_layers: Container[str] = (),
    has_header: bool = True,
    skip_first: bool = False,
) -> Iterator[Sentence]:
    """Read the sentences of a table.

    Tabs separate the cells if the first line that is not blank contains a tab, and quotes are then ordinary characters.
    Otherwise commas or semicolons separate the cells, whichever is more frequent in the first line.

    Args:
        columns: name of a column → its content. In a table without a header, the name is the number of the column, from
            0.
        skip, unread_layers: as in ``read_columns``.
        has_header: whether the first row names the columns.
        skip_first: whether to ignore the first row of a table without a header.

    Raises:
        CorpusError: a column is missing, a row has another number of cells, or a value is not of its kind; the message
            names the line.
    """
    lines = list(formats.read_lines(path, skip))
    first = next((line.text for line in lines if line.text.strip()), "")
    separator = "\t" if "\t" in first else max(",;", key=first.count)
    quotes: Literal[0, 3] = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    rows = csv.reader((line.text + "\n" for line in lines), delimiter=separator, quoting=quotes, strict=True)
    header: list[str] | None = None
    number = 1
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise formats.malformed(
                path, number, f"expected cells of a table, found: {error}; correct the quotes"
            ) from None
        if row is None:
            return
        start, number = number, rows.line_num + 1
        if not any(cell.strip() for cell in row):
            continue
        if header is None:
            header = [cell.strip() for cell in row] if has_header else [str(index) for index in range(len(row))]
            if missing := [name for name in columns if name not in header]:
                problem = f"expected the columns {', '.join(columns)}, found no {missing[0]} in {', '.join(header)}"
                raise formats.malformed(path, start, f"{problem}; correct --columns")
            if has_header or skip_first:
                continue
        with formats.skipping(skip):
            formats.check_text(path, lines[start - 1 : rows.line_num])
            if len(row) != len(header):
                problem = f"expected {len(header)} cells as in the first row, found {len(row)}; repair the row"
                raise formats.malformed(path, start, problem)
            cells = dict(zip(header, row, strict=True))
            yield row_sentence(path, start, "line", cells, columns, f"{path.stem}-{start}", unread_layers)


def row_sentence(
    source: str | Path,
    number: int,
    unit: str,
    cells: Mapping[str, Any],
    columns: Mapping[str, FileColumn],
    name: str,
    unread_layers: Container[str] = (),
    names: Mapping[str, Sequence[str]] | None = None,
) -> Sentence:
    """Return the sentence of a row. Raises CorpusError, with the number of the row.

    Args:
        source: the name of the table in errors.
        number: the number of the row in errors.
        unit: what ``number`` counts, such as "line".
        cells: name of a column → value.
        columns: name of a column → its content.
        name: the id of the sentence if no column contains ids.
        unread_layers: layers to leave out.
        names: name of a column → names of the labels that its numbers encode (ClassLabel).
    """
    texts: list[tuple[str, ...]] = []
    layers: dict[str, Layer] = {}
    with formats.on_lines(source, [(number, None)], unit=unit):
        for column, (layer, kind) in columns.items():
            value = cells[column]
            try:
                if kind == WORDS:
                    texts.append(_words(value))
                elif kind == ID:
                    name = str(value)
                elif layer not in unread_layers:
                    layers[layer] = Layer(kind, _value(value, kind, (names or {}).get(column)))
            except ValueError as error:
                raise formats.malformed(source, number, f"column {column}: {error}", unit) from None
        words = tuple(word for text in texts for word in text)
        split = len(texts[0]) if len(texts) == 2 else None
        return Sentence(name, words, split=split).with_layers(**layers).validate()


def _words(value: Any) -> tuple[str, ...]:
    """Return the words of a text or list. Raises ValueError if there are none."""
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
        raise ValueError(f"expected text or a list of words, found {str(value)[:60]!r}; write text")
    words = tuple(_WORD.findall(value)) if isinstance(value, str) else tuple(value)
    if not words:
        raise ValueError("expected a text, found an empty one; write one, or remove the row")
    return words


def _value(value: Any, kind: str, names: Sequence[str] | None) -> Any:
    """Return the value of a layer, or None if it is unknown. Raises ValueError."""
    if isinstance(value, list) and kind == "labels":
        labels = [_value(label, "label", names) for label in value]
        return tuple(sorted({label for label in labels if label is not None}))
    if value is None or (names is not None and value == -1):
        return None
    if names is not None and type(value) is int:
        if not 0 <= value < len(names):
            raise ValueError(f"expected a label from 0 to {len(names) - 1}, found {value}; correct it")
        value = names[value]
    if isinstance(value, list | dict):
        raise ValueError(f"expected one {kind}, found {str(value)[:60]!r}; name another kind (--columns)")
    return OF_SENTENCES[kind].read(str(value).strip())
