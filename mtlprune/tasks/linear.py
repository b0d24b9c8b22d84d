"""Decoders that label words by one linear layer: tags, as in He and Choi (2021), and flat spans as IOB2 tags."""

from collections.abc import Iterable, Sequence

from mtlprune.corpora.formats.iob2 import iob2_from_spans, spans_from_tags
from mtlprune.sentence import Sentence, Span
from mtlprune.tasks.base import WordLabels


class POS(WordLabels):
    """Decoder of a layer of tags, such as parts of speech, with one tag for each word."""

    name, kind = "pos", "tags"

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        return {"tags": sorted({tag for s in sentences for tag in s.get(layer) or ()})}

    def words(self, sentence: Sentence) -> Sequence[str]:
        tags: Sequence[str] = sentence.get(self.layer)
        return tags


class BIO(WordLabels):
    """Decoder of flat typed spans that tags each word O, B-TYPE (a span begins) or I-TYPE (the span continues).

    Decoding chooses the best tag of each word. An I-TYPE that does not continue a span of its type begins a new span,
    as in conlleval.
    """

    name, kind = "bio", "spans"

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        types = sorted({span.label for s in sentences for span in s.get(layer) or ()})
        return {"tags": ["O", *(f"{sign}-{type_}" for type_ in types for sign in "BI")]}

    def words(self, sentence: Sentence) -> Sequence[str]:
        return iob2_from_spans(sentence.get(self.layer), len(sentence))

    def value(self, tags: tuple[str, ...]) -> tuple[Span, ...]:
        return spans_from_tags(tags, repair=True)
