"""A derivation, one tree of headed phrases, and the five layers read off it."""

from __future__ import annotations

from typing import NamedTuple

from mtlprune.corpora.grammar.lexicon import Verb
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

HEAD = "head"


class Edge(NamedTuple):
    """A child and how its head word depends: on the phrase's head word, or on that of ``target`` where one is given."""

    relation: str
    node: Node
    target: Node | None = None


class Node:
    """A word with its tag, or a phrase over edges of which exactly one is the head.

    A phrase without a label is a group only: it yields dependencies (and an entity) but no bracket.
    """

    __slots__ = ("edges", "end", "entity", "label", "start", "tag", "word")

    def __init__(self, label: str = "", word: str = "", tag: str = "", edges: tuple[Edge, ...] = ()) -> None:
        self.label, self.word, self.tag, self.edges = label, word, tag, edges
        self.entity = ""
        self.start = self.end = -1

    def head_word(self) -> Node:
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
