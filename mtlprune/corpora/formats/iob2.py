"""IOB2 columns: flat typed spans, strictly read. ``B-X`` opens a span, ``I-X`` continues it, ``O`` is outside."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import NumberedLine, blocks, malformed, read_lines
from mtlprune.sentence import Sentence, SentenceError, Span

_TAG = re.compile(r"O|[BI]-\S+")
Corrections = Mapping[tuple[str, int], str]


def spans_from_iob2(tags: Sequence[str], as_outside: Collection[str] = ()) -> tuple[Span, ...]:
    """Read one tag a word into spans; spans with a label in ``as_outside`` are checked and then left out.

    Raises:
        CorpusError: a tag is not IOB2, or ``I-X`` does not continue a span of X.
    """
    spans: list[Span] = []
    open_label = None
    for place, tag in enumerate(tags):
        what = _tag_mistake(tag, open_label)
        if what:
            raise CorpusError(f"word {place}: {what}")
        if tag == "O":
            open_label = None
        elif tag[0] == "B":
            open_label = tag[2:]
            spans.append(Span(place, place + 1, open_label))
        else:
            spans[-1] = spans[-1]._replace(end=place + 1)
    return tuple(span for span in spans if span.label not in as_outside)


def iob2_from_spans(spans: Sequence[Span], length: int) -> list[str]:
    """One tag a word for flat spans over ``length`` words."""
    tags = ["O"] * length
    for span in spans:
        tags[span.start : span.end] = [f"B-{span.label}"] + [f"I-{span.label}"] * (span.end - span.start - 1)
    return tags


def _tag_mistake(tag: str, open_label: str | None) -> str | None:
    if not _TAG.fullmatch(tag):
        return f"expected an IOB2 tag (O, B-TYPE or I-TYPE), found {tag!r}; convert the tags"
    if tag[0] == "I" and tag[2:] != open_label:
        before = f"a span of {open_label}" if open_label else "no open span"
        return f"{tag} continues {before}; in IOB2 a span opens with B-{tag[2:]}, so repair or convert the tags"
    return None


def read_iob2(
    path: Path, *, as_outside: Collection[str] = (), corrections: Corrections | None = None
) -> Iterator[Sentence]:
    """Read sentences with ``ner``: either number, word, tag and any further columns between tabs (Universal NER), or
    word and tag between blanks (CoNLL).

    Args:
        path: the file.
        as_outside: labels to read as ``O``, after their tags have been checked. Without it ``B-O`` is an error: no
            entity is of type O, but the raw files of Universal NER hold such an artefact.
        corrections: tags to put in the place of those in the file, by sentence id and word number (from 1).

    Raises:
        CorpusError: with file and line, for rows that are not IOB2 columns, and for corrections that fit no word.
    """
    path = Path(path)
    pending = dict(corrections or {})
    seen: dict[str, int] = {}
    for count, block in enumerate(blocks(read_lines(path)), 1):
        rows = [line for line in block if not _is_comment(line.text)]
        sentence_id = _sentence_id(block) or f"{path.stem}-{count}"
        if not rows:
            raise malformed(path, block[0].number, "expected at least one word in the sentence, found none; remove it")
        if sentence_id in seen:
            what = f"the sent_id {sentence_id!r} was used at line {seen[sentence_id]} already; ids must be unique"
            raise malformed(path, block[0].number, what)
        seen[sentence_id] = block[0].number
        words, tags = zip(*(_columns(path, line, place) for place, line in enumerate(rows, 1)), strict=True)
        tags = tuple(pending.pop((sentence_id, place), tag) for place, tag in enumerate(tags, 1))
        _check_tags(path, rows, tags, as_outside)
        try:
            yield Sentence(sentence_id, words, ner=spans_from_iob2(tags, as_outside)).validate()
        except SentenceError as error:
            raise malformed(path, block[0].number, str(error)) from error
    if pending:
        sentence_id, place = next(iter(pending))
        raise CorpusError(f"{path}: expected word {place} of sentence {sentence_id!r} for a correction, found none")


def _is_comment(text: str) -> bool:
    """``#`` opens a comment, unless it is the word itself, as in the row ``# O``."""
    if not text.startswith("#"):
        return False
    cells = text.split()
    return "\t" in text or not (len(cells) == 2 and _TAG.fullmatch(cells[1]))


def _sentence_id(block: list[NumberedLine]) -> str | None:
    for line in block:
        match = re.fullmatch(r"#\s*sent_id\s*=\s*(\S.*?)\s*", line.text)
        if match:
            return match[1]
    return None


def _columns(path: Path, line: NumberedLine, place: int) -> tuple[str, str]:
    """Word and tag of one row."""
    if "\t" not in line.text:
        cells = line.text.split()
        if len(cells) != 2:
            what = f"expected a word and a tag between blanks (or number, word, tag between tabs), found {line.text!r}"
            raise malformed(path, line.number, what)
        return cells[0], cells[1]
    cells = line.text.split("\t")
    if len(cells) < 3:
        what = f"expected at least three columns (number, word, tag) between tabs, found {len(cells)}; repair the row"
        raise malformed(path, line.number, what)
    if cells[0] != str(place):
        raise malformed(
            path, line.number, f"expected the word number {place}, found {cells[0]!r}; number the words anew"
        )
    return cells[1], cells[2]


def _check_tags(path: Path, rows: list[NumberedLine], tags: Sequence[str], as_outside: Collection[str]) -> None:
    """Find mistakes here, where the line is known; the span reader knows only the place of the word."""
    open_label = None
    for line, tag in zip(rows, tags, strict=True):
        what = _tag_mistake(tag, open_label)
        if what is None and tag[2:] == "O" and "O" not in as_outside:
            what = (
                f"found {tag}, but no entity is of type O; raw files of Universal NER are read with as_outside={{'O'}}"
            )
        if what:
            raise malformed(path, line.number, what)
        open_label = None if tag == "O" else tag[2:]
