"""What a terminal shows: text that cannot steer it, one sentence with all its layers, the answer to Ctrl-C."""

import signal
import threading
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mtlprune.corpora.formats.brackets import stars_from_spans
from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.errors import printable_lines
from mtlprune.layers import LAYERS, kind_of, tags_named
from mtlprune.sentence import Sentence, Span


class PlainConsole(Console):
    """As rich's, which lets escape sequences in text through."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable_lines(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)

    def print(self, *objects: Any, **options: Any) -> None:  # type: ignore[override]
        """As rich's; text is left to the terminal to wrap."""
        super().print(*objects, **{"soft_wrap": all(isinstance(shown, str) for shown in objects), **options})


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Ask it whether somebody wants training to stop; a second signal raises KeyboardInterrupt at once.

        with Interruption(terminal) as wanted:
            train(..., stop=wanted)

    Args:
        terminal: where the first signal is answered.
    """

    def __init__(self, terminal: Console) -> None:
        self.terminal = terminal
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be caught
            self._before = {number: signal.signal(number, self._answer) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self.terminal.print(f"{name}: stopping after this update; once more stops at once", soft_wrap=True)


_TITLES = {"spans": "Entities", "brackets": "Tree", "frames": "Roles"}
_TREE_WIDTH = 100  # a bracket that fits is one line


def print_sentence(console: Console, sentence: Sentence, split: str) -> None:
    """A table with a row a word, the tree, the entities and the roles; unknown layers are named as such."""
    console.print(Text(f"{sentence.id} ({split})", style="bold"), soft_wrap=True)
    console.print(Text(" ".join(sentence.words)), soft_wrap=True)
    console.print(_word_table(sentence))
    for name, declared in sentence.kinds().items():
        kind, value = kind_of(declared), sentence.get(name)
        if kind not in _TITLES or (not value and kind != "brackets"):
            continue
        console.print(Text(_TITLES[kind] if name in LAYERS else f"{_TITLES[kind]}: {name}", style="bold"))
        if kind == "spans":
            for span in value:
                console.print(Text(f"  {span.label}: {_text(sentence, span)}"), soft_wrap=True)
        elif kind == "brackets":
            lines = format_tree_lines(sentence, value, sentence.get(tags_named(declared) or ""))
            console.print(Text("\n".join(lines)), soft_wrap=True)
        for predicate in value if kind == "frames" else ():
            what = f"{predicate.roleset or predicate.lemma or '?'}"
            console.print(Text(f"  {sentence.words[predicate.index]} (word {predicate.index + 1}, {what})"))
            for span in predicate.arguments:
                console.print(Text(f"    {span.label}: {_text(sentence, span)}"), soft_wrap=True)
    unknown = [layer for layer in LAYERS if sentence.get(layer) is None]
    empty = [layer for layer in sentence.layers() if not sentence.get(layer)]
    for state, layers in (("unknown", unknown), ("nothing there", empty)):
        if layers:
            console.print(Text(f"{state}: {', '.join(layers)}"))


def _text(sentence: Sentence, span: Span) -> str:
    return " ".join(sentence.words[span.start : span.end])


def _word_table(sentence: Sentence) -> Table:
    columns: list[tuple[str, Sequence[str]]] = [("word", sentence.words)]
    for name, declared in sentence.kinds().items():
        kind, value, known = kind_of(declared), sentence.get(name), name in LAYERS
        if kind == "tags":
            columns.append(("tag" if known else name, value))
        elif kind == "spans":
            columns.append(("entity" if known else name, iob2_from_spans(value, len(sentence))))
        elif kind == "tree":
            titles = ("head", "relation") if known else (f"{name} head", name)
            columns += zip(titles, (list(map(str, value.heads)), value.relations), strict=True)
        for predicate in value if kind == "frames" else ():
            cells = stars_from_spans(predicate.arguments, len(sentence))
            columns.append((predicate.lemma or sentence.words[predicate.index], cells))
    table = Table()
    table.add_column("", justify="right")
    for title, _ in columns:
        table.add_column(Text(title), justify="right" if title.endswith("head") else "left")
    for place, row in enumerate(zip(*(cells for _, cells in columns), strict=True), 1):
        table.add_row(str(place), *map(Text, row))
    return table


def format_tree_lines(sentence: Sentence, brackets: Sequence[Span], tags: Sequence[str] | None) -> list[str]:
    """Indented brackets: what fits on a line stays on one."""
    leaves = [f"({tag} {word})" for tag, word in zip(tags or ("X",) * len(sentence), sentence.words, strict=True)]
    lines: list[str] = []

    def lay_out(spans: list[Span], start: int, end: int, depth: int) -> None:
        """The words start to end - 1 and the brackets among them, outermost first."""
        while start < end:
            if not spans or spans[0].start > start:
                lines.append("  " * depth + leaves[start])
                start += 1
                continue
            outer, rest = spans[0], spans[1:]
            inner = [span for span in rest if span.start < outer.end]  # in pre-order these come first
            spans = rest[len(inner) :]
            flat = _one_line(outer, inner, leaves)
            if len(flat) + 2 * depth <= _TREE_WIDTH:
                lines.append("  " * depth + flat)
            else:
                lines.append("  " * depth + f"({outer.label}")
                lay_out(inner, outer.start, outer.end, depth + 1)
                lines[-1] += ")"
            start = outer.end

    lay_out(list(brackets), 0, len(sentence), 1)
    return lines


def _one_line(outer: Span, inner: list[Span], leaves: list[str]) -> str:
    parts = leaves[outer.start : outer.end]
    for span in reversed([outer, *inner]):  # inner brackets first, so that outer ones come to stand around them
        first, last = span.start - outer.start, span.end - 1 - outer.start
        parts[first] = f"({span.label} {parts[first]}"
        parts[last] += ")"
    return " ".join(parts)
