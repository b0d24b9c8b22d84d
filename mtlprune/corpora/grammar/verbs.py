"""The verbs of the generated corpus, by frame: a frame is the pattern of complements that a verb takes."""

from __future__ import annotations

from dataclasses import dataclass

from mtlprune.corpora.grammar.lexicon import regular_past


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
