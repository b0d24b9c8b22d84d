"""Convert tags of words, such as B-PER, to flat labelled spans, and back.

scheme       tags of a span of type X
IOB2         B-X opens a span, and I-X continues it
IOB1         I-X opens a span, but B-X does if a span of the same type ends just before
IOE2         E-X marks the last word, and I-X all others
IOE1         I-X marks all words, but E-X the last word if a span of the same type follows immediately
BIOES        B-X, I-X ... E-X, or S-X for a span of one word
BILOU        B-X, I-X ... L-X, or U-X for a span of one word
BMES         BIOES with M-X instead of I-X
IO           X on every word

O marks words outside of spans. Tags in other spellings are first converted to this spelling.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mtlprune.corpora.formats import WordError
from mtlprune.sentence import Span

_OPENS = {
    "IO": "I", "IOB1": "IB", "IOB2": "B", "IOE1": "IE", "IOE2": "IE", "BIOES": "BS", "BMES": "BS", "BILOU": "BU",
}  # fmt: skip
"""Scheme → prefixes that may open a span."""
_CONTINUES = {
    "IO": "I", "IOB1": "I", "IOB2": "I", "IOE1": "IE", "IOE2": "IE", "BIOES": "IE", "BMES": "ME", "BILOU": "IL",
}  # fmt: skip
"""Scheme → prefixes that may continue a span."""
_MARK_LAST_WORD = {"IOE2", "BIOES", "BMES", "BILOU"}  # schemes that mark the last word of a span
_PREFIXES = "BIELSUM"
_ONE_TYPE = "ENTITY"
"""The type of all spans if the tags contain no types."""
_SPELLINGS = {
    "PREFIX-TYPE": re.compile(f"(?P<prefix>[{_PREFIXES}])-(?P<type>.+)"),
    "PREFIX": re.compile(f"(?P<prefix>[{_PREFIXES}])(?P<type>)", re.I),
    "prefix_type": re.compile(f"(?P<prefix>[{_PREFIXES}])[-_](?P<type>.+)", re.I),
    "TYPE-PREFIX": re.compile(f"(?P<type>.+)[-_](?P<prefix>[{_PREFIXES}])"),
    "TYPE": re.compile("(?P<prefix>)(?P<type>.*)"),
}
"""Spelling of a tag → pattern. A tag has the first spelling that matches."""


def standard_spelling(counts: Mapping[str, int]) -> tuple[dict[str, str], str]:
    """Return the standard spelling of tags that are not spelled PREFIX-TYPE or O.

    The majority decides which spelling a column has. At least one tag in this spelling must have the prefix B or I,
    because labels of the scheme IO can look like tags with a prefix (``e-mail``). O, o and 0 mark words outside of
    spans; in a column without these tags, - and _ do.

    Args:
        counts: tag → frequency in the column.

    Returns:
        tag → standard spelling, for the tags that change; and a note for the user about these changes.
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
    """Return the scheme of the tags of many sentences: IO, IOB1, IOB2, IOE1, IOE2, BIOES, BMES or BILOU.

    A few tags may be wrong, so majorities decide, in this order:

    * IO: most tags other than O are labels without a prefix, and O occurs.
    * BIOES, BMES, BILOU, IOE2 (sometimes IOE1): E, S, L and U are together at least half as frequent as words that open
      a span with B, I or M. The scheme is BILOU if L and U are the more frequent pair. Otherwise, if B and S together
      are less than half as frequent as E, it is IOE2, or IOE1 if more spans end with I than with an E that no I or E of
      the same type follows. Otherwise it is BMES if M is more frequent than I, and else BIOES.
    * IOE1: B and S together are less than half as frequent as E, and most E come before an I or E of the same type.
    * IOB1: an I that continues no span is more than nine times as frequent as a B that IOB1 would write as I.
    * IOB2: all other cases.

    If all tags are I or O, the spans are the same in IO, IOB1 and IOE1: neighbouring words with the same type form one
    span.
    """
    marks = Counter[str]()
    # Numbers of: B that IOB1 would write as I; I and M that continue no span; labels without a prefix; O; E before an I
    # or E of the same type; I at the end of a span.
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
    """Return True if a tag is a label without a prefix, as in IO. O and tags without a letter are not labels."""
    return tag != "O" and not (tag[1:2] == "-" and tag[0] in _PREFIXES) and any(map(str.isalpha, tag))


def spans_from_tags(tags: Sequence[str], scheme: str = "IOB2", repair: bool = False) -> tuple[Span, ...]:
    """Return the spans that the tags of one sentence encode.

    Args:
        tags: one tag per word.
        repair: read tags like conlleval: a tag that continues no span of its type opens one, and a span whose last word
            is not marked ends nevertheless.

    Raises:
        WordError: a tag does not belong to the scheme, continues no span, or leaves a span without its last word.
    """
    opens, continues = _OPENS[scheme], _CONTINUES[scheme]
    spans: list[Span] = []
    # The label of the span that the next word may continue, and whether the scheme requires the mark of its last word.
    label, unfinished = "", False
    for index, tag in enumerate(tags):
        mark, kind = tag[:1], tag[2:]
        if scheme == "IO" and _is_label(tag):
            mark, kind = "I", tag
        elif scheme == "IO" and tag != "O":
            problem = f"expected a label or O, as most tags are without prefix (IO), found {tag!r}"
            raise WordError(index, f"{problem}; convert the tags")
        elif tag != "O" and not (mark in opens + continues and tag[1:2] == "-" and kind and not set(kind) & set(" \t")):
            prefixed = " or ".join(f"{prefix}-TYPE" for prefix in dict.fromkeys(opens + continues))
            raise WordError(index, f"expected a tag of {scheme} (O, {prefixed}), found {tag!r}; convert the tags")
        grows = mark in continues and bool(label) and kind == label
        if unfinished and not grows and not repair:
            continuations = " or ".join(f"{prefix}-{label}" for prefix in continues)
            raise WordError(
                index, f"expected {continuations}, found {tag}: the span of {label} before it is not closed"
            )
        if mark in continues and mark not in opens and not grows and not repair:
            before = f"a span of {label}" if label else "no open span"
            problem = f"{tag} continues {before}; in {scheme} a span opens with {opens[0]}-{kind}"
            raise WordError(index, f"{problem}; repair or convert the tags")
        if grows:
            spans[-1] = spans[-1]._replace(end=index + 1)
        elif tag != "O":
            spans.append(Span(index, index + 1, kind))
        ends = tag == "O" or mark in "ESLU"
        label, unfinished = "" if ends else kind, scheme in _MARK_LAST_WORD and not ends
    if unfinished and not repair:
        raise WordError(len(tags) - 1, f"the span of {label} is not closed at the end of the sentence; repair the tags")
    return tuple(spans)


def iob2_from_spans(spans: Sequence[Span], length: int) -> list[str]:
    """Return the IOB2 tags of ``length`` words from flat spans."""
    tags = ["O"] * length
    for span in spans:
        tags[span.start : span.end] = [f"B-{span.label}"] + [f"I-{span.label}"] * (span.end - span.start - 1)
    return tags
