"""Flat typed spans as a tag a word, strictly read.

In IOB2 ``B-X`` opens a span, ``I-X`` continues it, ``O`` is outside. IOB1 opens with ``I-X`` unless a span of the same
type ends just before. IOE2 ends each span with ``E-X``, IOE1 one that another of the same type follows. BIOES and BILOU
mark first and last words (E, L) and spans of one word (S, U); BMES writes M for BIOES' I. IO has labels alone, ``X``.
Other spellings of these tags become this one first.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mtlprune.corpora.formats import WordError
from mtlprune.sentence import Span

_OPENS = {
    "IO": "I", "IOB1": "IB", "IOB2": "B", "IOE1": "IE", "IOE2": "IE", "BIOES": "BS", "BMES": "BS", "BILOU": "BU",
}  # fmt: skip
"""Scheme → the prefixes that may open a span."""
_CONTINUES = {
    "IO": "I", "IOB1": "I", "IOB2": "I", "IOE1": "IE", "IOE2": "IE", "BIOES": "IE", "BMES": "ME", "BILOU": "IL",
}  # fmt: skip
_MARK_LAST_WORD = {"IOE2", "BIOES", "BMES", "BILOU"}  # schemes that mark the last word of a span
_PREFIXES = "BIELSUM"
_ONE_TYPE = "ENTITY"
"""The type of spans whose tags name none."""
_SPELLINGS = {
    "PREFIX-TYPE": re.compile(f"(?P<prefix>[{_PREFIXES}])-(?P<type>.+)"),
    "PREFIX": re.compile(f"(?P<prefix>[{_PREFIXES}])(?P<type>)", re.I),
    "prefix_type": re.compile(f"(?P<prefix>[{_PREFIXES}])[-_](?P<type>.+)", re.I),
    "TYPE-PREFIX": re.compile(f"(?P<type>.+)[-_](?P<prefix>[{_PREFIXES}])"),
    "TYPE": re.compile("(?P<prefix>)(?P<type>.*)"),
}
"""Ways to write a tag of a span. A tag is of the first that it fits."""


def respelled(counts: Mapping[str, int]) -> tuple[dict[str, str], str]:
    """Return the tags that are not spelled PREFIX-TYPE and O, each with the tag that they stand for; and what was
    assumed, in words. ``counts``: of all tags of a column.

    Most tags decide, and at least one must begin or continue a span (B or I), since labels of IO may look alike
    (``e-mail``). O, o and 0 are outside of spans; in a column without any of them, - and _ are.
    """
    outside_tags = {"O", "o", "0"} & counts.keys() or {"-", "_"} & counts.keys()
    forms: dict[str, Counter[str]] = {spelling: Counter() for spelling in _SPELLINGS}
    for tag in counts.keys() - outside_tags:
        forms[next(name for name, pattern in _SPELLINGS.items() if pattern.fullmatch(tag))][tag] = counts[tag]
    spelling = max(forms, key=lambda name: forms[name].total())
    parts = {tag: match for tag in forms[spelling] if (match := _SPELLINGS[spelling].fullmatch(tag))}
    tags = {tag: f"{match['prefix'].upper()}-{match['type'] or _ONE_TYPE}" for tag, match in parts.items()}
    if not any(tag[0] in "BI" for tag in tags.values()) or spelling == "PREFIX-TYPE":
        tags = {}
    notes = [f"{', '.join(sorted(outside_tags - {'O'}))} is read as O"] if outside_tags - {"O"} else []
    if spelling == "PREFIX" and tags:
        notes.append(f"{', '.join(sorted(tags))} name no type, so all spans get the type {_ONE_TYPE}")
    elif tags:
        notes.append(f"{min(tags)} is read as {tags[min(tags)]}")
    return tags | dict.fromkeys(outside_tags - {"O"}, "O"), "; ".join(notes)


def scheme_of(rows: Iterable[Sequence[str]]) -> str:
    """IO, IOB1, IOB2, IOE1, IOE2, BIOES, BMES or BILOU: the one that the tags of many sentences are written in.

    A few tags may be mistakes, so the majority counts:

    * Most tags but O are labels without prefix, and O occurs: IO.
    * E and S (or L and U) are at least half as many as openings by B or I, as in schemes that mark last words: BILOU
      with L and U; IOE2 without B and S; BMES where M are more than I; else BIOES.
    * E without B and S, fewer, and most before a tag of the same type: IOE1.
    * I that continue no span, nine times as many as B where IOB1 writes I: IOB1. All else: IOB2.

    Tags of I and O alone could be of IO, IOB1 or IOE1, in all of which neighbours of one type are one span.
    """
    marks = Counter[str]()
    needless = opening = plain = outside_count = before_same = last_inside = 0
    for row in rows:
        before = ""
        for tag, after in zip(row, [*row[1:], ""], strict=True):
            if tag[1:2] == "-" and tag[0] in _PREFIXES:
                marks[tag[0]] += 1
                opening += tag[0] in "IM" and tag[2:] != before
                needless += tag[0] == "B" and tag[2:] != before
                continued = after[:1] in "IE" and after[1:] == tag[1:]
                before_same += tag[0] == "E" and continued
                last_inside += tag[0] == "I" and not continued
            outside_count += tag == "O"
            plain += _is_label(tag)
            before = tag[2:]
    if outside_count and plain > marks.total():
        return "IO"
    ended = marks["E"] and 2 * (marks["B"] + marks["S"]) < marks["E"]
    closed = {"BIOES": marks["E"] + marks["S"], "BILOU": marks["L"] + marks["U"]}
    if 2 * sum(closed.values()) >= max(1, marks["B"] + opening):
        scheme = max(closed, key=lambda scheme: closed[scheme])
        if scheme == "BIOES" and ended:
            return "IOE1" if last_inside > marks["E"] - before_same else "IOE2"
        return "BMES" if scheme == "BIOES" and marks["M"] > marks["I"] else scheme
    if ended and 2 * before_same > marks["E"]:
        return "IOE1"
    return "IOB1" if opening > 9 * needless else "IOB2"


def _is_label(tag: str) -> bool:
    """True where a tag is a label alone, as in IO: not O, without a prefix, with a letter."""
    return tag != "O" and not (tag[1:2] == "-" and tag[0] in _PREFIXES) and any(map(str.isalpha, tag))


def spans_from_tags(tags: Sequence[str], scheme: str = "IOB2", repair: bool = False) -> tuple[Span, ...]:
    """Read one tag a word into spans. ``repair``: as conlleval reads it: what continues no span of its type opens one,
    what is not closed ends. Raises WordError: a tag is not of the scheme, or continues or leaves open what it may
    not."""
    opens, continues = _OPENS[scheme], _CONTINUES[scheme]
    spans: list[Span] = []
    # The label of the span that the next word may continue, and whether the scheme still owes its last word.
    label, unfinished = "", False
    for place, tag in enumerate(tags):
        mark, kind = tag[:1], tag[2:]
        if scheme == "IO" and _is_label(tag):
            mark, kind = "I", tag
        elif scheme == "IO" and tag != "O":
            problem = f"expected a label or O, as most tags are without prefix (IO), found {tag!r}"
            raise WordError(place, f"{problem}; convert the tags")
        elif tag != "O" and not (mark in opens + continues and tag[1:2] == "-" and kind and not set(kind) & set(" \t")):
            prefixed = " or ".join(f"{prefix}-TYPE" for prefix in dict.fromkeys(opens + continues))
            raise WordError(place, f"expected a tag of {scheme} (O, {prefixed}), found {tag!r}; convert the tags")
        grows = mark in continues and bool(label) and kind == label
        if unfinished and not grows and not repair:
            continuations = " or ".join(f"{prefix}-{label}" for prefix in continues)
            raise WordError(
                place, f"expected {continuations}, found {tag}: the span of {label} before it is not closed"
            )
        if mark in continues and mark not in opens and not grows and not repair:
            before = f"a span of {label}" if label else "no open span"
            problem = f"{tag} continues {before}; in {scheme} a span opens with {opens[0]}-{kind}"
            raise WordError(place, f"{problem}; repair or convert the tags")
        if grows:
            spans[-1] = spans[-1]._replace(end=place + 1)
        elif tag != "O":
            spans.append(Span(place, place + 1, kind))
        ends = tag == "O" or mark in "ESLU"
        label, unfinished = "" if ends else kind, scheme in _MARK_LAST_WORD and not ends
    if unfinished and not repair:
        raise WordError(len(tags) - 1, f"the span of {label} is not closed at the end of the sentence; repair the tags")
    return tuple(spans)


def iob2_from_spans(spans: Sequence[Span], length: int) -> list[str]:
    """One tag a word for flat spans over ``length`` words."""
    tags = ["O"] * length
    for span in spans:
        tags[span.start : span.end] = [f"B-{span.label}"] + [f"I-{span.label}"] * (span.end - span.start - 1)
    return tags
