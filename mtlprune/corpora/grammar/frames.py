"""What follows a verb, frame by frame: complements, the arguments they fill, and who is understood as whose subject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mtlprune.corpora.grammar import lexicon
from mtlprune.corpora.grammar.lexicon import Verb
from mtlprune.corpora.grammar.nouns import HEAD, Node, Nominal, leaf, phrase

if TYPE_CHECKING:
    from mtlprune.corpora.grammar.clauses import Clauses

Edges = list[tuple[str, Node]]


@dataclass(frozen=True)
class Filler:
    """Who fills a role: its phrases with their label prefixes (``""``, or ``R-`` for a relative pronoun)."""

    nodes: tuple[tuple[Node, str], ...]
    agreement: str
    kind: str

    @classmethod
    def of(cls, nominal: Nominal, pronoun: Node | None = None) -> Filler:
        """From a noun phrase and the relative pronoun that stands for it, if any."""
        nodes = ((nominal.node, ""), *(((pronoun, "R-"),) if pronoun else ()))
        return cls(nodes, nominal.agreement, nominal.kind)


@dataclass
class Clause:
    """One verb and its surroundings while they are being built.

    Attributes:
        gap: the antecedent of an object relative clause, which fills the object's place; None where nothing is missing.
        last: the kind of the last noun phrase so far: it decides what a following preposition would belong to.
        fronted: in a question, the auxiliary that stands before the subject.
        closed: ends in a clause or list, so no adjunct of this verb may follow.
    """

    frame: str
    verb: Verb
    leaf: Node
    passive: bool
    subject: Filler
    depth: int
    gap: Filler | None = None
    last: str = ""
    closed: bool = False
    fronted: tuple[str, Node] | None = None
    arguments: list[tuple[Node, str]] = field(default_factory=list)

    def fill(self, filler: Filler, label: str) -> None:
        """Let a filler be an argument."""
        self.arguments += [(node, prefix + label) for node, prefix in filler.nodes]

    def take(self, relation: str, node: Node, label: str) -> tuple[str, Node]:
        """An edge to a phrase that is an argument."""
        self.arguments.append((node, label))
        return relation, node

    def note(self, nominal: Nominal) -> None:
        """Remember what the clause ends in so far."""
        self.last = nominal.last or nominal.kind
        self.closed = self.closed or nominal.heavy


def _object(rules: Clauses, clause: Clause, label: str = "ARG1", short: bool = False) -> Edges:
    if clause.gap:
        clause.fill(clause.gap, label)
        return []
    if short:
        nominal = rules.noun_phrase(clause.verb.object)
    else:
        nominal = rules.argument(clause.verb.object, clause.depth, verb=clause.verb)
    clause.note(nominal)
    return [clause.take("obj", nominal.node, label)]


def _agent(rules: Clauses, clause: Clause, probability: float = 0.45) -> Edges:
    if not rules.draw.chance(probability):
        return []
    node, clause.last = rules.prepositional("by", clause.verb.subject)
    return [clause.take("obl:agent", node, "ARG0")]


def _claimed(rules: Clauses, clause: Clause, probability: float) -> Edges:
    """The prepositional phrase that the verb's flag claims."""
    if clause.closed or clause.verb.flag not in lexicon.VERB_PP or not rules.draw.chance(probability):
        return []
    preposition, kinds, label = lexicon.VERB_PP[clause.verb.flag]
    node, clause.last = rules.prepositional(preposition, kinds)
    return [clause.take("obl", node, label)]


def _subject_and_object(rules: Clauses, clause: Clause, claimed: float, short: bool = False) -> Edges:
    if clause.passive:
        clause.fill(clause.subject, "ARG1")
        return _agent(rules, clause) + _claimed(rules, clause, claimed)
    clause.fill(clause.subject, "ARG0")
    return _object(rules, clause, short=short) + _claimed(rules, clause, claimed)


_transitive = partial(_subject_and_object, claimed=0.45)
_obligatory = partial(_subject_and_object, claimed=1.0, short=True)


def _particle(rules: Clauses, clause: Clause) -> Edges:
    particle = ("compound:prt", phrase("PRT", (HEAD, leaf(clause.verb.particle, "RP"))))
    if clause.passive or clause.gap or rules.draw.chance(0.5):
        return [particle, *_transitive(rules, clause)]
    clause.fill(clause.subject, "ARG0")
    return [*_object(rules, clause, short=True), particle]


def _subject_alone(rules: Clauses, clause: Clause, label: str) -> Edges:
    clause.fill(clause.subject, label)
    return []


def _motion(rules: Clauses, clause: Clause) -> Edges:
    clause.fill(clause.subject, "ARG0")
    edges: Edges = []
    for preposition, label in (("from", "ARGM-DIR"), ("to", "ARGM-GOL")):
        if rules.draw.chance(0.55):
            node, clause.last = rules.prepositional(preposition, ("place",))
            edges.append(clause.take("obl", node, label))
    return edges


def _transfer(rules: Clauses, clause: Clause) -> Edges:
    if clause.passive or clause.gap or clause.verb.object == ("topic",) or rules.draw.chance(0.5):
        return _obligatory(rules, clause)
    clause.fill(clause.subject, "ARG0")
    receiver = rules.noun_phrase(("person",))
    edges = [clause.take("iobj", receiver.node, "ARG2")]
    return edges + _object(rules, clause)


def _saying(rules: Clauses, clause: Clause) -> Edges:
    clause.fill(clause.subject, "ARG0")
    return [clause.take("ccomp", _content(rules, clause), "ARG1")]


def _content(rules: Clauses, clause: Clause) -> Node:
    """``(that) S``, through which an object may have been moved out."""
    clause.closed = True
    inner, _ = rules.clause(clause.depth - 1, gap=clause.gap)
    if clause.gap or rules.draw.chance(0.4):
        return phrase("SBAR", (HEAD, inner))
    return phrase("SBAR", ("mark", leaf("that", "IN")), (HEAD, inner))


def _assuring(rules: Clauses, clause: Clause) -> Edges:
    """``told her that S``: who is told is ARG2 for tell, ARG1 for the others, as in PropBank."""
    hearer, said = ("ARG2", "ARG1") if clause.verb.lemma == "tell" else ("ARG1", "ARG2")
    if clause.passive:
        clause.fill(clause.subject, hearer)
        edges = _agent(rules, clause, 0.2)
    else:
        clause.fill(clause.subject, "ARG0")
        edges = _object(rules, clause, label=hearer, short=True)
    return [*edges, clause.take("ccomp", _content(rules, clause), said)]


def _wanting(rules: Clauses, clause: Clause, subject: str = "ARG0", label: str = "ARG1") -> Edges:
    """Subject control; raising with other labels: the subject of *seem* belongs to the infinitive, so both together are
    ARG1 (the second part C-ARG1)."""
    clause.closed = True
    clause.fill(clause.subject, subject)
    return [clause.take("xcomp", rules.infinitive(clause.subject, clause.depth - 1), label)]


def _promising(rules: Clauses, clause: Clause) -> Edges:
    """Subject control across an object: who promises is who will do it."""
    clause.fill(clause.subject, "ARG0")
    edges = _object(rules, clause, label="ARG2", short=True)
    clause.closed = True
    return [*edges, clause.take("xcomp", rules.infinitive(clause.subject, clause.depth - 1), "ARG1")]


def _ordering(rules: Clauses, clause: Clause) -> Edges:
    """Object control: who is ordered is who will do it, also where the passive makes that the subject."""
    if clause.passive:
        clause.fill(clause.subject, "ARG1")
        edges, controller = _agent(rules, clause, 0.2), clause.subject
    else:
        clause.fill(clause.subject, "ARG0")
        ordered = rules.noun_phrase(clause.verb.object)
        controller = Filler.of(ordered)
        edges = [clause.take("obj", ordered.node, "ARG1")]
    clause.closed = True
    return [*edges, clause.take("xcomp", rules.infinitive(controller, clause.depth - 1), "ARG2")]


def _copula(rules: Clauses, clause: Clause) -> Edges:
    """The predicate is the head, as in UD; its type says whether an ambiguous subject is a person."""
    clause.fill(clause.subject, "ARG1")
    kind = clause.subject.kind
    clause.last = kind
    if clause.subject.agreement != "p" and kind in (*lexicon.ENTITY, "document", "building") and rules.draw.chance(0.4):
        return [clause.take(HEAD, rules.common(kind, indefinite=True).node, "ARG2")]
    adjective = leaf(rules.draw.word(lexicon.ADJECTIVES["person" if kind == "person" else "thing"]), "JJ")
    degree = [("advmod", leaf(rules.draw.any_of(("very", "too", "rather")), "RB"))] if rules.draw.chance(0.25) else []
    return [clause.take(HEAD, phrase("ADJP", *degree, (HEAD, adjective)), "ARG2")]


COMPLEMENTS: dict[str, Callable[[Clauses, Clause], Edges]] = {
    "transitive": _transitive,
    "particle": _particle,
    "intransitive": partial(_subject_alone, label="ARG0"),
    "inchoative": partial(_subject_alone, label="ARG1"),
    "motion": _motion,
    "transfer": _transfer,
    "placing": _obligatory,
    "informing": partial(_subject_and_object, claimed=0.8, short=True),
    "saying": _saying,
    "assuring": _assuring,
    "wanting": _wanting,
    "promising": _promising,
    "ordering": _ordering,
    "seeming": partial(_wanting, subject="ARG1", label="C-ARG1"),
    "copula": _copula,
}
PASSIVES = frozenset({"transitive", "particle", "transfer", "placing", "informing", "assuring", "ordering"})
GAPS = frozenset({"transitive", "particle", "transfer", "placing", "informing"})
CLAUSAL = frozenset({"saying", "assuring", "wanting", "promising", "ordering", "seeming"})
EVENTIVE = frozenset({"transitive", "particle", "intransitive", "inchoative", "motion", "transfer", "placing"})
WEIGHTS = {"transitive": 9.0, "intransitive": 2.0, "saying": 2.5, "wanting": 2.0, "ordering": 1.6, "motion": 1.5}
