"""Generate a corpus from templates, with all five layers, and pairs of sentences with a single difference.

``docs/reference/grammar.md`` describes the corpus. The notation of the templates is explained at the head of
``grammar_templates.txt``.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.corpora.blimp import MinimalPair, Paradigm
from mtlprune.corpora.grammar.derivation import MINIMAL_PAIRS, PAIRS, Derivation, derive
from mtlprune.corpora.grammar.lexicon import Draw
from mtlprune.sentence import Sentence

LONGEST = 40
"""Largest number of words in a sentence."""
_UNSEEN_SHARE = 0.2  # share of the words in dev and test that come from the held-out part of their list
_MAX_SENTENCES = 1_000_000  # per split
_PATIENCE = 2000  # consecutive draws without a new sentence, after which drawing stops


def build_grammar(
    train: int = 2000, dev: int = 300, test: int = 300, seed: int = 1, reflexives: bool = False
) -> dict[str, Sequence[Sentence]]:
    """Draw a generated corpus with the splits train, dev and test.

    The same arguments give the same sentences on every machine and Python version, and a larger train set begins with
    the sentences of a smaller one. No sequence of words (ignoring case) occurs twice, within a split or in two splits.
    One sixth of each list of open-class words and names never occurs in train. Every label in dev and test (tag, entity
    type, relation, bracket or role) also occurs in train.

    Args:
        train, dev, test: numbers of sentences.
        seed: the seed of all random choices.
        reflexives: whether some objects are reflexive pronouns.

    Raises:
        CorpusError: a size is negative or above 1,000,000, train is empty although another split is not, or there are
            not enough different sentences.
    """
    sizes = {"train": train, "dev": dev, "test": test}
    for split, size in sizes.items():
        if not 0 <= size <= _MAX_SENTENCES:
            raise CorpusError(
                f"grammar, {split}: expected a number of sentences from 0 to {_MAX_SENTENCES:,}, found {size:,}"
            )
    if not train and (dev or test):
        raise CorpusError("grammar: dev and test use only labels that train has, so train needs at least one sentence")
    forms_used: set[bytes] = set()
    corpus: dict[str, Sequence[Sentence]] = {}
    train_labels: set[tuple[str, str]] = set()
    for split, size in sizes.items():
        allowed = None if split == "train" else train_labels.issuperset
        corpus[split] = list(fill(split, size, _draws(split, seed, reflexives), forms_used, allowed))
        if split == "train":
            train_labels = {label for sentence in corpus[split] for label in labels(sentence)}
    return corpus


def labels(sentence: Sentence) -> set[tuple[str, str]]:
    """Return all pairs of layer and label in a sentence that tasks have to predict."""
    found_labels = {("pos", tag) for tag in sentence.pos or ()}
    found_labels |= {("dep", relation) for relation in (sentence.dep.relations if sentence.dep else ())}
    found_labels |= {(layer, span.label) for layer in ("ner", "con") for span in sentence.get(layer) or ()}
    return found_labels | {("srl", span.label) for predicate in sentence.srl or () for span in predicate.arguments}


def fill(
    split: str,
    size: int,
    draws: Iterator[Callable[[str], Sentence]],
    forms_used: set[bytes],
    allowed: Callable[[set[tuple[str, str]]], bool] | None = None,
) -> Iterator[Sentence]:
    """Yield ``size`` sentences of at most :data:`LONGEST` words that were not used before.

    Args:
        split: the name of the split, for ids.
        draws: an endless iterator of functions from an id to a sentence.
        forms_used: digests of the words of used sentences; updated here.
        allowed: tells whether the labels of a sentence may occur in the split; None allows all labels.

    Raises:
        CorpusError: 2,000 consecutive draws were used before, longer than :data:`LONGEST` or not allowed.
    """
    count = misses = 0
    while count < size:
        sentence = next(draws)(f"grammar-{split}-{count + 1:05d}")
        # A digest takes less memory than the words.
        form = hashlib.blake2b(" ".join(sentence.words).lower().encode(), digest_size=16).digest()
        if len(sentence) > LONGEST or form in forms_used or (allowed and not allowed(labels(sentence))):
            misses += 1
            if misses == _PATIENCE:
                problem = (
                    f"expected {size} different sentences, found {count}, because the next {_PATIENCE} sentences "
                    "were all used already"
                )
                advice = "too long, or with labels that train lacks; ask for fewer, or for a larger train"
                raise CorpusError(f"grammar, {split}: {problem}, {advice}")
            continue
        misses = 0
        forms_used.add(form)
        count += 1
        yield sentence.validate()


def _draws(split: str, seed: int, reflexives: bool) -> Iterator[Callable[[str], Sentence]]:
    draw = Draw(f"grammar/{split}/{seed}", unseen_share=0.0 if split == "train" else _UNSEEN_SHARE)
    while True:
        yield partial(derive, Derivation(draw, reflexives).sentence())


class Pair(NamedTuple):
    """Two sentences with equally many words, whose annotation differs only in the named layers."""

    layers: tuple[str, ...]
    first: Sentence
    second: Sentence


def draw_pairs(size: int, seed: int = 1, layers: Sequence[str] = ("pos", "ner", "dep", "con", "srl")) -> list[Pair]:
    """Draw pairs of sentences whose gold differs in one layer, from words that may occur in train.

    Args:
        size: number of pairs per element of ``layers``.
        layers: the layers in which pairs differ. The pairs of ``dep+con`` differ in an attachment, which changes
            both trees.

    Raises:
        CorpusError: there are not enough different pairs.
    """
    pairs: list[Pair] = []
    for name in layers:
        draw = Draw(f"grammar/pairs/{name}/{seed}", unseen_share=0.0)
        templates = cycle([templates_of_pair for phenomenon, templates_of_pair in PAIRS if phenomenon == name])
        pairs_by_words: dict[tuple[str, ...], Pair] = {}
        for templates_of_pair in islice(templates, _PATIENCE + 100 * size):
            if len(pairs_by_words) == size:
                break
            identity = f"grammar-pair-{name}-{len(pairs_by_words) + 1:05d}"
            roots = map(Derivation(draw).sentence, templates_of_pair)
            first, second = (derive(root, identity + mark).validate() for mark, root in zip("ab", roots, strict=True))
            pairs_by_words.setdefault(first.words, Pair(tuple(name.split("+")), first, second))
        if len(pairs_by_words) < size:
            raise CorpusError(f"grammar: asked for {size} pairs that differ in {name}, found {len(pairs_by_words)}")
        pairs += pairs_by_words.values()
    return pairs


def draw_minimal_pairs(size: int = 200, seed: int = 1, leave_out: Collection[str] = ()) -> list[Paradigm]:
    """Draw minimal pairs: a generated sentence, and the same sentence with one violated rule.

    Their words may occur in train.

    Args:
        size: number of pairs per phenomenon.
        leave_out: texts in lower case that no sentence of a pair may equal, such as the sentences of a train set.

    Returns:
        one paradigm per phenomenon.

    Raises:
        CorpusError: there are not enough different pairs.
    """
    paradigms = []
    for name in dict.fromkeys(phenomenon for phenomenon, _ in MINIMAL_PAIRS):
        draw = Draw(f"grammar/minimal-pairs/{name}/{seed}", unseen_share=0.0)
        templates = cycle([templates_of_pair for phenomenon, templates_of_pair in MINIMAL_PAIRS if phenomenon == name])
        pairs: dict[str, MinimalPair] = {}
        for templates_of_pair in islice(templates, _PATIENCE + 100 * size):
            if len(pairs) == size:
                break
            roots = map(Derivation(draw).sentence, templates_of_pair)
            pair = MinimalPair(*(" ".join(derive(root, name).words) for root in roots))
            if not any(text.lower() in leave_out for text in pair):
                pairs.setdefault(pair.good, pair)
        if len(pairs) < size:
            raise CorpusError(f"grammar: asked for {size} minimal pairs of {name}, found {len(pairs)}")
        paradigms.append(Paradigm(name, name, tuple(pairs.values())))
    return paradigms
