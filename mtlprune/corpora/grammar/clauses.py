"""Clauses of the generated corpus: verb phrases, coordination, relative clauses, control and raising."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mtlprune.corpora.grammar import lexicon
from mtlprune.corpora.grammar.adjuncts import Adjuncts
from mtlprune.corpora.grammar.derivation import HEAD, Node, VerbFrame, leaf, phrase
from mtlprune.corpora.grammar.frames import CLAUSAL, COMPLEMENTS, EVENTIVE, GAPS, PASSIVES, WEIGHTS, Clause, Filler
from mtlprune.corpora.grammar.nouns import Nominal, seen_in_train
from mtlprune.corpora.grammar.verb_group import Auxiliary, inflect, verb_group
from mtlprune.corpora.grammar.verbs import VERBS, Verb

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
