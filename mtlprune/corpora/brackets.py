"""Bracket notations: star columns (``(NP*``, ``*)``) and one-line trees, to and from labelled spans."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mtlprune.corpora import CorpusError
from mtlprune.sentence import Sentence, Span

_STAR = re.compile(r"((?:\([^()*\s]+)*)\*(\)*)")
ROOTS = frozenset({"TOP", "ROOT", "S1"})


def spans_from_stars(column: Sequence[str]) -> tuple[Span, ...]:
    """Read one column of star notation, one cell a word, into spans in pre-order.

    Raises:
        CorpusError: a cell is not star notation, closes what is not open, or something stays open at the end.
    """
    found: list[tuple[int, int, str]] = []  # start, end, label in the order of opening
    still_open: list[int] = []
    for place, cell in enumerate(column):
        match = _STAR.fullmatch(cell)
        if not match:
            raise CorpusError(f"word {place}: expected brackets around one star, such as (NP* or *), found {cell!r}")
        for label in match[1].split("(")[1:]:
            still_open.append(len(found))
            found.append((place, -1, label))
        for _ in match[2]:
            if not still_open:
                raise CorpusError(f"word {place}: {cell!r} closes a bracket that was never opened")
            opened = still_open.pop()
            start, _, label = found[opened]
            found[opened] = (start, place + 1, label)
    if still_open:
        start, _, label = found[still_open[-1]]
        raise CorpusError(f"the bracket ({label} opened at word {start} is never closed")
    return tuple(Span(*span) for span in found)


def drop_root(spans: Sequence[Span], length: int) -> tuple[Span, ...]:
    """Leave out an outermost TOP, ROOT or S1 that covers all ``length`` words."""
    if spans and spans[0].label in ROOTS and (spans[0].start, spans[0].end) == (0, length):
        return tuple(spans[1:])
    return tuple(spans)


def format_tree(sentence: Sentence, tags: Sequence[str] | None = None) -> str:
    """One line of Penn brackets under TOP; ``tags`` (default: the sentence's own, else X) are the pre-terminals.

    Round brackets inside words and tags are written -LRB- and -RRB-, as the Penn Treebank does.
    """
    if sentence.con is None:
        raise CorpusError(f"sentence {sentence.id!r} has no constituents to write (its con layer is unknown)")
    tags = tags or sentence.pos or ("X",) * len(sentence)
    opening: list[list[str]] = [[] for _ in sentence.words]
    closing = [0] * len(sentence)
    for span in sentence.con:
        opening[span.start].append(span.label)
        closing[span.end - 1] += 1
    parts = []
    for place, word in enumerate(sentence.words):
        before = "".join(f"({label} " for label in opening[place])
        parts.append(f"{before}({_escape(tags[place])} {_escape(word)})" + ")" * closing[place])
    return f"(TOP {' '.join(parts)})"


def _escape(text: str) -> str:
    return text.replace("(", "-LRB-").replace(")", "-RRB-").replace(" ", "_")
