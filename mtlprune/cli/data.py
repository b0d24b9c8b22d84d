"""mtlprune data: build, check, show and export corpora."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli import build
from mtlprune.cli.console import console, new_table
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import load_corpus
from mtlprune.layers import LAYERS

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """\b
Your own files (docs/your_data.md):
  mtlprune data build conllu --train train.conllu --dev dev.conllu --out data/mine
  mtlprune data build columns --columns word,pos,_,ner all.txt --out data/mine
  mtlprune data check data/mine
"""
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=EXAMPLES)
app.add_typer(build.app, name="build", short_help="Make a corpus of your files, or of those that are known.")


@app.command(short_help="Several corpora as one.")
def merge(
    corpora: Annotated[list[Path], typer.Argument(metavar="CORPUS", help="Made by build.", show_default=False)],
    out: build.Out,
    name: build.Name = None,
    overwrite: build.Overwrite = False,
) -> None:
    """Join the layers of sentences with equal words, split by split, and append the others."""
    from mtlprune.corpora.build import merge as merge_corpora

    loaded = {str(path): load_corpus(path) for path in corpora}
    with build.building("merging", out, overwrite):
        splits, mixed = merge_corpora({path: {s: c[s] for s in c.splits} for path, c in loaded.items()}, build.tell)
        licence = "; ".join(dict.fromkeys(corpus.info["licence"] for corpus in loaded.values()))
        sources = {path: corpus.fingerprint for path, corpus in loaded.items()}
        about = {"name": name or out.name, "licence": licence, "sources": sources}
        build.store(splits, out, mixed, overwrite=overwrite, **about)


@app.command(short_help="Validate every sentence, and count what there is.")
def check(folder: Annotated[Path, typer.Argument(help="A corpus made by build.", show_default=False)]) -> None:
    """Validate every sentence and the fingerprint, and count what there is."""
    corpus = load_corpus(folder)
    terminal = console()
    with console(stderr=True).status("checking …"):
        corpus.verify()
        table = _counts_table({split: corpus[split] for split in corpus.splits}, corpus.layers)
    terminal.print(f"{corpus.info['name']} ({corpus.info['licence']})")
    terminal.print(table)
    terminal.print(f"All sentences are valid; fingerprint {corpus.fingerprint}")
    for line in build.remarks(corpus, {split: corpus[split] for split in corpus.splits}):
        terminal.print(line)


def _counts_table(splits: Mapping[str, Any], layers: Mapping[str, str]) -> Table:
    from mtlprune.corpora.tables import count

    counts = {split: count(sentences, layers) for split, sentences in splits.items()}
    table = new_table(None, "", *(f">{split}" for split in counts))
    every = list(counts.values())
    labels = sorted({label for c in every for label in c.entities})
    rows: dict[str, list[int] | list[str]] = {
        "sentences": [c.sentences for c in every],
        "words": [c.words for c in every],
        "longest sentence": [c.longest for c in every],
        **{f"sentences with {layer}": [c.known[layer] for c in every] for layer in layers},
        "sentences with all layers": [c.all_layers for c in every],
        "different tags": [c.tags for c in every],
        **{f"entities {label}": [c.entities.get(label, 0) for c in every] for label in labels},
        "different relations": [c.relations for c in every],
        "non-projective sentences": [
            f"{c.non_projective / c.known['dep']:.1%}" if c.known["dep"] else "–" for c in every
        ],
        "constituents": [c.constituents for c in every],
        "different constituent labels": [c.constituent_labels for c in every],
        "predicates": [c.predicates for c in every],
        "arguments (without V, C-V)": [c.arguments for c in every],
        "different argument labels": [c.roles for c in every],
    }
    for layer in (name for name in layers if name not in LAYERS):
        for key in every[0].further[layer]:
            cells = [c.further[layer][key] for c in every]
            rows[f"{layer}: {key.replace('_', ' ')}"] = [sum(c.values()) if isinstance(c, dict) else c for c in cells]
    for title, cells in rows.items():
        if any(cell not in (0, "–") for cell in cells):
            table.add_row(title, *(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells))
    return table


@app.command(short_help="Print one sentence with all its layers.")
def show(
    folder: Annotated[Path, typer.Argument(help="A corpus made by build.", show_default=False)],
    sentence_id: Annotated[
        str, typer.Argument(metavar="ID", help="A sentence's id, or its place, such as dev:1.", show_default=False)
    ],
) -> None:
    """Print one sentence with all its layers."""
    import difflib
    import re

    from mtlprune.cli.display import print_sentence

    corpus = load_corpus(folder)
    for split in corpus.splits:
        if (sentence := corpus[split].find(sentence_id)) is not None:
            return print_sentence(console(), sentence, split)
    place = re.fullmatch(r"(.+):(\d+)", sentence_id)
    if place is not None and place[1] in corpus.splits:
        sentences, number = corpus[place[1]], int(place[2])
        if not 1 <= number <= len(sentences):
            raise CorpusError(f"{folder}: {place[1]} has the sentences 1 to {len(sentences)}, found {number}")
        return print_sentence(console(), sentences[number - 1], place[1])
    ids = [known for split in corpus.splits for known in corpus[split].ids()]
    near = difflib.get_close_matches(sentence_id, ids, 1)
    like = f"did you mean {near[0]!r}?" if near else f"ids are like {ids[0]!r}, places like {corpus.splits[0]}:1"
    raise CorpusError(f"{folder}: expected the id of a sentence, found {sentence_id!r}; {like}")


@app.command(short_help="Write one layer in its scorer's format.")
def export(
    folder: Annotated[Path, typer.Argument(help="A corpus made by build.", show_default=False)],
    split: Annotated[str, typer.Option(help="Such as train, dev or test.", show_default=False)],
    layer: Annotated[str, typer.Option(help="One of the corpus.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The file to write.", show_default=False)],
) -> None:
    """Write one layer in its scorer's format; sentences that do not know the layer are left out."""
    from mtlprune.corpora.export import export as export_layer

    corpus = load_corpus(folder)
    sentences = corpus[split]
    if corpus.info["splits"][split]["known"].get(layer) == 0:
        raise CorpusError(f"{folder}: expected sentences of {split} with the layer {layer}, found none; choose another")
    written = export_layer(sentences, layer, out)
    console().print(f"{out}: {written} of {len(sentences)} sentences")
