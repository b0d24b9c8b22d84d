"""A derivation, one tree of headed phrases, and the five layers read off it; and noun phrases drawn as such."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from mtlprune.corpora.grammar import lexicon
from mtlprune.corpora.grammar.lexicon import Verb
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

HEAD = "head"


class Edge(NamedTuple):
    """A child and how its head word depends: on the phrase's head word, or on that of ``target`` where one is given."""

    relation: str
    node: "Node"
    target: "Node | None" = None


class Node:
    """A word with its tag, or a phrase over edges of which exactly one is the head.

    A phrase without a label is a group only: it yields dependencies (and an entity) but no bracket.
    """

    __slots__ = ("edges", "end", "entity", "label", "start", "tag", "word")

    def __init__(self, label: str = "", word: str = "", tag: str = "", edges: tuple[Edge, ...] = ()) -> None:
        self.label, self.word, self.tag, self.edges = label, word, tag, edges
        self.entity = ""
        self.start = self.end = -1

    def head_word(self) -> "Node":
        """The leaf that stands for the whole phrase in the dependency tree."""
        node = self
        while node.edges:
            node = next(edge.node for edge in node.edges if edge.relation == HEAD)
        return node


def leaf(word: str, tag: str) -> Node:
    """One word."""
    return Node(word=word, tag=tag)


def phrase(label: str, *edges: tuple[str, Node] | tuple[str, Node, Node | None]) -> Node:
    """A phrase from (relation, node[, target]) pairs, one of which has the relation HEAD."""
    return Node(label, edges=tuple(Edge(*edge) for edge in edges))


class VerbFrame(NamedTuple):
    """A predicate in the making: the verb's leaf and its (node, label) arguments."""

    leaf: Node
    verb: Verb
    arguments: list[tuple[Node, str]]


def derive(identity: str, root: Node, frames: list[VerbFrame]) -> Sentence:
    """Read words, tags, entities, dependencies, brackets and predicates off a derivation."""
    phrases, leaves = _number(root)
    heads = [0] * len(leaves)
    relations = ["root"] * len(leaves)
    for node in phrases:
        for relation, child, target in node.edges:
            if relation != HEAD:
                place = child.head_word().start
                heads[place] = (target or node).head_word().start + 1
                relations[place] = relation
    leaves[0].word = leaves[0].word[:1].upper() + leaves[0].word[1:]
    predicates = (
        Predicate(
            frame.leaf.start,
            frame.verb.roleset,
            tuple(sorted(Span(node.start, node.end, label) for node, label in frame.arguments)),
            frame.verb.lemma,
        )
        for frame in frames
    )
    return Sentence(
        identity,
        words=tuple(node.word for node in leaves),
        pos=tuple(node.tag for node in leaves),
        ner=tuple(Span(node.start, node.end, node.entity) for node in phrases if node.entity),
        dep=Dependencies(tuple(heads), tuple(relations)),
        con=tuple(Span(node.start, node.end, node.label) for node in phrases if node.label),
        srl=tuple(sorted(predicates)),
    )


def _number(root: Node) -> tuple[list[Node], list[Node]]:
    """Give every node its span; return the phrases in pre-order and the words in order."""
    phrases: list[Node] = []
    leaves: list[Node] = []

    def visit(node: Node) -> None:
        node.start = len(leaves)
        if node.edges:
            phrases.append(node)
            for edge in node.edges:
                visit(edge.node)
        else:
            leaves.append(node)
        node.end = len(leaves)

    visit(root)
    return phrases, leaves


Choice = TypeVar("Choice")
HOLD_OUT_EVERY = 6  # of each list of words, the 6th, 12th ... never occur in train


def seen_in_train(words: Sequence[Choice]) -> list[Choice]:
    """The entries of a list of the lexicon that train may use."""
    return [word for place, word in enumerate(words, 1) if place % HOLD_OUT_EVERY]


class Draw:
    """Seeded choices from ``random.random`` alone, whose stream is the same in every Python version."""

    def __init__(self, seed: int, unseen: float) -> None:
        self._next = random.Random(seed).random
        self._unseen = unseen

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._next() < probability

    def weighted(self, options: Sequence[tuple[Choice, float]]) -> Choice:
        """One of the options, by weight."""
        point = self._next() * sum(weight for _, weight in options)
        for option, weight in options:
            point -= weight
            if point < 0:
                return option
        return options[-1][0]

    def any_of(self, options: Sequence[Choice]) -> Choice:
        """One of the options, each as likely; nothing is held out."""
        return options[int(self._next() * len(options))]

    def word(self, words: Sequence[Choice], keep: Callable[[Choice], bool] = lambda _: True) -> Choice:
        """One entry of a list of the lexicon that ``keep`` accepts, respecting what is held out from train."""
        if self.chance(self._unseen):
            unseen = [word for word in words[HOLD_OUT_EVERY - 1 :: HOLD_OUT_EVERY] if keep(word)]
            if unseen:
                return self.any_of(unseen)
        return self.any_of([word for word in seen_in_train(words) if keep(word)])


@dataclass
class Nominal:
    """A noun phrase, what a verb must know of it, and whether a phrase after it may belong to it.

    Attributes:
        agreement: "1" (I), "3" (singular) or "p" (plural and you).
        plain: a common noun that nothing follows yet, so it may take a modifier.
        last: the kind of the last noun in it, where that is another one than the head ("" otherwise).
        heavy: ends in a clause or list, so nothing that belongs to the verb may follow.
    """

    node: Node
    agreement: str
    kind: str
    plain: bool = False
    heavy: bool = False
    last: str = ""


_PRONOUNS = {"he": "3", "she": "3", "they": "p", "we": "p", "I": "1", "you": "p"}
_OBLIQUE = {"he": "him", "she": "her", "they": "them", "we": "us", "I": "me", "you": "you", "it": "it"}
_POSSESSORS = {"person": ("orgn",), "building": ("place",), "artefact": ("person",), "proposal": ("person", "orgn")}
_SINGULAR = (("the", 6.0), ("a", 5.0), ("this", 1.0), ("that", 1.0), ("every", 0.6), ("no", 0.4))
_PLURAL = (("the", 4.0), ("", 3.0), ("these", 1.0), ("some", 1.0), ("CD", 1.5), ("QP", 0.7))


class NounPhrases:
    """Draws noun phrases; knows nothing of clauses."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def noun_phrase(self, kinds: Sequence[str], subject: bool = False, pronoun: bool = True) -> Nominal:
        """A name, a pronoun or a common noun of one of these kinds; ambiguous names only where one kind is possible."""
        kind = self.draw.any_of(kinds)
        if kind in lexicon.ENTITY and self.draw.chance(0.6 if kind == "orgn" else 0.42):
            return Nominal(self.name(kind, ambiguous=len(kinds) == 1), "3", kind)
        if pronoun and self.draw.chance((0.2 if subject else 0.1) if kind == "person" else 0.03):
            return self._pronoun(kind, subject)
        if kind == "person" and self.draw.chance(0.12):
            return self._relative()
        return self.common(kind)

    def prepositional(self, preposition: str, kinds: Sequence[str]) -> tuple[Node, str]:
        """A PP and the kind of its noun."""
        inner = self.noun_phrase(kinds)
        node = inner.node
        if inner.plain and inner.kind in lexicon.HAS_PLACE - {"event"} and self.draw.chance(0.12):
            node = phrase("NP", (HEAD, node), ("nmod", self.preposition("in", self.name("place", ambiguous=True))))
        return self.preposition(preposition, node), inner.kind

    def preposition(self, word: str, noun: Node) -> Node:
        """A PP over a noun phrase."""
        return phrase("PP", ("case", leaf(word, "IN")), (HEAD, noun))

    def name(self, kind: str, ambiguous: bool) -> Node:
        """A noun phrase that is (or, after a title, holds) an entity."""
        if kind == "person":
            return self._person(ambiguous)
        if kind == "orgn":
            return self._organisation(ambiguous)
        words = self._single(kind, ambiguous).split()
        return self._entity("NP", kind, "compound", words, head=-1)

    def _single(self, kind: str, ambiguous: bool) -> str:
        ambiguous = ambiguous and self.draw.chance(0.6)
        return self.draw.word(lexicon.AMBIGUOUS if ambiguous else lexicon.NAMES[kind])

    def _entity(self, label: str, kind: str, relation: str, words: Sequence[str], head: int) -> Node:
        leaves = [leaf(word, "NNP") for word in words]
        node = phrase(label, *((HEAD if part is leaves[head] else relation, part) for part in leaves))
        node.entity = lexicon.ENTITY[kind]
        return node

    def _person(self, ambiguous: bool) -> Node:
        form = self.draw.weighted((("last", 5.0), ("full", 3.0), ("title", 2.0)))
        if form == "last":
            return self._entity("NP", "person", "flat", [self._single("person", ambiguous)], head=0)
        title = self.draw.word(lexicon.TITLES)
        formal = title in ("Mr.", "Mrs.") or self.draw.chance(0.6)
        first = [self.draw.word(lexicon.FIRST_NAMES)] if form == "full" or not formal else []
        words = [*first, self._single("person", ambiguous=True)]
        if form == "full":
            return self._entity("NP", "person", "flat", words, head=0)
        return phrase(
            "NP", ("nmod:desc", leaf(title, "NNP")), (HEAD, self._entity("", "person", "flat", words, head=0))
        )

    def _organisation(self, ambiguous: bool) -> Node:
        form = self.draw.weighted((("single", 5.0), ("tail", 3.0), ("of", 1.5)))
        if form == "single":
            return self._entity("NP", "orgn", "compound", [self._single("orgn", ambiguous)], head=0)
        if form == "tail":
            before = self.draw.any_of(("person", "place", "place")) if self.draw.chance(0.5) else ""
            first = self.draw.word(lexicon.NAMES[before] if before else lexicon.AMBIGUOUS).split()
            return self._entity("NP", "orgn", "compound", [*first, self.draw.word(lexicon.ORG_TAILS)], head=-1)
        place = self.name("place", ambiguous=True)
        place.entity = ""  # entities are flat: the place is a part of the organisation's name
        head = phrase("NP", (HEAD, leaf(self.draw.word(lexicon.ORG_HEADS), "NNP")))
        node = phrase("NP", (HEAD, head), ("nmod", self.preposition("of", place)))
        node.entity = lexicon.ENTITY["orgn"]
        return node

    def _pronoun(self, kind: str, subject: bool) -> Nominal:
        word = self.draw.any_of(tuple(_PRONOUNS)) if kind == "person" else "it"
        shown = word if subject else _OBLIQUE[word]
        return Nominal(phrase("NP", (HEAD, leaf(shown, "PRP"))), _PRONOUNS.get(word, "3"), kind)

    def _possessor(self, kinds: Sequence[str]) -> Node:
        """``X 's`` as a noun phrase: one more word inside the name's own bracket, as the Penn Treebank has it."""
        if len(kinds) == 1 and self.draw.chance(0.7):
            owner = self._entity("", kinds[0], "compound", self._single(kinds[0], ambiguous=True).split(), head=-1)
        else:
            noun = leaf(self.draw.word(lexicon.NOUNS[self.draw.any_of(kinds)]), "NN")
            owner = phrase("", ("det", leaf("the", "DT")), (HEAD, noun))
        return phrase("NP", (HEAD, owner), ("case", leaf("'s", "POS")))

    def _relative(self) -> Nominal:
        noun = leaf(self.draw.word(lexicon.NOUNS["relative"]), "NN")
        if self.draw.chance(0.5):
            return Nominal(phrase("NP", ("nmod:poss", self._possessor(("person",))), (HEAD, noun)), "3", "person")
        owner = leaf(self.draw.any_of(("his", "her", "their", "my")), "PRP$")
        return Nominal(phrase("NP", ("nmod:poss", owner), (HEAD, noun)), "3", "person")

    def common(self, kind: str, indefinite: bool = False) -> Nominal:
        """A common noun with determiner, number, possessor, adjective and compound as chance has it."""
        number = kind not in lexicon.MASS and not indefinite and self.draw.chance(0.3)
        noun = self.draw.word(lexicon.NOUNS[kind])
        head = leaf(lexicon.plural(noun), "NNS") if number else leaf(noun, "NN")
        edges = [*self._before_noun(kind), (HEAD, head)]
        if indefinite:
            edges.insert(0, ("det", leaf("a", "DT")))
        elif kind in lexicon.MASS:
            if kind == "food" and self.draw.chance(0.6):
                edges.insert(0, ("det", leaf(self.draw.any_of(("the", "some")), "DT")))
        elif kind in _POSSESSORS and self.draw.chance(0.08):
            edges.insert(0, ("nmod:poss", self._possessor(_POSSESSORS[kind])))
        elif self.draw.chance(0.1):
            edges.insert(0, ("nmod:poss", leaf(self.draw.any_of(("his", "her", "their", "our", "its")), "PRP$")))
        else:
            edges[:0] = self._determiner(_PLURAL if number else _SINGULAR)
        following = edges[1][1] if len(edges) > 1 else edges[0][1]
        _fit_article(edges[0][1], following)
        return Nominal(phrase("NP", *edges), "p" if number else "3", kind, plain=True)

    def _determiner(self, options: Sequence[tuple[str, float]]) -> list[tuple[str, Node]]:
        choice = self.draw.weighted(options)
        if choice == "CD":
            return [("nummod", leaf(self.draw.word(lexicon.CARDINALS), "CD"))]
        if choice == "QP":
            count = leaf(self.draw.word(lexicon.CARDINALS), "CD")
            return [
                ("nummod", phrase("QP", ("advmod", leaf(self.draw.any_of(("about", "nearly")), "RB")), (HEAD, count)))
            ]
        return [("det", leaf(choice, "DT"))] if choice else []

    def _before_noun(self, kind: str) -> list[tuple[str, Node]]:
        edges: list[tuple[str, Node]] = []
        if kind not in lexicon.MASS and self.draw.chance(0.25):
            adjectives = lexicon.ADJECTIVES["person" if kind == "person" else "thing"]
            edges.append(("amod", leaf(self.draw.word(adjectives), "JJ")))
        if kind in ("person", "document", "orgn", "proposal", "event") and self.draw.chance(0.12):
            edges.append(("compound", leaf(self.draw.word(lexicon.NOUNS["topic"]), "NN")))
        elif kind == "building" and self.draw.chance(0.12):
            edges.append(
                ("compound", self._entity("", "place", "compound", [self.draw.word(lexicon.AMBIGUOUS)], head=0))
            )
        return edges


def _fit_article(article: Node, following: Node) -> None:
    """Turn ``a`` into ``an`` before a vowel sound."""
    while following.edges:
        following = following.edges[0].node
    sound = following.word.lower()
    if article.word == "a" and (sound.startswith(tuple("aeio")) or sound.startswith(("honest", "un", "up"))):
        article.word = "an" if not sound.startswith(("uni", "union")) else "a"
