"""The words before a verb in the generated corpus (modals, have, be, do, to, not) and the verb's own form."""

from __future__ import annotations

from typing import NamedTuple

from mtlprune.corpora.grammar.derivation import Node, leaf
from mtlprune.corpora.grammar.lexicon import gerund, third
from mtlprune.corpora.grammar.nouns import Draw
from mtlprune.corpora.grammar.verbs import Verb

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
