"""mtlprune data: build corpora, a command for each format and each corpus that we know; check, show, export."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import console, new_table, with_parameters
from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import Skip, UnreadableSentence
from mtlprune.corpora.store import Corpus, check_free, load_corpus, save_corpus
from mtlprune.corpora.tables import source_digest
from mtlprune.layers import LAYERS, kind_of
from mtlprune.sentence import Sentence

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.corpora.build import LeftOut

Splits = Mapping[str, Iterable[Sentence]]
Tell = Callable[[str], None]


builders = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Out = Annotated[Path, typer.Option(metavar="DIR", help="The folder to make.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the corpus at --out.")]
Sources = Annotated[Path, typer.Option(help="The raw files.")]
Sentences = Annotated[int, typer.Option(min=0, help="Number of sentences.")]
Name = Annotated[str | None, typer.Option(help="What the corpus is called; the folder's name, if not given.")]
Licence = Annotated[str, typer.Option(help="Under which it may be shared.")]
Shares = Annotated[str, typer.Option("--split", help="Percents of train, dev and test, where FILES are split.")]
Seed = Annotated[int, typer.Option(min=0, help="Of that split.")]
Repair = Annotated[bool, typer.Option("--repair", help="As conlleval does: a tag that continues no entity opens one.")]


SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable sentences, 1 % at most.")]
SkipMost = Annotated[float | None, typer.Option(metavar="PERCENT", min=0, max=100, help="--skip-bad, so many at most.")]
Unread = Annotated[str, typer.Option(metavar="NAMES", help="Layers not to read, such as xpos,dep.", show_default=False)]
LEAVING: dict[str, tuple[Any, Any]] = {
    "leave_out": (Unread, ""),
    "skip_bad": (SkipBad, False),
    "skip_most": (SkipMost, None),
}


@contextlib.contextmanager
def leaving(leave_out: str, skip_bad: bool, skip_most: float | None) -> Iterator[LeftOut]:
    """Yield what is not to be read. Raises CorpusError at an unreadable sentence, naming the option that helps."""
    from mtlprune.corpora.build import LeftOut

    most = 1.0 if skip_bad and skip_most is None else skip_most
    try:
        yield LeftOut([name.strip() for name in leave_out.split(",") if name.strip()], most)
    except UnreadableSentence as error:
        advice = "or leave out what cannot be read: --skip-bad" if most is None else "no place to go on is known"
        raise CorpusError(f"{error}; {advice}") from error


@contextlib.contextmanager
def building(what: str, out: Path, overwrite: bool) -> Iterator[None]:
    """Show that a corpus is being built. Raises CorpusError before the work where ``out`` is taken."""
    check_free(out, overwrite)
    with console(stderr=True).status(f"{what} …"):
        yield


def tell(line: str) -> None:
    """Print a line to standard error."""
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
    doubtful = {*mixed, *(("upos", "xpos") if "pos" in layers else ())}
    tasks = [layer for layer in layers if layer not in doubtful]
    tasks = [layer for layer in tasks if all(known.get(split, {}).get(layer) for split in ("train", "dev"))]
    if tasks:
        of_kind = {kind_of(kind): layer for layer, kind in LAYERS.items()}
        own = (f"decoders.{name}.type={of_kind[kind_of(corpus.layers[name])]} " for name in tasks if name not in LAYERS)
        settings = f"data.path={out} tasks={','.join(tasks)} {''.join(own)}"
        tell(f"next: mtlprune train minilm-ewt5 {settings}--out runs/{out.name}")
    elif "dev" not in known:
        tell("there is no dev, which training needs: build with --dev, or from one file, which is split")
    return corpus


def remarks(corpus: Corpus, splits: Splits) -> list[str]:
    """Lines about oddities of a corpus, whose sentences are given too, and of the scores on it."""
    from mtlprune.corpora.build import remarks as oddities
    from mtlprune.evaluation.scores import foreign_punctuation

    brackets = [layer for layer, kind in corpus.layers.items() if kind_of(kind) == "brackets"]
    split = "test" if "test" in corpus.splits else corpus.splits[-1]
    lines = (foreign_punctuation(corpus[split], layer) for layer in brackets)
    return [*oddities(splits), *(f"{split}, {line}" for line in lines if line)]


# -- anyone's files ---------------------------------------------------------------------------------------------------


def _paths(split: str) -> Any:
    words = f"Of {split}: a file, a folder or 'a*pattern'. Repeatable."
    return Annotated[list[str] | None, typer.Option(metavar="FILE", help=words)]


Together = typer.Argument(metavar="[FILE]...", help="To be split by chance.")
FROM_FILES: dict[str, tuple[Any, Any]] = {
    "files": (Annotated[list[str] | None, Together], None),
    "out": (Out, ...),
    **{split: (_paths(split), None) for split in ("train", "dev", "test")},
    "split": (Shares, "80/10/10"),
    "seed": (Seed, 1),
    "name": (Name, None),
    "licence": (Licence, "unknown"),
    **LEAVING,
    "overwrite": (Overwrite, False),
}


def from_files(name: str, short_help: str, **own: tuple[Any, Any]) -> Callable[[Any], Any]:
    """Register a command that reads files: it is given a file, what it tells, skips and leaves unread, and its own
    options, and yields sentences."""

    def register(reader: Callable[..., Iterable[Sentence]]) -> Callable[..., Iterable[Sentence]]:
        def command(**given: Any) -> None:
            from mtlprune.corpora.build import Files, read_files

            options, noted = {option: given[option] for option in own}, set[str]()
            out, overwrite = given["out"], given["overwrite"]
            apart = {split: given[split] or () for split in ("train", "dev", "test")}
            files = Files(given["files"] or (), apart, given["split"], given["seed"])
            left = leaving(**{option: given[option] for option in LEAVING})
            with building(f"reading {name}", out, overwrite), left as left_out:

                def note(path: Path, line: str) -> None:
                    """Tell what a reader notes of a file, and of further files only what is new."""
                    if (what := line.removeprefix(f"{path}: ")) not in noted:
                        tell(line)
                    noted.add(what)

                def read(path: Path) -> Iterable[Sentence]:
                    return reader(path, partial(note, path), left_out.skip, left_out.unread, **options)

                splits, about = read_files(files, read, tell, left_out)
                about |= {"name": given["name"] or out.name, "licence": given["licence"]}
                store(splits, out, overwrite=overwrite, **about)

        builders.command(name, short_help=short_help)(with_parameters(command, FROM_FILES | own, reader.__doc__ or ""))
        return reader

    return register


@from_files(
    "conllu",
    "Universal Dependencies: tags and trees.",
    pos=(Annotated[str, typer.Option(help="Tags: upos, xpos, or a feature such as Case.")], "upos"),
    misc=(
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="KEY=LAYER",
                help="What a key of MISC holds: name=ner, or KEY=NAME:spans, KEY=NAME:tags. Repeatable.",
                show_default=False,
            ),
        ],
        None,
    ),
    repair=(Repair, False),
)
def conllu(
    path: Path,
    tell: Tell,
    skip: Skip | None,
    unread: Container[str],
    pos: str,
    misc: list[str] | None,
    repair: bool,
) -> Iterable[Sentence]:
    """Read CoNLL-U: dependency trees (dep), and tags (pos) from the column UPOS, XPOS or FEATS.

    The other column of tags is kept as a layer of its own, upos or xpos, in the sentences where all words have one.
    Columns of CoNLL-U Plus are known by their names; further ones are read as keys of MISC.
    """
    from mtlprune.corpora.formats.conllu import parse_misc, read_conllu

    tagged = pos == "upos" or "pos" in unread
    for sentence in read_conllu(path, pos, True, parse_misc(misc or ()), repair, tell, skip, unread):
        tagged = tagged or bool(set(sentence.pos or "-") - {"-"})
        yield sentence
    if not tagged:
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
def columns(
    path: Path, tell: Tell, skip: Skip | None, unread: Container[str], columns: str | None, repair: bool
) -> Iterable[Sentence]:
    """Read columns between tabs or blanks, sentences between empty lines.

    Tabs separate where most lines have one, else blanks; any other space belongs to a word. Entities may be written in
    IO, IOB1, IOB2, IOE1, IOE2, BIOES, BMES, BILOU or brackets with stars; the reader recognises which, and says so.
    """
    from mtlprune.corpora.formats.columns import parse_columns, read_columns

    if columns is None:
        raise CorpusError("--columns is missing; say what each column of the files holds: --columns word,pos,_,ner")
    return read_columns(path, parse_columns(columns), repair, tell, skip, unread)


@from_files(
    "brackets",
    "Trees in brackets: the Penn Treebank and the like.",
    functions=(Annotated[bool, typer.Option("--functions", help="Keep NP-SBJ-1; NP, if not given.")], False),
    escaped=(Annotated[bool, typer.Option("--escaped", help="Leave -LRB-, …, \\/ and \\* in words.")], False),
)
def brackets(
    path: Path, tell: Tell, skip: Skip | None, unread: Container[str], functions: bool, escaped: bool
) -> Iterable[Sentence]:
    """Read bracketed trees: constituents (con) and tags (pos). Empty elements go."""
    from mtlprune.corpora.formats.brackets import read_ptb

    return read_ptb(path, functions=functions, unescape=not escaped, skip=skip, unread=unread)


@from_files(
    "propbank", "Semantic roles: CoNLL-2012, CoNLL-2005, PropBank.", columns=(Columns, None), repair=(Repair, False)
)
def propbank(
    path: Path, tell: Tell, skip: Skip | None, unread: Container[str], columns: str | None, repair: bool
) -> Iterable[Sentence]:
    """Read semantic roles (srl) with what stands beside them.

    CoNLL-2012 files (#begin document) and those of propbank-release with their words filled in are known as such; all
    others are columns, those of CoNLL-2005 if --columns does not say what: word,pos,con,ner,_,srl.
    """
    from mtlprune.corpora.formats.columns import read_roles

    return read_roles(path, columns, repair, tell, skip, unread)


@from_files("jsonl", "What mtlprune predict writes.")
def jsonl(path: Path, tell: Tell, skip: Skip | None, unread: Container[str]) -> Iterable[Sentence]:
    """Read sentences with all their layers, one JSON object a line (docs/your_data.md)."""
    from mtlprune.corpora.formats.jsonl import read_jsonl

    return read_jsonl(path, tell, skip, unread)


Taken: Any = typer.Option(metavar="NAME", help="A split of the dataset. Repeatable.")


@builders.command("hf", short_help="A dataset in Hugging Face form.")
def hf(
    dataset: Annotated[str, typer.Argument(help="A folder, a file, or a name of the hub.")],
    out: Out,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="tokens=word,tags=ner; usual names need none.")
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Of a dataset of the hub.")] = None,
    revision: Annotated[str | None, typer.Option(help="Of a dataset of the hub.")] = None,
    train: Annotated[list[str] | None, Taken] = None,
    dev: Annotated[list[str] | None, Taken] = None,
    test: Annotated[list[str] | None, Taken] = None,
    repair: Repair = False,
    split: Shares = "80/10/10",
    seed: Seed = 1,
    name: Name = None,
    licence: Licence = "unknown",
    leave_out: Unread = "",
    skip_bad: SkipBad = False,
    skip_most: SkipMost = None,
    overwrite: Overwrite = False,
) -> None:
    """Read rows of tokens and labels: save_to_disk folders, Parquet or JSON files, or the hub.

    A dataset of one split is split by chance. Splits called validation become dev; or say which make train, dev and
    test, and others are left out.
    """
    from mtlprune.corpora.build import cut, with_own_ids
    from mtlprune.corpora.formats.hub import read_dataset

    left = leaving(leave_out, skip_bad, skip_most)
    wanted = {name: names for name, names in (("train", train), ("dev", dev), ("test", test)) if names}
    with building("reading the dataset", out, overwrite), left as left_out:
        splits = read_dataset(dataset, columns, subset, revision, repair, tell, wanted, left_out.skip, left_out.unread)
        about: dict[str, Any] = {"left_out": left_out.account(sum(map(len, splits.values())), tell)}
        at = f"hub, subset {subset}, revision {revision}"
        digests = {dataset: source_digest(Path(dataset)) if Path(dataset).exists() else at}
        if len(splits) == 1 and not wanted:
            splits = cut(next(iter(splits.values())), split, seed, dataset)
            digests["split"] = f"{split}, seed {seed}"
        splits = with_own_ids(splits, tell)
        about |= {"name": name or out.name, "licence": licence, "sources": digests}
        store(splits, out, overwrite=overwrite, **about)


@builders.command("machamp", short_help="The data sets of a MaChAmp configuration.")
def machamp(
    config: Annotated[Path, typer.Argument(help="A dataset configuration, such as configs/ewt.json.")],
    out: Out,
    repair: Repair = False,
    name: Name = None,
    licence: Licence = "unknown",
    overwrite: Overwrite = False,
) -> None:
    """Read the data sets of a MaChAmp configuration: tasks of the types seq, seq_bio and dependency."""
    from mtlprune.corpora.machamp import build_machamp

    with building("reading the data sets", out, overwrite):
        splits, mixed, about = build_machamp(config, repair, tell)
        store(splits, out, mixed, name=name or out.name, licence=licence, overwrite=overwrite, **about)


# -- corpora that we know ---------------------------------------------------------------------------------------------


@builders.command("ewt5", short_help="The English Web Treebank, all five layers.")
def ewt5(out: Out, sources: Sources, overwrite: Overwrite = False) -> None:
    """Join Universal Dependencies, Universal NER and PropBank."""
    from mtlprune.corpora.ewt5 import LICENCE, build_ewt5, ewt5_files

    with building("building ewt5", out, overwrite):
        files = ewt5_files(sources)
        splits = build_ewt5(sources)
        digests = {path.relative_to(sources).as_posix(): source_digest(path) for path in files.values()}
        store(splits, out, name="ewt5", licence=LICENCE, sources=digests, overwrite=overwrite)


@builders.command("masc", short_help="MASC 1 with PropBank's roles: POS, CON, SRL, NER.")
def masc(out: Out, sources: Sources, overwrite: Overwrite = False) -> None:
    """Join trees and names of MASC 1 and roles of PropBank."""
    from mtlprune.corpora.masc import LICENCE, build_masc

    with building("building masc", out, overwrite):
        splits, digests, left_out = build_masc(sources, tell)
        about: dict[str, Any] = {"licence": LICENCE, "sources": digests, "left_out": left_out}
        store(splits, out, name="masc", overwrite=overwrite, **about)


@builders.command("ontonotes5", short_help="OntoNotes 5 of a licence holder, all five layers.")
def ontonotes5(
    out: Out,
    sources: Sources,
    overwrite: Overwrite = False,
    dep: Annotated[Path | None, typer.Option(help="Dependencies, CoNLL-X or CoNLL-U.")] = None,
    converter: Annotated[Path | None, typer.Option(help="Jar of the Stanford converter.")] = None,
) -> None:
    """Read CoNLL-2012 files with words, and dependencies from elsewhere."""
    from mtlprune.corpora.ontonotes5 import build_ontonotes5

    with building("building ontonotes5", out, overwrite):
        splits = build_ontonotes5(sources, dep, converter, tell)
        given = {"sources": sources, "dep": dep, "converter": converter}
        digests = {name: source_digest(path) for name, path in given.items() if path is not None}
        licence = "LDC User Agreement (LDC2013T19); not to be passed on"
        store(splits, out, name="ontonotes5", licence=licence, sources=digests, overwrite=overwrite)


@builders.command("grammar", short_help="Generated sentences, all five layers.")
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
        origin = {"generator": f"mtlprune {__version__}, train {train}, dev {dev}, test {test}, seed {seed}"}
        store(splits, out, name="grammar", licence="Apache-2.0", sources=origin, overwrite=overwrite)


EXAMPLES = """\b
Your own files (docs/your_data.md):
  mtlprune data build conllu --train train.conllu --dev dev.conllu --out data/mine
  mtlprune data build columns --columns word,pos,_,ner all.txt --out data/mine
  mtlprune data check data/mine
"""
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=EXAMPLES)
app.add_typer(builders, name="build", short_help="Make a corpus of your files, or of those that are known.")


@app.command(short_help="Several corpora as one.")
def merge(
    corpora: Annotated[list[Path], typer.Argument(metavar="CORPUS", help="Made by build.")],
    out: Out,
    name: Name = None,
    overwrite: Overwrite = False,
) -> None:
    """Join the layers of sentences with equal words, split by split, and append the others."""
    from mtlprune.corpora.build import merge as merge_corpora

    loaded = {str(path): load_corpus(path) for path in corpora}
    if len(loaded) < len(corpora):
        raise CorpusError(f"expected corpora to merge, found one of {', '.join(loaded)} named twice; name each once")
    with building("merging", out, overwrite):
        content = {path: {s: corpus[s].with_source() for s in corpus.splits} for path, corpus in loaded.items()}
        splits, mixed = merge_corpora(content, tell)
        licence = "; ".join(dict.fromkeys(corpus.info["licence"] for corpus in loaded.values()))
        sources = {path: corpus.fingerprint for path, corpus in loaded.items()}
        about = {"name": name or out.name, "licence": licence, "sources": sources}
        store(splits, out, mixed, overwrite=overwrite, **about)


@app.command(short_help="Validate every sentence, and count what there is.")
def check(folder: Annotated[Path, typer.Argument(help="A corpus made by build.")]) -> None:
    """Validate every sentence and the fingerprint, and count what there is."""
    corpus = load_corpus(folder)
    terminal = console()
    with console(stderr=True).status("checking …"):
        corpus.verify()
        table = _counts_table({split: corpus[split] for split in corpus.splits}, corpus.layers)
    terminal.print(f"{corpus.info['name']} ({corpus.info['licence']})")
    terminal.print(table)
    terminal.print(f"All sentences are valid; fingerprint {corpus.fingerprint}")
    for line in remarks(corpus, {split: corpus[split] for split in corpus.splits}):
        terminal.print(line)


TITLES = {
    "known": "sentences with",
    "all_layers": "sentences with all layers",
    "longest": "longest sentence",
    **{key: f"different {key.replace('_', ' ')}" for key in ("tags", "relations", "constituent_labels")},
    "non_projective": "non-projective sentences",
    "arguments": "arguments (without V, C-V)",
    "roles": "different argument labels",
}


def _counts_table(splits: Mapping[str, Any], layers: Mapping[str, str]) -> Table:
    from mtlprune.corpora.tables import count

    table = new_table(None, "", *(f">{split}" for split in splits))
    columns = [_numbers(count(sentences, layers)) for sentences in splits.values()]
    for title in dict.fromkeys(title for column in columns for title in column):
        cells = [column.get(title, 0) for column in columns]
        if any(cells):
            table.add_row(title, *(f"{cell:,}" for cell in cells))
    return table


def _numbers(counts: Mapping[str, Any]) -> dict[str, int]:
    """Counts by title, those of labels and of further layers too: "entities PER", "chunk: entities NP"."""
    numbers: dict[str, int] = {}
    for key, value in counts.items():
        title = TITLES.get(key, key)
        if key == "further":
            each = ((layer, _numbers(own)) for layer, own in value.items())
            numbers |= {f"{layer}: {title}": number for layer, own in each for title, number in own.items()}
        elif isinstance(value, dict):
            numbers |= {f"{title} {name}": number for name, number in value.items()}
        else:
            numbers[title] = value
    return numbers


@app.command(short_help="Print one sentence with all its layers.")
def show(
    folder: Annotated[Path, typer.Argument(help="A corpus made by build.")],
    sentence_id: Annotated[str, typer.Argument(metavar="ID", help="Of a sentence, or its place (dev:1).")],
) -> None:
    """Print one sentence with all its layers."""
    import re

    from mtlprune.cli.display import print_sentence

    corpus = load_corpus(folder)
    for split in corpus.splits:
        if (sentence := corpus[split].find(sentence_id)) is not None:
            return print_sentence(console(), sentence, split)
    place = re.fullmatch(r"(.+):([0-9]{1,9})", sentence_id)
    if place is not None and place[1] in corpus.splits:
        sentences, number = corpus[place[1]], int(place[2])
        if not 1 <= number <= len(sentences):
            raise CorpusError(f"{folder}: {place[1]} has the sentences 1 to {len(sentences)}, found {number}")
        return print_sentence(console(), sentences[number - 1], place[1])
    split = corpus.splits[0]
    like = f"ids are like {corpus[split].ids()[0]!r}, places like {split}:1"
    raise CorpusError(f"{folder}: expected the id of a sentence, found {sentence_id!r}; {like}")


@app.command(short_help="Write one layer in its scorer's format.")
def export(
    folder: Annotated[Path, typer.Argument(help="A corpus made by build.")],
    split: Annotated[str, typer.Option(help="Such as train, dev or test.")],
    layer: Annotated[str, typer.Option(help="One of the corpus.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Write one layer in its scorer's format; sentences that do not know the layer are left out.

    Tags and trees are written into the lines of CoNLL-U that the corpus was built from, where it was.
    """
    from mtlprune.corpora.export import export as export_layer

    corpus = load_corpus(folder)
    sentences = corpus[split].with_source()
    if corpus.info["splits"][split]["known"].get(layer) == 0:
        raise CorpusError(f"{folder}: expected sentences of {split} with the layer {layer}, found none; choose another")
    written = export_layer(sentences, layer, out)
    console().print(f"{out}: {written} of {len(sentences)} sentences")
