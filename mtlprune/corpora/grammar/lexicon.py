"""The words of the generated corpus: classes of nouns, names, prepositions, and English inflection.

A *kind* is a semantic class (person, place, building ...). Verbs select kinds, prepositions attach by kinds, and names
are ambiguous between kinds: that is what makes context necessary. Each noun belongs to exactly one kind.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def _verbs(table: str) -> tuple[Verb, ...]:
    """Rows ``lemma[/past[/participle]][+particle] sense subjects[>objects] [flag]``; kinds are separated by commas."""
    found = []
    for row in table.strip().splitlines():
        forms, sense, kinds, *flag = row.split()
        forms, _, particle = forms.partition("+")
        lemma, *rest = forms.split("/")
        past = rest[0] if rest else regular_past(lemma)
        participle = rest[1] if len(rest) > 1 else past
        subjects, _, objects = kinds.partition(">")
        roleset = f"{lemma}_{particle}.{sense}" if particle else f"{lemma}.{sense}"
        kinds_of_object = tuple(objects.split(",")) if objects else ()
        flags = flag[0] if flag else ""
        found.append(
            Verb(lemma, past, participle, roleset, tuple(subjects.split(",")), kinds_of_object, flags, particle)
        )
    return tuple(found)


VERBS: dict[str, tuple[Verb, ...]] = {
    "transitive": _verbs("""
examine 01 person>document,building,person
visit 01 person>place,building
arrest 01 person>person
marry 01 person>person
study 01 person>document,topic
guard 01 person>building,artefact
hire 01 orgn>person
meet/met 02 person>person
reach 01 person>place
join 01 person>orgn
record 01 person>event
sign 02 orgn>person
open 01 person>artefact,building instrument
cut/cut 01 person>food,artefact instrument
repair 01 person>artefact,building instrument
receive 01 person,orgn>document,food,proposal source
read/read 01 person>document
reject 01 person,orgn>proposal
support 01 person,orgn>proposal,person,orgn
find/found 01 person>artefact,document,person
carry 01 person>artefact,document,food
destroy 01 person,orgn>document,building,artefact
cook 01 person>food benefit
borrow 01 person>artefact,document source
attack 01 person>place,building,person
acquire 01 orgn>orgn
interview 01 person,orgn>person
see/saw/seen 01 person>person,building,artefact
lock 01 person>artefact,building instrument
buy/bought 01 person,orgn>artefact,food,building source
paint 01 person>building,artefact instrument
judge 01 person>event,person
steal/stole/stolen 01 person>artefact,document,food source
explore 01 person>place
leave/left 01 person>place,building,event
sue 01 orgn>orgn
cover 01 person>artefact
invade 01 person>place
book 01 person>event,building
label 01 person>artefact
greet 01 person>person
build/built 01 person,orgn>building,artefact benefit
flood 01 landmark>place
photograph 01 person>person,building,artefact
publish 01 orgn>document
write/wrote/written 01 person>document
break/broke/broken 01 person>artefact instrument
debate 01 person,orgn>proposal,topic
need 01 person,orgn>artefact,document,food
fire 02 orgn>person
prepare 02 person>food,document benefit
hide/hid/hidden 01 person>document,artefact,food
manage 01 person>orgn
measure 01 person>building,artefact instrument
thank 01 person>person
describe 01 person>person,event,place
launch 01 orgn>event,document
admire 01 person>person,building,document
"""),
    "particle": _verbs("""
pick+up 04 person>artefact,document,food
turn+down 10 person,orgn>proposal
carry+out 03 orgn,person>proposal,event
set/set+up 03 person>orgn
call+off 07 person,orgn>event
throw/threw/thrown+away 01 person>artefact,document,food
take/took/taken+over 13 orgn>orgn
hand+over 02 person>artefact,document
"""),
    "intransitive": _verbs("""
smile 01 person
sleep/slept 01 person
laugh 01 person
arrive 01 person
wait 01 person
cry 01 person
expand 01 orgn
sing/sang/sung 01 person
work 01 person
dance 01 person
swim/swam/swum 01 person
vote 01 person
pray 01 person
resign 01 person
merge 01 orgn
rest 01 person
"""),
    "inchoative": _verbs("""
open 01 artefact,building
break/broke/broken 01 artefact
burn 01 building,document
sink/sank/sunk 01 artefact
close 01 building,artefact
change 01 place,orgn,document
collapse 01 building
grow/grew/grown 01 orgn,place
"""),
    "motion": _verbs("""
travel 01 person
fly/flew/flown 01 person
move 01 person
sail 01 person
walk 01 person
drive/drove/driven 01 person
run/ran/run 02 person
ride/rode/ridden 01 person
"""),
    "transfer": _verbs("""
give/gave/given 01 person>artefact,document,food goal
send/sent 01 person,orgn>document,artefact,food goal
offer 01 person,orgn>artefact,document,food goal
show/showed/shown 01 person>artefact,document,building goal
sell/sold 01 person>artefact,document,food goal
lend/lent 01 person>artefact,document goal
hand 01 person>artefact,document,food goal
teach/taught 01 person>topic goal
"""),
    "placing": _verbs("""
put/put 01 person>artefact,document,food onto
place 01 person>artefact,document,food onto
leave/left 01 person>document,food onto
set/set 01 person>artefact,food onto
lay/laid 01 person>document,artefact onto
drop 05 person>document,food onto
"""),
    "informing": _verbs("""
tell/told 01 person>person topic
warn 01 person,orgn>person topic
remind 01 person>person topic
inform 01 person,orgn>person topic
ask 01 person>person topic
question 01 person,orgn>person topic
"""),
    "saying": _verbs("""
say/said 01 person,orgn
believe 01 person
report 01 orgn
think/thought 01 person
know/knew/known 01 person
announce 01 orgn
claim 01 person,orgn
hear/heard 01 person
fear 01 person
hope 01 person
deny 01 person,orgn
learn 01 person
"""),
    "assuring": _verbs("""
tell/told 01 person>person
convince 01 person>person
assure 01 person>person
remind 01 person>person
warn 01 person>person
persuade 01 person>person
"""),
    "wanting": _verbs("""
want 01 person
plan 01 person,orgn
try 01 person
hope 01 person
refuse 01 person,orgn
decide 01 person,orgn
agree 01 person,orgn
offer 01 person
need 01 person
fail 01 person,orgn
"""),
    "promising": _verbs("""
promise 01 person>person
"""),
    "ordering": _verbs("""
persuade 01 person>person
order 02 person>person
force 01 person>person
ask 02 person>person
urge 01 person,orgn>person
invite 01 person>person
allow 01 person,orgn>person
encourage 01 person>person
"""),
    "seeming": _verbs("""
seem 01 person
appear 02 person
tend 02 person
continue 01 person
"""),
    # one entry for all but persons: "X is modern" does not tell places from organisations, so no ambiguous names there
    "copula": _verbs("""
be/was/been 01 person
be/was/been 01 place,orgn,building,document
"""),
}
