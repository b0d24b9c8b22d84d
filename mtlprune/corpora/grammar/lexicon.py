"""The words of the generated corpus: classes of nouns, names, prepositions, and English inflection.

A *kind* is a semantic class (person, place, building ...). Verbs select kinds, prepositions attach by kinds, and names
are ambiguous between kinds: that is what makes context necessary. Each noun belongs to exactly one kind.
"""

import csv
from dataclasses import dataclass
from importlib import resources


def _rows(file: str) -> list[list[str]]:
    """The rows of a table beside the code, without its header."""
    text = resources.files("mtlprune.corpora").joinpath(file).read_text(encoding="utf-8")
    return [*csv.reader(text.splitlines()[1:], delimiter="\t")]


_WORDS = {(name, kind): tuple(words.split(",")) for name, kind, words in _rows("grammar_words.tsv")}


def _by_kind(wanted: str) -> dict[str, tuple[str, ...]]:
    return {kind: words for (name, kind), words in _WORDS.items() if name == wanted}


def _lists(*names: str) -> list[tuple[str, ...]]:
    return [_WORDS[name, ""] for name in names]


NOUNS, ADJECTIVES, NAMES = _by_kind("nouns"), _by_kind("adjectives"), _by_kind("names")
MASS = frozenset({"topic", "food"})  # no article, no plural
MANNER, SENTENCE_ADVERBS, LIGHT_ADVERBS = _lists("manner", "sentence_adverbs", "light_adverbs")
CARDINALS, MONTHS, DAYS = _lists("cardinals", "months", "days")
AMBIGUOUS, FIRST_NAMES, TITLES = _lists("ambiguous", "first_names", "titles")
ORG_TAILS, ORG_HEADS = _lists("org_tails", "org_heads")
YEARS = tuple(str(year) for year in range(1955, 2019, 3))
ENTITY = {"person": "PER", "place": "LOC", "orgn": "ORG"}

# Prepositional phrases that modify a noun of a kind, unless the verb claims that preposition (VERB_PP).
NOUN_PP: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "person": (("with", ("person_part",)), ("from", ("place",)), ("at", ("orgn",))),
    "orgn": (("in", ("place",)), ("from", ("place",))),
    "building": (("in", ("place",)), ("with", ("building_part",)), ("near", ("landmark",))),
    "place": (("near", ("landmark",)), ("in", ("place",))),
    "document": (
        ("about", ("topic",)),
        ("on", ("topic",)),
        ("from", ("person", "orgn")),
        ("to", ("person", "orgn")),
        ("with", ("document_part",)),
    ),
    "artefact": (("with", ("artefact_part",)), ("with", ("instrument",)), ("on", ("artefact",)), ("for", ("person",))),
    "food": (("for", ("person",)), ("from", ("place",))),
    "event": (("in", ("place",)), ("on", ("topic",)), ("with", ("person", "orgn"))),
    "proposal": (("from", ("person", "orgn")), ("on", ("topic",))),
}
# What a verb with this flag claims: preposition, kinds, argument label.
VERB_PP: dict[str, tuple[str, tuple[str, ...], str]] = {
    "instrument": ("with", ("instrument",), "ARGM-MNR"),
    "source": ("from", ("person", "orgn"), "ARG2"),
    "goal": ("to", ("person", "orgn"), "ARG2"),
    "onto": ("on", ("artefact",), "ARG2"),
    "topic": ("about", ("topic",), "ARG2"),
    "benefit": ("for", ("person",), "ARGM-GOL"),
}
# Objects after which "in PLACE" belongs to the noun; after all others it says where the event happened.
HAS_PLACE = frozenset({"orgn", "building", "place", "event"})
# Kinds that verbs take as objects, so that relative clauses can lack one.
GAP_KINDS = frozenset({"person", "place", "orgn", "building", "document", "artefact", "food", "proposal", "event"})


_DOUBLED = frozenset({"plan", "drop"})
_IRREGULAR_PLURALS = {"wife": "wives", "shelf": "shelves", "knife": "knives"}


def third(lemma: str) -> str:
    """The third person singular of a verb, and by the same rule the plural of a noun."""
    if lemma.endswith(("s", "sh", "ch", "x", "z")) or lemma == "go":
        return lemma + "es"
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ies"
    return lemma + "s"


def plural(noun: str) -> str:
    """The plural of a noun."""
    return _IRREGULAR_PLURALS.get(noun) or third(noun)


def gerund(lemma: str) -> str:
    """The -ing form."""
    if lemma in _DOUBLED or lemma in {"put", "cut", "set", "run", "swim"}:  # whose pasts are irregular
        return lemma + lemma[-1] + "ing"
    if lemma.endswith("e") and not lemma.endswith("ee"):
        return lemma[:-1] + "ing"
    return lemma + "ing"


def regular_past(lemma: str) -> str:
    """The -ed form of a regular verb."""
    if lemma.endswith("e"):
        return lemma + "d"
    if lemma.endswith("y") and lemma[-2] not in "aeiou":
        return lemma[:-1] + "ied"
    return lemma + (lemma[-1] if lemma in _DOUBLED else "") + "ed"


# -- The verbs of the generated corpus, by frame: a frame is the pattern of complements that a verb takes --


@dataclass(frozen=True)
class Verb:
    """A verb: its forms, roleset, the kinds it takes as subject and object, and what it claims of later phrases."""

    lemma: str
    past: str
    participle: str
    roleset: str
    subject: tuple[str, ...]
    object: tuple[str, ...] = ()
    flag: str = ""
    particle: str = ""


def _verbs() -> dict[str, tuple[Verb, ...]]:
    """Frame → verbs of grammar_verbs.tsv; kinds are separated by commas. Of the copula there is one entry for all but
    persons: "X is modern" does not tell places from organisations, so no ambiguous names there."""
    found: dict[str, tuple[Verb, ...]] = {}
    for frame, forms, sense, subjects, objects, flag in _rows("grammar_verbs.tsv"):
        forms, _, particle = forms.partition("+")
        lemma, *rest = forms.split("/")
        past = rest[0] if rest else regular_past(lemma)
        participle = rest[1] if len(rest) > 1 else past
        roleset = f"{lemma}_{particle}.{sense}" if particle else f"{lemma}.{sense}"
        kinds = tuple(subjects.split(",")), tuple(objects.split(",")) if objects else ()
        found[frame] = (*found.get(frame, ()), Verb(lemma, past, participle, roleset, *kinds, flag, particle))
    return found


VERBS = _verbs()
