"""What a prediction is worth: counts for each sentence, scores from sums of counts. Free of torch.

Counts are kept by sentence because tables resample them: an F1 is no mean over sentences, but a function of summed
counts. Which official scorer each score reproduces, and every difference, is in ``docs/scores.md``.

    counts = [count_dep(g, p) for g, p in zip(gold, predicted)]
    score("dep", counts)["las"]
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.sentence import NOT_ARGUMENTS, Predicate, Sentence, SentenceError, Span

Counts = dict[str, int]

# EVALB's new.prm: words with such a tag are deleted, and so are brackets with such a label
DELETED = frozenset({"TOP", "S1", "-NONE-", ",", ":", "``", "''", ".", "?", "!"})
EQUAL_LABELS = {"PRT": "ADVP"}

# Penn Treebank spellings of signs: punctuation, although they hold letters or accents
_PENN_SIGNS = frozenset({"-LRB-", "-RRB-", "-LSB-", "-RSB-", "-LCB-", "-RCB-", "``", "`"})


def _both_known(layer: str, gold: Sentence, predicted: Sentence) -> bool:
    """False where gold is unknown (not counted); SentenceError where the two cannot be compared."""
    if gold.words != predicted.words:
        raise SentenceError(
            f"sentence {gold.id!r}: gold and prediction ({predicted.id!r}) do not have the same words; "
            "scores compare the same sentences in the same order"
        )
    if getattr(gold, layer) is None:
        return False
    if getattr(predicted, layer) is None:
        raise SentenceError(f"sentence {gold.id!r}: gold has a {layer} layer, but none was predicted; predict it first")
    return True


# --- counts, one function a layer ------------------------------------------------------------------------------------


def count_pos(gold: Sentence, predicted: Sentence) -> Counts | None:
    """``correct`` of ``words``; None where gold is unknown."""
    if not _both_known("pos", gold, predicted):
        return None
    return {"correct": _agreeing(gold.pos, predicted.pos), "words": len(gold)}


def count_ner(gold: Sentence, predicted: Sentence) -> Counts | None:
    """``correct``, ``gold``, ``predicted`` entities; correct: same start, end and type. None where gold is unknown."""
    if not _both_known("ner", gold, predicted):
        return None
    return _overlap(set(gold.ner or ()), set(predicted.ner or ()))


def count_dep(gold: Sentence, predicted: Sentence) -> Counts | None:
    """Words, right heads and right arcs, with and without punctuation and subtypes; None where gold is unknown.

    Keys: ``words``, ``heads`` (right head), ``arcs`` (and right relation in full), ``bare_arcs`` (relation up to the
    colon), and each with ``_no_punct`` (words that are no punctuation).
    """
    if not _both_known("dep", gold, predicted):
        return None
    assert gold.dep is not None and predicted.dep is not None
    rows = [
        (head == guess, head == guess and relation == label, head == guess and _bare(relation) == _bare(label))
        for head, guess, relation, label in zip(
            gold.dep.heads, predicted.dep.heads, gold.dep.relations, predicted.dep.relations, strict=True
        )
    ]
    plain = [row for row, word in zip(rows, gold.words, strict=True) if not is_punctuation(word)]
    return {**_tally(rows), **_tally(plain, "_no_punct")}


def count_con(gold: Sentence, predicted: Sentence) -> Counts | None:
    """``correct``, ``gold``, ``predicted`` brackets by EVALB's rules with ``new.prm``; None where gold is unknown.

    The *gold* tags say which words are deleted on both sides; where they are unknown, none is.
    """
    if not _both_known("con", gold, predicted):
        return None
    kept = [tag not in DELETED for tag in gold.pos] if gold.pos is not None else [True] * len(gold)
    place = [0, *accumulate(kept)]  # fencepost before deletion → after
    mine, theirs = brackets(gold.con or (), place), brackets(predicted.con or (), place)
    correct = sum(min(number, theirs[bracket]) for bracket, number in mine.items() if bracket in theirs)
    return {"correct": correct, "gold": sum(mine.values()), "predicted": sum(theirs.values())}


def count_srl(gold: Sentence, predicted: Sentence) -> Counts | None:
    """Arguments, predicates and official arguments; None where gold is unknown.

    Keys: ``correct``, ``gold``, ``predicted`` over (predicate, start, end, label) without V and C-V; the same with
    ``predicates_`` (word indices), ``filled_`` (predicates with at least one such argument) and ``conll05_``
    (C-X joined to X, arguments at words that gold does not mark as a predicate left out).
    """
    if not _both_known("srl", gold, predicted):
        return None
    mine, theirs = gold.srl or (), predicted.srl or ()
    gold_arguments, arguments = argument_places(mine), argument_places(theirs)
    places, guesses = {p.index for p in mine}, {p.index for p in theirs}
    return {
        **_overlap(gold_arguments, arguments),
        **_overlap(places, guesses, "predicates_"),
        **_overlap({a[0] for a in gold_arguments}, {a[0] for a in arguments}, "filled_"),
        **_overlap(_joined_arguments(mine), _joined_arguments(p for p in theirs if p.index in places), "conll05_"),
    }


def _agreeing(first: Sequence | None, second: Sequence | None) -> int:
    return sum(a == b for a, b in zip(first or (), second or (), strict=True))


def _overlap(gold: set, predicted: set, prefix: str = "") -> Counts:
    return {
        f"{prefix}correct": len(gold & predicted),
        f"{prefix}gold": len(gold),
        f"{prefix}predicted": len(predicted),
    }


def _tally(rows: Sequence[tuple[bool, bool, bool]], suffix: str = "") -> Counts:
    names = ("heads", "arcs", "bare_arcs")
    sums = {f"{name}{suffix}": sum(row[k] for row in rows) for k, name in enumerate(names)}
    return {f"words{suffix}": len(rows), **sums}


def _bare(relation: str) -> str:
    return relation.partition(":")[0]


@lru_cache(maxsize=1 << 16)
def is_punctuation(word: str) -> bool:
    """True where every character is in a Unicode punctuation category, or the word is a Penn spelling of such a sign.

    So %, &, #, @, * and / are punctuation; $ and + are not.
    """
    return word in _PENN_SIGNS or all(unicodedata.category(sign).startswith("P") for sign in word)


def brackets(spans: Iterable[Span], place: Sequence[int]) -> Counter[tuple[int, int, str]]:
    """Brackets that EVALB counts; ``place``: fencepost before deletion of words → after."""
    found: Counter[tuple[int, int, str]] = Counter()
    for start, end, label in spans:
        left, right = place[start], place[end]
        label = _evalb_label(label)
        if left < right and label not in DELETED:
            found[left, right, label] += 1
    return found


@lru_cache(maxsize=1 << 12)
def _evalb_label(label: str) -> str:
    """Function tags go (all from the first - or =), equal labels become one."""
    label = label.partition("-")[0].partition("=")[0]
    return EQUAL_LABELS.get(label, label)


def argument_places(predicates: Iterable[Predicate]) -> set[tuple[int, int, int, str]]:
    """(predicate, start, end, label) without V and C-V."""
    return {
        (predicate.index, span.start, span.end, span.label)
        for predicate in predicates
        for span in predicate.arguments
        if span.label not in NOT_ARGUMENTS
    }


def _joined_arguments(predicates: Iterable[Predicate]) -> set[tuple]:
    """(predicate, label, pieces) as the CoNLL-2005 scorer sees them.

    A piece C-X belongs to the last X before it; without any, it is an X itself. V, with its pieces, is left out.
    """
    found: set[tuple] = set()
    for predicate in predicates:
        pieces: list[tuple[str, list[tuple[int, int]]]] = []
        last: dict[str, list[tuple[int, int]]] = {}
        for start, end, label in sorted(predicate.arguments, key=lambda span: (span.start, -span.end)):
            continues = label.startswith("C-")
            label = label[2:] if continues else label
            if continues and label in last:
                last[label].append((start, end))
            else:
                last[label] = [(start, end)]
                pieces.append((label, last[label]))
        found.update((predicate.index, label, tuple(spans)) for label, spans in pieces if label != "V")
    return found


# --- scores from sums ------------------------------------------------------------------------------------------------


def _percent(part: str, whole: str) -> Callable[[Mapping[str, Any]], Any]:
    """100 · part / whole, 0 where the whole is 0; the sums may be numbers or numpy arrays of resampled sums."""

    def ratio(sums: Mapping[str, Any]) -> Any:
        total = sums[whole]
        return 100.0 * sums[part] / (total + (total == 0))

    return ratio


def _f1(prefix: str = "") -> Callable[[Mapping[str, Any]], Any]:
    """200 · correct / (gold + predicted), 0 where both are empty; numbers or numpy arrays as above."""

    def f1(sums: Mapping[str, Any]) -> Any:
        total = sums[f"{prefix}gold"] + sums[f"{prefix}predicted"]
        return 200.0 * sums[f"{prefix}correct"] / (total + (total == 0))

    return f1


def _precision_recall_f1(prefix: str = "") -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    return {
        f"{prefix}precision": _percent(f"{prefix}correct", f"{prefix}predicted"),
        f"{prefix}recall": _percent(f"{prefix}correct", f"{prefix}gold"),
        f"{prefix}f1": _f1(prefix),
    }


COUNT: dict[str, Callable[[Sentence, Sentence], Counts | None]] = {
    "pos": count_pos,
    "ner": count_ner,
    "dep": count_dep,
    "con": count_con,
    "srl": count_srl,
}

SCORES: dict[str, dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "pos": {"accuracy": _percent("correct", "words")},
    "ner": _precision_recall_f1(),
    "dep": {
        "uas": _percent("heads", "words"),
        "las": _percent("arcs", "words"),
        "las_no_subtypes": _percent("bare_arcs", "words"),
        "uas_no_punct": _percent("heads_no_punct", "words_no_punct"),
        "las_no_punct": _percent("arcs_no_punct", "words_no_punct"),
        "las_no_subtypes_no_punct": _percent("bare_arcs_no_punct", "words_no_punct"),
    },
    "con": _precision_recall_f1(),
    "srl": {
        **_precision_recall_f1(),
        **_precision_recall_f1("predicates_"),
        "filled_f1": _f1("filled_"),
        **_precision_recall_f1("conll05_"),
    },
}

NAMES = {
    "pos": "accuracy",
    "ner": "strict span F1",
    "dep": "LAS",
    "las_no_punct": "LAS without punctuation",
    "con": "bracket F1",
    "srl": "end-to-end F1",
}
"""What readers know the main score of a layer by; under its own name where a setting chooses another."""

MAIN = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}


def main_score(layer: str, decoders: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of *the* score of a layer in a run, given the run's ``decoders`` settings as plain data."""
    if layer == "dep" and not decoders.get("dep", {}).get("score_punctuation", True):
        return "las_no_punct"
    return MAIN[layer]


def name_of(layer: str, main: str) -> str:
    """The main score of a layer in words; ``main`` as :func:`main_score` gives it."""
    return NAMES[main if main in NAMES else layer]


def add(counts: Iterable[Mapping[str, int] | None]) -> Counts:
    """The sum of counts, key by key; sentences that are not counted (None) add nothing."""
    total: Counter[str] = Counter()
    for one in counts:
        if one is not None:
            total.update(one)
    return dict(total)


def score(layer: str, counts: Iterable[Mapping[str, int] | None]) -> dict[str, float]:
    """All scores of a layer in percent, from the sum of the counts of its sentences.

    Raises:
        ValueError: no sentence was counted, so there is nothing to divide by.
    """
    total = add(counts)
    if not total:
        raise ValueError(f"no sentence with a known {layer} layer was counted; there is nothing to score")
    return {name: float(function(total)) for name, function in SCORES[layer].items()}


def ner_seqeval(gold: Iterable[Sentence], predicted: Iterable[Sentence]) -> dict[str, float]:
    """Precision, recall and F1 in percent as seqeval reads IOB2 tags, strict mode: a cross-check of ``count_ner``."""
    from seqeval.metrics import f1_score, precision_score, recall_score
    from seqeval.scheme import IOB2

    pairs = [(g, p) for g, p in zip(gold, predicted, strict=True) if _both_known("ner", g, p)]
    if not pairs:
        raise ValueError("no sentence with a known ner layer was given; there is nothing to score")
    tags = [[iob2_from_spans(s.ner or (), len(s)) for s in side] for side in zip(*pairs, strict=True)]
    functions = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
    return {
        name: 100.0 * float(function(*tags, mode="strict", scheme=IOB2, zero_division=0))
        for name, function in functions.items()
    }
