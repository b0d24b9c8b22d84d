"""Clauses of the generated corpus: verb phrases, coordination, relative clauses, control and raising."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from mtlprune.corpora.grammar import lexicon
from mtlprune.corpora.grammar.frames import CLAUSAL, COMPLEMENTS, EVENTIVE, GAPS, PASSIVES, WEIGHTS, Clause, Filler
from mtlprune.corpora.grammar.lexicon import VERBS, Verb, gerund, third
from mtlprune.corpora.grammar.nouns import (
    HEAD,
    Draw,
    Node,
    Nominal,
    NounPhrases,
    VerbFrame,
    leaf,
    phrase,
    seen_in_train,
)

# -- What a clause of the generated corpus may hold besides complements: times, places, manners; phrases after nouns --


_TIMES = (("day", 3.0), ("month", 2.0), ("year", 2.0), ("bare", 2.0), ("last", 2.0), ("span", 1.0))
_SUBORDINATORS = {
    "because": "ARGM-CAU",
    "after": "ARGM-TMP",
    "before": "ARGM-TMP",
    "while": "ARGM-TMP",
    "although": "ARGM-ADV",
    "if": "ARGM-ADV",
}


class Adjuncts(NounPhrases, ABC):
    """Draws adjuncts. What a phrase belongs to follows from the verb, the preposition and the kinds of the nouns."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.frames: list[VerbFrame] = []  # the predicates of one sentence so far

    @abstractmethod
    def clause(self, depth: int) -> tuple[Node, Clause]:
        """A finite clause."""

    @abstractmethod
    def purpose(self, clause: Clause) -> Node:
        """``to VP`` that says what for."""

    def adjuncts(self, clause: Clause) -> list[tuple[str, Node]]:
        """What follows the complements: nothing where it could be taken for a part of what stands before."""
        if clause.closed or clause.frame in CLAUSAL:
            return []
        chance = self.draw.chance
        edges = []
        if clause.frame != "copula" and chance(0.08):
            edges.append(self._manner(clause))
        if clause.frame != "copula" and clause.last not in lexicon.HAS_PLACE and chance(0.15):
            edges.append(self.place(clause))
        if chance(0.2):
            edges.append(self.time(clause))
        if clause.depth > 0 and chance(0.1):
            edges.append(self.subordinate(clause))
            clause.closed = True
        elif clause.frame in ("transitive", "motion") and clause.last != "proposal" and self._may_aim(clause):
            edges.append(clause.take("advcl", self.purpose(clause), "ARGM-PRP"))
            clause.closed = True
        return edges

    def _may_aim(self, clause: Clause) -> bool:
        return clause.subject.kind == "person" and not clause.passive and not clause.gap and self.draw.chance(0.07)

    def adverb(self, clause: Clause) -> tuple[str, Node]:
        """An adverb before the verb."""
        word = leaf(self.draw.word(lexicon.LIGHT_ADVERBS), "RB")
        return clause.take("advmod", phrase("ADVP", (HEAD, word)), "ARGM-ADV")

    def _manner(self, clause: Clause) -> tuple[str, Node]:
        word = leaf(self.draw.word(lexicon.MANNER), "RB")
        return clause.take("advmod", phrase("ADVP", (HEAD, word)), "ARGM-MNR")

    def place(self, clause: Clause) -> tuple[str, Node]:
        """Where it happened; ``by`` the river, as an agent would stand after ``by``."""
        preposition, kinds = self.draw.weighted(
            ((("in", ("place",)), 4.0), (("at", ("building", "event")), 3.0), (("near", ("landmark",)), 1.0),
             (("by", ("landmark",)), 1.5))
        )  # fmt: skip
        node, clause.last = self.prepositional(preposition, kinds)
        return clause.take("obl", node, "ARGM-LOC")

    def time(self, clause: Clause) -> tuple[str, Node]:
        """When it happened, as a PP or a bare noun phrase."""
        form = self.draw.weighted(_TIMES)
        if form in ("bare", "last"):
            if form == "bare":
                noun = phrase("NP", (HEAD, leaf(self.draw.any_of(("yesterday", "today", "tomorrow")), "NN")))
            else:
                word, tag = self.draw.any_of((("last", "JJ"), ("next", "JJ"), ("this", "DT"), ("every", "DT")))
                unit = leaf(self.draw.any_of(("week", "year", "month", "summer", "winter")), "NN")
                noun = phrase("NP", ("amod" if tag == "JJ" else "det", leaf(word, tag)), (HEAD, unit))
            return clause.take("obl:unmarked", noun, "ARGM-TMP")
        if form == "span":
            count = leaf(self.draw.word(lexicon.CARDINALS), "CD")
            unit = leaf(self.draw.any_of(("years", "months", "weeks", "days", "hours")), "NNS")
            noun = phrase("NP", ("nummod", count), (HEAD, unit))
        else:
            words, tag = {
                "day": (lexicon.DAYS, "NNP"),
                "month": (lexicon.MONTHS, "NNP"),
                "year": (lexicon.YEARS, "CD"),
            }[form]
            noun = phrase("NP", (HEAD, leaf(self.draw.word(words), tag)))
        preposition = {"span": "for", "day": "on"}.get(form, "in")
        return clause.take("obl", self.preposition(preposition, noun), "ARGM-TMP")

    def subordinate(self, clause: Clause) -> tuple[str, Node]:
        """An adverbial clause."""
        word = self.draw.any_of(tuple(_SUBORDINATORS))
        inner, _ = self.clause(clause.depth - 1)
        return clause.take("advcl", phrase("SBAR", ("mark", leaf(word, "IN")), (HEAD, inner)), _SUBORDINATORS[word])

    def with_phrase(self, first: Nominal, verb: Verb | None) -> Nominal:
        """A noun with a prepositional phrase of its own, unless the verb claims that preposition."""
        claimed = lexicon.VERB_PP.get(verb.flag, ("", (), "")) if verb else ("", (), "")
        options = [
            (preposition, kinds)
            for preposition, kinds in lexicon.NOUN_PP.get(first.kind, ())
            if preposition != claimed[0] or not set(kinds) & set(claimed[1])
        ]
        if not options:
            return first
        node, last = self.prepositional(*self.draw.any_of(options))
        return Nominal(phrase("NP", (HEAD, first.node), ("nmod", node)), first.agreement, first.kind, last=last)


# -- The words before a verb in the generated corpus (modals, have, be, do, to, not) and the verb's own form --


_BE = {"VB": "be", "VBN": "been", "VBG": "being", "VBZ": "is", "VBP": "are", "VBD": "were"}
_HAVE = {"VB": "have", "VBN": "had", "VBG": "having", "VBZ": "has", "VBP": "have", "VBD": "had"}
_DO = {"VBZ": "does", "VBP": "do", "VBD": "did"}
_MODALS = ("can", "will", "may", "could", "would", "should", "must", "might")
_CONTRACTED = frozenset(
    {*_DO.values(), *_HAVE.values(), "is", "are", "was", "were", "could", "would", "should"} - {"having"}
)
BARE = frozenset({"VBG", "VBN"})


class Auxiliary(NamedTuple):
    """One word before the verb, how it depends on the verb, and the argument it is ("" for none)."""

    node: Node
    relation: str
    label: str = ""


class VerbGroup(NamedTuple):
    """The auxiliaries in order, the tag of the verb, and the negation that follows the first of them all, if any."""

    auxiliaries: list[Auxiliary]
    tag: str
    negation: Node | None


def inflect(verb: Verb, tag: str, agreement: str) -> str:
    """The form of a verb under a Penn tag."""
    if verb.lemma == "be":
        return _be(tag, agreement)
    if tag == "VBZ":
        return third(verb.lemma)
    return {"VBD": verb.past, "VBN": verb.participle, "VBG": gerund(verb.lemma)}.get(tag, verb.lemma)


def verb_group(
    draw: Draw,
    form: str,
    agreement: str,
    passive: bool = False,
    eventive: bool = True,
    copula: bool = False,
    inverted: bool = False,
) -> VerbGroup:
    """Draw tense, mood, aspect and negation.

    Args:
        form: "finite", "TO" for an infinitive, or one of BARE for a participle without auxiliaries.
        agreement: of the subject, as in Nominal.
        eventive: may be progressive.
        copula: needs no *do*.
        inverted: a question, which needs an auxiliary.
    """
    if form in BARE:
        return VerbGroup([], form, None)
    finite = form == "finite"
    chain, tag = _opening(draw, finite, agreement)
    if finite and draw.chance(0.12):
        chain.append(Auxiliary(leaf(_HAVE[tag], tag), "aux"))
        tag = "VBN"
    if finite and eventive and not passive and draw.chance(0.1):
        chain.append(Auxiliary(leaf(_be(tag, agreement), tag), "aux"))
        tag = "VBG"
    if passive:
        chain.append(Auxiliary(leaf(_be(tag, agreement), tag), "aux:pass"))
        tag = "VBN"
    negated = finite and not inverted and draw.chance(0.13)
    if (negated or inverted) and not chain and not copula:
        chain.append(Auxiliary(leaf(_DO[tag], tag), "aux"))
        tag = "VB"
    carrier = chain[0].node.word if chain else _be(tag, agreement)
    return VerbGroup(chain, tag, _negation(draw, carrier) if negated else None)


def _opening(draw: Draw, finite: bool, agreement: str) -> tuple[list[Auxiliary], str]:
    if not finite:
        return [Auxiliary(leaf("to", "TO"), "mark")], "VB"
    if draw.chance(0.2):
        return [Auxiliary(leaf(draw.any_of(_MODALS), "MD"), "aux", "ARGM-MOD")], "VB"
    if draw.chance(0.55):
        return [], "VBD"
    return [], "VBZ" if agreement == "3" else "VBP"


def _be(tag: str, agreement: str) -> str:
    if tag == "VBD" and agreement != "p":
        return "was"
    return "am" if tag == "VBP" and agreement == "1" else _BE[tag]


def _negation(draw: Draw, carrier: str) -> Node:
    short = carrier in _CONTRACTED and draw.chance(0.5)
    return leaf("n't" if short else draw.any_of(("not", "not", "never")), "RB")


Modifier = tuple[str, Node]


class Choice(NamedTuple):
    """A verb, its frame, and whether it will be passive."""

    frame: str
    verb: Verb
    passive: bool

    def subjects(self) -> tuple[str, ...]:
        """The kinds its subject may be of."""
        return self.verb.object if self.passive else self.verb.subject

    def fits(self, subject: str, gap: str) -> bool:
        """Whether subject and gap may be of these kinds ("": any)."""
        if gap and self.frame != "saying" and gap not in self.verb.object:
            return False
        return not subject or subject in self.subjects()


class Clauses(Adjuncts):
    """Draws clauses and the noun phrases that hold clauses."""

    def choose(self, depth: int, subject: str = "", gap: str = "", passive: bool | None = None) -> Choice:
        """A verb whose subject (and object, for a gap) may be of this kind."""
        frames = [name for name in VERBS if depth > 0 or name not in CLAUSAL]
        if gap:
            frames = [name for name in frames if name in GAPS or name == "saying"]
        if passive:
            frames = [name for name in frames if name in PASSIVES]
        weighted = [(name, WEIGHTS.get(name, 1.0)) for name in frames]
        while True:
            frame = self.draw.weighted(weighted)
            may_be_passive = frame in PASSIVES and not gap and passive is not False
            as_passive = may_be_passive and (bool(passive) or self.draw.chance(0.3))

            def fits(verb: Verb, frame: str = frame, as_passive: bool = as_passive) -> bool:
                return Choice(frame, verb, as_passive).fits(subject, gap)

            if any(map(fits, seen_in_train(VERBS[frame]))):
                return Choice(frame, self.draw.word(VERBS[frame], fits), as_passive)

    def clause(self, depth: int, gap: Filler | None = None) -> tuple[Node, Clause]:
        """A finite clause: S over a subject and a verb phrase."""
        choice = self.choose(depth, gap=gap.kind if gap else "")
        subject = self.argument(choice.subjects(), depth - 1 if gap else depth, subject=True)
        filler = Filler.of(subject)
        vp, clause = self.verb_phrase(choice, filler, "finite", depth, gap)
        if depth > 0 and not gap and not clause.closed and self.draw.chance(0.12):
            second, _ = self.verb_phrase(self.choose(depth - 1, subject.kind), filler, "finite", depth - 1)
            conjunction = leaf(self.draw.any_of(("and", "and", "but")), "CC")
            vp = phrase("VP", (HEAD, vp), ("cc", conjunction, second), ("conj", second))
            clause.closed = True
        return phrase("S", (subject_relation(clause), subject.node), (HEAD, vp)), clause

    def verb_phrase(
        self, choice: Choice, subject: Filler, form: str, depth: int, gap: Filler | None = None, inverted: bool = False
    ) -> tuple[Node, Clause]:
        """A verb phrase in a form of ``verb_group``; ``inverted`` leaves its first auxiliary to ``clause.fronted``."""
        frame = choice.frame
        group = verb_group(
            self.draw, form, subject.agreement, choice.passive, frame in EVENTIVE, frame == "copula", inverted
        )
        word = leaf(inflect(choice.verb, group.tag, subject.agreement), group.tag)
        clause = Clause(choice.frame, choice.verb, word, choice.passive, subject, depth, gap)
        self.frames.append(VerbFrame(word, choice.verb, clause.arguments))
        edges = COMPLEMENTS[choice.frame](self, clause)
        headed = any(relation == HEAD for relation, _ in edges)
        verb = [("cop" if headed else HEAD, word)]
        negation = [clause.take("advmod", group.negation, "ARGM-NEG")] if group.negation else []
        if not group.auxiliaries:
            verb += negation
        elif not headed and self.draw.chance(0.07):
            verb.insert(0, self.adverb(clause))
        vp = phrase("VP", *verb, *edges, *self.adjuncts(clause))
        return self._wrap(vp, clause, group.auxiliaries, negation, inverted), clause

    def _wrap(self, vp: Node, clause: Clause, chain: list[Auxiliary], negation: list[Modifier], inverted: bool) -> Node:
        for place, (node, relation, label) in reversed(list(enumerate(chain))):
            if label:
                clause.arguments.append((node, label))
            if inverted and place == 0:
                clause.fronted = (relation, node)
            else:
                vp = phrase("VP", (relation, node), *(negation if place == 0 else []), (HEAD, vp))
        return vp

    def infinitive(self, controller: Filler, depth: int) -> Node:
        """``to VP`` whose subject is understood: the controller fills the role in this verb's frame as well."""
        vp, _ = self.verb_phrase(self.choose(depth, controller.kind), controller, "TO", depth)
        return phrase("S", (HEAD, vp))

    def purpose(self, clause: Clause) -> Node:
        """``to VP`` that says what for."""
        vp, _ = self.verb_phrase(self.choose(0, clause.subject.kind, passive=False), clause.subject, "TO", 0)
        return phrase("S", (HEAD, vp))

    def argument(self, kinds: Sequence[str], depth: int, subject: bool = False, verb: Verb | None = None) -> Nominal:
        """A noun phrase with whatever may follow the noun; phrases that ``verb`` claims are left to the verb."""
        first = self.noun_phrase(kinds, subject)
        if depth > 0 and self.draw.chance(0.08):
            return self._coordinated(first, kinds)
        if not first.plain:
            return self._apposed(first) if subject and first.node.edges[-1].node.tag == "NNP" else first
        if self.draw.chance(0.34):
            return self.with_phrase(first, verb)
        if depth > 0 and self.draw.chance(0.4):
            return self._modified(first, depth - 1)
        return first

    def _coordinated(self, first: Nominal, kinds: Sequence[str]) -> Nominal:
        second = self.noun_phrase((first.kind,) if len(kinds) == 1 else kinds, pronoun=False)
        if second.kind != first.kind:
            second = self.common(first.kind)
        conjunction = leaf(self.draw.any_of(("and", "and", "or")), "CC")
        node = phrase("NP", (HEAD, first.node), ("cc", conjunction, second.node), ("conj", second.node))
        return Nominal(node, "p", first.kind, heavy=True)

    def _apposed(self, first: Nominal) -> Nominal:
        """Sometimes ``NAME , a noun ,`` or ``NAME , who ... ,``."""
        if not self.draw.chance(0.15):
            return first
        comma = leaf(",", ",")
        if self.draw.chance(0.5):
            added, relation = self.common(first.kind, indefinite=True).node, "appos"
        else:
            pronoun = "who" if first.kind == "person" else "which"
            added, relation = self._subject_relative(first, 0, (pronoun,)), "acl:relcl"
        edges = (HEAD, first.node), ("punct", comma, added), (relation, added), ("punct", leaf(",", ","), added)
        return Nominal(phrase("NP", *edges), first.agreement, first.kind, heavy=True)

    def _modified(self, first: Nominal, depth: int) -> Nominal:
        form = self.draw.weighted((("subject", 5.0), ("object", 4.0), ("passive", 1.5), ("active", 1.5)))
        if first.kind == "proposal" and self.draw.chance(0.6):
            vp, _ = self.verb_phrase(self.choose(0, "person", passive=False), Filler((), "3", "person"), "TO", 0)
            relation, added = "acl", phrase("S", (HEAD, vp))
        elif form == "subject":
            pronouns = ("who", "who", "that") if first.kind == "person" else ("which", "that")
            relation, added = "acl:relcl", self._subject_relative(first, depth, pronouns)
        elif form == "object" and first.kind in lexicon.GAP_KINDS:
            relation, added = "acl:relcl", self._object_relative(first, depth)
        elif form == "active" and first.kind in ("person", "orgn"):
            choice = self.choose(0, first.kind, passive=False)
            while choice.frame == "copula":
                choice = self.choose(0, first.kind, passive=False)
            relation, (added, _) = "acl", self.verb_phrase(choice, Filler.of(first), "VBG", 0)
        elif first.kind in lexicon.GAP_KINDS:
            choice = self.choose(0, first.kind, passive=True)
            relation, (added, _) = "acl", self.verb_phrase(choice, Filler.of(first), "VBN", 0)
        else:
            return first
        return Nominal(phrase("NP", (HEAD, first.node), (relation, added)), first.agreement, first.kind, heavy=True)

    def _subject_relative(self, first: Nominal, depth: int, pronouns: Sequence[str]) -> Node:
        pronoun = _pronoun(self.draw.any_of(pronouns))
        choice = self.choose(depth, first.kind)
        vp, clause = self.verb_phrase(choice, Filler.of(first, pronoun), "finite", depth)
        return phrase("SBAR", (subject_relation(clause), pronoun), (HEAD, phrase("S", (HEAD, vp))))

    def _object_relative(self, first: Nominal, depth: int) -> Node:
        """``which S`` with an object missing, perhaps inside a clause of saying: then the tree is not projective."""
        word = self.draw.any_of(("that", "which", "") if first.kind != "person" else ("that", "who", ""))
        pronoun = _pronoun(word) if word else None
        before = len(self.frames)
        inner, _ = self.clause(depth, gap=Filler.of(first, pronoun))
        if not pronoun:
            return phrase("SBAR", (HEAD, inner))
        site = next(f.leaf for f in self.frames[before:] if any(node is pronoun for node, _ in f.arguments))
        return phrase("SBAR", ("obj", pronoun, site), (HEAD, inner))


def subject_relation(clause: Clause) -> str:
    """The relation of this clause's subject."""
    return "nsubj:pass" if clause.passive else "nsubj"


def _pronoun(word: str) -> Node:
    return phrase("WHNP", (HEAD, leaf(word, "WP" if word == "who" else "WDT")))
