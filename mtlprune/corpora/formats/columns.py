"""Columns, a word a line, and what they say of a sentence: any CoNLL-like file, and rows of other tables."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import NumberedLine, WordError, blocks, malformed, on_lines, read_lines, sentence_id, tree
from mtlprune.corpora.formats.brackets import bare_label, drop_root, flat, spans_from_stars
from mtlprune.corpora.formats.conll2012 import read_conll2012
from mtlprune.corpora.formats.iob2 import scheme_of, spans_from_tags
from mtlprune.corpora.formats.propbank import read_predicates
from mtlprune.layers import LAYERS, Layer, LayerError, check_layer
from mtlprune.sentence import Predicate, Sentence, Span

WORD, SKIP, REST = "word", "_", "..."
_PARTS = {WORD: WORD, SKIP: SKIP, REST: REST, "head": "head", "relation": "relation", "lemma": "lemma", "id": "id"}
_STAR = re.compile(r"[^*]*\*[^*]*")


class FileColumn(NamedTuple):
    """What a column holds: a layer of a kind, or (its kind is its name then) word, head, relation, lemma, id, _ or, for
    further ones that not every line has, ``...``."""

    name: str
    kind: str


def parse_columns(text: str) -> list[FileColumn]:
    """Read ``word,pos,_,ner`` or ``word,chunk:spans``. Raises CorpusError."""
    columns = []
    for part in text.split(","):
        name, _, kind = part.strip().partition(":")
        kind = kind or _PARTS.get(name) or LAYERS.get(name, "")
        try:
            if name not in _PARTS:
                check_layer(name, kind)
        except LayerError as error:
            say = "; write NAME:KIND, such as chunk:spans" if not kind else ""
            raise CorpusError(f"--columns: {error}{say}") from None
        if kind == "tree":
            raise CorpusError(f"--columns: {name}: a tree stands in two columns; name them head and relation")
        columns.append(FileColumn(name, kind))
    if REST in [column.name for column in columns[:-1]]:
        raise CorpusError(f"--columns: {REST} stands for further columns, so it comes last; found {text!r}")
    names = [column.name for column in columns if column.name != SKIP]
    double = [name for name in names if names.count(name) > 1]
    if names.count(WORD) != 1 or double:
        found = f"{double[0]} twice" if double else f"no {WORD}"
        raise CorpusError(f"--columns: expected {WORD} once and no name twice, found {found} in {text!r}")
    if ("head" in names) != ("relation" in names):
        raise CorpusError(f"--columns: expected head and relation, found one of them in {text!r}; name both")
    frames = [place for place, column in enumerate(columns) if column.kind == "frames"]
    if frames and frames != [len(columns) - 1]:
        raise CorpusError(f"--columns: {columns[frames[0]].name} has a column for each predicate, so it comes last")
    return columns


class Notation:
    """How the spans of each column are written, found in all of its sentences before they are read."""

    def __init__(
        self, columns: Sequence[FileColumn], rows: Callable[[FileColumn], Iterable[Sequence[str]]], repair: bool
    ) -> None:
        """``rows``: column → the cells of each sentence, asked for twice."""
        self.repair = repair
        self.schemes = {}
        for column in (column for column in columns if column.kind == "spans"):
            stars = (all(map(_STAR.fullmatch, cells)) for cells in rows(column) if set(cells) != {"_"})
            written = next(stars, False) and all(stars)
            known = (cells for cells in rows(column) if set(cells) != {"_"})
            self.schemes[column.name] = "stars" if written else scheme_of(known)

    def spans(self, name: str, cells: Sequence[str]) -> tuple[Span, ...]:
        """Flat spans; of nested stars the outermost."""
        if self.schemes[name] == "stars":
            return flat(spans_from_stars(cells))
        try:
            return spans_from_tags(cells, self.schemes[name], self.repair)
        except WordError as error:
            if not self.repair:
                spans_from_tags(cells, self.schemes[name], repair=True)  # what no repair helps is told as it is
                raise WordError(error.place, f"{error.what}; or read them as conlleval does (--repair)") from None
            raise

    def converted(self) -> Iterator[tuple[str, str]]:
        """FileColumn and scheme of those that are not IOB2."""
        return ((name, scheme) for name, scheme in self.schemes.items() if scheme not in ("IOB2", "stars"))


def assemble(
    source: str,
    rows: Sequence[tuple[int, Any]],
    name: str,
    cells: Mapping[FileColumn, Sequence[str]],
    notation: Notation,
    unit: str = "line",
) -> Sentence:
    """A sentence of its columns; a layer whose cells are all ``_`` is unknown.

    Args:
        source, rows: where it stands; each row with the number of its line (or another unit) first.
        name: its id.
        cells: column → a cell a word. Predicates are put in by whoever reads them.

    Raises:
        CorpusError: with source, line and column.
    """
    parts = {column.name: tuple(values) for column, values in cells.items()}
    layers: dict[str, Any] = {}
    for column, values in cells.items():
        if column.kind.partition(":")[0] not in ("tags", "spans", "brackets") or set(values) == {"_"}:
            continue
        with on_lines(source, rows, f"column {column.name}", unit):
            if column.kind == "tags":
                if "_" in values:
                    what = "expected a tag, found _ (unknown) beside words that have one; tag all words or none"
                    raise WordError(values.index("_"), what)
                value: Any = tuple(values)
            elif column.kind == "spans":
                value = notation.spans(column.name, values)
            else:
                found = (span._replace(label=bare_label(span.label)) for span in spans_from_stars(values))
                value = drop_root(tuple(found), len(values))
        layers[column.name] = Layer(column.kind, value)
    if "head" in parts and set(parts["head"]) != {"_"}:
        with on_lines(source, rows, "column head", unit):
            layers["dep"] = tree([_head(*cell) for cell in enumerate(parts["head"])], parts["relation"])
    with on_lines(source, rows, unit=unit):
        return Sentence(name, parts[WORD]).with_layers(**layers).validate()


def _head(place: int, text: str) -> int:
    if not text.isdecimal():
        raise WordError(place, f"expected the number of the head, 0 for the root, found {text!r}; correct it")
    return int(text)


def read_columns(
    path: Path, columns: Sequence[FileColumn], repair: bool = False, tell: Callable[[str], None] = lambda line: None
) -> Iterator[Sentence]:
    """Read a file with a word a line, its columns between tabs (where the line has one) or blanks.

    Sentences stand between empty lines. Lines of ``-DOCSTART-`` are left out, and so are comments: lines with # whose
    number of columns is another, or ``# KEY = VALUE``. Of brackets only the category is read, without an outermost TOP.

    Args:
        columns: what each column holds. Of frames, which come last: the column where ``-`` means that the word is no
            predicate, then one column of arguments for each predicate. It holds rolesets where there is a column lemma,
            lemmas where there is none.
        repair: read tags of spans as conlleval does: what continues no span opens one.
        tell: is given what was converted.

    Raises:
        CorpusError: with file, line and column.
    """
    plain = [place for place, column in enumerate(columns) if column.name not in (SKIP, REST)]
    place_of = {column: place for place, column in enumerate(columns)}

    def cells_of(column: FileColumn) -> Iterator[list[str]]:
        return ([row[place_of[column]] for row in cells] for _, _, cells in _tables(path, columns))

    notation = Notation(columns, cells_of, repair)
    for name, rows, cells in _tables(path, columns):
        values = {columns[place]: [row[place] for row in cells] for place in plain}
        sentence = assemble(str(path), rows, name, values, notation)
        if columns[-1].kind == "frames":
            srl = _frames(str(path), rows, cells, columns)
            with on_lines(path, rows):
                sentence = sentence.with_layers(**{columns[-1].name: Layer("frames", srl)}).validate()
        yield sentence
    for name, scheme in notation.converted():
        tell(f"{path}: column {name} is written in {scheme} and was converted")


def _tables(path: Path, columns: Sequence[FileColumn]) -> Iterator[tuple[str, list[NumberedLine], list[list[str]]]]:
    """The id of each sentence, its lines and their cells. Raises CorpusError."""
    more, number = columns[-1].kind == "frames" or columns[-1].name == REST, 0
    width = len(columns) - (columns[-1].name == REST)
    for block in blocks(read_lines(path)):
        rows, cells = [], []
        for line in block:
            row = line.text.split("\t") if "\t" in line.text else line.text.split()
            fits = len(row) >= width if more else len(row) == width
            comment = line.text.startswith("#") and (not fits or re.match(r"#\s*\S+(\s+\S+)?\s+=\s", line.text))
            if comment or line.text.startswith("-DOCSTART-"):
                continue
            if not fits:
                names = ",".join(column.name for column in columns)
                what = f"expected {width} columns ({names}), found {len(row)}: {line.text[:60]!r}; name every column"
                advice = f"_ for those to leave out, a last {REST} for those that not every line has"
                raise malformed(path, line.number, f"{what} of the file in --columns, {advice}")
            if "" in row[:width]:
                raise malformed(path, line.number, f"column {row.index('') + 1} is empty; write _ for what is unknown")
            rows.append(line)
            cells.append(row)
        if rows:
            number += 1
            yield sentence_id(block) or f"{path.stem}-{number}", rows, cells


def _frames(
    source: str, rows: Sequence[NumberedLine], cells: Sequence[Sequence[str]], columns: Sequence[FileColumn]
) -> tuple[Predicate, ...]:
    width = len(columns)
    marks = [row[width - 1] for row in cells]
    lemma = next((place for place, column in enumerate(columns) if column.name == "lemma"), None)
    if lemma is None:
        pairs: list[tuple[str, str | None]] = [(mark, None) for mark in marks]
    else:
        pairs = [(row[lemma] if mark != "-" else "-", mark) for row, mark in zip(cells, marks, strict=True)]
    return read_predicates(source, list(rows), pairs, [row[width:] for row in cells])


CONLL2005 = "word,pos,con,ner,_,srl"
RELEASE = "_,_,_,word,pos,con,lemma,srl"  # of propbank-release, with the words filled in


def read_roles(
    path: Path, columns: str | None = None, tell: Callable[[str], None] = lambda line: None, repair: bool = False
) -> Iterator[Sentence]:
    """Read predicates and arguments: CoNLL-2012 files (they say #begin document), those of propbank-release with their
    words (known by the numbers in their columns 2 and 3), and columns.

    Args:
        columns: of files that are neither; those of CoNLL-2005, if not given.
        repair: as in :func:`read_columns`.

    Raises:
        CorpusError: with file and line.
    """
    first = next((line.text for line in read_lines(path) if line.text.strip()), "")
    if first.startswith("#begin document"):
        yield from read_conll2012(path)
        return
    release = len(cells := first.split()) >= 8 and cells[1:3] == ["0", "0"]
    if release and cells[3] == "[WORD]":
        what = "the words are withheld ([WORD]); put them in with the script of propbank-release (map_all_to_conll.py)"
        raise malformed(path, 1, what)
    yield from read_columns(path, parse_columns(columns or (RELEASE if release else CONLL2005)), repair, tell)
