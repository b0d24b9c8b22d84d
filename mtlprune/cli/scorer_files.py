"""Gold and predictions as the official scorers want them, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mtlprune.corpora.export import export, format_iob2
from mtlprune.files import make_folder
from mtlprune.sentence import LAYERS, Sentence

Pair = tuple[Sentence, Sentence]


def write_scorer_files(gold: Sequence[Sentence], predicted: Sequence[Sentence], folder: Path) -> dict[str, int]:
    """Write LAYER.gold and LAYER.pred for every predicted layer; for NER also conlleval's three columns.

    Only sentences whose gold layer is known are written. Predicted trees carry the gold tags, and predicted predicates
    the gold lemma (the word where gold has no predicate there): the scorers compare both as text.

    Returns:
        layer → number of sentences.

    Raises:
        CorpusError: a sentence cannot be said in the scorer's format.
    """
    make_folder(folder)
    written: dict[str, int] = {}
    for layer in LAYERS:
        pairs = [
            (g, p)
            for g, p in zip(gold, predicted, strict=True)
            if g.get(layer) is not None and p.get(layer) is not None
        ]
        if pairs:
            fitted = _FITTED.get(layer, lambda g, p: p)
            export([g for g, _ in pairs], layer, folder / f"{layer}.gold")
            written[layer] = export([fitted(g, p) for g, p in pairs], layer, folder / f"{layer}.pred")
            if layer == "ner":
                (folder / "ner.conlleval").write_text("".join(map(_three_columns, pairs)), encoding="utf-8")
    return written


def _with_gold_tags(gold: Sentence, predicted: Sentence) -> Sentence:
    return predicted.with_layers(pos=gold.pos)


def _with_gold_lemmas(gold: Sentence, predicted: Sentence) -> Sentence:
    lemmas = {predicate.index: predicate.lemma for predicate in gold.srl or ()}
    fitted = tuple(predicate._replace(lemma=lemmas.get(predicate.index)) for predicate in predicted.srl or ())
    return predicted.with_layers(srl=fitted)


_FITTED: dict[str, Callable[[Sentence, Sentence], Sentence]] = {"con": _with_gold_tags, "srl": _with_gold_lemmas}


def _three_columns(pair: Pair) -> str:
    """word gold predicted, and an empty line."""
    gold, predicted = (format_iob2(sentence).split("\n")[:-1] for sentence in pair)
    rows = (f"{g} {p.rsplit(' ', 1)[-1]}" if g else "" for g, p in zip(gold, predicted, strict=True))
    return "\n".join(rows) + "\n"
