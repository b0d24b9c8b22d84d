"""PropBank skeletons (``*.gold_skel``: trees and roles without words), and columns of predicates."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import NumberedLine, blocks, cells_of, decode_lines, malformed, on_lines
from mtlprune.corpora.formats.brackets import drop_root, spans_from_stars
from mtlprune.sentence import Predicate, Sentence, Span

_FIXED = ("document", "sentence", "token", "word", "part of speech", "parse bit", "lemma", "roleset")
_MEMBER = re.compile(r"(?:.*/)?data/(google/ewt/(?P<genre>[^/]+)/\d+/(?P<document>[^/]+)\.xml)\.gold_skel")


@dataclass(frozen=True, slots=True)
class Skeleton:
    """One sentence of a skeleton file: everything but its words. ``source`` and ``line`` say where it begins."""

    pos: tuple[str, ...]
    con: tuple[Span, ...]
    srl: tuple[Predicate, ...]
    source: str
    line: int

    def __len__(self) -> int:
        return len(self.pos)


def read_skeletons(path: Path) -> dict[str, list[Skeleton]]:
    """Read all skeletons of the English Web Treebank: ``genre-document`` to the sentences of that document in order.
    ``path``: the folder ``data/google/ewt`` or one above it. Raises CorpusError: no skeletons there, or a malformed
    file (with its line)."""
    documents: dict[str, list[Skeleton]] = {}
    for file in sorted(path.resolve().rglob("*.gold_skel")):
        if match := _MEMBER.fullmatch(file.as_posix()):
            key = f"{match['genre']}-{match['document']}"
            documents[key] = list(parse_skeletons(file.read_bytes(), str(file), match[1]))
    if not documents:
        raise CorpusError(f"{path}: expected files data/google/ewt/GENRE/00/DOCUMENT.xml.gold_skel, found none")
    return documents


def parse_skeletons(data: bytes, source: str, document: str | None = None) -> Iterator[Skeleton]:
    """Read the bytes of one skeleton file; ``document``, if given, is what column 1 must say. Raises CorpusError: with
    ``source`` and line."""
    for index, block in enumerate(blocks(decode_lines(data, source))):
        yield parse_skeleton(block, source, index, document)


def parse_skeleton(block: list[NumberedLine], source: str, index: int, document: str | None = None) -> Skeleton:
    """Read the rows of the sentence ``index`` of a skeleton file, as :func:`parse_skeletons` does."""
    rows = [cells_of(line.text) for line in block]
    _check_rows(source, block, rows, document or rows[0][0], index)
    with on_lines(source, block, "parse bits"):
        con = drop_root(spans_from_stars([row[5] for row in rows]), len(rows))
    srl = read_predicates(source, block, [(row[6], row[7]) for row in rows], [row[8:] for row in rows])
    tags = tuple(row[4] for row in rows)
    # The words are withheld in these files, yet the rules of Sentence (no overlap, no position outside) hold for
    # spans over them too.
    with on_lines(source, block):
        Sentence("skeleton", ("[WORD]",) * len(block), pos=tags, con=con, srl=srl).validate()
    return Skeleton(tags, con, srl, source, block[0].number)


def _check_rows(source: str, block: list[NumberedLine], rows: list[list[str]], document: str, index: int) -> None:
    for place, (line, row) in enumerate(zip(block, rows, strict=True)):
        if len(row) < len(_FIXED):
            problem = f"expected at least {len(_FIXED)} columns ({', '.join(_FIXED)}), found {len(row)}; repair the row"
            raise malformed(source, line.number, problem)
        if row[0] != document:
            raise malformed(source, line.number, f"expected the document {document}, found {row[0]}; split the file")
        if row[1:3] != [str(index), str(place)]:
            problem = (
                f"expected sentence {index}, token {place}, found {row[1]}, {row[2]}; check whether rows are "
                "missing or out of order"
            )
            raise malformed(source, line.number, problem)


def read_predicates(
    source: str, block: list[NumberedLine], marks: Sequence[tuple[str, str | None]], columns: Sequence[Sequence[str]]
) -> tuple[Predicate, ...]:
    """The predicates of a sentence. ``marks``: lemma and roleset of each token, ``-`` for none (roleset None: the
    format has none); ``columns``: of each token the cells of star notation, one for each predicate. Raises CorpusError:
    with ``source`` and line."""
    for line, (lemma, roleset) in zip(block, marks, strict=True):
        if roleset is not None and (lemma == "-") != (roleset == "-"):
            problem = f"expected a lemma with a roleset or two dashes, found {lemma} and {roleset}; repair the row"
            raise malformed(source, line.number, problem)
    places = [place for place, (lemma, _) in enumerate(marks) if lemma != "-"]
    for line, cells in zip(block, columns, strict=True):
        if len(cells) != len(places):
            problem = (
                f"expected {len(places)} columns of arguments, one for each predicate of the sentence, "
                f"found {len(cells)}; check which column or predicate is extra"
            )
            raise malformed(source, line.number, problem)
    predicates = []
    for number, place in enumerate(places):
        with on_lines(source, block, f"arguments of predicate {number + 1} ({marks[place][0]})"):
            spans = spans_from_stars([cells[number] for cells in columns])
        predicates.append(Predicate(place, marks[place][1], spans, marks[place][0]))
    return tuple(predicates)
