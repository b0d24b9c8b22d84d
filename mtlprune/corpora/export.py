"""Write layers in the formats of the official scorers: CoNLL-U, IOB2 columns, bracketed trees and CoNLL-2005 props.

``mtlprune data export`` and ``evaluate`` write these formats for gold and predicted layers. ``predict`` writes CoNLL-U.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.brackets import format_tree, stars_from_spans
from mtlprune.corpora.formats.conllu import COLUMNS, PLACEHOLDER, TAGS, are_universal, with_key
from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.io.files import RunError, make_folder, replacing, write_text
from mtlprune.layers import OF_SENTENCES, Layer, kind_of, tags_named
from mtlprune.sentence import LAYERS, Dependencies, Sentence, Span, declared

_COLUMN_INDEX = {column: index for index, column in enumerate(COLUMNS)}
"""Column of CoNLL-U → its index in a row."""


def export(sentences: Iterable[Sentence], layer: str, file: Path, in_upos: bool | None = None) -> int:
    """Write one layer of all sentences that have it, gold or predicted, and return the number of sentences written.

    The kind of the layer determines the format:

    * tags, tree (``pos``, ``dep``): CoNLL-U with a row for every word. Tags and trees are both written if both are
      known. The tags ``pos`` are written to the column UPOS if they are universal or the sentence also has a layer
      ``xpos``, unless it has a layer ``upos``; otherwise they are written to XPOS. Layers ``upos`` and ``xpos`` have
      their own columns. The scorer requires a tree even for tags alone. A sentence without a tree therefore gets a flat
      tree under the comment ``# heads = placeholder``, which ``formats.conllu.read_conllu`` reads as an unknown tree.
    * spans (``ner``): word and IOB2 tag, separated by a blank.
    * brackets (``con``): one bracketed tree per line under TOP, with pre-terminals from the tags layer that the kind
      names (X if the kind names no layer, or the tags are unknown).
    * frames (``srl``): CoNLL-2005 props, that is, the lemma of the predicate (its word if the lemma is unknown), then
      one column per predicate. V is added at the predicate if its arguments contain no V. Nested arguments are nested;
      crossing arguments are an error.
    * label, number, labels: the id of the sentence, a tab and the value, with ``|`` between labels.

    The scorers compare words, tags (in trees) and lemmas of gold and prediction as text. Give predictions the gold tags
    before exporting ``con``, and the gold lemmas before exporting ``srl``.

    Blanks inside words become ``_`` in all formats except CoNLL-U. The file is written under a temporary name and
    renamed when complete.

    Args:
        in_upos: whether ``pos`` contains universal tags. If None, this is inferred from the tags.

    Raises:
        CorpusError: there is no such layer, the format cannot represent a sentence, or the file cannot be written.
    """
    sentences = list(sentences)
    if in_upos is None:
        in_upos = are_universal(tag for sentence in sentences for tag in sentence.pos or ())
    if layer not in (layers := declared(sentences)):
        raise CorpusError(f"expected one of the layers {', '.join(layers)}, found {layer!r}; correct --layer")
    file = Path(file)
    written = 0
    try:
        with replacing(file) as staging, staging.open("w", encoding="utf-8", newline="\n") as stream:
            for sentence in sentences:
                if (kind := sentence.kind(layer)) is not None:
                    written += 1
                    if kind_of(kind) in OF_SENTENCES:
                        text = OF_SENTENCES[kind_of(kind)].text(sentence.get(layer))
                        stream.write(f"{sentence.id}\t{text}\n")
                        continue
                    renamed = _under_known_name(sentence, layer, kind)
                    tree = kind_of(kind) in ("tags", "tree")
                    stream.write(format_conllu(renamed, in_upos) if tree else _FORMATS[kind_of(kind)](renamed))
    except RunError as error:
        raise CorpusError(str(error)) from error
    return written


def format_conllu(sentence: Sentence, in_upos: bool = False, predicted: bool = False) -> str:
    """Return a sentence as CoNLL-U: comments, a row of ten columns for each word, and an empty line.

    A sentence that was read from CoNLL-U keeps its lines except for the columns of its layers. DEPS repeats the tree
    and therefore becomes ``_`` if the tree has changed. Other sentences get the comments ``sent_id`` and ``text``. If
    neither the sentence nor its lines have a tree, a flat placeholder tree is written, as :func:`export` describes.

    Args:
        in_upos: whether ``pos`` contains universal tags. If False, ``pos`` is written to UPOS only if the sentence has
            a layer ``xpos`` and no layer ``upos``.
        predicted: whether the layers are predictions. Then DEPS always becomes ``_``, because it describes another
            tree; a sentence that was read from CoNLL-U gets no placeholder tree; and the layers of :func:`in_misc` and
            :func:`in_comments` are written.

    Raises:
        CorpusError: CoNLL-U cannot represent the id or a word.
    """
    upos, xpos = (sentence.get(name) if sentence.kind(name) == "tags" else None for name in TAGS)
    if sentence.pos is not None:
        if upos is None and (in_upos or xpos is not None):
            upos = sentence.pos
        else:
            xpos = sentence.pos
    rows = [line.split("\t") for line in _lines(sentence)]
    words = [row for row in rows if row[0].isdecimal()]
    n, tree = len(sentence), sentence.dep
    if tree is not None:
        rows = [row for row in rows if not PLACEHOLDER.fullmatch(row[0])]
    elif not (predicted and sentence.source) and any(row[_COLUMN_INDEX["head"]] in ("", "_") for row in words):
        tree = Dependencies((0,) + (1,) * (n - 1), ("root",) + ("dep",) * (n - 1))
        rows.insert(sum(row[0].startswith("#") for row in rows), ["# heads = placeholder"])
    columns: dict[str, Sequence[str] | None] = {"upos": upos, "xpos": xpos}
    if tree is not None:
        columns |= {"head": list(map(str, tree.heads)), "deprel": list(tree.relations)}
        if predicted or any(
            columns[name] != [row[_COLUMN_INDEX[name]] for row in words] for name in ("head", "deprel")
        ):
            columns["deps"] = "_" * n
    for name, cells in columns.items():
        for row, cell in zip(words, cells, strict=True) if cells is not None else ():
            row[_COLUMN_INDEX[name]] = cell
    for layer in in_misc(sentence.kinds()) if predicted else ():
        value = sentence.get(layer)
        cells = value if sentence.kind(layer) == "tags" else iob2_from_spans(value, n)
        for row, cell in zip(words, cells, strict=True):
            row[_COLUMN_INDEX["misc"]] = with_key(row[_COLUMN_INDEX["misc"]], layer, cell)
    for layer in in_comments(sentence.kinds()) if predicted else ():
        text = OF_SENTENCES[kind_of(sentence.kind(layer) or "")].text(sentence.get(layer))
        rows = [row for row in rows if not re.match(rf"#[ \t]*{layer}[ \t]*=", row[0])]
        rows.insert(sum(row[0].startswith("#") for row in rows), [f"# {layer} = {text}"])
    return "\n".join(map("\t".join, rows)) + "\n\n"


def in_misc(kinds: Mapping[str, str]) -> list[str]:
    """Return the layers that are written to MISC under their names, because CoNLL-U has no column for them.

    These are tags, and spans as IOB2 tags.
    """
    return [layer for layer, kind in kinds.items() if kind in ("tags", "spans") and layer not in (*TAGS, "pos")]


def in_comments(kinds: Mapping[str, str]) -> list[str]:
    """Return the layers of whole sentences, which are written to CoNLL-U as comments ``# LAYER = VALUE``."""
    return [layer for layer, kind in kinds.items() if kind_of(kind) in OF_SENTENCES]


def _lines(sentence: Sentence) -> list[str]:
    """Return the lines of CoNLL-U from which a sentence was read, or new lines with unknown annotation.

    Raises CorpusError if CoNLL-U cannot represent the id (line breaks, blanks at its ends) or a word (blanks at its
    ends or several in a row).
    """
    lines = sentence.source.split("\n")
    if sentence.words == tuple(row[1] for line in lines if (row := line.split("\t"))[0].isdecimal()):
        return lines
    if re.search(r"[\n\r]|^[ \t]|[ \t]$", sentence.id):
        raise CorpusError(
            f"sentence {sentence.id!r}: expected an id without blanks at its ends or line breaks, which CoNLL-U cannot "
            "keep; rename the sentence"
        )
    for word in sentence.words:
        if word != word.strip(" ") or "  " in word:
            raise CorpusError(f"sentence {sentence.id!r}: CoNLL-U cannot keep the blanks of the word {word!r}")
    rows = ("\t".join([str(index), word, *"_" * 8]) for index, word in enumerate(sentence.words, 1))
    return [f"# sent_id = {sentence.id}", f"# text = {' '.join(sentence.words)}", *rows]


def _format_iob2(sentence: Sentence) -> str:
    """Return a line with word and tag for each word, and an empty line."""
    tags = iob2_from_spans(sentence.ner or (), len(sentence))
    return "".join(f"{_without_blanks(word)} {tag}\n" for word, tag in zip(sentence.words, tags, strict=True)) + "\n"


def format_props(sentence: Sentence) -> str:
    """Return CoNLL-2005 props: aligned columns with the lemmas and one column per predicate, and an empty line.

    Raises CorpusError if arguments of one predicate cross.
    """
    predicates = sentence.srl or ()
    lemmas = ["-"] * len(sentence)
    columns = [lemmas]
    for predicate in predicates:
        index = predicate.index
        lemma = _without_blanks(predicate.lemma or sentence.words[index])
        # In these columns a dash marks words that are not predicates, so a lemma that is a dash becomes an underscore.
        lemmas[index] = "_" if lemma == "-" else lemma
        try:
            verb = () if any(span.label == "V" for span in predicate.arguments) else (Span(index, index + 1, "V"),)
            columns.append(stars_from_spans((*predicate.arguments, *verb), len(sentence)))
        except CorpusError as error:
            raise CorpusError(f"sentence {sentence.id!r}, predicate at word {index}: {error}") from error
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = (" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n\n"


def _without_blanks(text: str) -> str:
    # Only ASCII white space is replaced, because the scorers split lines at no other characters.
    return "_".join(re.findall(r"\S+", text, flags=re.ASCII))


def _under_known_name(sentence: Sentence, layer: str, kind: str) -> Sentence:
    """Return a sentence whose layer has the name of the standard layer of its kind, because formats know no other name.

    The tags that the kind names, as in ``brackets:TAGS``, become ``pos``.
    """
    if layer in LAYERS or (layer in TAGS and sentence.source):
        return sentence
    [usual_name] = (name for name in LAYERS if kind_of(name) == kind_of(kind))
    bare, tags = Sentence(sentence.id, sentence.words), sentence.get(tags_named(kind) or "")
    return bare.with_layers(**{"pos": tags, usual_name: sentence.get(layer)})


_FORMATS: dict[str, Callable[[Sentence], str]] = {
    "tags": format_conllu,
    "spans": _format_iob2,
    "tree": format_conllu,
    "brackets": lambda sentence: format_tree(sentence) + "\n",
    "frames": format_props,
}
"""Kind of a layer → the function that formats a sentence."""


# -- Pairs of files with gold and predictions for the official scorers -------------------------------------------------


def write_scorer_files(gold: Sequence[Sentence], predicted: Sequence[Sentence], folder: Path) -> dict[str, int]:
    """Write LAYER.gold and LAYER.pred for every predicted layer, and three columns for conlleval for layers of spans.

    Only sentences with both a gold and a predicted layer are written. Predicted brackets get the gold tags, and
    predicted predicates get the gold lemma (or the word, if gold has no predicate there), because the scorers compare
    both as text.

    Returns:
        layer → number of sentences written.

    Raises:
        CorpusError: the format of a scorer cannot represent a sentence.
    """
    make_folder(folder)
    written: dict[str, int] = {}
    in_upos = are_universal(tag for sentence in gold for tag in sentence.pos or ())
    for layer, kind in declared(gold).items():
        pairs = [
            (g, _with_gold_context(g, p, layer, kind))
            for g, p in zip(gold, predicted, strict=True)
            if g.get(layer) is not None and p.get(layer) is not None
        ]
        if pairs:
            export([g for g, _ in pairs], layer, folder / f"{layer}.gold", in_upos)
            written[layer] = export([p for _, p in pairs], layer, folder / f"{layer}.pred", in_upos)
            if kind_of(kind) == "spans":
                renamed_pairs = [tuple(_under_known_name(s, layer, kind) for s in pair) for pair in pairs]
                write_text(folder / f"{layer}.conlleval", "".join(map(_three_columns, renamed_pairs)))
    return written


def _with_gold_context(gold: Sentence, predicted: Sentence, layer: str, kind: str) -> Sentence:
    """Return the prediction with the gold tags that brackets need, and with the gold lemmas of predicates."""
    if (tags := tags_named(kind)) is not None:
        pos_layer = {tags: Layer("tags", gold.get(tags))}
        return predicted.with_layers(**pos_layer, **{layer: Layer(kind, predicted.get(layer))})
    if kind_of(kind) == "frames":
        lemmas = {predicate.index: predicate.lemma for predicate in gold.get(layer)}
        frames = tuple(predicate._replace(lemma=lemmas.get(predicate.index)) for predicate in predicted.get(layer))
        return predicted.with_layers(**{layer: Layer(kind, frames)})
    return predicted


def _three_columns(pair: tuple[Sentence, ...]) -> str:
    """Return a line with word, gold tag and predicted tag for each word, and an empty line."""
    gold, predicted = (_format_iob2(sentence).split("\n")[:-1] for sentence in pair)
    rows = (f"{g} {p.rsplit(' ', 1)[-1]}" if g else "" for g, p in zip(gold, predicted, strict=True))
    return "\n".join(rows) + "\n"
