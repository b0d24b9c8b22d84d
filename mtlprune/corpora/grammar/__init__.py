"""A generated corpus: sentences of a lexicalised grammar, whose derivations yield all five layers exactly.

``docs/grammar.md`` says what is in it and what makes it hard.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence

from mtlprune.corpora import CorpusError
from mtlprune.corpora.grammar import lexicon
from mtlprune.corpora.grammar.clauses import Clauses, inflect, subject_relation
from mtlprune.corpora.grammar.frames import Clause, Filler
from mtlprune.corpora.grammar.lexicon import VERBS, Verb
from mtlprune.corpora.grammar.nouns import HEAD, Draw, Node, VerbFrame, derive, leaf, phrase
from mtlprune.corpora.tables import spooled
from mtlprune.sentence import Sentence

LONGEST = 40
UNSEEN = 0.2  # of the words in dev and test that a list of the lexicon gives, how many come from its held-out part
MOST = 1_000_000  # sentences of a split
_PATIENCE = 2000  # draws in a row without a new sentence


def build_grammar(train: int = 2000, dev: int = 300, test: int = 300, seed: int = 1) -> dict[str, Sequence[Sentence]]:
    """Draw a corpus of the generated language.

    The same arguments give the same sentences on every machine and Python version, and a larger train begins with the
    sentences of a smaller one. No word sequence (in lower case) occurs twice, within a split or between splits. A sixth
    of each list of open-class words and names never occurs in train. Dev and test hold no label (tag, entity type,
    relation, bracket or role) that is not in train.

    Args:
        train, dev, test: how many sentences each.
        seed: any whole number.

    Raises:
        CorpusError: a size is negative or above MOST, train is empty where another split is not, or there are not
            enough different sentences.
    """
    sizes = {"train": train, "dev": dev, "test": test}
    for split, size in sizes.items():
        if size < 0:
            raise CorpusError(f"grammar, {split}: expected a number of sentences from 0 upwards, found {size}")
        if size > MOST:
            raise CorpusError(f"grammar, {split}: expected at most {MOST:,} sentences, found {size:,}; take fewer")
    if not train and (dev or test):
        raise CorpusError("grammar: dev and test use only labels that train holds, so train needs a sentence at least")
    taken: set[bytes] = set()
    corpus: dict[str, Sequence[Sentence]] = {}
    known: set[tuple[str, str]] = set()
    for split, size in sizes.items():
        allowed = None if split == "train" else known.issuperset
        corpus[split] = spooled(fill(split, size, _draws(split, seed), taken, allowed))
        if split == "train":
            known = {label for sentence in corpus[split] for label in labels(sentence)}
    return corpus


def labels(sentence: Sentence) -> set[tuple[str, str]]:
    """Every (layer, label) of a sentence that a task has to predict."""
    found = {("pos", tag) for tag in sentence.pos or ()}
    found |= {("ner", span.label) for span in sentence.ner or ()}
    found |= {("dep", relation) for relation in (sentence.dep.relations if sentence.dep else ())}
    found |= {("con", span.label) for span in sentence.con or ()}
    return found | {("srl", span.label) for predicate in sentence.srl or () for span in predicate.arguments}


def fill(
    split: str,
    size: int,
    draws: Iterator[Callable[[str], Sentence]],
    taken: set[bytes],
    allowed: Callable[[set[tuple[str, str]]], bool] | None = None,
) -> Iterator[Sentence]:
    """Take ``size`` sentences whose words have no digest in ``taken`` yet, to which it is added.

    Args:
        draws: without end; each is a sentence still without its id.
        allowed: says of a sentence's labels whether the split may hold them; None: any.

    Raises:
        CorpusError: nothing new came for a long while.
    """
    found = misses = 0
    while found < size:
        sentence = next(draws)(f"grammar-{split}-{found + 1:05d}")
        form = hashlib.blake2b(" ".join(sentence.words).lower().encode(), digest_size=16).digest()  # small
        if len(sentence) > LONGEST or form in taken or (allowed and not allowed(labels(sentence))):
            misses += 1
            if misses == _PATIENCE:
                raise CorpusError(
                    f"grammar, {split}: asked for {size} sentences, but after {found} the last {_PATIENCE} drawn "
                    "were all taken already, too long, or with labels that train lacks; ask for fewer, or for a larger "
                    "train"
                )
            continue
        misses = 0
        taken.add(form)
        found += 1
        yield sentence.validate()


def _draws(split: str, seed: int) -> Iterator[Callable[[str], Sentence]]:
    number = int.from_bytes(hashlib.sha256(f"grammar/{split}/{seed}".encode()).digest()[:8], "big")
    draw = Draw(number, unseen=0.0 if split == "train" else UNSEEN)
    while True:
        rules = Sentences(draw)
        root = rules.sentence()

        def named(identity: str, root: Node = root, rules: Sentences = rules) -> Sentence:
            return derive(identity, root, rules.frames)

        yield named


# -- Whole sentences: statements, questions, what stands in front, and coordination of clauses --


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
