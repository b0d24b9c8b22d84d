"""The majority baseline, which predicts every layer from the most frequent annotation of each word, without context.

    baseline = Majority(train)
    predicted = [baseline.predict(sentence) for sentence in test]

Counts are looked up by word. For words that are not in train they are looked up by the predicted part-of-speech tag of
the word, and then over all words. Ties are broken by the sorting order of values, so that the same train always gives
the same baseline. This module does not import torch.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from mtlprune.corpora.formats.iob2 import iob2_from_spans, spans_from_tags
from mtlprune.layers import Layer, find_cycle, kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Dependencies, Predicate, Sentence, SentenceError, Span, declared

_Value = TypeVar("_Value", bound=Hashable)


class _Votes(Generic[_Value]):
    """Counts of values by word, by part-of-speech tag, and over all words.

    Args:
        cased: count words with their case. For a cased word that is unknown (``Will``), the counts of the lower-cased
            word (``will``) are used. Without ``cased``, all words are lower-cased.
    """

    def __init__(self, cased: bool = False) -> None:
        self._cased = cased
        self._counts: defaultdict[tuple[str, str], Counter[_Value]] = defaultdict(Counter)
        self._order: dict[tuple[str, str], list[_Value]] = {}

    def _keys(self, word: str, tag: str) -> list[tuple[str, str]]:
        """Return the keys under which a word is counted, in the order in which they are looked up."""
        exact = [("exact", word)] if self._cased else []
        return [*exact, ("word", word.lower()), ("tag", tag), ("all", "")]

    def add(self, word: str, tag: str, value: _Value) -> None:
        """Count a value of a word with a tag."""
        for key in self._keys(word, tag):
            self._counts[key][value] += 1
            self._order.pop(key, None)

    def counts(self, word: str, tag: str) -> Counter[_Value]:
        """Return the counts of the word, or else of the tag, or else of all words (empty if nothing was added)."""
        return self._counts.get(self._key(word, tag), Counter())

    def ranked(self, word: str, tag: str) -> list[_Value]:
        """Return the values of ``counts`` with the most frequent first."""
        key = self._key(word, tag)
        if key not in self._order:
            counts = self._counts.get(key, Counter())
            self._order[key] = sorted(counts, key=lambda value: (-counts[value], repr(value)))
        return self._order[key]

    def _key(self, word: str, tag: str) -> tuple[str, str]:
        return next((key for key in self._keys(word, tag) if key in self._counts), ("all", ""))


class _Reach(NamedTuple):
    """The extent of a span: a length of ``words`` words, or (``to_end``) up to ``words`` words before the sentence's
    end."""

    to_end: bool
    words: int

    @classmethod
    def of(cls, span: Span, length: int) -> "_Reach":
        """Describe the extent of a span in a sentence of ``length`` words.

        A span counts as reaching the end if it ends with the last word, or with the word before it (because the last
        word may be a full stop).
        """
        return cls(True, length - span.end) if length - span.end <= 1 else cls(False, span.end - span.start)

    def end(self, start: int, length: int) -> int:
        """Return the end (exclusive) of a span from ``start``, so that it is within the sentence and not empty."""
        return max(start + 1, min(length, length - self.words if self.to_end else start + self.words))


class _TagsLearner:
    """Predicts the most frequent tag of each word, and for unknown words the most frequent tag overall."""

    def __init__(self) -> None:
        self._tags: _Votes[str] = _Votes(cased=True)

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        for word, tag in zip(words, value, strict=True):
            self._tags.add(word, "", tag)

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[str, ...]:
        return tuple(next(iter(self._tags.ranked(word, "")), "") for word in words)


class _SpansLearner:
    """Predicts the most frequent IOB2 tag of each word, and turns the sequence of tags into spans."""

    def __init__(self) -> None:
        self._marks: _Votes[str] = _Votes(cased=True)

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        for word, tag, mark in zip(words, tags, iob2_from_spans(value, len(words)), strict=True):
            self._marks.add(word, tag, mark)

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[Span, ...]:
        marks = [self._marks.ranked(word, tag)[0] for word, tag in zip(words, tags, strict=True)]
        return spans_from_tags(marks, repair=True)


class _TreesLearner:
    """Predicts for each word the most frequent pair of distance to the head and relation that fits into the sentence.

    The root is the first word that is most frequently a root, or else the first word. Words without a fitting pair, and
    one word of each cycle, are attached to the root.
    """

    def __init__(self) -> None:
        self._arcs: _Votes[tuple[int, str]] = _Votes()  # (head − dependent, or 0 for the root; relation)

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        for place, (word, tag, head, relation) in enumerate(zip(words, tags, *value, strict=True), 1):
            self._arcs.add(word, tag, (head - place if head else 0, relation))

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> Dependencies:
        arcs = [self._arcs.ranked(word, tag) for word, tag in zip(words, tags, strict=True)]
        root = next((place for place, ranked in enumerate(arcs, 1) if ranked[0][0] == 0), 1)
        heads, relations = [0] * len(words), ["root"] * len(words)
        for place, ranked in enumerate(arcs, 1):
            if place != root:
                inside_sentence = ((d, relation) for d, relation in ranked if d and 1 <= place + d <= len(words))
                distance, relation = next(inside_sentence, (root - place, self._usual_relation(ranked)))
                heads[place - 1], relations[place - 1] = place + distance, relation
        while circle := find_cycle(heads):
            heads[min(circle) - 1] = root
        return Dependencies(tuple(heads), tuple(relations))

    def _usual_relation(self, ranked: list[tuple[int, str]]) -> str:
        """Return the most frequent relation other than the root's, for a word whose arcs do not fit the sentence."""
        return next((relation for d, relation in [*ranked, *self._arcs.ranked("", "")] if d), "dep")


class _BracketsLearner:
    """Predicts a bracket over the sentence with its most frequent label, and the most frequent brackets at each word.

    All brackets that open at a word are counted together as one list, with their extents (a length, or up to the end of
    the sentence). Predicted brackets are shortened where they would cross another bracket.
    """

    def __init__(self) -> None:
        self._roots: _Votes[str] = _Votes()  # labels over whole sentences
        self._openings: _Votes[tuple[tuple[str, _Reach], ...]] = _Votes()

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        openings: list[list[tuple[str, _Reach]]] = [[] for _ in words]
        rooted = bool(value) and (value[0].start, value[0].end) == (0, len(words))
        if rooted:
            self._roots.add("", "", value[0].label)
        for span in value[rooted:]:
            openings[span.start].append((span.label, _Reach.of(span, len(words))))
        for word, tag, opening in zip(words, tags, openings, strict=True):
            self._openings.add(word, tag, tuple(opening))

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[Span, ...]:
        length = len(words)
        brackets = [Span(0, length, label) for label in self._roots.ranked("", "")[:1]]
        limits = [(0, length)]  # (start, end) of the brackets that are open at the current word
        for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
            while limits[-1][1] <= place:
                limits.pop()
            for label, reach in self._openings.ranked(word, tag)[0]:
                end = min(reach.end(place, length), limits[-1][1])
                brackets.append(Span(place, end, label))
                limits.append((place, end))
        return tuple(brackets)


class _FramesLearner:
    """Predicts a predicate at words that are most frequently predicates, with arguments at their most frequent places.

    A predicate has an argument with each label that at least half of the predicates with the same word have. The
    argument is at the label's most frequent position relative to such predicates.
    """

    def __init__(self) -> None:
        self._predicates: _Votes[bool] = _Votes()
        self._roles: _Votes[str] = _Votes()
        self._places: defaultdict[str, _Votes[tuple[int, _Reach]]] = defaultdict(_Votes)

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        places = {predicate.index for predicate in value}
        for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
            self._predicates.add(word, tag, place in places)
        for predicate in value:
            word, tag = words[predicate.index], tags[predicate.index]
            arguments = {span.label: span for span in reversed(predicate.arguments) if span.label not in NOT_ARGUMENTS}
            for label in ("", *arguments):  # the label "" counts the predicates, as the denominator of the other labels
                self._roles.add(word, tag, label)
            for label, span in arguments.items():
                self._places[label].add(word, tag, (span.start - predicate.index, _Reach.of(span, len(words))))

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[Predicate, ...]:
        return tuple(
            Predicate(place, None, self._arguments(place, words, tags))
            for place, (word, tag) in enumerate(zip(words, tags, strict=True))
            if self._predicates.ranked(word, tag)[0]
        )

    def _arguments(self, index: int, words: Sequence[str], tags: Sequence[str]) -> tuple[Span, ...]:
        word, tag = words[index], tags[index]
        counts = self._roles.counts(word, tag)
        spans: list[Span] = []
        for label in self._roles.ranked(word, tag):
            if label and 2 * counts[label] >= counts[""]:
                offset, reach = self._places[label].ranked(word, tag)[0]
                start = index + offset
                end = min(reach.end(start, len(words)), index if offset < 0 else len(words))
                if 0 <= start < end and start != index and all(end <= s.start or s.end <= start for s in spans):
                    spans.append(Span(start, end, label))
        return tuple(sorted(spans))


class _LabelLearner:
    """Predicts the most frequent label of all sentences."""

    def __init__(self) -> None:
        self._labels: _Votes[str] = _Votes()

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        self._labels.add("", "", value)

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> str:
        return self._labels.ranked("", "")[0]


class _NumberLearner:
    """Predicts the mean number of all sentences."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        self._values.append(value)

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> float:
        return math.fsum(self._values) / len(self._values)


class _LabelsLearner:
    """Predicts the labels that at least half of all sentences have, which is usually no label."""

    def __init__(self) -> None:
        self._counts, self._sentences = Counter[str](), 0

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        self._counts.update(value)
        self._sentences += 1

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(label for label, times in self._counts.items() if 2 * times >= self._sentences))


_LEARNERS: dict[str, Callable[[], Any]] = {
    "tags": _TagsLearner,
    "spans": _SpansLearner,
    "tree": _TreesLearner,
    "brackets": _BracketsLearner,
    "frames": _FramesLearner,
    "label": _LabelLearner,
    "number": _NumberLearner,
    "labels": _LabelsLearner,
}
"""Kind of layer → baseline. The method ``add`` counts a sentence of train, and ``predict`` predicts the layer of a
sentence. Both receive the predicted part-of-speech tags of the words ("" if train has no tags)."""


class Majority:
    """Predicts every layer with the majority baseline of the layer's kind.

    Attributes:
        layers: name → kind of the layers that at least one sentence of train has. Other layers are not predicted.

    Raises:
        SentenceError: train is empty.
    """

    def __init__(self, train: Iterable[Sentence]) -> None:
        sentences = list(train)
        if not sentences:
            raise SentenceError("expected sentences in train, in which the majority baseline counts words, found none")
        layer_names = {name for sentence in sentences for name in sentence.layers()}
        self.layers = {name: kind for name, kind in declared(sentences).items() if name in layer_names}
        self._tags = _TagsLearner()
        self._learners = {name: _LEARNERS[kind_of(kind)]() for name, kind in self.layers.items()}
        for s in sentences:
            if s.pos is not None:
                self._tags.add(s.words, (), s.pos)
        for s in sentences:
            tags = self._tags.predict(s.words, ())
            for name in s.layers():
                self._learners[name].add(s.words, tags, s.get(name))

    def predict(self, sentence: Sentence) -> Sentence:
        """Return a sentence of the same words with all predicted layers. Only the words of ``sentence`` are read."""
        words = sentence.words
        tags = self._tags.predict(words, ())
        layers = {
            name: Layer(self.layers[name], learner.predict(words, tags)) for name, learner in self._learners.items()
        }
        return sentence.bare().with_layers(**layers)
