"""The kinds of annotation layers. A kind defines the type of a layer's value, its checks and its JSON form.

kind       value                                                                 example of a layer
tags       one label for each word: tuple[str, ...]                              pos
spans      typed spans that do not overlap, sorted by start: tuple[Span, ...]    ner
tree       heads and relations: Dependencies                                     dep
brackets   labelled brackets in pre-order: tuple[Span, ...]                      con
frames     predicates sorted by their word index: tuple[Predicate, ...]          srl
label      one string for each sentence: str                                     sentence_type
number     one finite number for each sentence: float                            prominence
labels     distinct strings in alphabetical order, or none: tuple[str, ...]      topics

A kind may name another layer. The score of ``brackets:pos`` leaves out the words that the tags layer ``pos`` marks as
punctuation. The score of plain ``brackets`` counts all words.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple

from mtlprune.errors import MtlpruneError, plural

LAYERS = {"pos": "tags", "ner": "spans", "dep": "tree", "con": "brackets:pos", "srl": "frames"}
"""The five built-in layers with their kinds, in the order of display. The package has no other list of them."""


class LayerError(MtlpruneError):
    """The error for a name or a kind that no layer can have."""


class Span(NamedTuple):
    """A span with a ``label`` over the words from ``start`` to ``end - 1``."""

    start: int
    end: int
    label: str


@lru_cache(2**16)
def _shared_span(start: int, end: int, label: str) -> Span:
    """Return a span of decoded JSON, the same object for equal spans.

    Together with interned strings this saves 45 % of the memory of a corpus.
    """
    return Span(start, end, intern(label))


class Dependencies(NamedTuple):
    """A dependency tree. ``heads[i]`` is the head of word ``i``, counted from 1 as in CoNLL-U, and 0 is the root."""

    heads: tuple[int, ...]
    relations: tuple[str, ...]


class Predicate(NamedTuple):
    """A predicate at word ``index``. ``arguments`` may contain the labels V and C-V of the corpus, which no task
    predicts."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is of no use for a predicate
    roleset: str | None = None
    arguments: tuple[Span, ...] = ()
    lemma: str | None = None


class Layer(NamedTuple):
    """A value with its kind, for a layer other than the five built-in layers."""

    kind: str
    value: Any


class Kind:
    """The interface of a kind of layer. The base class implements the kind ``tags``, with one label for each word."""

    def problems(self, value: Any, words: int) -> Iterator[str]:
        """Yield a message for each fault of a value, given the number of words of the sentence.

        Callers read the first message only, because a check may rely on the checks before it.
        """
        if len(value) != words:
            yield f"expected one tag per word, found {len(value)} for {plural(words, 'word')}"
        for index, tag in enumerate(value):
            yield from _label_problems(tag, f"word {index}")

    def to_json(self, value: Any) -> Any:
        """Return the value as JSON data: lists, dicts, numbers, strings and None."""
        return list(value)

    def from_json(self, tree: Any) -> Any:
        """Return the value from which `to_json` made this JSON tree."""
        return tuple(map(intern, tree))

    def cells(self, value: Any, words: Sequence[str]) -> list[str]:
        """Return one readable text for each word, for tables in notebooks."""
        return list(value)


class _SpansKind(Kind):
    """The kind ``spans``, with spans that do not overlap. The kind ``brackets`` replaces only the check."""

    def problems(self, value: Any, words: int) -> Iterator[str]:
        before = None
        for span in value:
            yield from _span_problems(span, words)
            if before is not None and span.start < before.end:
                yield (
                    f"{span.label} {span.start}–{span.end} overlaps or precedes {before.label} {before.start}–"
                    f"{before.end}; entities are flat and in order"
                )
            before = span

    def to_json(self, value: Any) -> Any:
        return [list(span) for span in value]

    def from_json(self, tree: Any) -> Any:
        return tuple(_shared_span(*span) for span in tree)

    def cells(self, value: Any, words: Sequence[str]) -> list[str]:
        texts = [(span.start, f"{span.label}: {_phrase(span, words)}") for span in value]
        return ["; ".join(text for start, text in texts if start == word) for word in range(len(words))]


class _TreeKind(Kind):
    """The kind ``tree``, with a head and a relation for each word."""

    def problems(self, value: Any, words: int) -> Iterator[str]:
        heads, relations = value
        if len(heads) != words or len(relations) != words:
            actual = f"{len(heads)} and {len(relations)}"
            yield f"expected {words} heads and {words} relations, found {actual}"
        for index, (head, relation) in enumerate(zip(heads, relations, strict=True), 1):
            if not isinstance(head, int) or not 0 <= head <= words:
                yield f"the head of word {index} is {head!r}; expected a number from 0 to {words}"
            yield from _label_problems(relation, f"word {index}")
        if 0 not in heads:
            yield "no word has head 0; give one word the head 0"
        if cycle := find_cycle(heads):
            yield "the heads form a circle: " + " → ".join(map(str, [*cycle, cycle[0]]))

    def to_json(self, value: Any) -> Any:
        return {"heads": list(value.heads), "relations": list(value.relations)}

    def from_json(self, tree: Any) -> Any:
        return Dependencies(tuple(tree["heads"]), tuple(map(intern, tree["relations"])))

    def cells(self, value: Any, words: Sequence[str]) -> list[str]:
        heads = [words[head - 1] if head else "root" for head in value.heads]
        return [f"{relation} of {head}" for relation, head in zip(value.relations, heads, strict=True)]


class _BracketsKind(_SpansKind):
    """The kind ``brackets``, with spans that may be nested."""

    def problems(self, value: Any, words: int) -> Iterator[str]:
        for span in value:
            yield from _span_problems(span, words)
            # The parser joins the labels of unary chains by "+" and marks the nodes that it adds by "|<>".
            if "+" in span.label or span.label.endswith("|<>"):
                yield (
                    f"{span.label} {span.start}–{span.end} has a label with + or |<>, which the parser uses itself; "
                    "write one bracket for each label of a unary chain"
                )
        open_spans: list[Span] = []
        before: Span | None = None
        for span in value:
            if before is not None and (span.start, -span.end) < (before.start, -before.end):
                yield (
                    f"{span.label} {span.start}–{span.end} comes after {before.label} {before.start}–{before.end}; "
                    "brackets must be in pre-order (by start, longer ones first)"
                )
            before = span
            while open_spans and open_spans[-1].end <= span.start:
                open_spans.pop()
            if open_spans and span.end > open_spans[-1].end:
                label, start, end = open_spans[-1].label, open_spans[-1].start, open_spans[-1].end
                yield f"brackets cross: {label} {start}–{end} and {span.label} {span.start}–{span.end}"
            open_spans.append(span)


class _FramesKind(Kind):
    """The kind ``frames``, with predicates and their arguments."""

    def problems(self, value: Any, words: int) -> Iterator[str]:
        before = -1
        for predicate in value:
            if not 0 <= predicate.index < words:
                yield f"there is a predicate at word {predicate.index}, but the sentence has {plural(words, 'word')}"
            if predicate.index <= before:
                yield (
                    f"the predicate at word {predicate.index} follows the one at word {before}; predicates must be in "
                    "order and each word can be one predicate only"
                )
            before = predicate.index
            for span in predicate.arguments:
                yield from _span_problems(span, words)

    def to_json(self, value: Any) -> Any:
        return [{**p._asdict(), "arguments": [list(span) for span in p.arguments]} for p in value]

    def from_json(self, tree: Any) -> Any:
        spans = (tuple(_shared_span(*span) for span in p["arguments"]) for p in tree)
        names = ((text and intern(text) for text in (p["roleset"], p["lemma"])) for p in tree)
        return tuple(
            Predicate(p["index"], roleset, cut, lemma)
            for p, cut, (roleset, lemma) in zip(tree, spans, names, strict=True)
        )

    def cells(self, value: Any, words: Sequence[str]) -> list[str]:
        texts = [""] * len(words)
        for predicate in value:
            arguments = [f"{span.label}: {_phrase(span, words)}" for span in predicate.arguments]
            texts[predicate.index] = "; ".join([predicate.roleset or predicate.lemma or "predicate", *arguments])
        return texts


class LabelKind(Kind):
    """The kind ``label``, with one label for each sentence. The label may contain spaces."""

    def problems(self, value: Any, words: int) -> Iterator[str]:
        yield from _sentence_label_problems(value)

    def to_json(self, value: Any) -> Any:
        return value

    def from_json(self, tree: Any) -> Any:
        return tree

    def text(self, value: Any) -> str:
        """Return the value as text for a table cell or a comment. `read` is the inverse."""
        return str(value)

    def read(self, text: str) -> Any:
        """Return the value that a text denotes, or None if the text is empty or ``_``, which mean *unknown*.

        Raises:
            ValueError: the text denotes no value of this kind. The message says what was expected.
        """
        if text in ("", "_"):
            return None
        for problem in _sentence_label_problems(text):
            raise ValueError(problem)
        return text

    def cells(self, value: Any, words: Sequence[str]) -> list[str]:
        """Return the value for the first word and empty texts for the other words, since it belongs to no word."""
        return [self.text(value), *[""] * (len(words) - 1)]


class _NumberKind(LabelKind):
    """The kind ``number``, with one number for each sentence, such as a rating or a similarity."""

    def problems(self, value: Any, words: int) -> Iterator[str]:
        if not isinstance(value, float) or not math.isfinite(value):
            yield f"the number of the sentence is {value!r}; expected a finite float"

    def from_json(self, tree: Any) -> Any:
        return float(tree)

    def text(self, value: Any) -> str:
        return f"{value:.6g}"

    def read(self, text: str) -> Any:
        if text in ("", "_", "null"):
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"expected a number such as 3.5, found {text[:60]!r}; correct it")
        return number


class _LabelsKind(LabelKind):
    """The kind ``labels``, with any number of labels for each sentence. In text, ``|`` separates the labels."""

    def problems(self, value: Any, words: int) -> Iterator[str]:
        for label in value:
            yield from _sentence_label_problems(label)
            if "|" in label:
                yield f"the label {label!r} holds |, which separates labels; write the label without it"
        if list(value) != sorted(set(value)):
            yield f"the labels of the sentence are {list(value)}; expected different ones in alphabetical order"

    def to_json(self, value: Any) -> Any:
        return list(value)

    def from_json(self, tree: Any) -> Any:
        return tuple(sorted(set(tree)))

    def text(self, value: Any) -> str:
        return "|".join(value)

    def read(self, text: str) -> Any:
        """Return the labels that a text denotes: an empty tuple for an empty text, and None (*unknown*) for ``_``."""
        if text == "_":
            return None
        labels = (LabelKind.read(self, part.strip()) for part in text.split("|"))
        return tuple(sorted({label for label in labels if label is not None}))


OF_SENTENCES: dict[str, LabelKind] = {"label": LabelKind(), "number": _NumberKind(), "labels": _LabelsKind()}
"""The kinds whose value belongs to the whole sentence. The decoder of such a kind has the name of the kind."""
KINDS: dict[str, Kind] = {
    "tags": Kind(),
    "spans": _SpansKind(),
    "tree": _TreeKind(),
    "brackets": _BracketsKind(),
    "frames": _FramesKind(),
    **OF_SENTENCES,
}
_RESERVED = ("id", "words", "split", "joint", "shared", *KINDS)
"""Names that no layer can have, because they have another meaning in sentences, runs or gates."""


def kind_of(name_or_kind: str, decoders: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the kind of a layer, without the layer that the kind may name.

    Args:
        name_or_kind: one of the five built-in layers, a declared kind such as ``brackets:pos``, or a task of a run.
        decoders: the settings of a run's decoders as plain data. For a layer other than the five built-in layers they
            contain its ``kind``.

    Raises:
        LayerError: ``name_or_kind`` is neither a layer, nor a kind, nor a task in ``decoders``.
    """
    name_or_kind = (decoders or {}).get(name_or_kind, {}).get("kind", name_or_kind)
    kind = LAYERS.get(name_or_kind, name_or_kind).partition(":")[0]
    if kind not in KINDS:
        raise LayerError(
            f"expected one of the layers {', '.join(LAYERS)}, or one of the kinds {', '.join(KINDS)}, found "
            f"{name_or_kind!r}"
        )
    return kind


def decoder_of(kind: str) -> str:
    """Return the default decoder of a kind, which is the decoder of the built-in layer of this kind if there is one."""
    base = kind_of(kind)
    return next((name for name in LAYERS if kind_of(name) == base), base)


def tags_named(kind: str) -> str | None:
    """Return the tags layer that a kind names, such as ``pos`` for ``brackets:pos``, or None."""
    return kind.partition(":")[2] or None


def check_layer(name: str, kind: object) -> None:
    """Raise LayerError unless a layer may have this name and this kind."""
    if name in LAYERS:
        if kind != LAYERS[name]:
            raise LayerError(f"the layer {name} is of the kind {LAYERS[name]}, found {kind!r}; choose another name")
        return
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or name in _RESERVED:
        raise LayerError(
            f"expected the name of a layer: small letters, digits and _, none of {', '.join(_RESERVED)}; found {name!r}"
        )
    base, colon, tags = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    if base not in KINDS or (colon and (base != "brackets" or not tags)):
        raise LayerError(
            f"layer {name}: expected one of the kinds {', '.join(KINDS)}, or brackets:TAGS with the name of a tags "
            "layer, "
            f"found {kind!r}"
        )


def in_order(names: Iterable[str]) -> list[str]:
    """Sort layers or tasks for display: the five built-in layers in their order, then others by name."""
    return sorted(set(names), key=layer_order)


def layer_order(name: str) -> tuple[int, str]:
    """Return the sort key of a layer for the order in which layers are shown."""
    return (list(LAYERS).index(name) if name in LAYERS else len(LAYERS)), name


def _label_problems(label: object, location: str) -> Iterator[str]:
    if not isinstance(label, str) or not label or any(c.isspace() for c in label):
        yield f"the label of {location} is {label!r}; expected a non-empty string without blanks"
    elif label == "_":
        yield f"the label of {location} is '_', which means unknown; give a label, or leave the layer out"


def _sentence_label_problems(label: object) -> Iterator[str]:
    if not isinstance(label, str) or not label.strip() or label != label.strip() or re.search(r"[\t\n\r]", label):
        yield f"the label of the sentence is {label!r}; expected text without blanks at its ends, tabs or line breaks"
    elif label == "_":
        yield "the label of the sentence is '_', which means unknown; give another label, or leave the layer out"


def _phrase(span: Span, words: Sequence[str]) -> str:
    return " ".join(words[span.start : span.end])


def _span_problems(span: Span, words: int) -> Iterator[str]:
    if not 0 <= span.start < span.end <= words:
        yield (
            f"the span {span.start}–{span.end} ({span.label}) does not lie within the {plural(words, 'word')} "
            "(expected 0 ≤ start < end ≤ number of words)"
        )
    yield from _label_problems(span.label, f"the span {span.start}–{span.end}")


def find_cycle(heads: Sequence[int]) -> list[int]:
    """Return the words (from 1) of one cycle in ``heads``, or an empty list if every word leads to the root."""
    state = [0] * (len(heads) + 1)  # 0: not visited, 1: on the current path, 2: known to reach the root
    state[0] = 2
    for start in range(1, len(heads) + 1):
        path = []
        word = start
        while state[word] == 0:
            state[word] = 1
            path.append(word)
            word = heads[word - 1]
        if state[word] == 1:
            return path[path.index(word) :]
        for node_on_path in path:
            state[node_on_path] = 2
    return []
