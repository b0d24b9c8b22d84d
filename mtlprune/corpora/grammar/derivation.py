"""Derive sentences: parse templates, expand a template at random into a tree, and read all layers from the tree."""

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from mtlprune.corpora.grammar.lexicon import ENTITIES, VERBS, Draw, Verb, inflect_noun, split_words, words_of
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

_HEAD = ""
"""The relation of the part that is the head of its phrase."""


class Item(NamedTuple):
    """A part of a template, in the notation of ``grammar_templates.txt``.

    Attributes:
        body: a word, V, a list of words ($), a call of a rule (@), or the label of a bracket.
        tag: the POS tag of a word.
        relation: how its head word depends on the head of the bracket around it; empty if it is the head.
        role: its role for the predicate that is the head of the bracket around it.
        entity: the type of the named entity that it covers.
        predicate: its roleset if it is a predicate.
        shared: a number; items with the same number become the same words.
        chance: the probability that it occurs.
        parts: the parts of a bracket, or None.
    """

    body: str
    tag: str = ""
    relation: str = _HEAD
    role: str = ""
    entity: str = ""
    predicate: str = ""
    shared: str = ""
    chance: float = 1.0
    parts: "tuple[Item, ...] | None" = None


_MARKS = {"/": "tag", "=": "relation", "^": "role", "+": "entity", "!": "predicate", "#": "shared", "?": "chance"}
_MARK = re.compile(r"([/=^+!#?])([^/=^+!#?]*)")


def _parse(template: str) -> tuple[Item, ...]:
    """Return the items of a template."""
    tokens = iter(re.findall(r"\(\S+|\)|[^\s)]+", template))

    def items() -> tuple[Item, ...]:
        read = []
        for token in tokens:
            if token == ")":
                break
            # The first character (in a bracket, the first two) always belongs to the body, even if it is a mark, as
            # in the word ? with the tag "." in ?/.
            first = 2 if token[0] == "(" else 1
            cut = next((index for index, letter in enumerate(token) if index >= first and letter in _MARKS), len(token))
            marks = {_MARKS[mark]: value for mark, value in _MARK.findall(token[cut:])}
            item = Item(token[:cut].lstrip("("), **{**marks, "chance": float(marks.get("chance", 1))})
            read.append(item._replace(parts=items()) if token[0] == "(" else item)
        return tuple(read)

    return items()


class _Rule(NamedTuple):
    """A template of a rule, or a frame of verbs, whose first item is the role of the subject.

    Attributes:
        items: the parts of the template.
        weight: how often the template is drawn, relative to the others of the rule.
        deep: whether the template contains a clause.
        reflexive: whether the template is used only in corpora with reflexive pronouns.
    """

    items: tuple[Item, ...]
    weight: float
    deep: bool
    reflexive: bool


def _parse_rules(lines: list[str]) -> dict[str, list[_Rule]]:
    rules: dict[str, list[_Rule]] = {}
    for line in lines:
        name, weight, template = line.split(maxsplit=2)
        rule = _Rule(_parse(template), float(weight.rstrip("*+")), weight.endswith("*"), weight.endswith("+"))
        rules.setdefault(name, []).append(rule)
    return rules


def _parse_pairs(lines: list[str]) -> list[tuple[str, list[Item]]]:
    """Return the name (layers that differ, or phenomenon) and the two templates of each line.

    A line contains both templates as one text, with ``[FIRST||SECOND]`` where they differ.
    """
    alternatives = re.compile(r"\[(.*?)\|\|(.*?)\]")
    pairs = (line.split(maxsplit=1) for line in lines)
    return [(name, [_parse(alternatives.sub(group, text))[0] for group in (r"\1", r"\2")]) for name, text in pairs]


def _read_templates() -> list[list[str]]:
    """Return the lines of the four parts of ``grammar_templates.txt``: rules, frames, pairs and minimal pairs."""
    text = resources.files("mtlprune.corpora").joinpath("grammar_templates.txt").read_text(encoding="utf-8")
    parts = re.split(r"^--.*\n", re.sub(r"\n +", " ", text), flags=re.MULTILINE)[1:]
    return [[line for line in part.splitlines() if line] for part in parts]


_RULES, _FRAMES, _PAIRS, _MINIMAL = _read_templates()
RULES = _parse_rules(_RULES)
FRAMES = {name: rules[0] for name, rules in _parse_rules(_FRAMES).items()}
PAIRS = _parse_pairs(_PAIRS)
MINIMAL_PAIRS = _parse_pairs(_MINIMAL)
_MEMBERS = [member for _, pair in PAIRS for member in pair]


class Edge(NamedTuple):
    """A part of a phrase.

    Attributes:
        relation: the dependency relation of its head word to the head word of the phrase.
        node: the word or phrase.
        role: its semantic role for the predicate that is the head of the phrase.
    """

    relation: str
    node: "Node"
    role: str = ""


class Node:
    """A word with its tag, or a phrase with edges, exactly one of which leads to the head.

    Attributes:
        entity: the type of the named entity that the phrase is, or empty.
        kind: the kind of a noun.
        roleset: the roleset of a predicate, or empty.
        shared_roles: the phrases outside of the clause of a predicate that fill one of its roles, with the labels of
            these roles.
        start, end: it covers the words from ``start`` to ``end - 1``; -1 before :func:`_number` sets them.
    """

    __slots__ = ("edges", "end", "entity", "kind", "label", "roleset", "shared_roles", "start", "tag", "word")

    def __init__(self, label: str = "", edges: Sequence[Edge] = (), word: str = "", tag: str = "") -> None:
        self.label, self.edges, self.word, self.tag = label, edges, word, tag
        self.entity = self.kind = self.roleset = ""
        self.shared_roles: list[tuple[Node, str]] = []
        self.start = self.end = -1

    def head_word(self) -> "Node":
        """Return the leaf that represents the phrase in the dependency tree."""
        node = self
        while node.edges:
            node = next(edge.node for edge in node.edges if edge.relation == _HEAD)
        return node

    def agreement(self) -> str:
        """Return the agreement of a verb with this subject: "1" (I), "3" (singular) or "p" (plural and you)."""
        if any(edge.relation == "conj" for edge in self.edges):
            return "p"
        head = self.head_word()
        if head.tag == "PRP":
            return {"i": "1", "he": "3", "she": "3", "it": "3"}.get(head.word.lower(), "p")
        return "p" if head.tag == "NNS" else "3"

    def last(self) -> "list[Node]":
        """Return the nodes that end where this node ends, from this node down to its last word."""
        return [self, *(self.edges[-1].node.last() if self.edges else ())]


_REFLEXIVES = {"he": "himself", "she": "herself", "i": "myself", "we": "ourselves", "you": "yourself"}


class _Clause:
    """A verb and its surroundings while the clause is built.

    Attributes:
        frame: the name of the verb's frame.
        names: the values of ``{NAME}`` in the templates of the clause.
        gap: whether the object was moved out of the clause.
        leaf: the node of the verb.
        fillers: the phrases that are the subject, each with a prefix for its role ("R-" for a relative pronoun,
            otherwise empty).
    """

    def __init__(self, frame: str, verb: Verb, names: dict[str, str], gap: bool) -> None:
        self.frame, self.verb, self.names, self.gap = frame, verb, names, gap
        self.leaf = Node()
        self.leaf.roleset = verb.roleset
        self.fillers: list[tuple[Node, str]] = []

    def agree(self, subject: Node) -> None:
        """Set the agreement of the verb, and its reflexive pronoun, to those of a subject."""
        agreement = subject.agreement()
        self.names |= {"agreement": agreement, "present": "VBZ" if agreement == "3" else "VBP"}
        if self.names["subject"].startswith("person"):
            is_single = not any(edge.relation == "conj" for edge in subject.edges)
            word = subject.head_word().word.lower() if is_single else "they"
            self.names["reflexive"] = _REFLEXIVES.get(word, "themselves" if agreement == "p" else "himself|herself")


class _Context(NamedTuple):
    """The surroundings of an item.

    Attributes:
        depth: how many levels of clauses may still be embedded.
        kind: the kind for which the rule was called.
        clause: the clause around the item, or None.
    """

    depth: int
    kind: str = ""
    clause: _Clause | None = None

    def fill(self, text: str) -> str:
        """Return a text with the values of its names in braces."""
        return text.format(kind=self.kind, **(self.clause.names if self.clause else {})) if "{" in text else text


def _is_passive(frame: str) -> bool:
    return frame.endswith("-passive")


@cache
def _verbs(frame: str, subject: str, gap: str) -> tuple[list[Verb], list[Verb]]:
    """Return the verbs of a frame that may and may not occur in train.

    Args:
        subject: the kind that the verb must accept as subject; empty for any.
        gap: the kind that it must accept as a moved object; empty if no object is moved.
    """

    def keep(verb: Verb) -> bool:
        subjects = verb.object if _is_passive(frame) else verb.subject
        return (not subject or subject in subjects) and (not gap or gap in verb.object)

    if gap and not any("{object}" in item.body for item in FRAMES[frame].items):
        return [], []
    train_verbs, held_out_verbs = split_words(VERBS[frame.split("-")[0]])
    return [*filter(keep, train_verbs)], [*filter(keep, held_out_verbs)]


@cache
def _frames(subject: str, gap: str, passive: bool | None, deep: bool) -> list[tuple[str, float]]:
    """Return the frames that have verbs for this subject and moved object, with their weights.

    Args:
        passive: whether the frames must be passive or active; None for both.
        deep: whether frames with a clause are allowed.
    """
    return [
        (name, rule.weight)
        for name, rule in FRAMES.items()
        if (deep or not rule.deep) and passive in (None, _is_passive(name)) and _verbs(name, subject, gap)[0]
    ]


_VOICES = dict.fromkeys(("saying", "assuring", "telling", "wanting", "promising", "ordering", "seeming"), "stative")
_VOICES["copula"] = "copula"
_PASSIVE = {"past_participle": True, "gerund": False, "infinitive": False, "question": False}
_OPENS = frozenset({"clause", "second", "who", "doer", "undergoer", *_PASSIVE})  # the rules that draw a verb
_HOLDS_PLACE = frozenset({"orgn", "building", "place", "event", "LOC", "ORG"})  # a phrase with "in" attaches to these


class Derivation:
    """Expands templates at random into trees.

    Items with the same number become the same words in all sentences of one derivation.

    Args:
        draw: the source of random choices.
        reflexives: whether some objects are reflexive pronouns.
    """

    def __init__(self, draw: Draw, reflexives: bool = False) -> None:
        self.draw, self.reflexives = draw, reflexives
        self._words: dict[str, str] = {}
        self._phrases: dict[str, list[Edge]] = {}

    def sentence(self, item: Item | None = None) -> Node:
        """Return the tree of a sentence from a template, or from any template if None is given."""
        depth = self.draw.weighted(((1, 3.0), (2, 4.0), (3, 2.5)))
        return self._expand(item or Item("@sentence"), _Context(depth), ())[0].node

    def _expand(self, item: Item, context: _Context, before: Sequence[Edge]) -> list[Edge]:
        """Return the edges that an item becomes, given the edges before it in its bracket."""
        clause = context.clause
        # If the object was moved out of the clause, its usual position stays empty.
        is_extracted = clause is not None and clause.gap and "{object}" in item.body
        if is_extracted or (item.chance < 1 and not self.draw.chance(item.chance)):
            return []
        if item.parts is not None:
            node = Node(item.body.lstrip("_"), self._expand_all(item.parts, context))
            node.entity = item.entity
            edges = [Edge(_HEAD, node)]
        elif item.body == "V":
            assert clause is not None
            edges = [Edge(_HEAD, clause.leaf)]
        elif item.body.startswith("@"):
            edges = self._phrases.get(item.shared) or self._call(context.fill(item.body[1:]), context, before)
            if item.shared:
                self._phrases[item.shared] = edges
        else:
            edges = self._draw_words(item, context)
        if not (item.relation or item.role) or len(edges) != 1 or edges[0].relation != _HEAD:
            return edges
        edge = Edge(context.fill(item.relation), edges[0].node, context.fill(item.role) or edges[0].role)
        if clause and edge.relation.startswith("nsubj"):
            # A role such as R-ARG0 consists of a prefix and the role in the clause.
            clause.fillers.append((edge.node, edge.role[: edge.role.find("ARG")]))
            if len(clause.fillers) == 1:
                clause.agree(edge.node)
        return [edge]

    def _expand_all(self, items: Sequence[Item], context: _Context, before: Sequence[Edge] = ()) -> list[Edge]:
        edges: list[Edge] = []
        for item in items:
            edges += self._expand(item, context, [*before, *edges])
        return edges

    def _draw_words(self, item: Item, context: _Context) -> list[Edge]:
        """Draw a word from a list or template, and return the edges to its leaves: `compound` to all but the last."""
        body, kind = context.fill(item.body), ""
        word = self._words.get(item.shared)
        if body.startswith("$"):
            name, _, kind = body[1:].rstrip("~").partition(".")
            word = word or inflect_noun(self.draw.word(*split_words(words_of(name, kind))), item.tag)
        word = word or self.draw.any_of(body.split("|"))
        if item.shared:
            self._words[item.shared] = word
        leaves = [Node(word=part, tag=item.tag) for part in word.split()]
        leaves[-1].kind, leaves[-1].roleset = kind, item.predicate
        return [*(Edge("compound", leaf) for leaf in leaves[:-1]), Edge(_HEAD, leaves[-1])]

    def _call(self, call: str, context: _Context, before: Sequence[Edge]) -> list[Edge]:
        """Return the edges of a called rule such as ``subject.person``, drawn from its templates.

        There are none if no template of the rule fits here.
        """
        name, _, kind = call.partition(".")
        if name == "member":
            return self._expand(self.draw.any_of(_MEMBERS), context, ())
        if name == "core":
            return self._core(kind, context)
        if name in _OPENS:
            context = self._open(name, kind.rstrip("~"), context, before)
        elif before and not _fits(name, before):
            return []
        key = next(key for key in (call, call.rstrip("~"), name) if key in RULES)
        reflexive = self.reflexives and context.clause is not None and "reflexive" in context.clause.names
        options = [
            (rule, rule.weight)
            for rule in RULES[key]
            if (context.depth > 0 or not rule.deep) and (reflexive or not rule.reflexive)
        ]
        if not options:
            return []
        return self._expand_all(self.draw.weighted(options).items, context._replace(kind=kind), before)

    def _core(self, tag: str, context: _Context) -> list[Edge]:
        """Return the verb phrase with the verb in this form, without auxiliaries."""
        clause = context.clause
        assert clause is not None
        clause.leaf.word, clause.leaf.tag = clause.verb.inflect(tag, clause.names["agreement"]), tag
        return [Edge(_HEAD, Node("VP", self._expand_all(FRAMES[clause.frame].items[1:], context)))]

    def _open(self, name: str, kind: str, context: _Context, before: Sequence[Edge]) -> _Context:
        """Draw the verb of a rule, and return the context of its clause.

        Phrases outside of the clause that are understood as the subject or object of the verb get this role.
        """
        subject, gap, fillers = _understood(name, kind, context, before)
        depth = context.depth - 1
        frames = _frames(subject, gap, _PASSIVE.get(name), depth > 0)
        if name == "question":
            frames = [(frame, weight) for frame, weight in frames if not frame.startswith("copula")]
        frame = self.draw.weighted(frames)
        verb = self.draw.word(*_verbs(frame, subject, gap))
        passive, role = _is_passive(frame), FRAMES[frame].items[0].body
        names = {
            "subject": subject or self._kind(verb.object if passive else verb.subject),
            "agent": self._kind(verb.subject),
            "object": self._kind(verb.object) if verb.object else "",
            "flag": verb.flag,
            "particle": verb.particle,
            "agreement": "3",
            "present": "VBZ",
            "voice": "passive" if passive else _VOICES.get(frame.split("-")[0], "active"),
            "nsubj": "nsubj:pass" if passive else "nsubj",
            "role": role,
        }
        clause = _Clause(frame, verb, names, bool(gap))
        clause.leaf.shared_roles = [(node, prefix + ("ARG1" if gap else role)) for node, prefix in fillers]
        if fillers and not gap:
            clause.fillers = [*fillers]
            clause.agree(fillers[0][0])
        return _Context(depth, kind, clause)

    def _kind(self, kinds: tuple[str, ...]) -> str:
        # The mark ~ says that the verb accepts several kinds of names and does not tell them apart. The templates then
        # use only names that are unambiguous by themselves.
        kind = self.draw.any_of(kinds)
        return f"{kind}~" if len(ENTITIES & {*kinds}) > 1 else kind


def _understood(
    name: str, kind: str, context: _Context, before: Sequence[Edge]
) -> tuple[str, str, list[tuple[Node, str]]]:
    """Return the phrases outside of the clause of a rule that fill a role of its verb, and their kind.

    Args:
        name: the name of the rule.
        kind: the kind of the noun before a relative clause. For an infinitive, its subject: ``subject`` or ``object``
            of the clause around it, or the kind of an unnamed subject.

    Returns:
        the kind of the subject (empty: any), the kind of the moved object (empty: no object is moved), and the phrases,
        each with a prefix for its role.
    """
    if name == "second" or kind == "subject":
        assert context.clause is not None
        return context.clause.names["subject"].rstrip("~"), "", context.clause.fillers
    if kind == "object":
        return "person", "", [(edge.node, "") for edge in before if edge.relation == "obj"]
    antecedent = [(before[0].node, "")] if kind and name != "infinitive" else []
    if name == "undergoer":
        return "", kind, antecedent
    return "person" if name == "who" else kind, "", antecedent


def _fits(name: str, before: Sequence[Edge]) -> bool:
    """Return False if a phrase after ``before`` would be read as a part of what precedes it."""
    end = before[-1].node.last()
    if name in ("adjuncts", "purpose", "second") and any(node.label in ("S", "SBAR") for node in end):
        return False
    return name != "place" or not any({node.kind, node.entity} & _HOLDS_PLACE for node in end)


def derive(root: Node, identity: str) -> Sentence:
    """Return the sentence of a tree, with words, tags, entities, dependencies, brackets and predicates."""
    phrases, leaves = _number(root)
    heads, relations = [0] * len(leaves), ["root"] * len(leaves)
    # A predicate and the head word of its clause. These are different words if the predicate is a copula.
    predicates: list[tuple[Node, Node]] = []
    roles: dict[int, list[tuple[Node, str]]] = {}
    for phrase in phrases:
        head = phrase.head_word()
        for index, edge in enumerate(phrase.edges):
            if edge.node.roleset:
                predicates.append((edge.node, head))
            if edge.role:
                roles.setdefault(head.start, []).append((edge.node, edge.role))
            if edge.relation != _HEAD:
                governor = _sibling(phrase.edges, index).head_word() if edge.relation[-1] in "<>" else head
                word = edge.node.head_word().start
                heads[word], relations[word] = governor.start + 1, edge.relation.rstrip("<>")
    words = [_fit_article(leaf.word, after.word) for leaf, after in zip(leaves, [*leaves[1:], Node()], strict=True)]
    words[0] = words[0][:1].upper() + words[0][1:]
    return Sentence(
        identity,
        words=tuple(words),
        pos=tuple(leaf.tag for leaf in leaves),
        ner=tuple(Span(node.start, node.end, node.entity) for node in phrases if node.entity),
        dep=Dependencies(tuple(heads), tuple(relations)),
        con=tuple(Span(node.start, node.end, node.label) for node in phrases if node.label),
        srl=tuple(sorted(_predicate(leaf, roles.get(head.start, [])) for leaf, head in predicates)),
    )


def _predicate(leaf: Node, roles: list[tuple[Node, str]]) -> Predicate:
    spans = sorted(Span(node.start, node.end, role) for node, role in [*roles, *leaf.shared_roles])
    return Predicate(leaf.start, leaf.roleset, tuple(spans), leaf.roleset.split(".")[0].split("_")[0])


def _sibling(edges: Sequence[Edge], index: int) -> Node:
    """Return the part that a comma or conjunction depends on.

    This is the next (>) or previous (<) part that is not a comma or conjunction.
    """
    edges_beyond = edges[index + 1 :] if edges[index].relation.endswith(">") else edges[:index][::-1]
    return next(edge.node for edge in edges_beyond if not edge.relation.endswith((">", "<")))


def _fit_article(word: str, after: str) -> str:
    """Return ``an`` instead of ``a`` before a vowel sound, and every other word unchanged."""
    vowel = after.lower().startswith(("a", "e", "i", "o", "honest", "un", "up")) and not after.startswith("uni")
    return "an" if word == "a" and vowel else word


def _number(root: Node) -> tuple[list[Node], list[Node]]:
    """Set ``start`` and ``end`` of every node, and return the phrases in pre-order and the words in order."""
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
