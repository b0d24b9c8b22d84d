"""The words of the generated corpus: lists of words, verbs, English inflection, and the words that train may not use.

A *kind* is a semantic class of nouns (person, place, building ...). Each noun has exactly one kind. Verbs select nouns
by kind, and the kind of a noun determines where prepositional phrases attach. Names are ambiguous between kinds, so
models need context to predict their types.
"""

import csv
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TypeVar

_Choice = TypeVar("_Choice")
_HOLD_OUT_EVERY = 6  # the 6th, 12th ... entry of each list never occurs in train


def _rows(file: str) -> list[list[str]]:
    """Return the rows of a table in this package, without its header."""
    text = resources.files("mtlprune.corpora").joinpath(file).read_text(encoding="utf-8")
    return [*csv.reader(text.splitlines()[1:], delimiter="\t")]


_WORDS = {(name, kind): tuple(words.split(",")) for name, kind, words in _rows("grammar_words.tsv")}
ENTITIES = frozenset({"person", "place", "orgn"})
"""The kinds that have names."""


def words_of(name: str, kind: str) -> tuple[str, ...]:
    """Return the list of words for a kind of noun, or the list for things if the kind has none of its own."""
    return _WORDS.get((name, kind)) or _WORDS[name, "thing"]


_DOUBLED = frozenset({"plan", "drop"})
_IRREGULAR_PLURALS = {"wife": "wives", "shelf": "shelves", "knife": "knives"}
_BE = {"VB": "be", "VBN": "been", "VBG": "being", "VBZ": "is", "VBP": "are", "VBD": "were"}


def _third(lemma: str) -> str:
    """Return the third person singular of a verb. The same rule gives the plural of a noun."""
    if lemma.endswith(("s", "sh", "ch", "x", "z")) or lemma == "go":
        return lemma + "es"
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ies"
    return lemma + "s"


def _gerund(lemma: str) -> str:
    """Return the -ing form of a verb."""
    # The second set is not part of _DOUBLED, because its verbs have irregular past forms.
    if lemma in _DOUBLED or lemma in {"put", "cut", "set", "run", "swim"}:
        return lemma + lemma[-1] + "ing"
    return (lemma[:-1] if lemma.endswith("e") and not lemma.endswith("ee") else lemma) + "ing"


def _regular_past(lemma: str) -> str:
    """Return the -ed form of a regular verb."""
    if lemma.endswith("e"):
        return lemma + "d"
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ied"
    return lemma + (lemma[-1] if lemma in _DOUBLED else "") + "ed"


def inflect_noun(noun: str, tag: str) -> str:
    """Return the form of a noun with a Penn tag. Other words are returned unchanged."""
    return _IRREGULAR_PLURALS.get(noun) or _third(noun) if tag == "NNS" else noun


@dataclass(frozen=True)
class Verb:
    """A verb.

    Attributes:
        lemma, past_form, participle: its forms.
        roleset: its sense, such as put.01.
        subject: the kinds of its subject.
        object: the kinds of its object.
        flag: the type of a further phrase that belongs to the verb, such as instrument or source (``{flag}`` in
            templates); empty if there is none.
        particle: the particle of a phrasal verb.
    """

    lemma: str
    past_form: str
    participle: str
    roleset: str
    subject: tuple[str, ...]
    object: tuple[str, ...] = ()
    flag: str = ""
    particle: str = ""

    def inflect(self, tag: str, agreement: str) -> str:
        """Return the form with a Penn tag; ``agreement`` is "1" (with I), "3" (singular) or "p" (plural and you)."""
        if self.lemma == "be":
            singular = {"VBD": "was", "VBP": "am"}.get(tag) if agreement != "p" else None
            return singular or _BE[tag]
        forms = {"VBD": self.past_form, "VBN": self.participle, "VBG": _gerund(self.lemma), "VBZ": _third(self.lemma)}
        return forms.get(tag, self.lemma)


def _read_verbs() -> dict[str, tuple[Verb, ...]]:
    """Read the verbs of each frame from ``grammar_verbs.tsv``.

    The copula has one entry for subjects of all kinds except persons, because "X is modern" does not distinguish places
    from organisations. The subjects of this entry are therefore never ambiguous names.
    """
    verbs: dict[str, tuple[Verb, ...]] = {}
    for frame, forms, sense, subjects, objects, flag in _rows("grammar_verbs.tsv"):
        forms, _, particle = forms.partition("+")
        lemma, *irregular = forms.split("/")
        past_form = irregular[0] if irregular else _regular_past(lemma)
        participle = irregular[1] if len(irregular) > 1 else past_form
        roleset = f"{lemma}_{particle}.{sense}" if particle else f"{lemma}.{sense}"
        kinds = tuple(subjects.split(",")), tuple(objects.split(",")) if objects else ()
        verbs[frame] = (*verbs.get(frame, ()), Verb(lemma, past_form, participle, roleset, *kinds, flag, particle))
    return verbs


VERBS = _read_verbs()


@cache
def split_words(words: tuple[_Choice, ...]) -> tuple[list[_Choice], list[_Choice]]:
    """Return the entries of a list that may occur in train, and those that may not."""
    train_words = [word for index, word in enumerate(words, 1) if index % _HOLD_OUT_EVERY]
    return train_words, [*words[_HOLD_OUT_EVERY - 1 :: _HOLD_OUT_EVERY]]


class Draw:
    """Makes seeded random choices.

    All choices use only ``random.random``, whose stream is the same in every Python version.

    Args:
        seed: any text.
        unseen_share: how often a word comes from the entries of its list that may not occur in train.
    """

    def __init__(self, seed: str, unseen_share: float) -> None:
        self._next = random.Random(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")).random
        self._unseen_share = unseen_share

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._next() < probability

    def weighted(self, options: Sequence[tuple[_Choice, float]]) -> _Choice:
        """Return one of the options, with probabilities proportional to their weights."""
        point = self._next() * sum(weight for _, weight in options)
        for option, weight in options:
            point -= weight
            if point < 0:
                return option
        return options[-1][0]

    def any_of(self, options: Sequence[_Choice]) -> _Choice:
        """Return one of the options with equal probability, ignoring which entries may occur in train."""
        return options[int(self._next() * len(options))]

    def word(self, train_words: Sequence[_Choice], held_out_words: Sequence[_Choice]) -> _Choice:
        """Return an entry of a list from its two parts, which may and may not occur in train."""
        return self.any_of(held_out_words if self.chance(self._unseen_share) and held_out_words else train_words)
