"""Whole sentences of the generated corpus: statements, questions, what stands in front, and coordination of clauses."""

from __future__ import annotations

from mtlprune.corpora.grammar import lexicon
from mtlprune.corpora.grammar.clauses import Clauses, subject_relation
from mtlprune.corpora.grammar.derivation import HEAD, Node, VerbFrame, leaf, phrase
from mtlprune.corpora.grammar.frames import Clause, Filler
from mtlprune.corpora.grammar.verb_group import inflect
from mtlprune.corpora.grammar.verbs import VERBS, Verb

_EXIST = Verb("be", "was", "been", "be.02", ())
_ASKING = {"Why": "ARGM-CAU", "Where": "ARGM-LOC", "When": "ARGM-TMP", "How": "ARGM-MNR"}
_DEPTHS = ((0, 3.0), (1, 4.0), (2, 2.5))


class Sentences(Clauses):
    """Draws sentences."""

    def sentence(self) -> Node:
        """The root of one sentence."""
        depth = self.draw.weighted(_DEPTHS)
        form = self.draw.weighted((("statement", 12.0), ("compound", 1.6), ("question", 1.2), ("existence", 0.6)))
        if form == "compound":
            return self._compound(depth)
        if form == "question":
            return self._question(depth)
        return self._existence() if form == "existence" else self._statement(depth)

    def _statement(self, depth: int) -> Node:
        before = self.draw.weighted((("", 7.0), ("adjunct", 1.6), ("adverb", 0.5), ("clause", 0.9 * (depth > 0))))
        inner, clause = self.clause(depth)
        front: list[tuple[str, Node]] = []
        if before == "adverb":
            word = leaf(self.draw.word(lexicon.SENTENCE_ADVERBS), "RB")
            front = [clause.take("advmod", phrase("ADVP", (HEAD, word)), "ARGM-DIS")]
        elif before == "adjunct":
            front = [self.time(clause) if self.draw.chance(0.6) else self.place(clause)]
        elif before == "clause":
            front = [self.subordinate(clause)]
        if front:
            front.append(("punct", leaf(",", ",")))
        return phrase("S", *front, *_edges(inner), ("punct", leaf(".", ".")))

    def _compound(self, depth: int) -> Node:
        first, _ = self.clause(depth // 2)
        second, _ = self.clause(depth // 2)
        comma = [("punct", leaf(",", ","), second)] if self.draw.chance(0.6) else []
        conjunction = leaf(self.draw.any_of(("and", "but", "or")), "CC")
        return phrase(
            "S", (HEAD, first), *comma, ("cc", conjunction, second), ("conj", second), ("punct", leaf(".", "."))
        )

    def _question(self, depth: int) -> Node:
        choice = self.choose(depth)
        while choice.frame == "copula":
            choice = self.choose(depth)
        if self.draw.chance(0.3):
            return self._who(depth)
        subject = self.argument(choice.subjects(), 0, subject=True)
        vp, clause = self.verb_phrase(choice, Filler.of(subject), "finite", depth, inverted=True)
        inverted = _inverted(clause, subject.node, vp)
        mark = ("punct", leaf("?", "."))
        if self.draw.chance(0.55):
            return phrase("SQ", *_edges(inverted), mark)
        word = self.draw.any_of(tuple(_ASKING))
        asked = clause.take("advmod", phrase("WHADVP", (HEAD, leaf(word, "WRB"))), _ASKING[word])
        return phrase("SBARQ", asked, (HEAD, inverted), mark)

    def _who(self, depth: int) -> Node:
        """``Who did it ?``"""
        pronoun = phrase("WHNP", (HEAD, leaf("Who", "WP")))
        choice = self.choose(depth, "person")
        vp, clause = self.verb_phrase(choice, Filler(((pronoun, ""),), "3", "person"), "finite", depth)
        inner = phrase("SQ", (HEAD, vp))
        return phrase("SBARQ", (subject_relation(clause), pronoun), (HEAD, inner), ("punct", leaf("?", ".")))

    def _existence(self) -> Node:
        """``There is ...``: the verb is the root, what exists its subject."""
        there = phrase("NP", (HEAD, leaf("There", "EX")))
        kind = self.draw.any_of(("person", "building", "document", "artefact", "event", "orgn"))
        thing = self.with_phrase(self.common(kind), None)
        past = self.draw.chance(0.5)
        tag = "VBD" if past else "VBP" if thing.agreement == "p" else "VBZ"
        verb = leaf(inflect(_EXIST, tag, thing.agreement), tag)
        arguments = [(thing.node, "ARG1")]
        self.frames.append(VerbFrame(verb, _EXIST, arguments))
        edges = [(HEAD, verb), ("nsubj", thing.node)]
        if self.draw.chance(0.4):
            clause = Clause("copula", VERBS["copula"][0], verb, False, Filler((), "3", kind), 0, arguments=arguments)
            edges.append(self.time(clause))
        return phrase("S", ("expl", there), (HEAD, phrase("VP", *edges)), ("punct", leaf(".", ".")))


def _edges(node: Node) -> list[tuple[str, Node, Node | None]]:
    return [(edge.relation, edge.node, edge.target) for edge in node.edges]


def _inverted(clause: Clause, subject: Node, vp: Node) -> Node:
    """SQ: auxiliary, subject, verb phrase."""
    assert clause.fronted is not None  # an inverted verb group always has an auxiliary
    return phrase("SQ", clause.fronted, (subject_relation(clause), subject), (HEAD, vp))
