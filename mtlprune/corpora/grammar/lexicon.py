"""The words of the generated corpus: lists, verbs, English inflection, and what is kept from train.

A *kind* is a semantic class (person, place, building ...). Verbs select kinds, prepositions attach by kinds, and names
are ambiguous between kinds: that is what makes context necessary. Each noun belongs to exactly one kind.
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
_HOLD_OUT_EVERY = 6  # of each list of words, the 6th, 12th ... never occur in train


def _rows(file: str) -> list[list[str]]:
    """The rows of a table beside the code, without its header."""
    text = resources.files("mtlprune.corpora").joinpath(file).read_text(encoding="utf-8")
    return [*csv.reader(text.splitlines()[1:], delimiter="\t")]


_WORDS = {(name, kind): tuple(words.split(",")) for name, kind, words in _rows("grammar_words.tsv")}
ENTITIES = frozenset({"person", "place", "orgn"})  # the kinds that names belong to


def words_of(name: str, kind: str) -> tuple[str, ...]:
    """A list of words for a kind of noun; adjectives of most kinds are those of things."""
    return _WORDS.get((name, kind)) or _WORDS[name, "thing"]


_DOUBLED = frozenset({"plan", "drop"})
_IRREGULAR_PLURALS = {"wife": "wives", "shelf": "shelves", "knife": "knives"}
_BE = {"VB": "be", "VBN": "been", "VBG": "being", "VBZ": "is", "VBP": "are", "VBD": "were"}


def third(lemma: str) -> str:
    """The third person singular of a verb, and by the same rule the plural of a noun."""
    if lemma.endswith(("s", "sh", "ch", "x", "z")) or lemma == "go":
        return lemma + "es"
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ies"
    return lemma + "s"


def gerund(lemma: str) -> str:
    """The -ing form."""
    if lemma in _DOUBLED or lemma in {"put", "cut", "set", "run", "swim"}:  # whose pasts are irregular
        return lemma + lemma[-1] + "ing"
    return (lemma[:-1] if lemma.endswith("e") and not lemma.endswith("ee") else lemma) + "ing"


def _regular_past(lemma: str) -> str:
    """The -ed form of a regular verb."""
    if lemma.endswith("e"):
        return lemma + "d"
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ied"
    return lemma + (lemma[-1] if lemma in _DOUBLED else "") + "ed"


def inflect_noun(noun: str, tag: str) -> str:
    """The form of a noun under a Penn tag; other words stay as they are."""
    return _IRREGULAR_PLURALS.get(noun) or third(noun) if tag == "NNS" else noun


@dataclass(frozen=True)
class Verb:
    """A verb: its forms, roleset, the kinds it takes as subject and object, and what it claims of later phrases."""

    lemma: str
    past_form: str
    participle: str
    roleset: str
    subject: tuple[str, ...]
    object: tuple[str, ...] = ()
    flag: str = ""
    particle: str = ""

    def inflect(self, tag: str, agreement: str) -> str:
        """The form under a Penn tag; ``agreement`` is "1" (I), "3" (singular) or "p" (plural and you)."""
        if self.lemma == "be":
            singular = {"VBD": "was", "VBP": "am"}.get(tag) if agreement != "p" else None
            return singular or _BE[tag]
        forms = {"VBD": self.past_form, "VBN": self.participle, "VBG": gerund(self.lemma), "VBZ": third(self.lemma)}
        return forms.get(tag, self.lemma)


def _read_verbs() -> dict[str, tuple[Verb, ...]]:
    """Frame → verbs of grammar_verbs.tsv; kinds are separated by commas. Of the copula there is one entry for all but
    persons: "X is modern" does not tell places from organisations, so no ambiguous names there."""
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
    """The entries of a list that train may and may not use."""
    train_words = [word for place, word in enumerate(words, 1) if place % _HOLD_OUT_EVERY]
    return train_words, [*words[_HOLD_OUT_EVERY - 1 :: _HOLD_OUT_EVERY]]


class Draw:
    """Seeded choices from ``random.random`` alone, whose stream is the same in every Python version.
    ``unseen_share``: how often a word comes from the part of its list that train never uses."""

    def __init__(self, seed: str, unseen_share: float) -> None:
        self._next = random.Random(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")).random
        self._unseen_share = unseen_share

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._next() < probability

    def weighted(self, options: Sequence[tuple[_Choice, float]]) -> _Choice:
        """One of the options, by weight."""
        point = self._next() * sum(weight for _, weight in options)
        for option, weight in options:
            point -= weight
            if point < 0:
                return option
        return options[-1][0]

    def any_of(self, options: Sequence[_Choice]) -> _Choice:
        """One of the options, each as likely; nothing is kept from train."""
        return options[int(self._next() * len(options))]

    def word(self, train_words: Sequence[_Choice], held_out_words: Sequence[_Choice]) -> _Choice:
        """One entry of a list, whose parts that train may and may not use are given."""
        return self.any_of(held_out_words if self.chance(self._unseen_share) and held_out_words else train_words)
