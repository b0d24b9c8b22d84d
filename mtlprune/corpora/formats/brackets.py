"""Bracket notations: star columns (``(NP*``, ``*)``) and one-line trees, to and from labelled spans."""

import logging
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtlprune.corpora import CorpusError, formats
from mtlprune.sentence import Sentence, Span

_STAR = re.compile(r"((?:\([^()*\s]+)*)\*(\)*)")
_ROOTS = frozenset({"TOP", "ROOT", "S1"})


def spans_from_stars(column: Sequence[str]) -> tuple[Span, ...]:
    """Read one column of star notation, one cell a word, into spans in pre-order. Raises formats.WordError: a cell is
    not star notation, closes what is not open, or something stays open at the end."""
    spans: list[tuple[int, int, str]] = []  # start, end, label in the order of opening
    still_open: list[int] = []
    for place, cell in enumerate(column):
        match = _STAR.fullmatch(cell)
        if not match:
            raise formats.WordError(place, f"expected brackets around one star, such as (NP* or *), found {cell!r}")
        for label in match[1].split("(")[1:]:
            still_open.append(len(spans))
            spans.append((place, -1, label))
        for _ in match[2]:
            if not still_open:
                raise formats.WordError(place, f"{cell!r} closes a bracket that was never opened; balance the brackets")
            opening = still_open.pop()
            start, _, label = spans[opening]
            spans[opening] = (start, place + 1, label)
    if still_open:
        start, _, label = spans[still_open[-1]]
        raise formats.WordError(start, f"the bracket ({label} opened here is never closed; balance the brackets")
    return tuple(Span(*span) for span in spans)


def stars_from_spans(spans: Sequence[Span], length: int) -> list[str]:
    """The inverse of :func:`spans_from_stars`: nested spans to one cell a word. Raises CorpusError: two spans cross,
    which star notation cannot say (a closing bracket has no label).

    Longer spans open first; of spans over the same words, the one that comes first in ``spans`` is the outer one.
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
                "nested or disjoint spans, because star notation cannot hold crossing spans; remove or shorten one of "
                "the two"
            )
        if any(mark in span.label for mark in "()*"):
            raise CorpusError(f"the label {span.label!r} holds a bracket or star; rename it for star notation")
        still_open.append(span)
        opening[span.start] += f"({span.label}"
        closing[span.end - 1] += 1
    return [f"{before}*{')' * after}" for before, after in zip(opening, closing, strict=True)]


def drop_root(spans: Sequence[Span], length: int) -> tuple[Span, ...]:
    """Leave out an outermost TOP, ROOT or S1 that covers all ``length`` words."""
    if spans and spans[0].label in _ROOTS and (spans[0].start, spans[0].end) == (0, length):
        return tuple(spans[1:])
    return tuple(spans)


def flat(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Leave out what lies in or on a span opened before it (brackets never cross)."""
    flat_spans: list[Span] = []
    for span in spans:
        if not flat_spans or span.start >= flat_spans[-1].end:
            flat_spans.append(span)
    return tuple(flat_spans)


def format_tree(sentence: Sentence) -> str:
    """One line of Penn brackets under TOP; the sentence's tags (X where they are unknown) are the pre-terminals. Raises
    CorpusError: the constituents are unknown, or a label holds a bracket.

    Round brackets inside words and tags are written -LRB- and -RRB-, as the Penn Treebank does, and blanks inside words
    as _; all else, backslashes too, stands as it is.
    """
    if sentence.con is None:
        raise CorpusError(
            f"sentence {sentence.id!r}: expected constituents, found an unknown con layer; leave the sentence out"
        )
    tags = sentence.pos or ("X",) * len(sentence)
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


# Penn Treebank brackets: trees over one or many lines to sentences with words, tags and constituents. The tokenizer is
# our own: a backslash in a leaf is a character like any other (EWT has a sentence whose one token is a backslash;
# readers that treat it as an escape lose that tree).


log = logging.getLogger(__name__)

EMPTY = "-NONE-"
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_TOKEN = re.compile(r"[()]|[^ \t()]+")
_BRACKET = re.compile(r"\(")
_ROOT = re.compile(rf"\(\s*(\(|({'|'.join(sorted(_ROOTS))})(?![^\s()])|$)")
_CATEGORY = re.compile(r"[^-=]+")


@dataclass(slots=True)
class _Open:
    """A bracket that is not closed yet.

    Attributes:
        place: of its span among those of the tree, in pre-order.
        begin: how many words stand before it.
        filled: holds other nodes; where ``word`` is set, it is a pre-terminal.
    """

    line: int
    place: int
    begin: int
    label: str | None = None
    word: str | None = None
    filled: bool = False


def bare_label(label: str) -> str:
    """The category alone: cut at the first hyphen or equals sign (NP-SBJ-1, NP=2), unless the label begins with one."""
    category = _CATEGORY.match(label)
    return category[0] if category else label


def unescaped(word: str) -> str:
    """The word of a leaf as the text has it: brackets for -LRB- and the like, / and * for ``\\/`` and ``\\*``."""
    return BRACKETS.get(word) or word.replace("\\/", "/").replace("\\*", "*")


def read_ptb(path: Path, skip: formats.Skip | None = None, unread_layers: Container[str] = ()) -> Iterator[Sentence]:
    """Read a file of Penn brackets, one tree after the other, ``(TOP ...)`` and ``( (S ...))`` alike. Empty elements
    (-NONE-) go, and the nodes left empty with them; of labels only the category stays (NP of NP-SBJ-1). The words
    -LRB-, -RRB-, -LCB-, -RCB-, -LSB-, -RSB- become the brackets, and ``\\/`` and ``\\*`` in words / and *; any other
    backslash is a character like others.

    Args:
        path: UTF-8; a byte order mark, CRLF and a missing last newline do no harm.
        skip: is told of a tree that cannot be read, which is then left out up to the next line that begins one: with
            the bracket of a root (without label, or TOP, ROOT, S1) in the first column, or with any bracket there if
            no two lines begin with a root; None has it raised.

    Yields:
        Sentences with words, pos and con. The id is the file's name without its last suffix, a slash and the tree's
        number, from 1. A tree of empty elements only yields nothing (a warning is logged; its number stays free).

    Raises:
        CorpusError: with file and line, at unbalanced brackets, text outside trees, a leaf without a tag, a node
            without a label or without content.
    """
    parts: Iterable[Iterable[formats.NumberedLine]] = [formats.read_lines(path)]
    if skip is not None:
        rooted = sum(1 for _ in _cut(path, _ROOT)) > 1
        parts = _cut(path, _ROOT if rooted else _BRACKET)
    number = 0
    for part in parts:
        with formats.skipping(skip):
            trees = _trees(path, part)
            for line, words, tags, spans in trees if skip is None else list(trees):
                number += 1
                if not words:
                    log.warning("%s, line %d: the tree has only empty elements and was left out", path, line)
                    continue
                con = drop_root(spans, len(words))
                words = list(map(unescaped, words))
                layers = {
                    layer: value for layer, value in (("pos", tuple(tags)), ("con", con)) if layer not in unread_layers
                }
                with formats.on_lines(path, [(line, None)]):
                    yield Sentence(f"{path.stem}/{number}", tuple(words)).with_layers(**layers).validate()


def _cut(path: Path, begins: re.Pattern[str]) -> Iterator[list[formats.NumberedLine]]:
    """The lines of a file from each one that ``begins`` so to the next, blank ones left out."""
    part: list[formats.NumberedLine] = []
    for line in formats.read_lines(path, lambda error: None):
        if part and begins.match(line.text):
            yield part
            part = []
        if line.text and not line.text.isspace():
            part.append(line)
    if part:
        yield part


def _trees(path: Path, lines: Iterable[formats.NumberedLine]) -> Iterator[tuple[int, list[str], list[str], list[Span]]]:
    """First line, words, tags and brackets (in pre-order) of each tree, in order; brackets that cover no word go."""
    stack: list[_Open] = []
    words, tags, spans = list[str](), list[str](), list[Span | None]()
    for line, token in _tokens(path, lines):
        if token == "(":
            if stack and stack[-1].word is not None:
                problem = f"a bracket follows the word {stack[-1].word!r} inside {stack[-1].label}"
                raise formats.malformed(
                    path, line, f"{problem}; expected a node to hold either one word or other nodes"
                )
            if stack:
                stack[-1].filled = True
            stack.append(_Open(line, len(spans), len(words)))
            spans.append(None)
        elif not stack:
            advice = "there is an extra ) before it" if token == ")" else "remove text outside trees"
            raise formats.malformed(path, line, f"expected the ( that opens a tree, found {token!r}; {advice}")
        elif token != ")":
            _add_text(path, line, stack[-1], token)
        else:
            node = stack.pop()
            if node.word is None and not node.filled:
                raise formats.malformed(path, line, f"({node.label or ''}) holds neither a word nor other nodes")
            if node.label is None and stack:
                problem = f"found a node without label in the tree that begins on line {stack[0].line}; close that"
                raise formats.malformed(
                    path, node.line, f"{problem} tree before it, or give it a label: only a root may lack one"
                )
            label = node.label or "TOP"
            if node.word is None and len(words) > node.begin:
                spans[node.place] = Span(node.begin, len(words), bare_label(label))
            if node.word is not None and label != EMPTY:
                words.append(node.word)
                tags.append(label)
            if not stack:
                yield node.line, words, tags, [span for span in spans if span is not None]
                words, tags, spans = [], [], []
    if stack:
        problem = f"the tree that begins here is not closed; expected {len(stack)} more )"
        raise formats.malformed(path, stack[0].line, problem)


def _tokens(path: Path, lines: Iterable[formats.NumberedLine]) -> Iterator[tuple[int, str]]:
    """Brackets and what stands between them; of spaces other than blanks and tabs, those alone are layout, too."""
    for line in lines:
        formats.check_text(path, [line])
        for token in _TOKEN.findall(line.text):
            if not token.isspace():
                yield line.number, token


def _add_text(path: Path, line: int, node: _Open, token: str) -> None:
    if node.filled or node.word is not None:
        problem = f"found {token!r} as one more child of {node.label or 'a node without label'}"
        raise formats.malformed(path, line, f"expected (TAG word) around every word, {problem}")
    # Labels hold no space of any kind, so the first token behind the bracket is the whole label.
    if node.label is None:
        node.label, token, *_ = (*token.split(maxsplit=1), "")
    node.word = token or None
