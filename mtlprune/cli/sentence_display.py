"""One sentence with all its layers, for eyes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtlprune.corpora.formats.brackets import stars_from_spans
from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.sentence import LAYERS, Sentence, Span

_TREE_WIDTH = 100  # a bracket that fits is one line


def print_sentence(console: Console, sentence: Sentence, split: str) -> None:
    """A table with a row a word, the tree, the entities and the roles; unknown layers are named as such."""
    console.print(Text(f"{sentence.id} ({split})", style="bold"), soft_wrap=True)
    console.print(Text(" ".join(sentence.words)), soft_wrap=True)
    console.print(_word_table(sentence))
    if sentence.ner:
        console.print(Text("Entities", style="bold"))
        for span in sentence.ner:
            console.print(Text(f"  {span.label}: {_text(sentence, span)}"), soft_wrap=True)
    if sentence.con is not None:
        console.print(Text("Tree", style="bold"))
        console.print(Text("\n".join(format_tree_lines(sentence))), soft_wrap=True)
    if sentence.srl:
        console.print(Text("Roles", style="bold"))
        for predicate in sentence.srl:
            name = f"{predicate.roleset or predicate.lemma or '?'}"
            console.print(Text(f"  {sentence.words[predicate.index]} (word {predicate.index + 1}, {name})"))
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
    table = Table()
    table.add_column("", justify="right")
    columns: list[list[str]] = [[str(place) for place in range(1, len(sentence) + 1)], list(sentence.words)]
    table.add_column("word")
    if sentence.pos is not None:
        table.add_column("tag")
        columns.append(list(sentence.pos))
    if sentence.ner is not None:
        table.add_column("entity")
        columns.append(iob2_from_spans(sentence.ner, len(sentence)))
    if sentence.dep is not None:
        table.add_column("head", justify="right")
        table.add_column("relation")
        columns += [[str(head) for head in sentence.dep.heads], list(sentence.dep.relations)]
    for predicate in sentence.srl or ():
        table.add_column(Text(predicate.lemma or sentence.words[predicate.index]))
        columns.append(stars_from_spans(predicate.arguments, len(sentence)))
    for row in zip(*columns, strict=True):
        table.add_row(*map(Text, row))
    return table


def format_tree_lines(sentence: Sentence) -> list[str]:
    """Indented brackets: what fits on a line stays on one."""
    leaves = [
        f"({tag} {word})" for tag, word in zip(sentence.pos or ("X",) * len(sentence), sentence.words, strict=True)
    ]
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

    lay_out(list(sentence.con or ()), 0, len(sentence), 1)
    return lines


def _one_line(outer: Span, inner: list[Span], leaves: list[str]) -> str:
    parts = leaves[outer.start : outer.end]
    for span in reversed([outer, *inner]):  # inner brackets first, so that outer ones come to stand around them
        first, last = span.start - outer.start, span.end - 1 - outer.start
        parts[first] = f"({span.label} {parts[first]}"
        parts[last] += ")"
    return " ".join(parts)
