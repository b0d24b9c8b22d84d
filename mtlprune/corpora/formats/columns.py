"""Read files with one word per line and annotation in columns, such as CoNLL files, and the columns of other tables."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mtlprune.corpora import CorpusError, formats
from mtlprune.corpora.formats.brackets import bare_label, drop_root, outermost, spans_from_stars
from mtlprune.corpora.formats.conll2012 import read_conll2012
from mtlprune.corpora.formats.iob2 import scheme_of, spans_from_tags, standard_spelling
from mtlprune.corpora.formats.propbank import read_predicates
from mtlprune.layers import LAYERS, Layer, LayerError, check_layer
from mtlprune.sentence import Predicate, Sentence, Span

WORD, SKIP, ALL_FURTHER = "word", "_", "..."
_NOT_LAYERS = frozenset({WORD, SKIP, ALL_FURTHER, "head", "relation", "lemma", "id"})
"""Contents of columns that are not layers; head and relation together are the layer dep."""
_STAR = re.compile(r"[^*]*\*[^*]*")
_SENTENCE_COLUMN = re.compile(r"sent(ence)?([-_ ]?(#|id|no|number|index))?", re.I)
_KEY_AND_VALUE = re.compile(r"#[ \t]*[^ \t]+([ \t]+[^ \t]+)?[ \t]+=[ \t]")


class FileColumn(NamedTuple):
    """The content of a column: a layer with its kind.

    If a column is not a layer, its kind equals its name: word, head, relation, lemma, id, ``_`` (left out) or ``...``
    (all further columns, which not every line needs to have).
    """

    name: str
    kind: str


def parse_columns(text: str) -> list[FileColumn]:
    """Return the contents of columns from text such as ``word,chunk:spans,_,ner``. Raises CorpusError."""
    columns = []
    for part in text.split(","):
        name, _, kind = part.strip().partition(":")
        kind = kind or (name if name in _NOT_LAYERS else LAYERS.get(name, ""))
        try:
            if name not in _NOT_LAYERS:
                check_layer(name, kind)
        except LayerError as error:
            say = "; write NAME:KIND, such as chunk:spans" if not kind else ""
            raise CorpusError(f"--columns: {error}{say}") from None
        if kind == "tree":
            raise CorpusError(f"--columns: {name}: a tree takes two columns; name them head and relation")
        columns.append(FileColumn(name, kind))
    if ALL_FURTHER in [column.name for column in columns[:-1]]:
        raise CorpusError(f"--columns: {ALL_FURTHER} means all further columns, so it must come last; found {text!r}")
    names = [column.name for column in columns if column.name != SKIP]
    double = [name for name in names if names.count(name) > 1]
    if names.count(WORD) != 1 or double:
        actual = f"{double[0]} twice" if double else f"no {WORD}"
        raise CorpusError(f"--columns: expected {WORD} once and no name twice, found {actual} in {text!r}")
    if ("head" in names) != ("relation" in names):
        raise CorpusError(f"--columns: expected head and relation, found one of them in {text!r}; name both")
    frames = [index for index, column in enumerate(columns) if column.kind == "frames"]
    if frames and frames != [len(columns) - 1]:
        raise CorpusError(f"--columns: {columns[frames[0]].name} has a column for each predicate, so it comes last")
    return columns


class Notation:
    """The notation of the spans in each column, which is inferred from all sentences before the first one is read.

    Attributes:
        schemes: name of a column → ``stars`` for star notation, or the scheme of its tags (see ``iob2.scheme_of``).
        repaired: name of a column → number of sentences whose tags were repaired.
    """

    def __init__(
        self, columns: Sequence[FileColumn], rows: Callable[[FileColumn], Iterable[Sequence[str]]], repair: bool
    ) -> None:
        """Infer the notation of every column of spans.

        Args:
            rows: column → the cells of each sentence. The function is called up to twice per column.
            repair: whether tags that do not fit the scheme are read as in conlleval.
        """
        self.repair, self.repaired = repair, Counter[str]()
        self.schemes, self._spellings, self._notes = dict[str, str](), dict[str, dict[str, str]](), dict[str, str]()
        for column in (column for column in columns if column.kind == "spans"):
            name = column.name
            counts = Counter(cell for cells in rows(column) if set(cells) != {"_"} for cell in cells)
            if counts and all(map(_STAR.fullmatch, counts)):
                self.schemes[name], self._spellings[name] = "stars", {}
                continue
            self._spellings[name], self._notes[name] = plain, _ = standard_spelling(counts)
            tag_columns = ([plain.get(cell, cell) for cell in cells] for cells in rows(column) if set(cells) != {"_"})
            self.schemes[name] = scheme_of(tag_columns)

    def unknown(self, column: FileColumn, cells: Sequence[str]) -> bool:
        """Return True if no word of a sentence has a value. The cell ``_`` counts as a value if it means O."""
        return set(cells) == {"_"} and "_" not in self._spellings.get(column.name, {})

    def spans(self, name: str, cells: Sequence[str]) -> tuple[Span, ...]:
        """Return the flat spans of a sentence. Of nested spans in star notation, only the outermost are returned.

        Raises:
            WordError: a tag violates the scheme, and tags are not repaired.
        """
        if self.schemes[name] == "stars":
            return outermost(spans_from_stars(cells))
        cells = [self._spellings[name].get(cell, cell) for cell in cells]
        try:
            return spans_from_tags(cells, self.schemes[name])
        except formats.WordError as error:
            # If conlleval could not read the tags either, this line raises its error, which names the word.
            spans = spans_from_tags(cells, self.schemes[name], repair=True)
            if not self.repair:
                problem = f"{error.problem}; or give --repair, which reads the tags as conlleval does"
                raise formats.WordError(error.index, problem) from None
            self.repaired[name] += 1
            return spans

    def converted(self) -> Iterator[str]:
        """Yield lines for the user about columns whose tags were respelled, converted to IOB2 or repaired."""
        merged = {
            "IO": "; neighbouring words of one label form one span",
            "IOB1": "; neighbouring spans of one type need a tag B between them",
        }
        for name, note in self._notes.items():
            if note:
                yield f"column {name}: {note}"
        for name, scheme in self.schemes.items():
            if scheme not in ("IOB2", "stars"):
                yield f"column {name} is written in {scheme} and was converted{merged.get(scheme, '')}"
        for name, count in self.repaired.items():
            yield f"column {name}: tags were repaired, as conlleval reads them, in {count} sentence{'s' * (count > 1)}"


def assemble(
    source: str,
    rows: Sequence[tuple[int, Any]],
    name: str,
    cells: Mapping[FileColumn, Sequence[str]],
    notation: Notation,
    unit: str = "line",
) -> Sentence:
    """Return a sentence from its columns. A layer whose cells are all ``_`` is unknown.

    Args:
        source: the name of the file in errors.
        rows: the rows of the words; the number of the line (or another unit) is the first item of each row.
        name: the id of the sentence.
        cells: column → one cell per word. Columns of predicates are ignored; the caller adds them.
        unit: what the numbers of ``rows`` count.

    Raises:
        CorpusError: a column is malformed; the message names the source, the line and the column.
    """
    parts = {column.name: tuple(values) for column, values in cells.items()}
    layers: dict[str, Any] = {}
    for column, values in cells.items():
        if column.kind.partition(":")[0] not in ("tags", "spans", "brackets") or notation.unknown(column, values):
            continue
        with formats.on_lines(source, rows, f"column {column.name}", unit):
            if column.kind == "tags":
                if "_" in values:
                    problem = "expected a tag, found _ (unknown) next to tagged words; tag all words or none"
                    raise formats.WordError(values.index("_"), problem)
                value: Any = tuple(values)
            elif column.kind == "spans":
                value = notation.spans(column.name, values)
            else:
                bare = (span._replace(label=bare_label(span.label)) for span in spans_from_stars(values))
                value = drop_root(tuple(bare), len(values))
        layers[column.name] = Layer(column.kind, value)
    if "head" in parts and set(parts["head"]) != {"_"}:
        with formats.on_lines(source, rows, "column head", unit):
            layers["dep"] = formats.checked_tree([_head(*cell) for cell in enumerate(parts["head"])], parts["relation"])
    with formats.on_lines(source, rows, unit=unit):
        return Sentence(name, parts[WORD]).with_layers(**layers).validate()


def _head(index: int, text: str) -> int:
    if (number := formats.whole_number(text)) is None:
        raise formats.WordError(
            index, f"expected the number of the head (0 for the root), found {text[:60]!r}; correct it"
        )
    return number


def mark_unread_columns(columns: Sequence[FileColumn], unread_layers: Container[str]) -> list[FileColumn]:
    """Return the columns, in which the columns of layers that are left out are marked as skipped."""
    columns_to_read = []
    for column in columns:
        layer = "dep" if column.name in ("head", "relation") else column.name
        if layer not in _NOT_LAYERS and layer in unread_layers:
            skipped = ALL_FURTHER if column.kind == "frames" else SKIP
            column = FileColumn(skipped, skipped)
        columns_to_read.append(column)
    return columns_to_read


def read_columns(
    path: Path,
    columns: Sequence[FileColumn],
    repair: bool = False,
    tell: formats.Tell = lambda line: None,
    skip: formats.Skip | None = None,
    unread_layers: Container[str] = (),
    unlabelled: str = "_",
) -> Iterator[Sentence]:
    """Read a file with one word per line.

    Tabs separate the columns if most lines contain a tab; commas or semicolons do in tables with commas or semicolons
    (see ``formats.separator_of``); otherwise blanks and tabs do. Any other space is part of a word.

    Empty lines separate sentences, and so do rows whose cells are all empty in tables with a header, commas or
    semicolons. A first row that names the columns is not a word. If it names a column of sentences, such as
    ``Sentence #``, a sentence ends where the value in this column changes. Lines of ``-DOCSTART-`` and comments are
    left out. Comments are lines that begin with # and have another number of columns or the form ``# KEY = VALUE``
    (also ``# global.columns``, because only ``columns`` counts). If the first column is ``_`` or ``id`` and numbers the
    words, rows with numbers such as 3-4 (ranges) and 6.1 (empty nodes) are left out. Labels of brackets are cut to
    their category, and an outermost TOP is dropped.

    Args:
        columns: the content of each column. Frames take several columns, which come last: a column that contains ``-``
            for words that are not predicates, then one column of arguments per predicate. The first of these contains
            rolesets if there is a column lemma, and lemmas otherwise.
        repair: read tags of spans like conlleval: a tag that continues no span opens one.
        tell: receives what was inferred about the file, and what was converted.
        skip: receives the error of a sentence that cannot be read, which is then left out. If None, the error is
            raised.
        unread_layers: layers to leave out.
        unlabelled: the tag that replaces ``_`` in columns of tags. By default ``_`` stays and means unknown.

    Raises:
        CorpusError: the file is malformed; the message names the line and the column.
    """
    columns = mark_unread_columns(columns, unread_layers)
    plain = [index for index, column in enumerate(columns) if column.name not in (SKIP, ALL_FURTHER)]
    place_of = {column: index for index, column in enumerate(columns)}
    table = ColumnTable(path, columns)
    tell(f"{path}: columns are separated by {formats.SEPARATORS[table.separator]}")
    if table.header:
        tell(
            f"{path}: line {table.header.number} names the columns and is not read as a word: "
            f"{table.header.text[:80]!r}"
        )

    def of_column(column: FileColumn) -> Iterator[list[str]]:
        # This pass only infers the notation. Unreadable sentences are ignored here, because the later pass reports
        # them.
        silent = skip and (lambda error: None)
        return ([row[place_of[column]] for row in cells] for _, _, cells in table.sentences(silent))

    notation = Notation(columns, of_column, repair)
    for name, rows, cells in table.sentences(skip):
        with formats.skipping(skip):
            values = {columns[index]: [row[index] for row in cells] for index in plain}
            for column in (column for column in values if column.kind == "tags"):
                values[column] = [unlabelled if cell == "_" else cell for cell in values[column]]
            sentence = assemble(str(path), rows, name, values, notation)
            if columns[-1].kind == "frames":
                srl = _frames(str(path), rows, cells, columns)
                with formats.on_lines(path, rows):
                    sentence = sentence.with_layers(**{columns[-1].name: Layer("frames", srl)}).validate()
            yield sentence
    if table.numbered:
        tell(
            f"{path}: rows with ids such as {table.numbered} (ranges of words, empty nodes) are not words and were "
            "left out"
        )
    for line in notation.converted():
        tell(f"{path}: {line}")


class ColumnTable:
    """The rows of a file with columns.

    Attributes:
        separator: the separator of the cells.
        header: the first row if it names the columns, or None.
        numbered: the number of a row that was left out because it is a range or an empty node; empty if there was none.
    """

    def __init__(self, path: Path, columns: Sequence[FileColumn]) -> None:
        self.path, self.columns, self.numbered = path, columns, ""
        self.has_open_end = columns[-1].kind == "frames" or columns[-1].name == ALL_FURTHER
        self.width = len(columns) - (columns[-1].name == ALL_FURTHER)
        self.separator = formats.separator_of(path, (line.text for line in self._rows()))
        first = next(self._rows(), formats.NumberedLine(0, ""))
        names = formats.split_row(first.text, self.separator)
        self.header = None if formats.index_of_words(names) is None else first
        self._sentence_column = next(
            (k for k, name in enumerate(names) if _SENTENCE_COLUMN.fullmatch(name)), len(names)
        )

    def _rows(self) -> Iterator[formats.NumberedLine]:
        lines = (line for line in formats.read_lines(self.path, lambda error: None) if line.text.strip(formats.BLANKS))
        return (line for line in lines if not line.text.startswith(("#", "-DOCSTART-")))

    def sentences(self, skip: formats.Skip | None) -> Iterator[tuple[str, list[formats.NumberedLine], list[list[str]]]]:
        """Yield the id of each sentence, its lines, and the cells of these lines.

        Raises CorpusError at a malformed sentence, unless ``skip`` is given.
        """
        number = 0
        blocks = formats.blocks(formats.read_lines(self.path, skip), skip)
        for block in (part for lines in blocks for part in self._cut(lines)):
            with formats.skipping(skip):
                formats.check_text(self.path, block)
                rows = [(line, row) for line in block if (row := self._cells(line)) is not None]
                if self.columns[0].name in (SKIP, "id"):
                    rows = self._words(rows)
                if rows:
                    number += 1
                    name = formats.sentence_id(block) or f"{self.path.stem}-{number}"
                    yield name, [line for line, _ in rows], [row for _, row in rows]

    def _cut(self, block: list[formats.NumberedLine]) -> Iterator[list[formats.NumberedLine]]:
        """Yield the parts of a block that are one sentence each.

        A sentence ends where the column of sentences changes and, in tables with a header or with commas or semicolons,
        at a row whose cells are all empty.
        """
        if not self.header and self.separator not in ",;":
            yield block
            return
        part, name = list[formats.NumberedLine](), ""
        for line in block:
            cells = formats.split_row(line.text, self.separator)
            # In some files only the first row of a sentence contains its name, and in others every row does.
            following = self.header and next(iter(cells[self._sentence_column :]), "")
            if not any(cells) or (following and following != name):
                yield part
                part = []
            name = following or name
            part += [line] * any(cells)
        yield part

    def _cells(self, line: formats.NumberedLine) -> list[str] | None:
        """Return the cells of a line, or None if the line is not a row (a comment, the header or -DOCSTART-).

        Raises:
            CorpusError: the line has too few or too many cells, or an empty cell.
        """
        row = formats.split_row(line.text, self.separator)
        fits = len(row) >= self.width if self.has_open_end else len(row) == self.width
        mixed = "\t" in line.text and self.separator != "\t"
        comment = line.text.startswith("#") and (not fits or mixed or _KEY_AND_VALUE.match(line.text))
        if comment or line == self.header or line.text.startswith("-DOCSTART-"):
            return None
        if not fits:
            names = ",".join(column.name for column in self.columns)
            problem = f"expected {self.width} columns ({names}) between {formats.SEPARATORS[self.separator]}"
            advice = (
                f"with _ for columns that are left out, and a last {ALL_FURTHER} for columns that not every line has"
            )
            actual = f"found {len(row)}: {line.text[:60]!r}; name every column of the file in --columns, {advice}"
            raise formats.malformed(self.path, line.number, f"{problem}, {actual}")
        for index, cell in enumerate(row[: self.width]):
            if not cell and self.columns[index].name != SKIP:
                problem = f"column {index + 1} ({self.columns[index].name}) is empty; write _ for unknown values"
                raise formats.malformed(self.path, line.number, problem)
        return row

    def _words(
        self, rows: list[tuple[formats.NumberedLine, list[str]]]
    ) -> list[tuple[formats.NumberedLine, list[str]]]:
        """Return the rows without ranges (3-4) and empty nodes (6.1), if the first column numbers the words."""
        plain = [row[0] for _, row in rows if formats.whole_number(row[0]) is not None]
        special_numbers = [row[0] for _, row in rows if re.fullmatch(r"[0-9]+[-.][0-9]+", row[0])]
        numbered = plain == [str(index) for index in range(1, len(plain) + 1)]
        if not plain or not numbered or not special_numbers or len(plain) + len(special_numbers) < len(rows):
            return rows
        self.numbered = special_numbers[0]
        return [(line, row) for line, row in rows if row[0] in plain]


def _frames(
    source: str, rows: Sequence[formats.NumberedLine], cells: Sequence[Sequence[str]], columns: Sequence[FileColumn]
) -> tuple[Predicate, ...]:
    width = len(columns)
    marks = [row[width - 1] for row in cells]
    lemma = next((index for index, column in enumerate(columns) if column.name == "lemma"), None)
    if lemma is None:
        pairs: list[tuple[str, str | None]] = [(mark, None) for mark in marks]
    else:
        pairs = [(row[lemma] if mark != "-" else "-", mark) for row, mark in zip(cells, marks, strict=True)]
    return read_predicates(source, list(rows), pairs, [row[width:] for row in cells])


_CONLL2005 = "word,pos,con,ner,_,srl"
_RELEASE = "_,_,_,word,pos,con,lemma,srl"  # propbank-release with words


def read_roles(
    path: Path,
    columns: str | None = None,
    repair: bool = False,
    tell: formats.Tell = lambda line: None,
    skip: formats.Skip | None = None,
    unread_layers: Container[str] = (),
) -> Iterator[Sentence]:
    """Read semantic roles and other layers from CoNLL-2012 files, propbank-release with words, or other columns.

    CoNLL-2012 files are recognised by ``#begin document``, and those of propbank-release by a first row with at least
    eight columns and 0 in columns 2 and 3.

    Args:
        columns: the columns of other files; by default those of CoNLL-2005.
        repair, tell, skip, unread_layers: as in :func:`read_columns`.

    Raises:
        CorpusError: the file is malformed; the message names the line, and the format that was inferred.
    """
    texts = (line.text for line in formats.read_lines(path, skip) if line.text.strip(formats.BLANKS))
    first = next((text for text in texts if text.startswith("#begin document") or not text.startswith("#")), "")
    if first.startswith("#begin document"):
        tell(f"{path}: read as CoNLL-2012")
        yield from read_conll2012(path, skip, unread_layers)
        return
    cells = formats.cells_of(first)
    release = len(cells) >= 8 and cells[1:3] == ["0", "0"]
    if release and cells[3] == "[WORD]":
        problem = (
            "the words are withheld ([WORD]); insert them with the script of propbank-release (map_all_to_conll.py)"
        )
        raise formats.malformed(path, 1, problem)
    format_name = "propbank-release" if release else "CoNLL-2005"
    if columns is None:
        columns = _RELEASE if release else _CONLL2005
        tell(f"{path}: read as {format_name}, whose columns are {columns}; --columns names other contents")
        format_name = f"; the file was read as {format_name} ({columns}), and --columns names other contents"
    else:
        format_name = ""
    try:
        yield from read_columns(path, parse_columns(columns), repair, tell, skip, unread_layers)
    except formats.UnreadableSentence as error:
        raise formats.UnreadableSentence(f"{error}{format_name}") from error
