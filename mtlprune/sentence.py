"""Sentence: the only currency. Words and layers, for gold and predictions alike.

A layer that is ``None`` is *unknown*; an empty layer means *nothing there*. Word indices count from 0; spans are
half-open, ``[start, end)``. This file imports nothing of ours but the kinds of layers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from mtlprune.errors import MtlpruneError
from mtlprune.layers import KINDS, LAYERS, Layer, LayerError, check_layer, kind_of
from mtlprune.layers import Dependencies as Dependencies
from mtlprune.layers import Predicate as Predicate
from mtlprune.layers import Span as Span

NOT_ARGUMENTS = frozenset({"V", "C-V"})
"""Labels that mark the predicate itself; no task predicts them and no score counts them."""


class SentenceError(MtlpruneError):
    """A sentence contradicts itself; the message names the sentence, the layer and what is wrong."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words of a sentence with layers of annotation.

    Args:
        id: unique within a corpus.
        words: at least one, none empty, none with a tab or a line break.
        pos: one tag a word.
        ner: flat typed spans, in order of their start.
        dep: heads and relations, a tree.
        con: labelled brackets in pre-order (outermost first; of a unary chain the upper label first), without the TOP
            node and without part-of-speech tags.
        srl: predicates in order of their index, each index once.
        further: other layers that are known, by name; :meth:`with_layers` keeps them in order.
        split: of a pair of texts, how many words the first text has; None of one text.
        source: the lines of CoNLL-U that it was read from, whose other columns and comments are written again; no part
            of what is compared.
    """

    id: str
    words: tuple[str, ...]
    pos: tuple[str, ...] | None = None
    ner: tuple[Span, ...] | None = None
    dep: Dependencies | None = None
    con: tuple[Span, ...] | None = None
    srl: tuple[Predicate, ...] | None = None
    further: tuple[tuple[str, Layer], ...] = ()
    split: int | None = None
    source: str = field(default="", compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        text = " ".join(self.words)
        short = text if len(text) <= 60 else text[:59] + "…"
        return f"Sentence({', '.join([repr(self.id), repr(short), *self.layers()])})"

    def _repr_html_(self) -> str:
        """A table for notebooks: a row a word, a column for each layer that is known."""
        kinds = self.kinds()
        columns = [KINDS[kind_of(kind)].cells(self.get(name), self.words) for name, kind in kinds.items()]
        rows = [("", *kinds), *zip(self.words, *columns, strict=True)]
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def get(self, name: str) -> Any:
        """The layer of this name, or None if it is unknown."""
        if name in LAYERS:
            return getattr(self, name)
        return next((layer.value for key, layer in self.further if key == name), None)

    def kind(self, name: str) -> str | None:
        """The kind of the layer of any name; None where it is unknown."""
        return self.kinds().get(name)

    def kinds(self) -> dict[str, str]:
        """The names and kinds of the known layers, first the five in their order, then others by name."""
        five = {name: kind for name, kind in LAYERS.items() if getattr(self, name) is not None}
        return five | {name: layer.kind for name, layer in self.further}

    def layers(self) -> tuple[str, ...]:
        """The names of the layers that are known."""
        return tuple(self.kinds())

    def bare(self) -> "Sentence":
        """A copy of the sentence without any layer."""
        return Sentence(self.id, self.words, split=self.split, source=self.source)

    def with_layers(self, **layers: Any) -> "Sentence":
        """A copy with some layers replaced: by values, or (layers other than the five) by a ``Layer(kind, value)``.

        None, as a layer or as its value, makes it unknown.
        """
        values = {name: layer.value if isinstance(layer, Layer) else layer for name, layer in layers.items()}
        five = {name: value for name, value in values.items() if name in LAYERS}
        if len(five) == len(layers):
            return replace(self, **five)
        further_layers = {**dict(self.further), **{name: layer for name, layer in layers.items() if name not in LAYERS}}
        present_layers = sorted(
            (name, layer) for name, layer in further_layers.items() if values.get(name, layer) is not None
        )
        return replace(self, **five, further=tuple(present_layers))

    def validate(self) -> "Sentence":
        """Return the sentence, or raise SentenceError with a message that describes the mistake."""
        _check_words(self)
        names = [name for name, _ in self.further]
        if names != sorted(set(names)):
            raise SentenceError(f"sentence {self.id!r}: expected further layers in order of their names, found {names}")
        for name, layer in self.further:
            if not isinstance(layer, Layer) or name in LAYERS:
                raise _wrong(self, name, "expected a further layer, Layer(kind, value), under a name of its own")
            try:
                check_layer(name, layer.kind)
            except LayerError as error:
                raise SentenceError(f"sentence {self.id!r}: {error}") from None
        for name, kind in self.kinds().items():
            for problem in KINDS[kind_of(kind)].wrong(self.get(name), len(self)):
                raise _wrong(self, name, problem)
        return self


def _wrong(sentence: Sentence, layer: str, problem: str) -> SentenceError:
    return SentenceError(f"sentence {sentence.id!r}, {layer}: {problem}")


def _check_words(sentence: Sentence) -> None:
    if not isinstance(sentence.id, str) or not sentence.id:
        raise SentenceError(f"a sentence needs an id that is a non-empty string, found {sentence.id!r}")
    if not sentence.words:
        raise _wrong(sentence, "words", "expected at least one word, found none")
    for place, word in enumerate(sentence.words):
        if not isinstance(word, str) or not word.strip():
            raise _wrong(sentence, "words", f"word {place} is {word!r}; expected a non-empty string")
        if any(mark in word for mark in "\t\n\r"):
            raise _wrong(sentence, "words", f"word {place} is {word!r}; expected a word without a tab or a line break")
    if sentence.split is not None and not 0 < sentence.split < len(sentence):
        problem = f"the second text of the pair begins at word {sentence.split}, expected 1 to {len(sentence) - 1}"
        raise _wrong(sentence, "split", problem)


def check_unique(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Pass sentences through, raising SentenceError at the second one with the same id."""
    seen_ids: set[str] = set()
    for sentence in sentences:
        if sentence.id in seen_ids:
            raise SentenceError(f"the id {sentence.id!r} occurs twice; ids must be unique within a corpus")
        seen_ids.add(sentence.id)
        yield sentence


def declared(sentences: Iterable[Sentence]) -> dict[str, str]:
    """The layers of a corpus and their kinds: the five, known or not, then others by name.

    Raises:
        SentenceError: a layer is of two kinds.
    """
    kinds: dict[str, str] = {}
    for sentence in sentences:
        for name, layer in sentence.further:
            if kinds.setdefault(name, layer.kind) != layer.kind:
                problem = (
                    f"it is of the kind {layer.kind}, but {kinds[name]} in an earlier sentence; a layer has one kind"
                )
                raise _wrong(sentence, name, problem)
    return {**LAYERS, **dict(sorted(kinds.items()))}
