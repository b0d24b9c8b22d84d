"""The words of the generated corpus: classes of nouns, names, prepositions, and English inflection.

A *kind* is a semantic class (person, place, building ...). Verbs select kinds, prepositions attach by kinds, and names
are ambiguous between kinds: that is what makes context necessary. Each noun belongs to exactly one kind.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


NOUNS = {
    kind: _listed(words)
    for kind, words in {
        "person": "teacher lawyer doctor farmer nurse pilot student journalist guard engineer judge soldier cook "
        "singer scientist painter officer driver manager writer tailor captain sailor actor mayor tourist witness "
        "professor",
        "orgn": "company bank committee ministry newspaper union agency council court airline party firm club",
        "building": "house museum hotel school church tower library station castle factory theater palace hospital",
        "place": "village valley city island harbor desert region town province forest colony",
        "document": "letter report book article contract list map record novel study will poem memo diary",
        "artefact": "box door table window chair bag lamp can basket bottle shelf drawer desk safe",
        "instrument": "knife hammer saw brush key rope needle drill axe shovel ladder pencil",
        "person_part": "beard hat smile scar uniform accent tattoo limp scarf moustache",
        "building_part": "balcony garden roof chimney cellar courtyard elevator terrace",
        "document_part": "appendix signature cover title footnote preface index",
        "artefact_part": "handle lid label lock lining hinge stain",
        "food": "soup bread cake pasta rice cheese chicken salad pie stew",
        "topic": "trade energy tax health travel oil education climate poverty history crime farming",
        "event": "meeting concert wedding trial election strike visit debate race festival attack conference",
        "landmark": "river lake gate fountain road fence canal statue",
        "proposal": "plan offer request decision order promise attempt proposal demand",
        "relative": "wife brother sister neighbor mother uncle father cousin",
    }.items()
}
MASS = frozenset({"topic", "food"})  # no article, no plural
ADJECTIVES = {
    kind: _listed(words)
    for kind, words in {
        "person": "young tired angry tall nervous honest careful polite rich lonely brave proud",
        "thing": "new old large small red heavy expensive famous strange broken white local modern simple",
    }.items()
}
MANNER = _listed("quickly carefully quietly slowly secretly proudly suddenly politely gently eagerly calmly openly")
SENTENCE_ADVERBS = _listed("However Meanwhile Therefore Instead Finally Nevertheless")
LIGHT_ADVERBS = _listed("reportedly probably apparently also still already often clearly")
CARDINALS = _listed("two three four five six ten twelve 20 40 75 300 90")
MONTHS = _listed("January March April May June August October November")
DAYS = _listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
YEARS = tuple(str(year) for year in range(1955, 2019, 3))

AMBIGUOUS = _listed(
    "Washington Jordan Paris Chelsea Lincoln Austin Florence Sydney Houston Jackson Madison Hamilton Lancaster Kent "
    "Preston Bristol Carson Georgia Virginia Burton Orlando Cameron Dallas Hudson"
)
FIRST_NAMES = _listed(
    "Anna Peter Maria John Susan David Laura Robert Linda Michael Sarah Thomas Emma Daniel Julia Mark Alice Henry Rose "
    "Will Nancy George Helen Frank"
)
NAMES = {
    "person": _listed(
        "Miller Smith Garcia Johnson Brown Wilson Anderson Taylor Moore Clark Lewis Walker Young Allen King Wright "
        "Scott Hill Green Adams Baker Nelson Carter Mitchell"
    ),
    "place": (
        *_listed(
            "Berlin Japan Canada Texas London Egypt Moscow Brazil Tokyo France Chicago Iraq Madrid India Vienna Cuba"
        ),
        *("New York", "South Africa", "Hong Kong", "Los Angeles", "Saudi Arabia", "New Zealand", "Sri Lanka"),
    ),
    "orgn": _listed(
        "Microsoft Google Reuters Toyota Siemens Boeing NATO Samsung Honda Intel Nokia Sony Pfizer Shell IBM"
    ),
}
ORG_TAILS = _listed("Motors Airlines Institute Bank Group University Industries Times")
ORG_HEADS = _listed("Bank University Museum Council")
TITLES = _listed("Mr. Mrs. Senator President Judge Captain Professor")
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
    text = resources.files("mtlprune.corpora").joinpath("grammar_verbs.tsv").read_text(encoding="utf-8")
    for frame, forms, sense, subjects, objects, flag in csv.reader(text.splitlines()[1:], delimiter="\t"):
        forms, _, particle = forms.partition("+")
        lemma, *rest = forms.split("/")
        past = rest[0] if rest else regular_past(lemma)
        participle = rest[1] if len(rest) > 1 else past
        roleset = f"{lemma}_{particle}.{sense}" if particle else f"{lemma}.{sense}"
        kinds = tuple(subjects.split(",")), tuple(objects.split(",")) if objects else ()
        found[frame] = (*found.get(frame, ()), Verb(lemma, past, participle, roleset, *kinds, flag, particle))
    return found


VERBS = _verbs()
