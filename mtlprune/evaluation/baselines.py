"""The majority baseline: what each word mostly is in train, for every layer, without any context. Free of torch.

    baseline = Majority(train)
    predicted = [baseline.predict(sentence) for sentence in test]

A vote looks up the word, then (words not in train) the word's predicted tag, then everything. Ties go to the value that
sorts first, so the same train always gives the same baseline.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from mtlprune.corpora.formats.iob2 import iob2_from_spans, spans_from_tags
from mtlprune.layers import Layer, find_cycle, kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Dependencies, Predicate, Sentence, SentenceError, Span, declared

Value = TypeVar("Value", bound=Hashable)


class Votes(Generic[Value]):
    """Counts of values by word, by tag and over all.

    Args:
        cased: whether ``Will`` and ``will`` are two words, of which the second is asked where the first is unknown.
    """

    def __init__(self, cased: bool = False) -> None:
        self._cased = cased
        self._counts: defaultdict[tuple[str, str], Counter[Value]] = defaultdict(Counter)
        self._order: dict[tuple[str, str], list[Value]] = {}

    def _keys(self, word: str, tag: str) -> list[tuple[str, str]]:
        exact = [("exact", word)] if self._cased else []
        return [*exact, ("word", word.lower()), ("tag", tag), ("all", "")]

    def add(self, word: str, tag: str, value: Value) -> None:
        """Count one value."""
        for key in self._keys(word, tag):
            self._counts[key][value] += 1
            self._order.pop(key, None)

    def counts(self, word: str, tag: str) -> Counter[Value]:
        """The counts of the word, else of the tag, else of everything (empty where nothing was ever added)."""
        return self._counts.get(self._key(word, tag), Counter())

    def ranked(self, word: str, tag: str) -> list[Value]:
        """The values of ``counts``, the most frequent first."""
        key = self._key(word, tag)
        if key not in self._order:
            counts = self._counts.get(key, Counter())
            self._order[key] = sorted(counts, key=lambda value: (-counts[value], repr(value)))
        return self._order[key]

    def _key(self, word: str, tag: str) -> tuple[str, str]:
        return next((key for key in self._keys(word, tag) if key in self._counts), ("all", ""))


class Reach(NamedTuple):
    """The extent of a span: ``words`` words from its start, or up to ``words`` words before the sentence's end."""

    to_end: bool
    words: int

    @classmethod
    def of(cls, span: Span, length: int) -> "Reach":
        """A span that ends at the last word or just before it (at the full stop) is taken to reach the end."""
        return cls(True, length - span.end) if length - span.end <= 1 else cls(False, span.end - span.start)

    def end(self, start: int, length: int) -> int:
        """The end (exclusive) of the span that begins at ``start``, within the sentence and not empty."""
        return max(start + 1, min(length, length - self.words if self.to_end else start + self.words))


class TagsLearner:
    """The word's most frequent tag; for unknown words the most frequent tag of all."""

    def __init__(self) -> None:
        self._tags: Votes[str] = Votes(cased=True)

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        for word, tag in zip(words, value, strict=True):
            self._tags.add(word, "", tag)

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[str, ...]:
        return tuple(next(iter(self._tags.ranked(word, "")), "") for word in words)


class SpansLearner:
    """The word's most frequent IOB2 tag; runs of tags become spans."""

    def __init__(self) -> None:
        self._marks: Votes[str] = Votes(cased=True)

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        for word, tag, mark in zip(words, tags, iob2_from_spans(value, len(words)), strict=True):
            self._marks.add(word, tag, mark)

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[Span, ...]:
        marks = [self._marks.ranked(word, tag)[0] for word, tag in zip(words, tags, strict=True)]
        return spans_from_tags(marks, repair=True)


class TreesLearner:
    """The most frequent (head's distance, relation) that stays within the sentence.

    The first word that is mostly a root is the root (else the first word); words that cannot be attached, and one word
    of each circle, hang on it.
    """

    def __init__(self) -> None:
        self._arcs: Votes[tuple[int, str]] = Votes()  # distance to the head (0: root), relation

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
        """The most frequent relation that is not the root's, for a word none of whose arcs fits the sentence."""
        return next((relation for d, relation in [*ranked, *self._arcs.ranked("", "")] if d), "dep")


class BracketsLearner:
    """The most frequent label over whole sentences, and in it at each word the most frequent *list of brackets that
    open there*, each with its length, or right-branching up to the sentence's end; cut where they would cross."""

    def __init__(self) -> None:
        self._roots: Votes[str] = Votes()  # labels over whole sentences
        self._openings: Votes[tuple[tuple[str, Reach], ...]] = Votes()

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        openings: list[list[tuple[str, Reach]]] = [[] for _ in words]
        rooted = bool(value) and (value[0].start, value[0].end) == (0, len(words))
        if rooted:
            self._roots.add("", "", value[0].label)
        for span in value[rooted:]:
            openings[span.start].append((span.label, Reach.of(span, len(words))))
        for word, tag, opening in zip(words, tags, openings, strict=True):
            self._openings.add(word, tag, tuple(opening))

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[Span, ...]:
        length = len(words)
        brackets = [Span(0, length, label) for label in self._roots.ranked("", "")[:1]]
        limits = [(0, length)]  # of the brackets that are still open: start, end
        for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
            while limits[-1][1] <= place:
                limits.pop()
            for label, reach in self._openings.ranked(word, tag)[0]:
                end = min(reach.end(place, length), limits[-1][1])
                brackets.append(Span(place, end, label))
                limits.append((place, end))
        return tuple(brackets)


class FramesLearner:
    """A word is a predicate where it mostly is one; it has every label that at least half of the predicates with that
    word have, at that label's most frequent place relative to the predicate."""

    def __init__(self) -> None:
        self._predicates: Votes[bool] = Votes()
        self._roles: Votes[str] = Votes()
        self._places: defaultdict[str, Votes[tuple[int, Reach]]] = defaultdict(Votes)

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        places = {predicate.index for predicate in value}
        for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
            self._predicates.add(word, tag, place in places)
        for predicate in value:
            word, tag = words[predicate.index], tags[predicate.index]
            arguments = {span.label: span for span in reversed(predicate.arguments) if span.label not in NOT_ARGUMENTS}
            for label in ("", *arguments):  # "" counts the predicates themselves
                self._roles.add(word, tag, label)
            for label, span in arguments.items():
                self._places[label].add(word, tag, (span.start - predicate.index, Reach.of(span, len(words))))

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


class LabelLearner:
    """The most frequent label of all sentences."""

    def __init__(self) -> None:
        self._labels: Votes[str] = Votes()

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        self._labels.add("", "", value)

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> str:
        return self._labels.ranked("", "")[0]


class NumberLearner:
    """The mean of all sentences."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        self._values.append(value)

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> float:
        return math.fsum(self._values) / len(self._values)


class LabelsLearner:
    """The labels that at least half of all sentences have, which mostly are none."""

    def __init__(self) -> None:
        self._counts, self._sentences = Counter[str](), 0

    def add(self, words: Sequence[str], tags: Sequence[str], value: Any) -> None:
        self._counts.update(value)
        self._sentences += 1

    def predict(self, words: Sequence[str], tags: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(label for label, times in self._counts.items() if 2 * times >= self._sentences))


_LEARNERS: dict[str, Callable[[], Any]] = {
    "tags": TagsLearner,
    "spans": SpansLearner,
    "tree": TreesLearner,
    "brackets": BracketsLearner,
    "frames": FramesLearner,
    "label": LabelLearner,
    "number": NumberLearner,
    "labels": LabelsLearner,
}
"""The baseline of each kind of layer: ``add`` counts a sentence of train, ``predict`` gives a value for one; every word
comes with its predicted tag (of the layer pos)."""


class Majority:
    """Predicts for each word what it mostly is in train: every layer by the learner of its kind.

    Attributes:
        layers: those that some sentence of train knows, with their kinds; others are not predicted (None).

    Raises:
        SentenceError: train is empty.
    """

    def __init__(self, train: Iterable[Sentence]) -> None:
        sentences = list(train)
        if not sentences:
            raise SentenceError("expected sentences in train, in which the majority baseline counts words, found none")
        layer_names = {name for sentence in sentences for name in sentence.layers()}
        self.layers = {name: kind for name, kind in declared(sentences).items() if name in layer_names}
        self._tags = TagsLearner()
        self._learners = {name: _LEARNERS[kind_of(kind)]() for name, kind in self.layers.items()}
        for s in sentences:
            if s.pos is not None:
                self._tags.add(s.words, (), s.pos)
        for s in sentences:
            tags = self._tags.predict(s.words, ())
            for name in s.layers():
                self._learners[name].add(s.words, tags, s.get(name))

    def predict(self, sentence: Sentence) -> Sentence:
        """The same words with the layers that train knows; only the words are read."""
        words = sentence.words
        tags = self._tags.predict(words, ())
        layers = {
            name: Layer(self.layers[name], learner.predict(words, tags)) for name, learner in self._learners.items()
        }
        return sentence.bare().with_layers(**layers)
