"""What a clause of the generated corpus may hold besides complements: times, places, manners; phrases after nouns."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mtlprune.corpora.grammar import lexicon
from mtlprune.corpora.grammar.derivation import HEAD, Node, VerbFrame, leaf, phrase
from mtlprune.corpora.grammar.frames import CLAUSAL, Clause
from mtlprune.corpora.grammar.nouns import Draw, Nominal, NounPhrases
from mtlprune.corpora.grammar.verbs import Verb

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
