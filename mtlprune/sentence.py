"""The class Sentence, which holds the words of a sentence and its annotation layers, both gold and predicted.

All packages exchange annotations as sentences. A layer that is ``None`` is *unknown*, and an empty layer means that
the sentence has no such item. Word indices start at 0, and spans are half-open, ``[start, end)``.
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
"""Argument labels that mark the predicate itself. No task predicts them, and no score counts them."""


class SentenceError(MtlpruneError):
    """The error for invalid or contradictory sentences. The message names the sentence, the layer and the problem."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words of a sentence with layers of annotation.

    Args:
        id: an identifier, unique within a corpus.
        words: at least one word. No word is empty or contains a tab or a line break.
        pos: one part-of-speech tag for each word.
        ner: named entities, as typed spans that do not overlap, sorted by start.
        dep: a dependency tree, as the head and the relation of each word.
        con: constituents, as labelled brackets in pre-order (outermost first; in a unary chain the upper label first),
            without the TOP node and without part-of-speech tags.
        srl: semantic roles, as predicates sorted by their word index, each index once.
        further: other known layers with their names, sorted by name. :meth:`with_layers` keeps this order.
        split: the number of words of the first text if the sentence is a pair of texts, otherwise None.
        source: the lines of CoNLL-U from which the sentence was read. Their other columns and comments are written
            back unchanged. Comparisons of sentences ignore this field.
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
        """Return an HTML table for notebooks, with a row for each word and a column for each known layer."""
        kinds = self.kinds()
        columns = [KINDS[kind_of(kind)].cells(self.get(name), self.words) for name, kind in kinds.items()]
        rows = [("", *kinds), *zip(self.words, *columns, strict=True)]
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def get(self, name: str) -> Any:
        """Return the value of the layer with this name, or None if the layer is unknown."""
        if name in LAYERS:
            return getattr(self, name)
        return next((layer.value for key, layer in self.further if key == name), None)

    def kind(self, name: str) -> str | None:
        """Return the kind of the layer with this name, or None if the layer is unknown."""
        return self.kinds().get(name)

    def kinds(self) -> dict[str, str]:
        """Return {name: kind} of the known layers: the five built-in layers in their order, then others by name."""
        five = {name: kind for name, kind in LAYERS.items() if getattr(self, name) is not None}
        return five | {name: layer.kind for name, layer in self.further}

    def layers(self) -> tuple[str, ...]:
        """Return the names of the known layers, in the order of :meth:`kinds`."""
        return tuple(self.kinds())

    def bare(self) -> "Sentence":
        """Return a copy of the sentence without any layer."""
        return Sentence(self.id, self.words, split=self.split, source=self.source)

    def with_layers(self, **layers: Any) -> "Sentence":
        """Return a copy with some layers replaced.

        Args:
            layers: for each layer that is replaced, by its name, a ``Layer(kind, value)``, or only the value for one of
                the five built-in layers. None, as the layer or as its value, makes the layer unknown.
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
        """Return the sentence itself, or raise SentenceError if its words or layers are invalid."""
        _check_words(self)
        names = [name for name, _ in self.further]
        if names != sorted(set(names)):
            raise SentenceError(f"sentence {self.id!r}: expected further layers in order of their names, found {names}")
        for name, layer in self.further:
            if not isinstance(layer, Layer) or name in LAYERS:
                raise _error(self, name, "expected a further layer, Layer(kind, value), under a name of its own")
            try:
                check_layer(name, layer.kind)
            except LayerError as error:
                raise SentenceError(f"sentence {self.id!r}: {error}") from None
        for name, kind in self.kinds().items():
            for problem in KINDS[kind_of(kind)].problems(self.get(name), len(self)):
                raise _error(self, name, problem)
        return self


def _error(sentence: Sentence, layer: str, problem: str) -> SentenceError:
    return SentenceError(f"sentence {sentence.id!r}, {layer}: {problem}")


def _check_words(sentence: Sentence) -> None:
    if not isinstance(sentence.id, str) or not sentence.id:
        raise SentenceError(f"a sentence needs an id that is a non-empty string, found {sentence.id!r}")
    if not sentence.words:
        raise _error(sentence, "words", "expected at least one word, found none")
    for index, word in enumerate(sentence.words):
        if not isinstance(word, str) or not word.strip():
            raise _error(sentence, "words", f"word {index} is {word!r}; expected a non-empty string")
        if any(mark in word for mark in "\t\n\r"):
            raise _error(sentence, "words", f"word {index} is {word!r}; expected a word without a tab or a line break")
    if sentence.split is not None and not 0 < sentence.split < len(sentence):
        problem = f"the second text of the pair begins at word {sentence.split}, expected 1 to {len(sentence) - 1}"
        raise _error(sentence, "split", problem)


def check_unique(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Yield the sentences unchanged, and raise SentenceError at the second sentence with the same id."""
    seen_ids: set[str] = set()
    for sentence in sentences:
        if sentence.id in seen_ids:
            raise SentenceError(f"the id {sentence.id!r} occurs twice; ids must be unique within a corpus")
        seen_ids.add(sentence.id)
        yield sentence


def declared(sentences: Iterable[Sentence]) -> dict[str, str]:
    """Return the layers of a corpus as {name: kind}.

    The five built-in layers come first, even if no sentence has them, then all others by name.

    Raises:
        SentenceError: a layer has different kinds in two sentences.
    """
    kinds: dict[str, str] = {}
    for sentence in sentences:
        for name, layer in sentence.further:
            if kinds.setdefault(name, layer.kind) != layer.kind:
                problem = (
                    f"it is of the kind {layer.kind}, but {kinds[name]} in an earlier sentence; a layer has one kind"
                )
                raise _error(sentence, name, problem)
    return {**LAYERS, **dict(sorted(kinds.items()))}
