"""Scores of predictions: counts for each sentence, and scores that are computed from sums of counts.

Counts are stored by sentence because tables resample sentences, and an F1 is not a mean over sentences but a function
of summed counts. ``docs/reference/scores.md`` names the official scorer that each score reproduces, with all
differences. This module does not import torch.

    counts = [count("dep", g, p) for g, p in zip(gold, predicted)]
    score("dep", counts)["las"]
"""

import operator
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

from mtlprune.layers import kind_of, tags_named
from mtlprune.sentence import NOT_ARGUMENTS, Predicate, Sentence, SentenceError, Span

Counts = dict[str, Any]
"""Name → count. For layers of the kind ``number`` also sums of numbers and of their products."""

# EVALB with new.prm deletes words with these tags, and brackets with these labels.
_DELETED = frozenset({"TOP", "S1", "-NONE-", ",", ":", "``", "''", ".", "?", "!"})
_EQUAL_LABELS = {"PRT": "ADVP"}

# Penn Treebank spellings of punctuation signs, which contain letters or accents.
_PENN_SIGNS = frozenset({"-LRB-", "-RRB-", "-LSB-", "-RSB-", "-LCB-", "-RCB-", "``", "`"})


def _kind(layer: str, gold: Sentence, predicted: Sentence) -> str | None:
    """Return the kind that gold declares for a layer, or None if its gold is unknown. Raises SentenceError if gold and
    prediction cannot be compared."""
    if gold.words != predicted.words:
        raise SentenceError(
            f"sentence {gold.id!r}: gold and prediction ({predicted.id!r}) do not have the same words; "
            "scores compare the same sentences in the same order"
        )
    gold_kind, predicted_kind = gold.kind(layer), predicted.kind(layer)
    if gold_kind is None:
        return None
    if predicted_kind is None:
        raise SentenceError(
            f"sentence {gold.id!r}: expected a predicted {layer} layer, as gold has one, found none; predict it first"
        )
    if gold_kind != predicted_kind and kind_of(gold_kind) != kind_of(predicted_kind):
        raise SentenceError(
            f"sentence {gold.id!r}: {layer} is of the kind {gold_kind} in gold, but {predicted_kind} was predicted"
        )
    return gold_kind


def count(layer: str, gold: Sentence, predicted: Sentence) -> Counts | None:
    """Count correct, gold and predicted items of a layer in one sentence; None if its gold is unknown.

    The names of the counts depend on the kind of the layer.

    Raises:
        SentenceError: the sentences cannot be compared, or only gold has the layer.
    """
    kind = _kind(layer, gold, predicted)
    if kind is None:
        return None
    return COUNT[kind_of(kind)](gold.get(layer), predicted.get(layer), gold, kind)


# --- counts, with one function for each kind of layer -----------------------------------------------------------------


def _count_trees(gold_tree: Any, predicted_tree: Any, gold: Sentence, kind: str) -> Counts:
    """Count words, correct heads and correct arcs of a dependency tree.

    Keys: ``words``, ``heads`` (correct head), ``arcs`` (correct head and full relation), ``bare_arcs`` (correct head,
    and relation up to the colon), and all four with the suffix ``_no_punct``, which leave out punctuation.
    """
    rows = [
        (head == guess, head == guess and relation == label, head == guess and _bare(relation) == _bare(label))
        for head, relation, guess, label in zip(*gold_tree, *predicted_tree, strict=True)
    ]
    plain = [row for row, word in zip(rows, gold.words, strict=True) if not is_punctuation(word)]
    return {**_tally(rows), **_tally(plain, "_no_punct")}


def _count_brackets(gold_tree: Any, predicted_tree: Any, gold: Sentence, kind: str) -> Counts:
    """Count ``correct``, ``gold`` and ``predicted`` brackets by the rules of EVALB with ``new.prm``."""
    place = fenceposts(gold, kind)
    gold_brackets, guessed = brackets(gold_tree, place), brackets(predicted_tree, place)
    correct = sum(min(number, guessed[bracket]) for bracket, number in gold_brackets.items() if bracket in guessed)
    return {"correct": correct, "gold": sum(gold_brackets.values()), "predicted": sum(guessed.values())}


def _count_frames(gold_frames: Any, predicted_frames: Any, gold: Sentence, kind: str) -> Counts:
    """Count arguments and predicates of semantic roles.

    Keys: ``correct``, ``gold`` and ``predicted`` count arguments (predicate, start, end, label) without V and C-V. The
    same keys with prefixes count predicates (``predicates_``), predicates with at least one such argument
    (``filled_``), and arguments as the CoNLL-2005 scorer does (``conll05_``), which joins C-X to X and leaves out
    arguments of words that are no predicates in gold.
    """
    gold_arguments, arguments = argument_places(gold_frames), argument_places(predicted_frames)
    places, guesses = {p.index for p in gold_frames}, {p.index for p in predicted_frames}
    return {
        **_overlap(gold_arguments, arguments),
        **_overlap(places, guesses, "predicates_"),
        **_overlap({a[0] for a in gold_arguments}, {a[0] for a in arguments}, "filled_"),
        **_overlap(
            _joined_arguments(gold_frames),
            _joined_arguments(p for p in predicted_frames if p.index in places),
            "conll05_",
        ),
    }


def _count_numbers(gold_value: Any, predicted_value: Any, gold: Sentence, kind: str) -> Counts:
    """Return what a sentence adds to the number of sentences and the sums of x (gold), y (predicted), x², y² and xy.

    Pearson's r of any set of sentences is a function of these six sums, so resampling needs no predictions.
    """
    return {
        "sentences": 1,
        "x": gold_value,
        "y": predicted_value,
        "xx": gold_value * gold_value,
        "yy": predicted_value * predicted_value,
        "xy": gold_value * predicted_value,
    }


def _overlap(gold: set, predicted: set, prefix: str = "") -> Counts:
    return {f"{prefix}correct": len(gold & predicted), f"{prefix}gold": len(gold), f"{prefix}predicted": len(predicted)}


def _tally(rows: Sequence[tuple[bool, bool, bool]], suffix: str = "") -> Counts:
    names = ("heads", "arcs", "bare_arcs")
    sums = {f"{name}{suffix}": sum(row[k] for row in rows) for k, name in enumerate(names)}
    return {f"words{suffix}": len(rows), **sums}


def _bare(relation: str) -> str:
    return relation.partition(":")[0]


@lru_cache(maxsize=1 << 16)
def is_punctuation(word: str) -> bool:
    """Return True if all characters are Unicode punctuation, or the word is the Penn spelling of a punctuation sign.

    Thus %, &, #, @, * and / are punctuation, and $ and + are not.
    """
    return word in _PENN_SIGNS or all(unicodedata.category(sign).startswith("P") for sign in word)


def fenceposts(gold: Sentence, kind: str) -> list[int]:
    """Map positions between words (0 to the number of words) to positions after EVALB's deletion of words.

    Returns:
        For each position, the number of words before it that are not deleted. Words are deleted from gold and
        predictions by the *gold* tags that the kind names. If the kind names no tags, or the sentence has none, no word
        is deleted.
    """
    tags = gold.get(tags_named(kind) or "")
    return [0, *accumulate(tag not in _DELETED for tag in (tags or [""] * len(gold)))]


def foreign_punctuation(sentences: Iterable[Sentence], layer: str) -> str | None:
    """Return a remark if the bracket scores of a layer count punctuation because tags are not the Penn Treebank's.

    EVALB leaves out punctuation by its Penn tags, and therefore counts it with other tag sets.

    Returns:
        The remark, if the tags that the layer's kind names leave out less than half of the punctuation; else None.
    """
    words = deleted = 0
    for sentence in sentences:
        kind = sentence.kind(layer)
        if kind is None or (tag_layer := tags_named(kind)) is None:
            continue
        tags = sentence.get(tag_layer) or ("",) * len(sentence)
        punctuation = [tag in _DELETED for word, tag in zip(sentence.words, tags, strict=True) if is_punctuation(word)]
        words += len(punctuation)
        deleted += sum(punctuation)
    if 2 * deleted >= words:
        return None
    return (
        f"{layer}: bracket scores leave out punctuation by the tags of the Penn Treebank, and the tags are "
        f"different or unknown here: {words - deleted} of {words} words that are punctuation are counted"
    )


def brackets(spans: Iterable[Span], place: Sequence[int]) -> Counter[tuple[int, int, str]]:
    """Count the brackets (start, end, label) that EVALB scores.

    Args:
        place: position between words → position after the deletion of words, as ``fenceposts`` returns it.
    """
    bracket_counts: Counter[tuple[int, int, str]] = Counter()
    for start, end, label in spans:
        left, right = place[start], place[end]
        label = _evalb_label(label)
        if left < right and label not in _DELETED:
            bracket_counts[left, right, label] += 1
    return bracket_counts


@lru_cache(maxsize=1 << 12)
def _evalb_label(label: str) -> str:
    """Remove function tags (everything from the first - or =) and map labels that EVALB treats as equal to one."""
    label = label.partition("-")[0].partition("=")[0]
    return _EQUAL_LABELS.get(label, label)


def argument_places(predicates: Iterable[Predicate]) -> set[tuple[int, int, int, str]]:
    """Return all arguments as tuples (predicate, start, end, label), without the labels V and C-V."""
    return {
        (predicate.index, span.start, span.end, span.label)
        for predicate in predicates
        for span in predicate.arguments
        if span.label not in NOT_ARGUMENTS
    }


def _joined_arguments(predicates: Iterable[Predicate]) -> set[tuple]:
    """Return all arguments as tuples (predicate, label, pieces), as the CoNLL-2005 scorer compares them.

    A piece C-X is joined to the last X before it, or counts as an X if there is none. V and its pieces are left out.
    """
    arguments: set[tuple] = set()
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
        arguments.update((predicate.index, label, tuple(spans)) for label, spans in pieces if label != "V")
    return arguments


# --- scores from sums of counts ---------------------------------------------------------------------------------------


def _percent(part: str, *denominators: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function from sums to 100 · part / mean of the denominators, or 0 if the denominators are 0.

    The sums may be numbers or arrays of resampled sums.
    """
    return partial(_ratio, part, denominators)  # no closure, because score functions are pickled between processes


def _ratio(part: str, denominators: Sequence[str], sums: Mapping[str, Any]) -> Any:
    total = sum(sums[denominator] for denominator in denominators)
    return 100.0 * len(denominators) * sums[part] / (total + (total == 0))


def _precision_recall_f1(prefix: str = "") -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    return {
        f"{prefix}precision": _percent(f"{prefix}correct", f"{prefix}predicted"),
        f"{prefix}recall": _percent(f"{prefix}correct", f"{prefix}gold"),
        f"{prefix}f1": _percent(f"{prefix}correct", f"{prefix}gold", f"{prefix}predicted"),
    }


def _pearson(sums: Mapping[str, Any]) -> Any:
    """Compute 100 · r from summed counts; 0 if gold or predictions do not vary, because r is then undefined."""
    # Importing numpy takes a tenth of a second, and commands that are refused before this line need none of it.
    import numpy as np

    n, x, y = sums["sentences"], sums["x"], sums["y"]
    shared, by_x, by_y = n * sums["xy"] - x * y, n * sums["xx"] - x * x, n * sums["yy"] - y * y
    # For equal numbers the terms cancel up to rounding errors, which must not count as a tiny variance.
    varied = (by_x > 1e-12 * n * sums["xx"]) & (by_y > 1e-12 * n * sums["yy"])
    return np.where(varied, 100 * shared / np.sqrt(np.where(varied, by_x * by_y, 1.0)), 0.0)[()]


COUNT: dict[str, Callable[[Any, Any, Sentence, str], Counts]] = {
    "tags": lambda gold_tags, predicted_tags, *_: {
        "correct": sum(map(operator.eq, gold_tags, predicted_tags)),
        "words": len(gold_tags),
    },
    "spans": lambda gold_spans, predicted_spans, *_: _overlap(set(gold_spans), set(predicted_spans)),
    "tree": _count_trees,
    "brackets": _count_brackets,
    "frames": _count_frames,
    "label": lambda gold_value, predicted_value, *_: {"correct": int(gold_value == predicted_value), "sentences": 1},
    "number": _count_numbers,
    "labels": lambda gold_values, predicted_values, *_: _overlap(set(gold_values), set(predicted_values)),
}
"""Kind → function that counts. Its arguments are a gold value, a predicted value, the gold sentence and the declared
kind. Tags have the counts ``correct`` and ``words``. Spans (same start, end and type) and sets of labels have
``correct``, ``gold`` and ``predicted``. A label has ``correct`` and ``sentences``."""

SCORES: dict[str, dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "tags": {"accuracy": _percent("correct", "words")},
    "spans": _precision_recall_f1(),
    "tree": {
        "uas": _percent("heads", "words"),
        "las": _percent("arcs", "words"),
        "las_no_subtypes": _percent("bare_arcs", "words"),
        "uas_no_punct": _percent("heads_no_punct", "words_no_punct"),
        "las_no_punct": _percent("arcs_no_punct", "words_no_punct"),
        "las_no_subtypes_no_punct": _percent("bare_arcs_no_punct", "words_no_punct"),
    },
    "brackets": _precision_recall_f1(),
    "frames": {
        **_precision_recall_f1(),
        **_precision_recall_f1("predicates_"),
        "filled_f1": _percent("filled_correct", "filled_gold", "filled_predicted"),
        **_precision_recall_f1("conll05_"),
    },
    "label": {"accuracy": _percent("correct", "sentences")},
    "number": {"pearson": _pearson},
    "labels": _precision_recall_f1(),
}

_NAMES = {
    "tags": "accuracy",
    "spans": "strict span F1",
    "tree": "LAS",
    "las_no_punct": "LAS without punctuation",
    "brackets": "bracket F1",
    "frames": "end-to-end F1",
    "label": "accuracy",
    "number": "Pearson's r × 100",
    "labels": "micro-F1",
}
"""Displayed name of a kind's main score. The key las_no_punct is the main score of trees if a setting chooses it."""

MAIN = {"tags": "accuracy", "spans": "f1", "tree": "las", "brackets": "f1", "frames": "f1"}
MAIN |= {"label": "accuracy", "number": "pearson", "labels": "f1"}


def main_score(layer: str, decoders: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the name of a layer's main score in a run.

    Args:
        decoders: the settings ``decoders`` of the run as plain data.
    """
    kind = kind_of(layer, decoders)
    if kind == "tree" and not decoders.get(layer, {}).get("score_punctuation", True):
        return "las_no_punct"
    return MAIN[kind]


def name_of(layer: str, main: str, decoders: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the displayed name of the main score of a layer or kind.

    Args:
        main: name of the score, as :func:`main_score` returns it.
    """
    return _NAMES[main if main in _NAMES else kind_of(layer, decoders)]


def count_names(kind: str, score: str) -> tuple[str, ...]:
    """Return the names of the counts from which a score of a kind of layer is computed, sorted."""
    used: defaultdict[str, float] = defaultdict(float)
    SCORES[kind][score](used)
    return tuple(sorted(used))


def scores_of_values(layer: str, gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> dict[str, float]:
    """Compute the scores (× 100) of a layer of whole sentences that cannot be computed from sums of counts.

    Returns:
        ``macro_f1`` for labels, the unweighted mean over all labels of gold and predictions, or ``spearman`` for
        numbers, the correlation of their ranks (ties have their mean rank). Empty for other kinds.
    """
    annotated_pairs = [pair for pair in zip(gold, predicted, strict=True) if pair[0].get(layer) is not None]
    kind = kind_of(annotated_pairs[0][0].kind(layer) or "") if annotated_pairs else ""
    if kind not in ("label", "number"):
        return {}
    gold_values, predicted_values = (
        [sentence.get(layer) for sentence in side] for side in zip(*annotated_pairs, strict=True)
    )
    if kind == "label":
        right = Counter(x for x, y in zip(gold_values, predicted_values, strict=True) if x == y)
        totals = Counter(gold_values) + Counter(predicted_values)
        return {"macro_f1": 100 * sum(2 * right[label] / totals[label] for label in totals) / len(totals)}
    ranks = zip(_ranks(gold_values), _ranks(predicted_values), strict=True)
    return {"spearman": float(_pearson(add(_count_numbers(x, y, annotated_pairs[0][0], kind) for x, y in ranks)))}


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, counted from 1. Equal values have the mean of their ranks."""
    import numpy as np

    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    rank: list[float] = (times.cumsum() - (times - 1) / 2)[place].tolist()
    return rank


def add(counts: Iterable[Mapping[str, int] | None]) -> Counts:
    """Sum counts by name. Sentences that were not counted (None) add nothing."""
    total: Counter[str] = Counter()
    for sentence_counts in counts:
        if sentence_counts is not None:
            total.update(sentence_counts)
    return dict(total)


def score(layer: str, counts: Iterable[Mapping[str, int] | None]) -> dict[str, float]:
    """Compute all scores of a layer in percent from the counts of its sentences.

    Args:
        layer: name of one of the five built-in layers, or the kind of another layer.

    Raises:
        ValueError: no sentence was counted, so scores are undefined.
    """
    total = add(counts)
    if not total:
        raise ValueError(f"no sentence with a known {layer} layer was counted; there is nothing to score")
    return {name: float(function(total)) for name, function in SCORES[kind_of(layer)].items()}
