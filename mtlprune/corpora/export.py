"""Layers in the formats of their official scorers: CoNLL-U, IOB2 columns, bracketed trees, CoNLL-2005 props."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.brackets import format_tree, stars_from_spans
from mtlprune.corpora.formats.conllu import TAGS, universal
from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.files import RunError, make_folder, replacing
from mtlprune.layers import Layer, kind_of, tags_named
from mtlprune.sentence import LAYERS, Sentence, Span, declared


def export(sentences: Iterable[Sentence], layer: str, file: Path) -> int:
    """Write one layer of all sentences that know it; gold and predictions alike. Its kind says how:

    * tags, tree (``pos``, ``dep``): CoNLL-U with a row for every word. Of these two both are written where both are
      known. Tags stand in the column XPOS; universal ones, and those beside a layer ``xpos``, in UPOS; layers ``upos``
      and ``xpos`` have their own columns. For tags alone the scorer still demands a tree: a flat one is put in, under
      the comment ``# heads = placeholder``, by which ``formats.conllu.read_conllu`` knows that it means nothing.
    * spans (``ner``): word and IOB2 tag, with a blank between.
    * brackets (``con``): one bracketed tree a line under TOP, pre-terminals from the tags layer that the kind names
      (X where none is named or known).
    * frames (``srl``): CoNLL-2005 props: the predicate's lemma (its word where unknown), then a column for each
      predicate; V stands at the predicate where its arguments have none. Nested arguments nest; crossing ones are an
      error.

    The scorers compare words, tags (in trees) and lemmas of gold and prediction as text: give predictions the gold tags
    before ``con``, and gold and predictions the same lemmas before ``srl``.

    Blanks inside words become ``_`` in all formats but CoNLL-U. The file is written beside and renamed.

    Returns:
        the number of sentences written.

    Raises:
        CorpusError: no such layer, a sentence cannot be said in its format, or the file cannot be written.
    """
    sentences = list(sentences)
    in_upos = universal(tag for sentence in sentences for tag in sentence.pos or ())
    if layer not in (layers := declared(sentences)):
        raise CorpusError(f"expected a layer out of {', '.join(layers)}, found {layer!r}; name one of them")
    file = Path(file)
    written = 0
    try:
        with replacing(file) as beside, beside.open("w", encoding="utf-8", newline="\n") as stream:
            for sentence in sentences:
                if (kind := sentence.kind(layer)) is not None:
                    known = _under_known_name(sentence, layer, kind)
                    tree = kind_of(kind) in ("tags", "tree")
                    stream.write(format_conllu(known, in_upos) if tree else FORMATS[kind_of(kind)](known))
                    written += 1
    except RunError as error:
        raise CorpusError(str(error)) from error
    return written


def format_conllu(sentence: Sentence, in_upos: bool = False) -> str:
    """Comments, ten columns a word, and an empty line.

    Args:
        in_upos: ``pos`` are universal tags; without it, tags beside a layer ``xpos`` alone are taken for such.

    Raises:
        CorpusError: a tag or relation is ``_``, which means unknown there.
    """
    n = len(sentence)
    upos, xpos = (sentence.get(name) if sentence.kind(name) == "tags" else None for name in TAGS)
    if sentence.pos is not None:
        if upos is None and (in_upos or xpos is not None):
            upos = sentence.pos
        else:
            xpos = sentence.pos
    heads, relations = sentence.dep or ((0,) + (1,) * (n - 1), ("root",) + ("dep",) * (n - 1))
    for name, labels in (("tag", upos), ("tag", xpos), ("relation", relations)):
        if labels is not None and "_" in labels:
            where = f"sentence {sentence.id!r}, word {labels.index('_') + 1}"
            raise CorpusError(f"{where}: found the {name} '_', which means unknown in CoNLL-U; rename it")
    _check_conllu_texts(sentence)
    lines = [f"# sent_id = {sentence.id}", f"# text = {' '.join(sentence.words)}"]
    if sentence.dep is None:
        lines.append("# heads = placeholder")
    for place, word in enumerate(sentence.words):
        first, second = ("_" if tags is None else tags[place] for tags in (upos, xpos))
        row = (place + 1, word, "_", first, second, "_", heads[place], relations[place], "_", "_")
        lines.append("\t".join(map(str, row)))
    return "\n".join(lines) + "\n\n"


def _check_conllu_texts(sentence: Sentence) -> None:
    """What the format cannot hold: an id over several lines, or words with blanks at their ends or in a row."""
    if sentence.id != " ".join(sentence.id.split()):
        raise CorpusError(f"sentence {sentence.id!r}: the id has blanks that CoNLL-U cannot keep; rename it")
    for word in sentence.words:
        if word != word.strip() or "  " in word:
            raise CorpusError(f"sentence {sentence.id!r}: CoNLL-U cannot keep the blanks of the word {word!r}")


def format_iob2(sentence: Sentence) -> str:
    """Word and tag a line, and an empty line."""
    tags = iob2_from_spans(sentence.ner or (), len(sentence))
    return "".join(f"{_solid(word)} {tag}\n" for word, tag in zip(sentence.words, tags, strict=True)) + "\n"


def format_props(sentence: Sentence) -> str:
    """Lemmas and a column for each predicate, aligned, and an empty line.

    Raises:
        CorpusError: arguments of one predicate cross.
    """
    predicates = sentence.srl or ()
    lemmas = ["-"] * len(sentence)
    columns = [lemmas]
    for predicate in predicates:
        place = predicate.index
        lemma = _solid(predicate.lemma or sentence.words[place])
        lemmas[place] = "_" if lemma == "-" else lemma  # a dash would say: no predicate
        try:
            verb = () if any(span.label == "V" for span in predicate.arguments) else (Span(place, place + 1, "V"),)
            columns.append(stars_from_spans((*predicate.arguments, *verb), len(sentence)))
        except CorpusError as error:
            raise CorpusError(f"sentence {sentence.id!r}, predicate at word {place}: {error}") from error
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = (" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n\n"


def _solid(text: str) -> str:
    return "_".join(text.split())


def _under_known_name(sentence: Sentence, layer: str, kind: str) -> Sentence:
    """A layer other than the five, and the tags that it names, under the names that the formats know."""
    if layer in LAYERS:
        return sentence
    [known] = (name for name in LAYERS if kind_of(name) == kind_of(kind))
    return sentence.bare().with_layers(**{"pos": sentence.get(tags_named(kind) or ""), known: sentence.get(layer)})


FORMATS: dict[str, Callable[[Sentence], str]] = {
    "tags": format_conllu,
    "spans": format_iob2,
    "tree": format_conllu,
    "brackets": lambda sentence: format_tree(sentence) + "\n",
    "frames": format_props,
}
"""By kind."""


# -- Gold and predictions as the official scorers want them, side by side --


def write_scorer_files(gold: Sequence[Sentence], predicted: Sequence[Sentence], folder: Path) -> dict[str, int]:
    """Write LAYER.gold and LAYER.pred for every predicted layer; for spans also conlleval's three columns.

    Only sentences whose gold layer is known are written. Predicted trees carry the gold tags, and predicted predicates
    the gold lemma (the word where gold has no predicate there): the scorers compare both as text.

    Returns:
        layer → number of sentences.

    Raises:
        CorpusError: a sentence cannot be said in the scorer's format.
    """
    make_folder(folder)
    written: dict[str, int] = {}
    for layer, kind in declared(gold).items():
        pairs = [
            (g, _fitted(g, p, layer, kind))
            for g, p in zip(gold, predicted, strict=True)
            if g.get(layer) is not None and p.get(layer) is not None
        ]
        if pairs:
            export([g for g, _ in pairs], layer, folder / f"{layer}.gold")
            written[layer] = export([p for _, p in pairs], layer, folder / f"{layer}.pred")
            if kind_of(kind) == "spans":
                known = [tuple(_under_known_name(s, layer, kind) for s in pair) for pair in pairs]
                (folder / f"{layer}.conlleval").write_text("".join(map(_three_columns, known)), encoding="utf-8")
    return written


def _fitted(gold: Sentence, predicted: Sentence, layer: str, kind: str) -> Sentence:
    """With the gold tags beside brackets, and the gold lemmas of predicates."""
    if (tags := tags_named(kind)) is not None:
        beside = {tags: Layer("tags", gold.get(tags))}
        return predicted.with_layers(**beside, **{layer: Layer(kind, predicted.get(layer))})
    if kind_of(kind) == "frames":
        lemmas = {predicate.index: predicate.lemma for predicate in gold.get(layer)}
        frames = tuple(predicate._replace(lemma=lemmas.get(predicate.index)) for predicate in predicted.get(layer))
        return predicted.with_layers(**{layer: Layer(kind, frames)})
    return predicted


def _three_columns(pair: tuple[Sentence, ...]) -> str:
    """word gold predicted, and an empty line."""
    gold, predicted = (format_iob2(sentence).split("\n")[:-1] for sentence in pair)
    rows = (f"{g} {p.rsplit(' ', 1)[-1]}" if g else "" for g, p in zip(gold, predicted, strict=True))
    return "\n".join(rows) + "\n"
