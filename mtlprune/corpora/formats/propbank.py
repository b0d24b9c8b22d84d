"""Read PropBank skeletons (``*.gold_skel``), which contain trees and roles without words, and columns of predicates."""

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
    """A sentence of a skeleton file without its words; ``source`` and ``line`` name the place where it begins."""

    pos: tuple[str, ...]
    con: tuple[Span, ...]
    srl: tuple[Predicate, ...]
    source: str
    line: int

    def __len__(self) -> int:
        return len(self.pos)


def read_skeletons(path: Path) -> dict[str, list[Skeleton]]:
    """Read all skeletons of the English Web Treebank.

    Args:
        path: the folder ``data/google/ewt`` of propbank-release, or a folder above it.

    Returns:
        GENRE-DOCUMENT → the sentences of the document in order.

    Raises:
        CorpusError: there are no skeletons, or a file is malformed.
    """
    documents: dict[str, list[Skeleton]] = {}
    for file in sorted(path.resolve().rglob("*.gold_skel")):
        if match := _MEMBER.fullmatch(file.as_posix()):
            key = f"{match['genre']}-{match['document']}"
            documents[key] = list(parse_skeletons(file.read_bytes(), str(file), match[1]))
    if not documents:
        raise CorpusError(f"{path}: expected files data/google/ewt/GENRE/00/DOCUMENT.xml.gold_skel, found none")
    return documents


def parse_skeletons(data: bytes, source: str, document: str | None = None) -> Iterator[Skeleton]:
    """Yield the sentences of one skeleton file.

    Args:
        data: the content of the file.
        source: the name of the file in errors.
        document: the document that column 1 must name, if given.

    Raises:
        CorpusError: the file is malformed; the message names the line.
    """
    for index, block in enumerate(blocks(decode_lines(data, source))):
        yield parse_skeleton(block, source, index, document)


def parse_skeleton(block: list[NumberedLine], source: str, index: int, document: str | None = None) -> Skeleton:
    """Return sentence ``index`` (from 0) of a skeleton file, given its rows. Raises CorpusError if it is malformed."""
    rows = [cells_of(line.text) for line in block]
    _check_rows(source, block, rows, document or rows[0][0], index)
    with on_lines(source, block, "parse bits"):
        con = drop_root(spans_from_stars([row[5] for row in rows]), len(rows))
    srl = read_predicates(source, block, [(row[6], row[7]) for row in rows], [row[8:] for row in rows])
    tags = tuple(row[4] for row in rows)
    # The files withhold the words, but a sentence of placeholders lets Sentence check the spans (for overlaps, and
    # positions outside of the sentence).
    with on_lines(source, block):
        Sentence("skeleton", ("[WORD]",) * len(block), pos=tags, con=con, srl=srl).validate()
    return Skeleton(tags, con, srl, source, block[0].number)


def _check_rows(source: str, block: list[NumberedLine], rows: list[list[str]], document: str, index: int) -> None:
    for token, (line, row) in enumerate(zip(block, rows, strict=True)):
        if len(row) < len(_FIXED):
            problem = f"expected at least {len(_FIXED)} columns ({', '.join(_FIXED)}), found {len(row)}; repair the row"
            raise malformed(source, line.number, problem)
        if row[0] != document:
            raise malformed(source, line.number, f"expected the document {document}, found {row[0]}; split the file")
        if row[1:3] != [str(index), str(token)]:
            problem = (
                f"expected sentence {index}, token {token}, found {row[1]}, {row[2]}; check whether rows are "
                "missing or out of order"
            )
            raise malformed(source, line.number, problem)


def read_predicates(
    source: str, block: list[NumberedLine], marks: Sequence[tuple[str, str | None]], columns: Sequence[Sequence[str]]
) -> tuple[Predicate, ...]:
    """Return the predicates of a sentence from columns in star notation.

    Args:
        source, block: the name of the file and the lines of the sentence, for errors.
        marks: lemma and roleset of each word. The lemma of words that are not predicates is ``-``, and so is their
            roleset; the roleset is None if the format has no rolesets.
        columns: the cells of each word, one for each predicate of the sentence.

    Raises:
        CorpusError: lemmas, rolesets, columns and brackets do not fit together; the message names the line.
    """
    for line, (lemma, roleset) in zip(block, marks, strict=True):
        if roleset is not None and (lemma == "-") != (roleset == "-"):
            problem = f"expected a lemma with a roleset or two dashes, found {lemma} and {roleset}; repair the row"
            raise malformed(source, line.number, problem)
    indices = [token for token, (lemma, _) in enumerate(marks) if lemma != "-"]
    for line, cells in zip(block, columns, strict=True):
        if len(cells) != len(indices):
            problem = (
                f"expected {len(indices)} columns of arguments, one for each predicate of the sentence, "
                f"found {len(cells)}; check which column or predicate is extra"
            )
            raise malformed(source, line.number, problem)
    predicates = []
    for number, token in enumerate(indices):
        with on_lines(source, block, f"arguments of predicate {number + 1} ({marks[token][0]})"):
            spans = spans_from_stars([cells[number] for cells in columns])
        predicates.append(Predicate(token, marks[token][1], spans, marks[token][0]))
    return tuple(predicates)
