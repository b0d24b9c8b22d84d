"""Hypothesis strategies for valid sentences with any layers known, unknown or empty."""

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from hypothesis import strategies as st

from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

# Words of all scripts, with brackets, stars, hashes, dashes and backslashes among them, but without blanks.
WORDS = st.one_of(
    st.sampled_from(["(", ")", "*", "\\", "#", "-", "_", "a", "-X-", "'", '"', "O", "B-PER"]),
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1, max_size=5),
)
LABELS = st.text("ABXYZ-:0", min_size=1, max_size=4)
_T = TypeVar("_T")


def spans(*triples: tuple[int, int, str]) -> tuple[Span, ...]:
    return tuple(Span(*triple) for triple in triples)


def sized(spans_of: Callable[[int], st.SearchStrategy[_T]], most: int = 8) -> st.SearchStrategy[tuple[int, _T]]:
    return st.integers(1, most).flatmap(lambda n: st.tuples(st.just(n), spans_of(n)))


@st.composite
def flat_spans(draw: st.DrawFn, n: int) -> tuple[Span, ...]:
    cuts = sorted(draw(st.sets(st.integers(0, n), max_size=6)))
    pairs = [pair for pair in pairwise(cuts) if draw(st.booleans())]
    return tuple(Span(start, end, draw(LABELS)) for start, end in pairs)


@st.composite
def nested_spans(draw: st.DrawFn, n: int) -> tuple[Span, ...]:
    """Brackets in pre-order, with unary chains."""
    spans: list[Span] = []

    def grow(start: int, end: int, depth: int) -> None:
        for _ in range(draw(st.integers(0, 2))):
            spans.append(Span(start, end, draw(LABELS)))
        if end - start > 1 and depth < 4:
            middle = draw(st.integers(start + 1, end - 1))
            grow(start, middle, depth + 1)
            grow(middle, end, depth + 1)

    grow(0, n, 0)
    return tuple(spans)


@st.composite
def trees(draw: st.DrawFn, n: int) -> Dependencies:
    """Any tree with one root: each word, in a random order, hangs on one that came before it."""
    order = draw(st.permutations(range(1, n + 1)))
    heads = [0] * n
    for k, word in enumerate(order[1:], 1):
        heads[word - 1] = order[draw(st.integers(0, k - 1))]
    return Dependencies(tuple(heads), tuple(draw(LABELS) for _ in range(n)))


@st.composite
def predicates(draw: st.DrawFn, n: int) -> tuple[Predicate, ...]:
    """Some with roleset and lemma, some without; their arguments nest."""
    found = []
    for index in sorted(draw(st.sets(st.integers(0, n - 1), max_size=3))):
        name = draw(st.none() | st.text("abz", min_size=1, max_size=4))
        found.append(Predicate(index, name and f"{name}.01", draw(nested_spans(n)), name))
    return tuple(found)


@st.composite
def sentences(draw: st.DrawFn, words: st.SearchStrategy[str] = WORDS, sentence_id: str | None = None) -> Sentence:
    """A valid sentence; each layer may be unknown."""
    n = draw(st.integers(1, 7))
    pos = st.lists(LABELS, min_size=n, max_size=n).map(tuple)
    return Sentence(
        id=sentence_id or draw(st.text("abc-7", min_size=1, max_size=6)),
        words=tuple(draw(st.lists(words, min_size=n, max_size=n))),
        pos=draw(st.none() | pos),
        ner=draw(st.none() | flat_spans(n)),
        dep=draw(st.none() | trees(n)),
        con=draw(st.none() | nested_spans(n)),
        srl=draw(st.none() | predicates(n)),
    ).validate()


def corpora() -> st.SearchStrategy[list[Sentence]]:
    """Up to five sentences with different ids."""
    return st.lists(sentences(), min_size=1, max_size=5, unique_by=lambda sentence: sentence.id)
