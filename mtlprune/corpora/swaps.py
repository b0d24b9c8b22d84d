"""Make pairs from the sentences of a corpus by replacing one span, so that the gold of only one layer differs.

``analyze exchange`` uses these pairs.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mtlprune.corpora.grammar import Pair
from mtlprune.sentence import Sentence, Span

SWAPPED = ("ner", "srl")
"""Layers whose gold a swap can change without changing any other layer."""
_WORDS_OF_GRAMMAR = frozenset({"ARGM-NEG", "ARGM-MOD"})  # modifiers such as "not" and "can", which belong to the verb


def swapped_pairs(sentences: Sequence[Sentence], layer: str, seed: int = 1) -> list[Pair]:
    """Make one pair of sentences for each span that can be swapped, in random order.

    In the second sentence of a pair, the span has the words and the label of a span from another sentence, which both
    differ from its own. For ``ner``, a name is replaced by a name of another type; for ``srl``, a modifier (ARGM-*
    except ARGM-NEG and ARGM-MOD) is replaced by a modifier with another role. The two spans agree in POS tags,
    brackets, heads and relations (modifiers also in the names within them). Therefore only the label of the span
    differs, for every predicate that it modifies. The new sentence need not make sense (a town may replace a firm).

    Args:
        layer: one of :data:`SWAPPED`.
        seed: the seed for the choice among possible replacements, and for the order of the pairs.
    """
    spans_by_form: dict[Hashable, list[tuple[Sentence, Span]]] = defaultdict(list)
    for sentence in sentences:
        for span in _spans(sentence, layer):
            if (form := _form(sentence, span, layer)) is not None:
                spans_by_form[form].append((sentence, span))
    # The second number of the seed distinguishes these draws from others with the same seed.
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
    return [pairs[index] for index in generator.permutation(len(pairs))]


def _words(sentence: Sentence, span: Span, lower: bool = False) -> tuple[str, ...]:
    words = sentence.words[span.start : span.end]
    return tuple(word.lower() for word in words) if lower else words


def _spans(sentence: Sentence, layer: str) -> Iterator[Span]:
    """Yield the spans of a sentence that may be swapped.

    For ``ner`` these are all names. For ``srl`` they are the modifiers (except ARGM-NEG and ARGM-MOD) that have one
    role only, for one or several predicates, and no reference (R-) or continuation (C-) in the sentence.
    """
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
    """Return everything that two spans must have in common to be swapped, or None if the span must not be swapped.

    This is the annotation of all layers within the span, with positions relative to its start. A span must not be
    swapped if it crosses another span, or contains a predicate or a smaller argument.
    """
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
    # The names of the layers are part of the form, because an unknown layer differs from an empty one.
    layer_names = sentence.layers()
    return (sentence.pos or ())[start:end], tree, spans_within(sentence.con or ()), names, end - start, layer_names


def _relabelled(sentence: Sentence, span: Span, label: str, layer: str, words: tuple[str, ...]) -> Sentence:
    """Return the sentence with other words in a span, and another label of this span in ``layer``."""

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
