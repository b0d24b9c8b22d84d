"""Bracket notations: star columns (``(NP*``, ``*)``) and one-line trees, to and from labelled spans."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mtlprune.corpora import CorpusError
from mtlprune.sentence import Sentence, Span

_STAR = re.compile(r"((?:\([^()*\s]+)*)\*(\)*)")
ROOTS = frozenset({"TOP", "ROOT", "S1"})


class BracketError(CorpusError):
    """A column of star notation is malformed at the word ``place``, counted from 0."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(f"word {place}: {what}")
        self.place = place


def spans_from_stars(column: Sequence[str]) -> tuple[Span, ...]:
    """Read one column of star notation, one cell a word, into spans in pre-order.

    Raises:
        BracketError: a cell is not star notation, closes what is not open, or something stays open at the end.
    """
    found: list[tuple[int, int, str]] = []  # start, end, label in the order of opening
    still_open: list[int] = []
    for place, cell in enumerate(column):
        match = _STAR.fullmatch(cell)
        if not match:
            raise BracketError(place, f"expected brackets around one star, such as (NP* or *), found {cell!r}")
        for label in match[1].split("(")[1:]:
            still_open.append(len(found))
            found.append((place, -1, label))
        for _ in match[2]:
            if not still_open:
                raise BracketError(place, f"{cell!r} closes a bracket that was never opened; balance the brackets")
            opened = still_open.pop()
            start, _, label = found[opened]
            found[opened] = (start, place + 1, label)
    if still_open:
        start, _, label = found[still_open[-1]]
        raise BracketError(start, f"the bracket ({label} opened here is never closed; balance the brackets")
    return tuple(Span(*span) for span in found)


def stars_from_spans(spans: Sequence[Span], length: int) -> list[str]:
    """The inverse of :func:`spans_from_stars`: nested spans to one cell a word.

    Longer spans open first; of spans over the same words, the one that comes first in ``spans`` is the outer one.

    Raises:
        CorpusError: two spans cross, which star notation cannot say (a closing bracket has no label).
    """
    opening = [""] * length
    closing = [0] * length
    still_open: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        while still_open and still_open[-1].end <= span.start:
            still_open.pop()
        if still_open and span.end > still_open[-1].end:
            outer = still_open[-1]
            raise CorpusError(
                f"{outer.label} {outer.start}–{outer.end} and {span.label} {span.start}–{span.end} cross; expected "
                "nested or disjoint spans, because star notation cannot hold others; drop or shorten one of them"
            )
        if any(mark in span.label for mark in "()*"):
            raise CorpusError(f"the label {span.label!r} holds a bracket or star; rename it for star notation")
        still_open.append(span)
        opening[span.start] += f"({span.label}"
        closing[span.end - 1] += 1
    return [f"{before}*{')' * after}" for before, after in zip(opening, closing, strict=True)]


def drop_root(spans: Sequence[Span], length: int) -> tuple[Span, ...]:
    """Leave out an outermost TOP, ROOT or S1 that covers all ``length`` words."""
    if spans and spans[0].label in ROOTS and (spans[0].start, spans[0].end) == (0, length):
        return tuple(spans[1:])
    return tuple(spans)


def format_tree(sentence: Sentence, tags: Sequence[str] | None = None) -> str:
    """One line of Penn brackets under TOP; ``tags`` (default: the sentence's own, else X) are the pre-terminals.

    Round brackets inside words and tags are written -LRB- and -RRB-, as the Penn Treebank does, and blanks inside words
    as _; all else, backslashes too, stands as it is.

    Raises:
        CorpusError: the constituents are unknown, or a label holds a bracket.
    """
    if sentence.con is None:
        raise CorpusError(f"sentence {sentence.id!r} has no constituents to write (its con layer is unknown)")
    tags = tags or sentence.pos or ("X",) * len(sentence)
    opening: list[list[str]] = [[] for _ in sentence.words]
    closing = [0] * len(sentence)
    for span in sentence.con:
        if "(" in span.label or ")" in span.label:
            raise CorpusError(
                f"sentence {sentence.id!r}: the label {span.label!r} holds a bracket; rename it for trees"
            )
        opening[span.start].append(span.label)
        closing[span.end - 1] += 1
    parts = []
    for place, word in enumerate(sentence.words):
        before = "".join(f"({label} " for label in opening[place])
        parts.append(f"{before}({_escape(tags[place])} {_escape(word)})" + ")" * closing[place])
    return f"(TOP {' '.join(parts)})"


def _escape(text: str) -> str:
    return "_".join(text.replace("(", "-LRB-").replace(")", "-RRB-").split())
