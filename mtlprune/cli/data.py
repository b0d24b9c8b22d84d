"""`mtlprune data`: builds corpora from files or known sources, and merges, checks, shows and exports corpora."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import console, new_table
from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import UnreadableSentence, whole_number
from mtlprune.corpora.store import INFO, Corpus, check_free, load_corpus, save_corpus
from mtlprune.corpora.tables import source_digest
from mtlprune.errors import command
from mtlprune.layers import LAYERS, decoder_of, kind_of
from mtlprune.sentence import Sentence

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.corpora.build import LeftOut

_Splits = Mapping[str, Iterable[Sentence]]
_Built = tuple[_Splits, dict[str, Any]]
"""Sentences by split, and the entries of corpus.json. The entry ``mixed`` lists layers in which sources use different
sets of labels."""

_EXAMPLES = """\b
Your own files (docs/guides/your_data.md):
  mtlprune data build --train train.conllu --dev dev.conllu --out data/mine
  mtlprune data build --columns word,pos,_,ner all.txt --out data/names
  mtlprune data build data/mine data/names --out data/both
  mtlprune data check data/both
"""
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=_EXAMPLES)


def _print_to_stderr(line: str) -> None:
    """Print a line to standard error."""
    console(stderr=True).print(line)


def _store(splits: _Splits, out: Path, mixed: Collection[str] = (), **record: Any) -> Corpus:
    """Save a corpus, and print its size, its layers, remarks and the next command.

    Args:
        mixed: layers in which sources use different sets of labels, so that they are not suggested as tasks.
        record: entries of corpus.json, and ``overwrite``.

    Raises:
        CorpusError: there are no sentences.
    """
    splits = {split: sentences for split, sentences in splits.items() if sentences}
    if not splits:
        raise CorpusError(f"{record['name']}: expected sentences, found none; check the source files")
    corpus = save_corpus(splits, out, **record)
    annotated_counts = {split: counts["known"] for split, counts in corpus.info["splits"].items()}
    sizes = ", ".join(f"{split} {len(corpus[split])}" for split in corpus.splits)
    layers = [layer for layer in corpus.layers if any(counts[layer] for counts in annotated_counts.values())]
    console().print(f"{out}: {record['name']} ({sizes} sentences), fingerprint {corpus.fingerprint[:16]}")
    _print_to_stderr(f"layers: {', '.join(layers) or 'none'}")
    for line in _remarks(corpus, splits):
        _print_to_stderr(line)
    doubtful = {*mixed, *(("upos", "xpos") if "pos" in layers else ())}
    tasks = [layer for layer in layers if layer not in doubtful]
    tasks = [layer for layer in tasks if all(annotated_counts.get(split, {}).get(layer) for split in ("train", "dev"))]
    if tasks:
        decoder_settings = (
            f"decoders.{name}.type={decoder_of(corpus.layers[name])}" for name in tasks if name not in LAYERS
        )
        settings = [f"data.path={out}", f"tasks={','.join(tasks)}", *decoder_settings]
        _print_to_stderr(f"next: {command('train', 'minilm-ewt5', *settings, '--out', f'runs/{out.name}')}")
        if len(test_layers := [layer for layer in tasks if annotated_counts.get("test", {}).get(layer)]) > 1:
            compare_command = command("compare", out, "--tasks", ",".join(test_layers), "--out", f"compare-{out.name}")
            _print_to_stderr(f"or each task alone and all together: {compare_command}")
    elif "dev" not in annotated_counts:
        _print_to_stderr(
            "The corpus has no dev split, which training needs. Build it with --dev, or from one file, which is split "
            "at random."
        )
    return corpus


def _remarks(corpus: Corpus, splits: _Splits) -> list[str]:
    """Return remarks about oddities of a corpus and of the scores on it, one line each.

    Args:
        splits: the sentences of the corpus by split.
    """
    from mtlprune.corpora.build import find_oddities
    from mtlprune.evaluation.scores import foreign_punctuation

    brackets = [layer for layer, kind in corpus.layers.items() if kind_of(kind) == "brackets"]
    split = "test" if "test" in corpus.splits else corpus.splits[-1]
    lines = (foreign_punctuation(corpus[split], layer) for layer in brackets)
    return [*find_oddities(splits), *(f"{split}, {line}" for line in lines if line)]


# -- build -------------------------------------------------------------------------------------------------------------


_READING = frozenset({"train", "dev", "test", "split", "seed", "name", "licence", "leave_out", "skip_bad"})
_TAKES: dict[str, frozenset[str]] = {
    "conllu": _READING | {"pos", "misc", "comment", "repair"},
    "columns": _READING | {"columns", "repair"},
    "brackets": _READING,
    "propbank": _READING | {"columns", "repair"},
    "jsonl": _READING,
    "table": _READING | {"columns"},
    "hf": _READING | {"columns", "repair"},
    "merge": frozenset({"name"}),
    "ewt5": frozenset(),
    "ontonotes5": frozenset({"dep"}),
    "masc": frozenset(),
    "gum": frozenset(),
    "machamp": frozenset({"repair", "name", "licence"}),
    "grammar": frozenset({"train", "dev", "test", "seed", "reflexives"}),
}
"""Format or known corpus → the options of `mtlprune data build` that have an effect with it."""
_FILES_HELP = "Files, folders or 'a*pattern' to read, or corpora to merge. The name of a format may come first."


_TrainFiles = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="File for the training split. With hf, give the name of a split, and with grammar a number of "
        "sentences. Repeatable.",
    ),
]
_ColumnNames = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Contents of the columns: word, pos, ner, con, srl, head and relation, lemma, _ for a column to skip, "
        "or NAME:KIND for a layer of another name, such as chunk:spans, where KIND is tags, spans or brackets. "
        "A final ... means columns that only some lines contain. For data sets, give names of columns, "
        "such as tokens=word,tags=ner. For tables and data sets with one sentence per row, write "
        "text=words,label=topic, where KIND is label, number or labels. Two columns of words form a pair of texts.",
    ),
]
_MiscKeys = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=LAYER",
        help="Key in the MISC column of CoNLL-U files that is read as a layer, such as name=ner or KEY=NAME:tags.",
    ),
]
_CommentKeys = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=LAYER",
        help="Comment # KEY = VALUE of CoNLL-U files that is read as a layer of whole sentences, such as "
        "s_type=sentence_type, KEY=NAME:number or KEY=NAME:labels.",
    ),
]
_LayersLeftOut = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Layers that are not read from the files, such as xpos,dep.")
]
_SkippedShare = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        min=0,
        max=100,
        help="Largest percentage of faulty sentences that may be skipped (0, if not given).",
    ),
]
_DependencySource = Annotated[
    Path | None,
    typer.Option(
        help="File of dependencies for ontonotes5 (CoNLL-X or CoNLL-U), or the jar of the Stanford converter."
    ),
]


@app.command(short_help="Make a corpus from files, or from a known source.")
def build(
    files: Annotated[list[str] | None, typer.Argument(metavar="[FORMAT] [FILE]...", help=_FILES_HELP)] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the new corpus.")] = ...,  # type: ignore[assignment]
    train: _TrainFiles = None,
    dev: Annotated[list[str] | None, typer.Option(metavar="FILE", help="File for the development split.")] = None,
    test: Annotated[list[str] | None, typer.Option(metavar="FILE", help="File for the test split.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Percentages of a random split into train, dev and test (80/10/10, if not given)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the random split (1, if not given).")] = None,
    columns: _ColumnNames = None,
    pos: Annotated[
        str | None,
        typer.Option(help="Source of tags in CoNLL-U files, which is upos, xpos, or a feature such as Case."),
    ] = None,
    misc: _MiscKeys = None,
    comment: _CommentKeys = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Let a tag that continues no entity begin a new entity.")
    ] = False,
    reflexives: Annotated[
        bool, typer.Option("--reflexives", help="Generate some reflexive objects (with grammar).")
    ] = False,
    leave_out: _LayersLeftOut = None,
    skip_bad: _SkippedShare = None,
    dep: _DependencySource = None,
    name: Annotated[str | None, typer.Option(help="Name of the corpus (the folder's name, if not given).")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the corpus (unknown, if not given).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the corpus at --out.")] = False,
) -> None:
    """Make a corpus. The command detects the format from the first file and reports it.

    To choose a format, name it before the files. The formats are conllu (CoNLL-U, CoNLL-U Plus), columns (one word per
    line), brackets (trees), propbank (CoNLL-2012, CoNLL-2005, PropBank), jsonl (output of `mtlprune predict`), hf (a
    Hugging Face data set), table (TSV or CSV), machamp (data sets of a MaChAmp configuration) and merge (built
    corpora). A Hugging Face data set is a folder, a Parquet or JSON file, or NAME[:SUBSET][@REVISION] on the hub. A
    table contains a header and one sentence per row, and needs --columns, such as --columns text=words,label=topic.
    merge joins the layers of sentences with equal words.

    The names ewt5, masc, gum and ontonotes5, each before a FOLDER with downloaded files, build known corpora, and
    grammar generates a corpus.
    """
    # At the beginning of a function, locals() contains only its parameters, which here are the options.
    parameters = {key: value for key, value in locals().items() if key not in ("files", "out", "overwrite")}
    options = {key: value for key, value in parameters.items() if value not in (None, []) and value is not False}
    check_free(out, overwrite)
    kind, paths = _kind(list(files or ()), options)
    if wrong := sorted(options.keys() - _TAKES[kind]):
        raise CorpusError(f"--{wrong[0].replace('_', '-')} has no effect with the format {kind}; leave it out")
    from mtlprune.cli.display import working

    with working(f"building {out.name} …"):
        splits, record = _BUILDERS[kind](paths, options) if kind in _BUILDERS else _read(kind, paths, options)
        record.setdefault("name", name or out.name)
        mixed = record.pop("mixed", ())
        _store(splits, out, mixed, overwrite=overwrite, **record)


def _kind(files: list[str], options: dict[str, Any]) -> tuple[str, list[str]]:
    """Determine the format, and return it with the remaining files.

    Files whose names contain the name of a split are moved to the option of this split in ``options``.

    Raises:
        CorpusError: there is no file from which the format can be detected, or the files contradict --split or --seed.
    """
    from mtlprune.corpora.build import files_by_split
    from mtlprune.corpora.formats.guess import guess_format
    from mtlprune.corpora.formats.rows import describes_texts

    kind = files.pop(0) if files and files[0] in _TAKES and not Path(files[0]).exists() else None
    has_own_splits = kind in _BUILDERS or kind == "hf" or {"train", "dev", "test"} & options.keys()
    if files and not has_own_splits and (kind or guess_format(_first(files[0]))) not in ("merge", "hf"):
        splits, unplaced = files_by_split(files)
        if splits and (chance := {"split", "seed"} & options.keys()):
            problem = f"the names of the files already decide which of them are {', '.join(splits)}"
            raise CorpusError(f"--{min(chance)}: {problem}; leave the option out, or name one file")
        for split, paths in splits.items():
            _print_to_stderr(f"files whose names say {split}: {', '.join(paths)}")
        if splits and unplaced:
            _print_to_stderr(f"files left out because their names name no split: {', '.join(map(str, unplaced))}")
        options |= splits
        files = [] if splits else files
    if kind:
        return kind, files
    paths_named = [*files, *(file for part in ("train", "dev", "test") for file in options.get(part, ()))]
    if not paths_named:
        raise CorpusError(
            "expected files, found none; name files with --train, --dev and --test, or one file that is split at random"
        )
    first = _first(paths_named[0])
    kind = guess_format(first)
    if describes_texts(options.get("columns")) and kind != "merge":
        kind = "hf" if kind in ("hf", "jsonl") else "table"
    kind = kind if "columns" not in options or "columns" in _TAKES[kind] else "columns"
    read = f"read as {kind}; to choose another format, name it before the files"
    _print_to_stderr(f"{first}: {'read as a corpus, which is merged' if kind == 'merge' else read}")
    return kind, files


def _first(name: str) -> Path:
    """Return a folder, or the first file that a pattern matches."""
    from mtlprune.corpora.build import expand_paths

    return Path(name) if Path(name).is_dir() else expand_paths([name])[0]


def _read(kind: str, files: Sequence[str], options: Mapping[str, Any]) -> _Built:
    """Read files of a format. Raises CorpusError, which for an unreadable sentence mentions --skip-bad."""
    from mtlprune.corpora.build import SHARES, LeftOut, read_files, split_at_random, with_unique_ids
    from mtlprune.corpora.formats.hub import read_dataset

    layers_left_out = [name.strip() for name in options.get("leave_out", "").split(",") if name.strip()]
    left = LeftOut(layers_left_out, options.get("skip_bad"))
    share, seed = options.get("split", SHARES), options.get("seed", 1)
    paths_by_split = {split: options.get(split, ()) for split in ("train", "dev", "test")}
    record: dict[str, Any] = {"licence": options.get("licence", "unknown")}
    try:
        if kind != "hf" or len(files) != 1:
            read = partial(_reader(kind), options=options, tell=_print_once(), left=left)
            splits, file_record = read_files(files, paths_by_split, read, _print_to_stderr, left, share, seed)
            return splits, record | file_record
        source, columns, repair = files[0], options.get("columns"), options.get("repair", False)
        splits = read_dataset(source, columns, repair, _print_to_stderr, paths_by_split, left.skip, left.unread_layers)
        record["left_out"] = left.account(sum(map(len, splits.values())), _print_to_stderr)
        record["sources"] = {source: source_digest(Path(source)) if Path(source).exists() else "hub"}
        if len(splits) == 1 and not any(paths_by_split.values()):
            splits = split_at_random(next(iter(splits.values())), share, seed, source)
            record["sources"]["split"] = f"{share}, seed {seed}"
        return with_unique_ids(splits, _print_to_stderr), record
    except UnreadableSentence as error:
        advice = (
            "--skip-bad does not help, because the next sentence cannot be found"
            if left.skip
            else "or leave such sentences out: --skip-bad 1 (percent)"
        )
        raise CorpusError(f"{error}; {advice}") from error


def _print_once() -> Callable[[str], None]:
    """Return a function that prints a remark on a file, unless it has printed the same remark on another file."""
    printed_messages = set[str]()

    def note(line: str) -> None:
        if (message := line.partition(": ")[2]) not in printed_messages:
            _print_to_stderr(line)
        printed_messages.add(message)

    return note


def _reader(kind: str) -> Callable[..., Iterable[Sentence]]:
    """Return the function that reads one file of a format."""
    from mtlprune.corpora.formats import brackets, columns, conllu, hub, jsonl, rows
    from mtlprune.corpora.formats.guess import guess_columns

    def read(path: Path, options: Mapping[str, Any], tell: Callable[[str], None], left: LeftOut) -> Iterable[Sentence]:
        repair, names, last = options.get("repair", False), options.get("columns"), (left.skip, left.unread_layers)
        if kind == "conllu":
            keyed = conllu.parse_misc(options.get("misc", ())), conllu.parse_comments(options.get("comment", ()))
            return conllu.read_conllu(path, options.get("pos", "upos"), True, *keyed, repair, tell, *last)
        if kind == "columns":
            if names is None:
                names = guess_columns(path)
                tell(f"{path}: the columns are read as {names}; to change this, give --columns")
            return columns.read_columns(path, columns.parse_columns(names), repair, tell, *last)
        if kind == "table":
            if names is None:
                raise CorpusError("table: expected --columns, such as --columns text=words,label=topic, found none")
            return rows.read_rows(path, rows.parse_row_columns(names), *last)
        if kind == "brackets":
            return brackets.read_ptb(path, *last)
        if kind == "propbank":
            return columns.read_roles(path, names, repair, tell, *last)
        if kind == "jsonl":
            return jsonl.read_jsonl(path, tell, *last)
        parts = hub.read_dataset(str(path), names, repair, tell, {}, *last)
        return (sentence for sentences in parts.values() for sentence in sentences)

    return read


# -- known corpora -----------------------------------------------------------------------------------------------------


def _one_folder(kind: str, files: Sequence[str]) -> Path:
    """Return the only argument. Raises CorpusError for none or several."""
    if len(files) != 1:
        raise CorpusError(f"{kind}: expected one folder with the sources, found {', '.join(files) or 'none'}")
    return Path(files[0])


def _build_ewt5(files: Sequence[str], options: Mapping[str, Any]) -> _Built:
    """Build EWT5 from Universal Dependencies, Universal NER and PropBank."""
    from mtlprune.corpora.ewt5 import LICENCE, build_ewt5, ewt5_files

    sources = _one_folder("ewt5", files)
    digests = {path.relative_to(sources).as_posix(): source_digest(path) for path in ewt5_files(sources).values()}
    return build_ewt5(sources), {"name": "ewt5", "licence": LICENCE, "sources": digests}


def _build_ontonotes5(files: Sequence[str], options: Mapping[str, Any]) -> _Built:
    """Build OntoNotes 5 from CoNLL-2012 files with words, and from dependencies of another source."""
    from mtlprune.corpora.ontonotes5 import build_ontonotes5

    sources, dep = _one_folder("ontonotes5", files), options.get("dep")
    splits = build_ontonotes5(sources, dep, _print_to_stderr)
    digests = {"sources": source_digest(sources)} | ({"dep": source_digest(dep)} if dep else {})
    licence = "LDC User Agreement (LDC2013T19); not to be passed on"
    return splits, {"name": "ontonotes5", "licence": licence, "sources": digests}


def _build_grammar(files: Sequence[str], options: Mapping[str, Any]) -> _Built:
    """Generate sentences of a small grammar of English."""
    from mtlprune import __version__
    from mtlprune.corpora.grammar import build_grammar

    if files:
        raise CorpusError(
            f"grammar: expected no files, because the corpus is generated, found {files[0]}; leave it out"
        )
    sizes = {"train": 4000, "dev": 500, "test": 500}
    for split in sizes.keys() & options.keys():
        if len(options[split]) > 1 or (size := whole_number(options[split][0])) is None:
            finding = " and ".join(map(repr, options[split]))
            raise CorpusError(f"grammar: expected one number of sentences after --{split}, found {finding}")
        sizes[split] = size
    seed = options.get("seed", 1)
    reflexives = options.get("reflexives", False)
    facts = [*(f"{split} {size}" for split, size in sizes.items()), f"seed {seed}", *["reflexives"] * reflexives]
    origin = f"mtlprune {__version__}, {', '.join(facts)}"
    record = {"name": "grammar", "licence": "Apache-2.0", "sources": {"generator": origin}}
    return build_grammar(**sizes, seed=seed, reflexives=reflexives), record


def _merge(files: Sequence[str], options: Mapping[str, Any]) -> _Built:
    """Join the layers of sentences with equal words in the same split of corpora, and append all other sentences."""
    from mtlprune.corpora.build import merge as merge_corpora

    loaded = {path: load_corpus(Path(path)) for path in files}
    if len(loaded) < max(2, len(files)):
        raise CorpusError(
            f"merge: expected two or more different corpora, found {', '.join(files) or 'none'}; name each corpus once"
        )
    content = {path: {s: corpus[s] for s in corpus.splits} for path, corpus in loaded.items()}
    splits, mixed = merge_corpora(content, _print_to_stderr)
    licence = "; ".join(dict.fromkeys(corpus.info["licence"] for corpus in loaded.values()))
    sources = {path: corpus.fingerprint for path, corpus in loaded.items()}
    return splits, {"licence": licence, "sources": sources, "mixed": mixed}


def _build_masc(files: Sequence[str], options: Mapping[str, Any]) -> _Built:
    """Build MASC from the trees and named entities of MASC 1 and the roles of PropBank."""
    from mtlprune.corpora.masc import LICENCE, build_masc

    splits, digests, left_out = build_masc(_one_folder("masc", files), _print_to_stderr)
    return splits, {"name": "masc", "licence": LICENCE, "sources": digests, "left_out": left_out}


def _build_machamp(files: Sequence[str], options: Mapping[str, Any]) -> _Built:
    """Read the data sets of a MaChAmp configuration.

    Supported tasks are seq, seq_bio and dependency (over words), and classification, regression and multiclas (over
    whole sentences).
    """
    from mtlprune.corpora.machamp import build_machamp

    splits, mixed, record = build_machamp(_one_folder("machamp", files), options.get("repair", False), _print_to_stderr)
    return splits, {"licence": options.get("licence", "unknown"), "mixed": mixed, **record}


def _build_gum(files: Sequence[str], options: Mapping[str, Any]) -> _Built:
    """Read GUM and GENTLE in their official splits."""
    from mtlprune.corpora.gum import LICENCE, build_gum

    splits, digests = build_gum(_one_folder("gum", files), _print_to_stderr)
    return splits, {"name": "gum", "licence": LICENCE, "sources": digests}


_BUILDERS: dict[str, Callable[[Sequence[str], Mapping[str, Any]], _Built]] = {
    "merge": _merge,
    "ewt5": _build_ewt5,
    "ontonotes5": _build_ontonotes5,
    "masc": _build_masc,
    "gum": _build_gum,
    "machamp": _build_machamp,
    "grammar": _build_grammar,
}
"""Name that is not a format of files → function that builds the corpus from files and options."""


# -- check, show and export --------------------------------------------------------------------------------------------


@app.command(short_help="Check for changed files, and count sentences, words and labels.")
def check(folder: Annotated[Path, typer.Argument(help="Folder of a corpus that `mtlprune data build` made.")]) -> None:
    """Check that no file of a corpus has changed since the corpus was built, and count sentences, words and labels."""
    from mtlprune.cli.display import working
    from mtlprune.corpora.tables import count

    corpus = load_corpus(folder)
    terminal = console()
    with working("checking …"):
        counts = {split: count(corpus[split], corpus.layers) for split in corpus.splits}
    for split, stored in corpus.info["splits"].items():
        if wrong := [key for key, value in counts[split].items() if stored.get(key) != value]:
            raise CorpusError(
                f"{folder / INFO}: expected {counts[split][wrong[0]]} as {wrong[0]} of {split}, found "
                f"{stored.get(wrong[0], 'nothing')}; build the corpus again"
            )
    terminal.print(f"{corpus.info['name']} ({corpus.info['licence']})")
    terminal.print(_counts_table(counts))
    terminal.print(f"No file was changed since the corpus was built. Its fingerprint is {corpus.fingerprint}")
    for line in _remarks(corpus, {split: corpus[split] for split in corpus.splits}):
        terminal.print(line)


_TITLES = {
    "known": "sentences with",
    "all_layers": "sentences with all layers",
    "longest": "longest sentence",
    **{key: f"different {key.replace('_', ' ')}" for key in ("tags", "relations", "constituent_labels")},
    "non_projective": "non-projective sentences",
    "arguments": "arguments (without V, C-V)",
    "roles": "different argument labels",
}


def _counts_table(counts: Mapping[str, Any]) -> Table:
    table = new_table(None, "", *(f">{split}" for split in counts))
    columns = [_numbers(numbers) for numbers in counts.values()]
    for title in dict.fromkeys(title for column in columns for title in column):
        cells = [column.get(title, 0) for column in columns]
        if any(cells):
            table.add_row(title, *(f"{cell:,}" for cell in cells))
    return table


def _numbers(counts: Mapping[str, Any]) -> dict[str, int]:
    """Flatten nested counts to one level, under titles such as "entities PER" or "chunk: entities NP"."""
    numbers: dict[str, int] = {}
    for key, value in counts.items():
        title = _TITLES.get(key, key)
        if key == "further":
            nested = ((layer, _numbers(layer_numbers)) for layer, layer_numbers in value.items())
            numbers |= {
                f"{layer}: {title}": number
                for layer, layer_numbers in nested
                for title, number in layer_numbers.items()
            }
        elif isinstance(value, dict):
            numbers |= {f"{title} {name}": number for name, number in value.items()}
        else:
            numbers[title] = value
    return numbers


@app.command(short_help="Print one sentence with all its layers.")
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of a corpus that `mtlprune data build` made.")],
    sentence_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Name of a sentence, or its position, such as dev:1.")
    ] = None,
) -> None:
    """Print one sentence with all its layers. If no sentence is named, the command prints the first sentence of dev."""
    from mtlprune.cli.display import print_sentence

    corpus = load_corpus(folder)
    sentence_id = sentence_id or f"{'dev' if 'dev' in corpus.splits else corpus.splits[0]}:1"
    for split in corpus.splits:
        sentences, place = corpus[split], re.fullmatch(rf"{split}:([0-9]{{1,9}})", sentence_id)
        number = int(place[1]) if place else 0
        sentence = sentences[number - 1] if 0 < number <= len(sentences) else sentences.find(sentence_id)
        if sentence is not None:
            return print_sentence(console(), sentence, split)
    sizes = ", ".join(f"{split}:1 to {split}:{len(corpus[split])}" for split in corpus.splits)
    example = f"ids look like {corpus[corpus.splits[0]][0].id!r}, and positions are {sizes}"
    raise CorpusError(f"{folder}: expected the id or position of a sentence, found {sentence_id!r}; {example}")


@app.command(short_help="Write one layer in the format of its scorer.")
def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a corpus that `mtlprune data build` made.")],
    split: Annotated[str, typer.Option(help="Split that is exported, such as train, dev or test.")],
    layer: Annotated[str, typer.Option(help="Layer that is exported.")],
    out: Annotated[Path, typer.Option(help="File that is written.")],
) -> None:
    """Write one layer in the format of its scorer. Sentences without the layer are left out.

    If the corpus was built from CoNLL-U, the command writes tags and trees into the lines of the original files.
    """
    from mtlprune.corpora.export import export as export_layer

    corpus = load_corpus(folder)
    sentences = corpus[split]
    if corpus.info["splits"][split]["known"].get(layer) == 0:
        raise CorpusError(
            f"{folder}: expected sentences of {split} with the layer {layer}, found none; choose another layer or split"
        )
    written = export_layer(sentences, layer, out)
    console().print(f"{out}: {written} of {len(sentences)} sentences")
