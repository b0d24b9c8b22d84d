"""Convert bracket notations (star columns such as ``(NP*``, and Penn Treebank trees) to labelled spans, and back."""

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
    """Return the spans of one column of star notation, which has one cell per word, in pre-order.

    Raises formats.WordError if a cell is not star notation, or brackets are not balanced.
    """
    spans: list[tuple[int, int, str]] = []  # start, end, label in the order of opening
    still_open: list[int] = []
    for index, cell in enumerate(column):
        match = _STAR.fullmatch(cell)
        if not match:
            raise formats.WordError(index, f"expected brackets around one star, such as (NP* or *), found {cell!r}")
        for label in match[1].split("(")[1:]:
            still_open.append(len(spans))
            spans.append((index, -1, label))
        for _ in match[2]:
            if not still_open:
                raise formats.WordError(index, f"{cell!r} closes a bracket that was never opened; balance the brackets")
            opening = still_open.pop()
            start, _, label = spans[opening]
            spans[opening] = (start, index + 1, label)
    if still_open:
        start, _, label = spans[still_open[-1]]
        raise formats.WordError(start, f"the bracket ({label} opened here is never closed; balance the brackets")
    return tuple(Span(*span) for span in spans)


def stars_from_spans(spans: Sequence[Span], length: int) -> list[str]:
    """Return one cell of star notation per word; the inverse of :func:`spans_from_stars`.

    Longer spans open first. Of spans over the same words, the one that comes first in ``spans`` is the outer one.
    Raises CorpusError if two spans cross, because star notation cannot represent them (a closing bracket has no label),
    or if a label contains a bracket or a star.
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
    """Return the spans without an outermost TOP, ROOT or S1 that covers all ``length`` words."""
    if spans and spans[0].label in _ROOTS and (spans[0].start, spans[0].end) == (0, length):
        return tuple(spans[1:])
    return tuple(spans)


def outermost(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the outermost spans, and of equal spans the first. The spans must be in pre-order."""
    flat_spans: list[Span] = []
    for span in spans:
        if not flat_spans or span.start >= flat_spans[-1].end:
            flat_spans.append(span)
    return tuple(flat_spans)


def format_tree(sentence: Sentence) -> str:
    """Return a sentence as one line of Penn brackets under TOP. Raises CorpusError if the constituents are unknown.

    The pre-terminals are the tags of the sentence, or X if they are unknown. Round brackets inside words and tags
    become -LRB- and -RRB-, as in the Penn Treebank, and blanks inside words become ``_``. All other characters are
    unchanged, including backslashes. A label with a bracket also raises CorpusError.
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
    for index, word in enumerate(sentence.words):
        before = "".join(f"({label} " for label in opening[index])
        parts.append(f"{before}({_escape(tags[index])} {_escape(word)})" + ")" * closing[index])
    return f"(TOP {' '.join(parts)})"


def _escape(text: str) -> str:
    return "_".join(text.replace("(", "-LRB-").replace(")", "-RRB-").split())


# -- Penn Treebank trees over one or several lines. Libraries have such readers, but they treat a backslash as an
# escape, and lose a tree of EWT whose only token is a backslash. --


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
        line: the number of its line.
        span_index: the index of its span among the spans of the tree, in pre-order.
        begin: the number of words before it.
        label: its label, or None before the label is read.
        word: its word if it is a pre-terminal.
        filled: whether it contains other nodes.
    """

    line: int
    span_index: int
    begin: int
    label: str | None = None
    word: str | None = None
    filled: bool = False


def bare_label(label: str) -> str:
    """Return the category of a label, such as NP for NP-SBJ-1 or NP=2.

    The label is cut at the first hyphen or equals sign, unless it begins with one.
    """
    category = _CATEGORY.match(label)
    return category[0] if category else label


def unescaped(word: str) -> str:
    """Return the word of a leaf as in the text: a bracket for -LRB- etc., and / and * for ``\\/`` and ``\\*``."""
    return BRACKETS.get(word) or word.replace("\\/", "/").replace("\\*", "*")


def read_ptb(path: Path, skip: formats.Skip | None = None, unread_layers: Container[str] = ()) -> Iterator[Sentence]:
    """Read a file of trees in Penn brackets, such as ``(TOP ...)`` or ``( (S ...))``.

    Empty elements (-NONE-) are dropped, and so are nodes that become empty. Labels of constituents (not tags) are cut
    to their category. The words -LRB-, -RRB-, -LCB-, -RCB-, -LSB- and -RSB- become brackets, and ``\\/`` and ``\\*``
    within words become / and *. Any other backslash is kept.

    Args:
        path: a UTF-8 file. A byte order mark, CRLF and a missing last line break are accepted.
        skip: receives the error of a tree that cannot be read, which is then left out. The next tree begins at the next
            line with the bracket of a root (without a label, or TOP, ROOT or S1) in the first column, or with any
            bracket there if fewer than two lines begin with a root. If None, the error is raised.
        unread_layers: layers to leave out.

    Yields:
        sentences with words, pos and con. The id is the name of the file without its last suffix, a slash, and the
        number of the tree, from 1. A tree of only empty elements yields no sentence (a warning is logged, and its
        number is not reused).

    Raises:
        CorpusError: brackets are not balanced, there is text outside of trees, a leaf has no tag, or a node has no
            label or no content; the message names the line.
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
    """Yield the lines of a file in parts that begin at each line that matches ``begins``, without blank lines."""
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
    """Yield the first line, words, tags and brackets (in pre-order) of each tree, without brackets over no word.

    Raises:
        CorpusError: a tree is malformed.
    """
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
                spans[node.span_index] = Span(node.begin, len(words), bare_label(label))
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
    """Yield the number of the line and the text of each bracket, and of each text between brackets and blanks.

    Text that consists of other spaces alone counts as layout.
    """
    for line in lines:
        formats.check_text(path, [line])
        for token in _TOKEN.findall(line.text):
            if not token.isspace():
                yield line.number, token


def _add_text(path: Path, line: int, node: _Open, token: str) -> None:
    """Add a label or a word to the innermost open node.

    Raises:
        CorpusError: the node already has a word or other nodes.
    """
    if node.filled or node.word is not None:
        problem = f"found {token!r} as one more child of {node.label or 'a node without label'}"
        raise formats.malformed(path, line, f"expected (TAG word) around every word, {problem}")
    # The first token after a bracket is the label. It may contain a space other than a blank or a tab, such as a
    # no-break space. Labels contain no space of any kind, so the text after the space is the word.
    if node.label is None:
        node.label, token, *_ = (*token.split(maxsplit=1), "")
    node.word = token or None
