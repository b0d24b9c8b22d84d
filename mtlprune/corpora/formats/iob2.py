"""Flat typed spans as a tag a word, strictly read.

In IOB2 ``B-X`` opens a span, ``I-X`` continues it, ``O`` is outside. IOB1 opens with ``I-X`` unless a span of the same
type ends just before. BIOES and BILOU mark last words (E, L) and spans of one word (S, U) too.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import NumberedLine, WordError, blocks, malformed, on_lines, read_lines, sentence_id
from mtlprune.sentence import Sentence, Span

_OPENS = {"IOB1": "IB", "IOB2": "B", "BIOES": "BS", "BILOU": "BU"}
"""Scheme → the prefixes that may open a span."""
_CONTINUES = {"IOB1": "I", "IOB2": "I", "BIOES": "IE", "BILOU": "IL"}
_WHOLE = {"BIOES", "BILOU"}  # schemes that mark the last word of a span
Corrections = Mapping[tuple[str, int], str]


def scheme_of(rows: Iterable[Sequence[str]]) -> str:
    """IOB1, IOB2, BIOES or BILOU: the one that the tags of many sentences are written in; IOB2 where they do not say.

    E and S are of BIOES alone, L and U of BILOU; there every span has one of them, so a few among many B are mistakes.
    An I that continues no span is of IOB1, unless B stand where IOB1 writes I, more than a few: then the tags are meant
    as IOB2.
    """
    marks = Counter[str]()
    needless = opening = 0
    for row in rows:
        before = ""
        for tag in row:
            if tag[1:2] == "-":
                marks[tag[0]] += 1
                opening += tag[0] == "I" and tag[2:] != before
                needless += tag[0] == "B" and tag[2:] != before
            before = tag[2:]
    closed = {"BIOES": marks["E"] + marks["S"], "BILOU": marks["L"] + marks["U"]}
    if 2 * sum(closed.values()) >= max(1, marks["B"] + opening):
        return max(closed, key=lambda scheme: closed[scheme])
    return "IOB1" if opening > 9 * needless else "IOB2"


def spans_from_tags(tags: Sequence[str], scheme: str = "IOB2", repair: bool = False) -> tuple[Span, ...]:
    """Read one tag a word into spans.

    Args:
        repair: as conlleval reads it: what continues no span of its type opens one, what is not closed ends.

    Raises:
        WordError: a tag is not of the scheme, or continues or leaves open what it may not.
    """
    opens, continues = _OPENS[scheme], _CONTINUES[scheme]
    spans: list[Span] = []
    label, unfinished = "", False  # of the span that the next word may continue
    for place, tag in enumerate(tags):
        mark, kind = tag[:1], tag[2:]
        if tag != "O" and not (mark in opens + continues and tag[1:2] == "-" and kind and not set(kind) & set(" \t")):
            known = " or ".join(f"{prefix}-TYPE" for prefix in dict.fromkeys(opens + continues))
            raise WordError(place, f"expected an {scheme} tag (O, {known}), found {tag!r}; convert the tags")
        grows = mark in continues and bool(label) and kind == label
        if unfinished and not grows and not repair:
            wanted = " or ".join(f"{prefix}-{label}" for prefix in continues)
            raise WordError(place, f"expected {wanted}, found {tag}: the span of {label} before it is not closed")
        if mark in continues and mark not in opens and not grows and not repair:
            before = f"a span of {label}" if label else "no open span"
            what = f"{tag} continues {before}; in {scheme} a span opens with {opens[0]}-{kind}"
            raise WordError(place, f"{what}, so repair or convert the tags")
        if grows:
            spans[-1] = spans[-1]._replace(end=place + 1)
        elif tag != "O":
            spans.append(Span(place, place + 1, kind))
        ends = tag == "O" or mark in "ESLU"
        label, unfinished = "" if ends else kind, scheme in _WHOLE and not ends
    if unfinished and not repair:
        raise WordError(len(tags) - 1, f"the span of {label} is not closed at the end of the sentence; repair the tags")
    return tuple(spans)


def iob2_from_spans(spans: Sequence[Span], length: int) -> list[str]:
    """One tag a word for flat spans over ``length`` words."""
    tags = ["O"] * length
    for span in spans:
        tags[span.start : span.end] = [f"B-{span.label}"] + [f"I-{span.label}"] * (span.end - span.start - 1)
    return tags


def read_iob2(
    path: Path, *, as_outside: Collection[str] = (), corrections: Corrections | None = None
) -> Iterator[Sentence]:
    """Read sentences with ``ner`` from a file of Universal NER: number, word, IOB2 tag and any further columns between
    tabs.

    Args:
        path: the file.
        as_outside: labels to read as ``O``, after their tags have been checked.
        corrections: tags to put in the place of those in the file, by sentence id and word number (from 1).

    Raises:
        CorpusError: with file and line, for rows that are not such columns, and for corrections that fit no word.
    """
    path = Path(path)
    pending = dict(corrections or {})
    seen: dict[str, int] = {}
    for count, block in enumerate(blocks(read_lines(path)), 1):
        rows = [line for line in block if not line.text.startswith("#")]
        named = sentence_id(block) or f"{path.stem}-{count}"
        if not rows:
            raise malformed(path, block[0].number, "expected at least one word in the sentence, found none; remove it")
        if named in seen:
            what = f"the sent_id {named!r} was used at line {seen[named]} already; ids must be unique"
            raise malformed(path, block[0].number, what)
        seen[named] = block[0].number
        words, tags = zip(*(_columns(path, line, place) for place, line in enumerate(rows, 1)), strict=True)
        tags = tuple(pending.pop((named, place), tag) for place, tag in enumerate(tags, 1))
        with on_lines(path, rows):
            kept = tuple(span for span in spans_from_tags(tags) if span.label not in as_outside)
            sentence = Sentence(named, words, ner=kept).validate()
        yield sentence
    if pending:
        named, place = next(iter(pending))
        raise CorpusError(f"{path}: expected word {place} of sentence {named!r} for a correction, found none")


def _columns(path: Path, line: NumberedLine, place: int) -> tuple[str, str]:
    """Word and tag of one row."""
    number, *cells = line.text.split("\t")
    if len(cells) < 2:
        what = f"expected number, word and tag between tabs, found {line.text!r}; repair the row"
        raise malformed(path, line.number, what)
    if number != str(place):
        raise malformed(path, line.number, f"expected the word number {place}, found {number!r}; number the words anew")
    return cells[0], cells[1]
