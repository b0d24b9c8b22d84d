"""Pairs of a corpus's sentence and the same with a span swapped, which differ in the gold of one layer."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mtlprune.corpora.grammar import Pair
from mtlprune.sentence import Sentence, Span

SWAPPED = ("ner", "srl")
"""Layers that a swap can change alone."""
_WORDS_OF_GRAMMAR = frozenset({"ARGM-NEG", "ARGM-MOD"})  # modifiers that take part in the form of the verb


def swapped_pairs(sentences: Sequence[Sentence], layer: str, seed: int = 1) -> list[Pair]:
    """One pair for each span that can be swapped, in a random order: of ``ner``, a name for one of another type; of
    ``srl``, a modifier (ARGM-*) for one in another role.

    Tags, brackets, heads and relations of the two spans are equal, and names in modifiers, so only the span's label
    differs, for each predicate that it modifies. Whether the new sentence makes sense is not asked (a town for a firm).
    """
    spans_by_form: dict[Hashable, list[tuple[Sentence, Span]]] = defaultdict(list)
    for sentence in sentences:
        for span in _spans(sentence, layer):
            if (form := _form(sentence, span, layer)) is not None:
                spans_by_form[form].append((sentence, span))
    pairs, generator = [], np.random.default_rng([seed, 23])
    for spans in spans_by_form.values():
        for sentence, span in spans:
            low = _words(sentence, span, lower=True)
            candidates = [
                candidate
                for candidate in spans
                if candidate[0] is not sentence
                and candidate[1].label != span.label
                and _words(*candidate, lower=True) != low
            ]
            if candidates:
                donor = candidates[generator.integers(len(candidates))]
                second = _relabelled(sentence, span, donor[1].label, layer, _words(*donor))
                pairs.append(Pair((layer,), sentence, second))
    return [pairs[place] for place in generator.permutation(len(pairs))]


def _words(sentence: Sentence, span: Span, lower: bool = False) -> tuple[str, ...]:
    words = sentence.words[span.start : span.end]
    return tuple(word.lower() for word in words) if lower else words


def _spans(sentence: Sentence, layer: str) -> Iterator[Span]:
    """Names; or modifiers of one role only, for however many predicates, to which nothing refers or adds (R-, C-)."""
    if layer == "ner":
        yield from sentence.ner or ()
        return
    arguments = {span for predicate in sentence.srl or () for span in predicate.arguments}
    for span in sorted(arguments):
        is_alone = not any(
            argument[:2] == span[:2] or argument.label in (f"C-{span.label}", f"R-{span.label}")
            for argument in arguments - {span}
        )
        if is_alone and span.label.startswith("ARGM-") and span.label not in _WORDS_OF_GRAMMAR:
            yield span


def _form(sentence: Sentence, span: Span, layer: str) -> Hashable | None:
    """All layers within a span, places counted from its start; None where it is no unit of all layers: another span
    crosses it, or a predicate or a part of an argument lies in it."""
    start, end, _ = span
    word_range = range(start, end)

    def spans_within(spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(
            Span(inner.start - start, inner.end - start, inner.label)
            for inner in spans
            if start <= inner.start < inner.end <= end
        )

    arguments = [argument for predicate in sentence.srl or () for argument in predicate.arguments]
    spans = [*(sentence.ner or ()), *(sentence.con or ()), *arguments]
    if any(
        other_span.start < start < other_span.end < end or start < other_span.start < end < other_span.end
        for other_span in spans
    ):
        return None
    parts = any(argument[:2] != span[:2] for argument in arguments if start <= argument.start and argument.end <= end)
    if parts or any(predicate.index in word_range for predicate in sentence.srl or ()):
        return None
    edges = zip(sentence.dep.heads[start:end], sentence.dep.relations[start:end], strict=True) if sentence.dep else ()
    tree = tuple((head - start if head - 1 in word_range else None, relation) for head, relation in edges)
    names = () if layer == "ner" else spans_within(sentence.ner or ())
    # The names of the layers are part of the form, because a layer that is not known differs from one that is empty.
    layer_names = sentence.layers()
    return (sentence.pos or ())[start:end], tree, spans_within(sentence.con or ()), names, end - start, layer_names


def _relabelled(sentence: Sentence, span: Span, label: str, layer: str, words: tuple[str, ...]) -> Sentence:
    """The sentence with other words in a span, and another label of it."""

    def relabel(spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(old_span._replace(label=label) if old_span == span else old_span for old_span in spans)

    value = (
        relabel(sentence.ner or ())
        if layer == "ner"
        else tuple(predicate._replace(arguments=relabel(predicate.arguments)) for predicate in sentence.srl or ())
    )
    new_words = (*sentence.words[: span.start], *words, *sentence.words[span.end :])
    changes: dict[str, Any] = {"id": f"{sentence.id}-swapped-{span.start}", "words": new_words, layer: value}
    return replace(sentence, **changes, further=(), source="")
