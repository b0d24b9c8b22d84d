"""Read CoNLL-2012 files with words (``*_conll``, v4 and v12): words, POS, CON, NER and SRL.

The columns are separated by blanks: 1 document, 2 part, 3 word number, 4 word, 5 POS, 6 parse bit, 7 predicate lemma, 8
frameset, 9 word sense, 10 speaker, 11 named entities, then one column of arguments per predicate, and coreference last.
Word sense, speaker and coreference are not read.

The layers are read as follows:

* Words: the tokens ``/.`` and ``/?`` lose their slash, in all layers (in the code of He and Choi, in all layers except
  CON and DEP).
* POS: read unchanged. If the parse is missing and POS contains only fillers (XX, VERB), POS is unknown.
* CON: TOP is dropped, and labels are cut at the first hyphen or equals sign. If a sentence of several words has no
  bracket below TOP, its parse is missing, and CON is unknown.
* NER: of nested entities the outermost is kept, and of several entities with the same span the first, because our NER
  is flat.
* SRL: a predicate is any word whose frameset is not ``-``. There must be one argument column per predicate, in the same
  order. Lemma and frameset together form the roleset (``be.01``). Arguments are kept unchanged, including V and C-V.
"""

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from mtlprune.corpora import CorpusError, formats
from mtlprune.corpora.formats.brackets import bare_label, drop_root, outermost, spans_from_stars
from mtlprune.sentence import Predicate, Sentence, Span

_BEGIN = re.compile(r"#begin document \((.+)\)(?:; part ([0-9]+))?;?[ \t]*")
_MARK = re.compile(r"#(begin document \(.+\)|end document\b)")
_SLASHED = {"/.": ".", "/?": "?"}
_WORD, _POS, _PARSE, _LEMMA, _FRAMESET, _NER = 3, 4, 5, 6, 7, 10
_FIXED = 11  # columns before those of the predicates
_WITHHELD = "[WORD]"


@dataclass(slots=True)
class Document:
    """All parts of one document in one file, in order.

    Attributes:
        name: the name in ``#begin document (NAME)``.
        path: the file.
        line: the line where its first part begins.
        sentences: the sentences; NER and SRL are empty (not unknown) if their columns are empty.
        nested: the number of entities that were left out because they are nested in an entity, or have the same span.
        unparsed: the number of sentences whose parse is missing (CON is unknown, and so is POS if it is a filler).
    """

    name: str
    path: Path
    line: int
    sentences: list[Sentence] = field(default_factory=list)
    nested: int = 0
    unparsed: int = 0

    def has(self, layer: str) -> bool:
        """Return True if ``layer`` contains anything in any sentence."""
        return any(sentence.get(layer) for sentence in self.sentences)


def read_conll2012(
    path: Path, skip: formats.Skip | None = None, unread_layers: Container[str] = ()
) -> Iterator[Sentence]:
    """Read the sentences of one file, with NER or SRL unknown in documents whose column is empty throughout.

    The columns do not distinguish a document without names from a document that nobody annotated. If the original
    annotation files are available, ``ontonotes5.build_ontonotes5`` uses them instead.

    Args:
        skip, unread_layers: as in ``read_columns``.

    Raises:
        CorpusError: the file is malformed; the message names the line.
    """
    for document in read_documents(path, skip, unread_layers):
        yield from with_unknown(document, ner=document.has("ner"), srl=document.has("srl"))


def with_unknown(document: Document, *, ner: bool, srl: bool) -> Iterator[Sentence]:
    """Yield the sentences of a document, with NER or SRL set to unknown if ``ner`` or ``srl`` is False."""
    unknown = {layer: None for layer, is_known in (("ner", ner), ("srl", srl)) if not is_known}
    for sentence in document.sentences:
        yield sentence.with_layers(**unknown) if unknown else sentence


def read_documents(path: Path, skip: formats.Skip | None = None, unread_layers: Container[str] = ()) -> list[Document]:
    """Return all documents of one file, with the parts of each document joined.

    The id of a sentence is DOCUMENT/PART/NUMBER, with NUMBER counted from 0 in each part.

    Raises:
        CorpusError: the file is malformed; the message names the line. Malformed are text outside documents, documents
            without a beginning or an end, rows with different numbers of columns or another document, withheld words,
            word numbers out of order, unbalanced brackets, argument columns that do not match the predicates, and
            repeated parts.
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


_Row = tuple[int, list[str]]  # the number of a line, and its cells


def _sentence(document: Document, id: str, rows: list[_Row], unread_layers: Container[str]) -> Sentence:
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
    ner = outermost(entities)
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


def _check_rows(document: Document, rows: list[_Row]) -> None:
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


def _spans(path: Path, rows: Sequence[_Row], column: int) -> tuple[Span, ...]:
    cells = [row[1][column] for row in rows]
    # The NER column writes an entity of one word without a star, as in (GPE) instead of (GPE*), so we insert the star.
    if column == _NER:
        cells = [re.sub(r"(?<=[^()*])\)", "*)", cell, count=1) for cell in cells]
    with formats.on_lines(path, rows, f"column {column + 1}"):
        return spans_from_stars(cells)


def _predicates(path: Path, rows: Sequence[_Row], columns: Sequence[tuple[str, ...]]) -> tuple[Predicate, ...]:
    indices = [index for index, frameset in enumerate(columns[_FRAMESET]) if frameset != "-"]
    count = len(columns) - _FIXED - 1
    if count != len(indices):
        raise CorpusError(
            f"{path}, lines {rows[0][0]}–{rows[-1][0]} (one sentence): expected one argument column for each of the "
            f"{len(indices)} predicates (frameset not '-'), found {count}"
        )
    predicates = []
    for column, index in enumerate(indices, _FIXED):
        arguments = _spans(path, rows, column)
        lemma, frameset = columns[_LEMMA][index], columns[_FRAMESET][index]
        roleset = frameset if "." in frameset or lemma == "-" else f"{lemma}.{frameset}"
        predicates.append(Predicate(index, roleset, arguments, None if lemma == "-" else lemma))
    return tuple(predicates)
