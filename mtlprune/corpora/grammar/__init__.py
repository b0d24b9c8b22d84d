"""A generated corpus: sentences of a lexicalised grammar, whose derivations yield all five layers exactly.

``docs/grammar.md`` says what is in it and what makes it hard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from mtlprune.corpora import CorpusError
from mtlprune.corpora.grammar.derivation import Node, derive
from mtlprune.corpora.grammar.nouns import Draw
from mtlprune.corpora.grammar.sentences import Sentences
from mtlprune.sentence import Sentence

LONGEST = 40
UNSEEN = 0.2  # of the words in dev and test that a list of the lexicon gives, how many come from its held-out part
MOST = 1_000_000  # sentences of a split; they are held in memory
_PATIENCE = 2000  # draws in a row without a new sentence


def build_grammar(train: int = 2000, dev: int = 300, test: int = 300, seed: int = 1) -> dict[str, list[Sentence]]:
    """Draw a corpus of the generated language.

    The same arguments give the same sentences on every machine and Python version, and a larger train begins with the
    sentences of a smaller one. No word sequence (in lower case) occurs twice, within a split or between splits. A sixth
    of each list of open-class words and names never occurs in train. Dev and test hold no label (tag, entity type,
    relation, bracket or role) that is not in train.

    Args:
        train, dev, test: how many sentences each.
        seed: any whole number.

    Raises:
        CorpusError: a size is negative or above MOST, train is empty where another split is not, or there are not
            enough different sentences.
    """
    sizes = {"train": train, "dev": dev, "test": test}
    for split, size in sizes.items():
        if size < 0:
            raise CorpusError(f"grammar, {split}: expected a number of sentences from 0 upwards, found {size}")
        if size > MOST:
            raise CorpusError(f"grammar, {split}: expected at most {MOST:,} sentences, found {size:,}; take fewer")
    if not train and (dev or test):
        raise CorpusError("grammar: dev and test use only labels that train holds, so train needs a sentence at least")
    taken: set[tuple[str, ...]] = set()
    corpus: dict[str, list[Sentence]] = {}
    known: set[tuple[str, str]] = set()
    for split, size in sizes.items():
        allowed = None if split == "train" else known.issuperset
        corpus[split] = fill(split, size, _draws(split, seed), taken, allowed)
        if split == "train":
            known = set().union(*map(labels, corpus[split])) if size else set()
    return corpus


def labels(sentence: Sentence) -> set[tuple[str, str]]:
    """Every (layer, label) of a sentence that a task has to predict."""
    found = {("pos", tag) for tag in sentence.pos or ()}
    found |= {("ner", span.label) for span in sentence.ner or ()}
    found |= {("dep", relation) for relation in (sentence.dep.relations if sentence.dep else ())}
    found |= {("con", span.label) for span in sentence.con or ()}
    return found | {("srl", span.label) for predicate in sentence.srl or () for span in predicate.arguments}


def fill(
    split: str,
    size: int,
    draws: Iterator[Callable[[str], Sentence]],
    taken: set[tuple[str, ...]],
    allowed: Callable[[set[tuple[str, str]]], bool] | None = None,
) -> list[Sentence]:
    """Take ``size`` sentences whose words are not yet in ``taken``, to which they are added.

    Args:
        draws: without end; each is a sentence still without its id.
        allowed: says of a sentence's labels whether the split may hold them; None: any.

    Raises:
        CorpusError: nothing new came for a long while.
    """
    found: list[Sentence] = []
    misses = 0
    while len(found) < size:
        sentence = next(draws)(f"grammar-{split}-{len(found) + 1:05d}")
        form = tuple(word.lower() for word in sentence.words)
        if len(sentence) > LONGEST or form in taken or (allowed and not allowed(labels(sentence))):
            misses += 1
            if misses == _PATIENCE:
                raise CorpusError(
                    f"grammar, {split}: asked for {size} sentences, but after {len(found)} the last {_PATIENCE} drawn "
                    "were all taken already, too long, or with labels that train lacks; ask for fewer, or for a larger "
                    "train"
                )
            continue
        misses = 0
        taken.add(form)
        found.append(sentence.validate())
    return found


def _draws(split: str, seed: int) -> Iterator[Callable[[str], Sentence]]:
    number = int.from_bytes(hashlib.sha256(f"grammar/{split}/{seed}".encode()).digest()[:8], "big")
    draw = Draw(number, unseen=0.0 if split == "train" else UNSEEN)
    while True:
        rules = Sentences(draw)
        root = rules.sentence()

        def named(identity: str, root: Node = root, rules: Sentences = rules) -> Sentence:
            return derive(identity, root, rules.frames)

        yield named
