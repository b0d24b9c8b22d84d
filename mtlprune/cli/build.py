"""mtlprune data build: one command a format, and one for each corpus that we know."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mtlprune.cli.console import console, with_parameters
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import Corpus, check_free, save_corpus
from mtlprune.corpora.tables import source_digest
from mtlprune.layers import LAYERS, kind_of
from mtlprune.sentence import Sentence

Splits = Mapping[str, Iterable[Sentence]]


class Formats(TyperGroup):
    """Says which formats there are to who names another."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            known = ", ".join(self.commands)
            raise CorpusError(f"expected a format or a corpus out of {known}, found {cmd_name!r}; name one of them")
        return super().get_command(ctx, cmd_name)


app = typer.Typer(cls=Formats, no_args_is_help=True, rich_markup_mode=None)

Out = Annotated[Path, typer.Option(metavar="DIR", help="The folder to make.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the corpus at --out.")]
Sources = Annotated[Path, typer.Option(help="The raw files.", show_default=False)]
Sentences = Annotated[int, typer.Option(min=0, help="Number of sentences.")]
Name = Annotated[str | None, typer.Option(help="What the corpus is called; the folder's name, if not given.")]
Licence = Annotated[str, typer.Option(help="Under which it may be shared.")]
Shares = Annotated[str, typer.Option("--split", help="Percents of train, dev and test, where FILES are split.")]
Seed = Annotated[int, typer.Option(min=0, help="Of that split.")]
Repair = Annotated[bool, typer.Option("--repair", help="Read tags of entities as conlleval does, which takes any.")]


@contextlib.contextmanager
def building(what: str, out: Path, overwrite: bool) -> Iterator[None]:
    """Says that a corpus is in the making. Raises CorpusError before the work, not after it: it has no place."""
    check_free(out, overwrite)
    with console(stderr=True).status(f"{what} …"):
        yield


def tell(line: str) -> None:
    """To the terminal, beside what is asked for."""
    console(stderr=True).print(line)


def store(splits: Splits, out: Path, mixed: Collection[str] = (), **about: Any) -> Corpus:
    """Save a corpus, and say what it has and what can be done with it; ``mixed`` layers are in two sets of labels."""
    splits = {split: sentences for split, sentences in splits.items() if sentences}
    if not splits:
        raise CorpusError(f"{about['name']}: expected sentences, found none in the sources; check them")
    corpus = save_corpus(splits, out, **about)
    known = {split: counts["known"] for split, counts in corpus.info["splits"].items()}
    sizes = ", ".join(f"{split} {len(corpus[split])}" for split in corpus.splits)
    layers = [layer for layer in corpus.layers if any(counts[layer] for counts in known.values())]
    console().print(f"{out}: {about['name']} ({sizes} sentences), fingerprint {corpus.fingerprint[:16]}")
    tell(f"layers: {', '.join(layers) or 'none'}")
    for line in remarks(corpus, splits):
        tell(line)
    tasks = [layer for layer in layers if all(known.get(split, {}).get(layer) for split in ("train", "dev"))]
    tasks = [layer for layer in tasks if layer not in (*mixed, *(("upos", "xpos") if "pos" in tasks else ()))]
    if tasks:
        of_kind = {kind_of(kind): layer for layer, kind in LAYERS.items()}
        own = [
            f"decoders.{layer}.type={of_kind[kind_of(corpus.layers[layer])]} " for layer in tasks if layer not in LAYERS
        ]
        settings = f"data.path={out} tasks={','.join(tasks)} {''.join(own)}"
        tell(f"next: mtlprune train minilm-ewt5 {settings}--out runs/{out.name}")
    elif "dev" not in known:
        tell("there is no dev, which training needs: give --dev, or one file to be split")
    return corpus


def remarks(corpus: Corpus, splits: Splits) -> list[str]:
    """What is to be known of a corpus, whose sentences are given too, and of the scores on it."""
    from mtlprune.corpora.build import remarks as oddities
    from mtlprune.scores import foreign_punctuation

    brackets = [layer for layer, kind in corpus.layers.items() if kind_of(kind) == "brackets"]
    split = "test" if "test" in corpus.splits else corpus.splits[-1]
    found = (foreign_punctuation(corpus[split], layer) for layer in brackets)
    return [*oddities(splits), *(f"{split}, {line}" for line in found if line)]


# -- anyone's files ---------------------------------------------------------------------------------------------------


def _paths(split: str) -> Any:
    words = f"Of {split}: a file, a folder or 'a*pattern'. Repeatable."
    return Annotated[list[str] | None, typer.Option(metavar="FILE", help=words, show_default=False)]


Together = typer.Argument(
    metavar="[FILE]...", help="To be split by chance, where no --train is given.", show_default=False
)
FROM_FILES: dict[str, tuple[Any, Any]] = {
    "files": (Annotated[list[str] | None, Together], None),
    "out": (Out, ...),
    **{split: (_paths(split), None) for split in ("train", "dev", "test")},
    "split": (Shares, "80/10/10"),
    "seed": (Seed, 1),
    "name": (Name, None),
    "licence": (Licence, "unknown"),
    "overwrite": (Overwrite, False),
}


def from_files(name: str, short_help: str, **own: tuple[Any, Any]) -> Callable[[Any], Any]:
    """Register a command that reads files: it is given its own options and a file, and yields sentences."""

    def register(reader: Callable[..., Iterable[Sentence]]) -> Callable[..., Iterable[Sentence]]:
        def command(**given: Any) -> None:
            from mtlprune.corpora.build import Files, read_files

            options = {option: given[option] for option in own}
            out, overwrite = given["out"], given["overwrite"]
            apart = {split: given[split] or () for split in ("train", "dev", "test")}
            files = Files(given["files"] or (), apart, given["split"], given["seed"])
            with building(f"reading {name}", out, overwrite):
                splits, digests = read_files(files, partial(reader, **options), tell)
                about = {"name": given["name"] or out.name, "licence": given["licence"], "sources": digests}
                store(splits, out, overwrite=overwrite, **about)

        app.command(name, short_help=short_help)(with_parameters(command, FROM_FILES | own, reader.__doc__ or ""))
        return reader

    return register


@from_files(
    "conllu",
    "Universal Dependencies: tags and trees.",
    pos=(Annotated[str, typer.Option(help="Tags: upos, xpos, or a feature such as Case.")], "upos"),
)
def conllu(path: Path, pos: str) -> Iterable[Sentence]:
    """Read CoNLL-U: dependency trees (dep), and tags (pos) from the column UPOS, XPOS or FEATS.

    The other column of tags is kept as a layer of its own, upos or xpos, where the files fill it.
    """
    from mtlprune.corpora.formats.conllu import read_conllu

    found = pos == "upos"
    for sentence in read_conllu(path, pos, beside=True):
        found = found or bool(set(sentence.pos or "-") - {"-"})
        yield sentence
    if not found:
        raise CorpusError(f"{path}: expected {pos} at some word, found it at none; take --pos upos, or another")


Columns = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="What each column holds: word, pos, ner, con, srl, head and relation, lemma, _ for none of these, or "
        "NAME:KIND, such as chunk:spans, for a layer of another name (tags, spans, brackets); last, ... for columns "
        "that not every line has.",
        show_default=False,
    ),
]


@from_files("columns", "Any CoNLL-like file: a word a line.", columns=(Columns, None), repair=(Repair, False))
def columns(path: Path, columns: str | None, repair: bool) -> Iterable[Sentence]:
    """Read columns between tabs or blanks, sentences between empty lines.

    Entities may be written in IOB1, IOB2, BIOES, BILOU or brackets with stars; which it is, is found and told.
    """
    from mtlprune.corpora.formats.columns import parse_columns, read_columns

    if columns is None:
        raise CorpusError("--columns is missing; say what each column of the files holds: --columns word,pos,_,ner")
    return read_columns(path, parse_columns(columns), repair, tell)


@from_files(
    "brackets",
    "Trees in brackets: the Penn Treebank and the like.",
    functions=(Annotated[bool, typer.Option("--functions", help="Keep NP-SBJ-1; NP, if not given.")], False),
    escaped=(Annotated[bool, typer.Option("--escaped", help="Leave the words -LRB-, -RRB-, … as they are.")], False),
)
def brackets(path: Path, functions: bool, escaped: bool) -> Iterable[Sentence]:
    """Read bracketed trees: constituents (con) and tags (pos). Empty elements go."""
    from mtlprune.corpora.formats.brackets import read_ptb

    return read_ptb(path, functions=functions, unescape=not escaped)


@from_files("propbank", "Semantic roles: CoNLL-2012, CoNLL-2005, PropBank.", columns=(Columns, None))
def propbank(path: Path, columns: str | None) -> Iterable[Sentence]:
    """Read semantic roles (srl) with what stands beside them.

    CoNLL-2012 files (#begin document) and those of propbank-release with their words filled in are known as such; all
    others are columns, those of CoNLL-2005 if --columns does not say what: word,pos,con,ner,_,srl.
    """
    from mtlprune.corpora.formats.columns import read_roles

    return read_roles(path, columns, tell)


@from_files("jsonl", "What mtlprune predict writes.")
def jsonl(path: Path) -> Iterable[Sentence]:
    """Read sentences with all their layers, one JSON object a line (docs/your_data.md)."""
    from mtlprune.runs import read_sentences

    return read_sentences(path, tell)


@app.command("hf", short_help="A dataset in Hugging Face form.")
def hf(
    dataset: Annotated[str, typer.Argument(help="A folder, a file, or a name of the hub.", show_default=False)],
    out: Out,
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="tokens=word,tags=ner; usual names need none.", show_default=False),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Of a dataset of the hub.", show_default=False)] = None,
    revision: Annotated[str | None, typer.Option(help="Of a dataset of the hub.", show_default=False)] = None,
    repair: Repair = False,
    split: Shares = "80/10/10",
    seed: Seed = 1,
    name: Name = None,
    licence: Licence = "unknown",
    overwrite: Overwrite = False,
) -> None:
    """Read rows of tokens and labels: save_to_disk folders, Parquet or JSON files, or the hub.

    A dataset of one split is split by chance. Splits called validation become dev.
    """
    from mtlprune.corpora.build import cut, with_own_ids
    from mtlprune.corpora.formats.hub import read_dataset

    with building("reading the dataset", out, overwrite):
        splits = read_dataset(dataset, columns, subset, revision, repair, tell)
        at = f"hub, subset {subset}, revision {revision}"
        digests = {dataset: source_digest(Path(dataset)) if Path(dataset).exists() else at}
        if len(splits) == 1:
            splits = cut(next(iter(splits.values())), split, seed)
            digests["split"] = f"{split}, seed {seed}"
        splits = with_own_ids(splits, tell)
        store(splits, out, name=name or out.name, licence=licence, sources=digests, overwrite=overwrite)


# -- corpora that we know ---------------------------------------------------------------------------------------------


@app.command("ewt5", short_help="The English Web Treebank, all five layers.")
def ewt5(
    out: Out,
    sources: Sources,
    overwrite: Overwrite = False,
    masked_tokens: Annotated[
        bool, typer.Option("--masked-tokens", help="Repair 38 entity words that the early UNER file hides.")
    ] = False,
) -> None:
    """Join Universal Dependencies, Universal NER and PropBank."""
    from mtlprune.corpora.ewt5 import LICENCE, MASKED_TOKENS, build_ewt5, ewt5_files

    with building("building ewt5", out, overwrite):
        files = ewt5_files(sources)
        splits = build_ewt5(sources, masked_tokens=masked_tokens)
        digests = {path.relative_to(sources).as_posix(): source_digest(path) for path in files.values()}
        if masked_tokens:
            digests[MASKED_TOKENS] = source_digest(sources / MASKED_TOKENS)
        store(splits, out, name="ewt5", licence=LICENCE, sources=digests, overwrite=overwrite)


@app.command("ontonotes5", short_help="OntoNotes 5 of a licence holder, all five layers.")
def ontonotes5(
    out: Out,
    sources: Sources,
    overwrite: Overwrite = False,
    dep: Annotated[Path | None, typer.Option(help="Dependencies, CoNLL-X or CoNLL-U.", show_default=False)] = None,
    converter: Annotated[Path | None, typer.Option(help="Jar of the Stanford converter.", show_default=False)] = None,
) -> None:
    """Read CoNLL-2012 files with words, and dependencies from elsewhere."""
    from mtlprune.corpora.ontonotes5 import build_ontonotes5

    with building("building ontonotes5", out, overwrite):
        splits = build_ontonotes5(sources, dep, converter, tell)
        given = {"sources": sources, "dep": dep, "converter": converter}
        digests = {name: source_digest(path) for name, path in given.items() if path is not None}
        licence = "LDC User Agreement (LDC2013T19); not to be passed on"
        store(splits, out, name="ontonotes5", licence=licence, sources=digests, overwrite=overwrite)


@app.command("grammar", short_help="Generated sentences, all five layers.")
def grammar(
    out: Out,
    overwrite: Overwrite = False,
    train: Sentences = 4000,
    dev: Sentences = 500,
    test: Sentences = 500,
    seed: Annotated[int, typer.Option(min=0, help="Another number, other sentences.")] = 1,
) -> None:
    """Generate sentences of a small grammar of English."""
    from mtlprune import __version__
    from mtlprune.corpora.grammar import build_grammar

    with building("building grammar", out, overwrite):
        splits = build_grammar(train, dev, test, seed)
        made = {"generator": f"mtlprune {__version__}, train {train}, dev {dev}, test {test}, seed {seed}"}
        store(splits, out, name="grammar", licence="Apache-2.0", sources=made, overwrite=overwrite)
