"""CoNLL-2012 files with words (``*_conll``, v4 and v12): words, POS, CON, NER and SRL.

Columns, separated by blanks: 1 document, 2 part, 3 word number, 4 word, 5 POS, 6 parse bit, 7 predicate lemma,
8 frameset, 9 word sense, 10 speaker, 11 named entities, then one column of arguments for each predicate, coreference
last. Speaker, word sense and coreference are not read.

How each layer is read (facts of the original release, and where we differ):

* Words: the tokens ``/.`` and ``/?`` lose their slash, in all layers (the original: all but CON and DEP).
* POS: as it stands. Where the parse is missing, POS is a filler (XX, VERB) and thus unknown too.
* CON: TOP is dropped; labels are cut at the first hyphen. A sentence of several words without any bracket below TOP
  is how the format writes a missing parse: unknown.
* NER: of entities nested in one another the outermost is kept, of several on one span the first (flat here).
* SRL: a predicate is any word whose frameset is not ``-``; there must be as many argument columns, in the same order.
  Lemma and frameset together name the roleset (``be.01``). Arguments stay as they are, V and C-V with them.
"""

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from mtlprune.corpora import CorpusError, formats
from mtlprune.corpora.formats.brackets import bare_label, drop_root, flat, spans_from_stars
from mtlprune.sentence import Predicate, Sentence, Span

_BEGIN = re.compile(r"#begin document \((.+)\)(?:; part ([0-9]+))?;?[ \t]*")
_MARK = re.compile(r"#(begin document \(.+\)|end document\b)")
_SLASHED = {"/.": ".", "/?": "?"}
_WORD, _POS, _PARSE, _LEMMA, _FRAMESET, _NER = 3, 4, 5, 6, 7, 10
_FIXED = 11  # columns before those of the predicates
_WITHHELD = "[WORD]"


@dataclass(slots=True)
class Document:
    """All parts of one document of one file, in order.

    Attributes:
        sentences: with NER and SRL as their columns say, empty where nothing is marked.
        line: where its first part begins.
        nested: entities left out because they lie in (or on) another one.
        unparsed: sentences whose parse is missing (CON and POS unknown).
    """

    name: str
    path: Path
    line: int
    sentences: list[Sentence] = field(default_factory=list)
    nested: int = 0
    unparsed: int = 0

    def has(self, layer: str) -> bool:
        """True where any sentence holds anything on ``layer``."""
        return any(sentence.get(layer) for sentence in self.sentences)


def read_conll2012(
    path: Path, skip: formats.Skip | None = None, unread_layers: Container[str] = ()
) -> Iterator[Sentence]:
    """Read one file; in a document where a layer's column is empty throughout, NER or SRL is unknown. ``skip``,
    ``unread_layers``: as in ``read_columns``. Raises CorpusError: with file and line.

    The columns alone cannot tell a document without names from one nobody annotated. Where the original annotation
    files are at hand, ``ontonotes5.build_ontonotes5`` decides by them instead.
    """
    for document in read_documents(path, skip, unread_layers):
        yield from with_unknown(document, ner=document.has("ner"), srl=document.has("srl"))


def with_unknown(document: Document, *, ner: bool, srl: bool) -> Iterator[Sentence]:
    """The document's sentences; ``ner`` and ``srl`` say whether that layer is known."""
    unknown = {layer: None for layer, is_known in (("ner", ner), ("srl", srl)) if not is_known}
    for sentence in document.sentences:
        yield sentence.with_layers(**unknown) if unknown else sentence


def read_documents(path: Path, skip: formats.Skip | None = None, unread_layers: Container[str] = ()) -> list[Document]:
    """All documents of one file, parts put together. A sentence's id is ``document/part/number``, number from 0.

    Raises:
        CorpusError: with file and line, at anything that is not the format: text outside documents, another number of
            columns, withheld words, word numbers out of order, brackets that do not match, argument columns that do
            not match the predicates, a part that stands twice.
    """
    documents: dict[str, Document] = {}
    parts: set[tuple[str, str]] = set()
    open_document: tuple[Document, str] | None = None
    number = 0
    for is_mark, lines in groupby(formats.read_lines(path, skip), lambda line: bool(_MARK.match(line.text))):
        for line, text in lines if is_mark else ():
            begin = _BEGIN.fullmatch(text)
            with formats.skipping(skip):
                if begin and open_document:
                    problem = f"a document begins before #end document of {open_document[0].name}"
                    raise formats.malformed(path, line, problem)
                if not begin and not open_document:
                    raise formats.malformed(path, line, "#end document without #begin document; repair the file")
                if begin and begin.groups() in parts:
                    problem = f"part {begin[2]} of document {begin[1]} occurs here for the second time"
                    raise formats.malformed(path, line, problem)
            open_document, number = None, 0
            if begin:
                parts.add((begin[1], begin[2]))
                open_document = documents.setdefault(begin[1], Document(begin[1], path, line)), begin[2] or "000"
        for block in () if is_mark else formats.blocks(lines):
            with formats.skipping(skip):
                formats.check_text(path, block)
                if open_document is None:
                    problem = f"expected '#begin document (NAME); part 000', found {block[0].text[:60]!r}"
                    raise formats.malformed(path, block[0].number, problem)
                document, part = open_document
                number += 1
                rows = [(line.number, formats.cells_of(line.text)) for line in block]
                document.sentences.append(
                    _sentence(document, f"{document.name}/{part}/{number - 1}", rows, unread_layers)
                )
    if open_document:
        with formats.skipping(skip):
            raise CorpusError(f"{path}: the document {open_document[0].name} has no #end document; get a complete file")
    return list(documents.values())


Row = tuple[int, list[str]]  # line number, cells


def _sentence(document: Document, id: str, rows: list[Row], unread_layers: Container[str]) -> Sentence:
    path = document.path
    _check_rows(document, rows)
    columns = list(zip(*(cells for _, cells in rows), strict=True))
    words = tuple(_SLASHED.get(word, word) for word in columns[_WORD])
    if "con" in unread_layers:
        con = None
        parsed = len(words) == 1 or "(" in "".join(columns[_PARSE]).removeprefix("(TOP")
    else:
        con = drop_root([Span(s, e, bare_label(t)) for s, e, t in _spans(path, rows, _PARSE)], len(words))
        parsed = bool(con) or len(words) == 1
    entities = () if "ner" in unread_layers else _spans(path, rows, _NER)
    ner = flat(entities)
    document.nested += len(entities) - len(ner)
    document.unparsed += not parsed
    filler = not parsed and set(columns[_POS]) <= {"XX", "VERB"}
    sentence = Sentence(
        id,
        words,
        pos=None if "pos" in unread_layers or filler else columns[_POS],
        ner=ner,
        con=con if parsed else None,
        srl=() if "srl" in unread_layers else _predicates(path, rows, columns),
    )
    with formats.on_lines(path, rows):
        return sentence.validate()


def _check_rows(document: Document, rows: list[Row]) -> None:
    path, width = document.path, len(rows[0][1])
    for number, (line, cells) in enumerate(rows):
        problem = ""
        if len(cells) != width or width <= _FIXED:
            problem = f"expected {max(width, _FIXED + 1)} columns (coreference last) in all rows, found {len(cells)}"
        elif cells[0] != document.name:
            problem = f"expected document {document.name} in column 1, found {cells[0]}"
        elif cells[2] != str(number):
            problem = f"expected word number {number}, found {cells[2]}; check whether an empty line is missing"
        elif cells[_WORD] == _WITHHELD:
            script = "the skeleton2conll script of the CoNLL-2012 distribution and your copy of OntoNotes"
            problem = f"the words are withheld ({_WITHHELD}); first insert them with {script}"
        if problem:
            raise formats.malformed(path, line, problem)


def _spans(path: Path, rows: Sequence[Row], column: int) -> tuple[Span, ...]:
    cells = [row[1][column] for row in rows]
    # In the column of names a bracket around one single word comes without the star that stands for the word
    # everywhere else: (GPE).
    if column == _NER:
        cells = [re.sub(r"(?<=[^()*])\)", "*)", cell, count=1) for cell in cells]
    with formats.on_lines(path, rows, f"column {column + 1}"):
        return spans_from_stars(cells)


def _predicates(path: Path, rows: Sequence[Row], columns: Sequence[tuple[str, ...]]) -> tuple[Predicate, ...]:
    places = [place for place, frameset in enumerate(columns[_FRAMESET]) if frameset != "-"]
    count = len(columns) - _FIXED - 1
    if count != len(places):
        raise CorpusError(
            f"{path}, lines {rows[0][0]}–{rows[-1][0]} (one sentence): expected one argument column for each of the "
            f"{len(places)} predicates (frameset not '-'), found {count}"
        )
    predicates = []
    for column, place in enumerate(places, _FIXED):
        arguments = _spans(path, rows, column)
        lemma, frameset = columns[_LEMMA][place], columns[_FRAMESET][place]
        roleset = frameset if "." in frameset or lemma == "-" else f"{lemma}.{frameset}"
        predicates.append(Predicate(place, roleset, arguments, None if lemma == "-" else lemma))
    return tuple(predicates)
