"""mtlprune data: build, check, show and export corpora."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mtlprune.cli.console import console, new_table

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.sentence import Sentence

    Splits = dict[str, list[Sentence]]

app = typer.Typer(no_args_is_help=True)

# What the generated corpus has when nothing else is asked for.
GRAMMAR_DEFAULTS = {"train": 4000, "dev": 500, "test": 500, "seed": 1}


def _build_ewt5(options: Mapping[str, Any]) -> tuple[Splits, dict[str, str]]:
    from mtlprune.corpora.ewt5 import MASKED_TOKENS, build_ewt5, ewt5_files
    from mtlprune.corpora.tables import source_digest

    sources: Path = options["sources"]
    masked = options.get("masked_tokens", False)
    files = ewt5_files(sources)
    splits = build_ewt5(sources, masked_tokens=masked)
    digests = {path.relative_to(sources).as_posix(): source_digest(path) for path in files.values()}
    if masked:
        digests[MASKED_TOKENS] = source_digest(sources / MASKED_TOKENS)
    return splits, digests


def _build_ontonotes5(options: Mapping[str, Any]) -> tuple[Splits, dict[str, str]]:
    from mtlprune.corpora.ontonotes5 import build_ontonotes5
    from mtlprune.corpora.tables import source_digest

    def tell(line: str) -> None:
        console(stderr=True).print(line)

    splits = build_ontonotes5(options["sources"], options.get("dep"), options.get("converter"), tell)
    return splits, {name: source_digest(path) for name, path in options.items()}


def _build_grammar(options: Mapping[str, Any]) -> tuple[Splits, dict[str, str]]:
    from mtlprune import __version__
    from mtlprune.corpora.grammar import build_grammar

    sizes = {**GRAMMAR_DEFAULTS, **options}
    settings = ", ".join(f"{name} {number}" for name, number in sizes.items())
    return build_grammar(**sizes), {"generator": f"mtlprune {__version__}, {settings}"}


class Builder(NamedTuple):
    """How a corpus is made, under which licence, and which options it knows and needs."""

    build: Callable[[Mapping[str, Any]], tuple[Splits, dict[str, str]]]
    licence: str
    options: frozenset[str]
    needed: frozenset[str]


BUILDERS = {
    "ewt5": Builder(_build_ewt5, "CC BY-SA 4.0", frozenset({"sources", "masked_tokens"}), frozenset({"sources"})),
    "ontonotes5": Builder(
        _build_ontonotes5,
        "LDC User Agreement (LDC2013T19); not to be passed on",
        frozenset({"sources", "dep", "converter"}),
        frozenset({"sources"}),
    ),
    "grammar": Builder(_build_grammar, "Apache-2.0", frozenset(GRAMMAR_DEFAULTS), frozenset()),
}


@app.command(short_help="Read raw files, or generate sentences, into a corpus.")
def build(
    name: Annotated[str, typer.Argument(help="ewt5, ontonotes5 or grammar.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The folder to make.", show_default=False)],
    sources: Annotated[Path | None, typer.Option(help="The raw files (ewt5, ontonotes5).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the corpus at --out.")] = False,
    masked_tokens: Annotated[
        bool | None,
        typer.Option("--masked-tokens", help="ewt5: repair 38 entity words that the early UNER file hides."),
    ] = None,
    dep: Annotated[Path | None, typer.Option(help="ontonotes5: dependencies, CoNLL-X or CoNLL-U.")] = None,
    converter: Annotated[Path | None, typer.Option(help="ontonotes5: jar of the Stanford converter.")] = None,
    train: Annotated[int | None, typer.Option(min=0, help="grammar: number of sentences.")] = None,
    dev: Annotated[int | None, typer.Option(min=0, help="grammar: number of sentences.")] = None,
    test: Annotated[int | None, typer.Option(min=0, help="grammar: number of sentences.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="grammar: another number, other sentences.")] = None,
) -> None:
    """Read raw files (or generate sentences), join the layers, and store the corpus."""
    given = {
        option: value
        for option, value in {
            "sources": sources, "masked_tokens": masked_tokens, "dep": dep, "converter": converter,
            "train": train, "dev": dev, "test": test, "seed": seed,
        }.items()
        if value is not None
    }  # fmt: skip
    builder = _choose(name, given)

    from mtlprune.corpora import CorpusError
    from mtlprune.corpora.store import check_free, save_corpus

    check_free(out, overwrite)  # before the work, not after it
    with console(stderr=True).status(f"building {name} …"):
        splits, digests = builder.build(given)
        splits = {split: sentences for split, sentences in splits.items() if sentences}
        if not splits:
            raise CorpusError(f"{name}: expected sentences, found none in the sources; check them")
        corpus = save_corpus(splits, out, name=name, licence=builder.licence, sources=digests, overwrite=overwrite)
    sizes = ", ".join(f"{split} {len(corpus[split])}" for split in corpus.splits)
    console().print(f"{out}: {name} ({sizes} sentences), fingerprint {corpus.fingerprint[:16]}")


def _choose(name: str, given: Mapping[str, Any]) -> Builder:
    from mtlprune.corpora import CorpusError

    if name not in BUILDERS:
        raise CorpusError(f"expected one of the corpora {', '.join(BUILDERS)}, found {name!r}; name one of them")
    builder = BUILDERS[name]
    for option in given:
        if option not in builder.options:
            known = ", ".join(sorted(map(_flag, builder.options)))
            raise CorpusError(f"{_flag(option)} does not apply to {name}, which knows {known}; leave it out")
    for option in sorted(builder.needed - given.keys()):
        raise CorpusError(f"{name} is built from raw files; say where they are with {_flag(option)}")
    return builder


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


@app.command(short_help="Validate every sentence, and count what there is.")
def check(folder: Annotated[Path, typer.Argument(help="A corpus made by build.", show_default=False)]) -> None:
    """Validate every sentence and the fingerprint, and count what there is."""
    from mtlprune.corpora.store import load_corpus

    corpus = load_corpus(folder)
    terminal = console()
    with console(stderr=True).status("checking …"):
        corpus.verify()
        table = _counts_table({split: corpus[split] for split in corpus.splits}, corpus.layers)
    terminal.print(f"{corpus.info['name']} ({corpus.info['licence']})")
    terminal.print(table)
    terminal.print(f"All sentences are valid; fingerprint {corpus.fingerprint}")


def _counts_table(splits: Mapping[str, Any], layers: Mapping[str, str]) -> Table:
    from mtlprune.corpora.counts import count
    from mtlprune.layers import LAYERS

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
    from mtlprune.corpora import CorpusError
    from mtlprune.corpora.store import load_corpus

    corpus = load_corpus(folder)
    for split in corpus.splits:
        sentence = corpus[split].find(sentence_id)
        if sentence is not None:
            print_sentence(console(), sentence, split)
            return
    place = re.fullmatch(r"(.+):(\d+)", sentence_id)
    if place is not None and place[1] in corpus.splits:
        sentences, number = corpus[place[1]], int(place[2])
        if not 1 <= number <= len(sentences):
            raise CorpusError(f"{folder}: {place[1]} has the sentences 1 to {len(sentences)}, found {number}")
        print_sentence(console(), sentences[number - 1], place[1])
        return
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
    from mtlprune.corpora import CorpusError
    from mtlprune.corpora.export import export as export_layer
    from mtlprune.corpora.store import load_corpus

    corpus = load_corpus(folder)
    sentences = corpus[split]
    if corpus.info["splits"][split]["known"].get(layer) == 0:
        raise CorpusError(f"{folder}: expected sentences of {split} with the layer {layer}, found none; choose another")
    written = export_layer(sentences, layer, out)
    console().print(f"{out}: {written} of {len(sentences)} sentences")
