"""Datasets in Hugging Face form: a name of the hub, a folder that save_to_disk wrote, or files of rows."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mtlprune.corpora import CorpusError, answers, formats
from mtlprune.corpora.formats.columns import SKIP, WORD, FileColumn, Notation, assemble, parse_columns, without
from mtlprune.errors import MtlpruneError, out_of_memory
from mtlprune.io.files import parse_json_line, read_json, read_yaml
from mtlprune.sentence import Sentence

USUAL = {
    "tokens": WORD, "words": WORD, "form": WORD, "pos_tags": "pos", "pos": "pos", "upos": "upos:tags",
    "xpos": "xpos:tags", "ner_tags": "ner", "ner": "ner", "chunk_tags": "chunk:spans", "head": "head",
    "deprel": "relation", "id": "id", "sent_id": "id",
}  # fmt: skip
"""Names of columns that are understood if nobody says what they hold."""
_SPLITS = {"validation": "dev", "valid": "dev", "val": "dev"}
_UNKNOWN = (None, -1, -100)
"""Labels of words that have none: -1 is what ClassLabel writes, -100 what torch passes over."""


class _Row(NamedTuple):
    """A row, and where it stands: the file (or dataset and split), in rows or lines, and its number."""

    source: str
    unit: str
    number: int
    values: Mapping[str, Any]


class _SplitTable(NamedTuple):
    """A split: its columns, the names of labels that are written as numbers, and what gives the rows of columns."""

    columns: list[str]
    labels: Mapping[str, Sequence[str]]
    rows: Callable[[list[str]], Iterable[_Row]]


def read_dataset(
    source: str,
    columns: str | None = None,
    subset: str | None = None,
    revision: str | None = None,
    repair: bool = False,
    tell: Any = lambda line: None,
    wanted: Mapping[str, Sequence[str]] | None = None,
    skip: formats.Skip | None = None,
    unread: Container[str] = (),
) -> dict[str, Sequence[Sentence]]:
    """Read a dataset whose rows are sentences and whose columns are lists with a value a word.

    Args:
        source: a folder of ``save_to_disk``, a file or folder of Parquet or JSON rows, else a name of the hub.
        columns: ``tokens=word,labels=ner``; the usual ones, if not given. Numbers with names (ClassLabel) become those.
        subset, revision: of a name of the hub.
        repair: as in ``read_columns``.
        tell: is given what was taken for what, and what was converted.
        wanted: train, dev and test → the dataset's splits that make it; if none is named, all, validation as dev.
        skip, unread: as in ``read_columns``.

    Returns:
        split → sentences.

    Raises:
        CorpusError: the hub cannot be reached, there is no such dataset, or a row is malformed; in words.
    """
    with tempfile.TemporaryDirectory(prefix="mtlprune-") as cache:  # what local files are turned into does not stay
        with _in_words(source, "a dataset" if Path(source).exists() else "a folder, or a dataset that can be reached"):
            tables = _tables(source, subset, revision, cache, skip)
        taken = _splits(source, list(tables), wanted or {})
        if left := [name for name in tables if name not in {name for names in taken.values() for name in names}]:
            tell(f"{source}: left out the splits {', '.join(left)}, which --train, --dev and --test can name")
        splits: dict[str, Sequence[Sentence]] = {}
        for split, names in taken.items():
            sentences: list[Sentence] = []
            for name in names:
                table = tables[name]
                chosen = _choose(source, table.columns, columns)
                chosen = dict(zip(chosen, without(list(chosen.values()), unread), strict=True))
                if not splits and not sentences:
                    taken_for = ", ".join(f"{column} as {what.name}" for column, what in chosen.items())
                    rest = ", ".join(column for column in table.columns if column not in chosen)
                    tell(f"{source}: read {taken_for}{rest and f'; left out {rest}, which --columns can name'}")
                sentences += _sentences(source, name, table, chosen, repair, tell, skip)
            splits[split] = sentences
    return splits


@contextlib.contextmanager
def _in_words(where: Path | str, wanted: str) -> Iterator[None]:
    """Turn whatever libraries raise into a sentence with its first cause, not with what it was wrapped in."""
    try:
        yield
    except CorpusError:
        raise
    except MtlpruneError as error:
        raise CorpusError(str(error)) from error
    except Exception as error:  # they raise of all kinds
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if out_of_memory(cause):
            raise
        what = " ".join(str(cause).split())[:300]
        raise CorpusError(f"{where}: expected {wanted}, found {type(cause).__name__}: {what or 'no word'}") from error


def _splits(source: str, known: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Split of the corpus → splits of the dataset that make it."""
    taken = {split: list(names) for split, names in wanted.items() if names}
    for split, names in taken.items():
        if unknown := [name for name in names if name not in known]:
            raise CorpusError(f"{source}: --{split}: expected a split out of {', '.join(known)}, found {unknown[0]!r}")
    for name in () if taken else known:
        taken.setdefault(_SPLITS.get(name, name), []).append(name)
        if not re.fullmatch(r"\w+", name) or len(taken[_SPLITS.get(name, name)]) > 1:
            what = f"splits train, dev (or validation) and test, found {', '.join(known)}"
            raise CorpusError(f"{source}: expected {what}; say which to take: --train NAME --dev NAME --test NAME")
    return taken


def _tables(
    source: str, subset: str | None, revision: str | None, cache: str, skip: formats.Skip | None
) -> dict[str, _SplitTable]:
    """Splits by the names that the dataset gives them."""
    import datasets
    from huggingface_hub import constants

    path = Path(source)
    if path.is_file():
        return {"train": _of_files([path], None, skip)}
    if not path.exists() and not constants.HF_HUB_OFFLINE and not answers(constants.ENDPOINT):  # the library tries long
        hub = f"the hub ({constants.ENDPOINT}) cannot be reached; check the path, or connect to the hub"
        raise CorpusError(f"{source}: expected a folder or file, found none, and {hub}")
    _refuse_elsewhere(_descriptions(source, revision))
    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(source)
        else:
            local: dict[str, Any] = {"cache_dir": cache} if path.exists() else {"revision": revision}
            builder = datasets.load_dataset_builder(source, subset, **local)
            files = {str(split): list(map(Path, names)) for split, names in (builder.config.data_files or {}).items()}
            if path.exists() and all(file.suffix in _READERS for names in files.values() for file in names):
                return {split: _of_files(names, builder.info.features, skip) for split, names in files.items()}
            builder.download_and_prepare()
            loaded = builder.as_dataset()
    finally:
        if not hidden:
            datasets.enable_progress_bars()
    return {
        str(split): _SplitTable(
            rows.column_names, _label_names(source, rows.features), _reader(f"{source}, split {split}", rows)
        )
        for split, rows in (loaded if isinstance(loaded, dict) else {"all": loaded}).items()
    }


def _label_names(where: Path | str, features: Any) -> dict[str, Sequence[str]]:
    """Column → names of the numbers in its lists. Raises CorpusError where one is no text."""
    inner = {name: getattr(feature, "feature", None) for name, feature in (features or {}).items()}
    labels = {name: getattr(feature, "names", None) for name, feature in inner.items()}
    for name, names in labels.items():
        if wrong := [label for label in names or () if not isinstance(label, str)]:
            raise CorpusError(f"{where}, column {name}: expected names of labels, found {wrong[0]!r}; write text")
    return {name: names for name, names in labels.items() if names is not None}


def _reader(source: str, rows: Any) -> Callable[[list[str]], Iterator[_Row]]:
    def read(names: list[str]) -> Iterator[_Row]:
        with _in_words(source, "rows"):
            yield from _decoded(source, rows.select_columns(names).with_format("arrow").iter(1000), names)

    return read


def _decoded(source: str, batches: Iterable[Any], names: list[str]) -> Iterator[_Row]:
    """Rows of Arrow tables."""
    start = 0
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        for row, values in enumerate(zip(*columns, strict=True), start):
            yield _Row(source, "row", row, dict(zip(names, values, strict=True)))
        start += len(batch)


# -- descriptions of a dataset, which may name no file of others -------------------------------------------------------

_ELSEWHERE = re.compile(r"^[/\\~]|^\w:[/\\]|(^|[/\\])\.\.([/\\]|$)|://|::")
_README, _YAML = "README.md", ".huggingface.yaml"


def _descriptions(source: str, revision: str | None) -> Iterator[Path]:
    """Files that say where the dataset's files are, as far as there are some."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    folder = Path(source)
    if folder.exists():
        files = (folder / name for name in (_README, _YAML, "dataset_dict.json", "state.json"))
        yield from (file for file in (*files, *folder.glob("*/state.json")) if file.is_file())
        return
    for name in (_README, _YAML):
        with contextlib.suppress(EntryNotFoundError):
            yield Path(hf_hub_download(source, name, repo_type="dataset", revision=revision))


def _refuse_elsewhere(descriptions: Iterable[Path]) -> None:
    """Raise CorpusError where one names an address, or a file outside the dataset's folder."""
    from huggingface_hub import metadata_load

    for file in descriptions:
        with _in_words(file, "a description of a dataset"):
            read: Any = {_README: metadata_load, _YAML: read_yaml}.get(file.name, read_json)
            named = list(_named(read(file)))
        if elsewhere := [name for name in named if _ELSEWHERE.search(name)]:
            what = f"names of files in the folder of the dataset, found {elsewhere[0]!r}"
            raise CorpusError(f"{file}: expected {what}; put the file there and correct the name")


def _named(value: Any, inside: bool = False) -> Iterator[str]:
    """All text below the keys that name files."""
    if isinstance(value, str) and inside:
        yield value
    for part in value if isinstance(value, list) else ():
        yield from _named(part, inside)
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from _named(part, inside or key in ("data_files", "data_dir", "_data_files", "splits"))


# -- files of rows ---------------------------------------------------------------------------------------------------


def _of_files(files: Sequence[Path], features: Any, skip: formats.Skip | None) -> _SplitTable:
    """The rows of local files, one after another; ``features``: what a description says of the columns."""
    columns: dict[str, None] = {}
    given = _label_names(files[0].parent, features)
    labels = dict(given)
    readers = []
    for file in files:
        if file.suffix not in _READERS:
            what = f"a dataset ({', '.join(_READERS)}, or a folder of them), found a file of another kind"
            raise CorpusError(f"{file}: expected {what}; for lines of text take another format, such as columns")
        own, names, rows = _READERS[file.suffix](file, skip)
        columns |= dict.fromkeys(own)
        for name, known in names.items():
            if list(labels.setdefault(name, known)) != list(known) and name not in given:
                what = f"the labels {', '.join(labels[name])} as in the files before, found {', '.join(known)}"
                raise CorpusError(f"{file}, column {name}: expected {what}; build them apart, and merge")
        readers.append(rows)
    return _SplitTable(list(columns), labels, lambda names: (row for rows in readers for row in rows(names)))


def _parquet(file: Path, skip: formats.Skip | None) -> _SplitTable:
    from datasets import Features
    from pyarrow import parquet

    with _in_words(file, "a dataset"):
        opened = parquet.ParquetFile(file)
        columns, features = opened.schema_arrow.names, Features.from_arrow_schema(opened.schema_arrow)
        if len(set(columns)) < len(columns):
            raise CorpusError(f"{file}: expected columns of different names, found {', '.join(columns)}; rename one")

    def rows(names: list[str]) -> Iterator[_Row]:
        with _in_words(file, "rows of Parquet"):
            own = [name for name in names if name in columns]
            yield from _decoded(str(file), opened.iter_batches(1000, columns=own), own)

    return _SplitTable(columns, _label_names(file, features), rows)


def _json(file: Path, skip: formats.Skip | None) -> _SplitTable:
    with _in_words(file, "a dataset"), file.open("rb") as stream:
        whole = stream.read(100).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    unit = "object" if whole else "line"
    objects: list[tuple[int, dict[str, Any]]] = []
    with _in_words(file, "a dataset"):
        for number, row in enumerate(read_json(file, CorpusError), 1) if whole else formats.read_lines(file, skip):
            if not whole and not row.strip():
                continue
            with formats.skipping(skip):
                if not whole:
                    formats.check_text(file, [formats.NumberedLine(number, row)])
                    row = parse_json_line(row, f"{file}, line {number}", CorpusError)
                if not isinstance(row, dict):
                    what = f"expected an object with columns and values, found {str(row)[:60]!r}"
                    raise formats.malformed(file, number, what, unit)
                objects.append((number, row))
    columns = list(dict.fromkeys(name for _, row in objects for name in row))
    return _SplitTable(columns, {}, lambda names: (_Row(str(file), unit, number, row) for number, row in objects))


_READERS: dict[str, Callable[[Path, formats.Skip | None], _SplitTable]] = {
    ".parquet": _parquet,
    ".json": _json,
    ".jsonl": _json,
}


# -- rows to sentences -------------------------------------------------------------------------------------------------


def _choose(source: str, names: Sequence[str], columns: str | None) -> dict[str, FileColumn]:
    """Name of a column of the dataset → what it holds."""
    if columns is None:
        given = {name: USUAL[name] for name in names if name in USUAL}
        if not {"head", "relation"} <= set(given.values()):
            given = {name: what for name, what in given.items() if what not in ("head", "relation")}
        if "pos" not in given.values():  # universal tags first: every treebank has them
            tags = next((name for name in ("upos", "xpos") if name in given), None)
            given |= {tags: "pos"} if tags else {}
        given = {name: what for k, (name, what) in enumerate(given.items()) if what not in [*given.values()][:k]}
    else:
        pairs = [part.strip().rpartition("=")[::2] for part in columns.split(",")]
        given = dict(pairs)
        if len(given) < len(pairs):
            raise CorpusError(f"--columns: expected each column once, found one named twice in {columns!r}")
    wrong = sorted(set(given) - set(names))
    if wrong or WORD not in given.values():
        what = f"no column {wrong[0] or '(say NAME=word)'!r}" if wrong else f"no column that is known to be {WORD}s"
        have = ", ".join(names)
        raise CorpusError(f"{source}: found {what}; it has {have}; say what they hold: --columns tokens=word,tags=ner")
    holds = parse_columns(",".join(given.values()))
    if any(column.kind == "frames" for column in holds):
        raise CorpusError(f"{source}: frames cannot be read from a dataset; use propbank or jsonl")
    return dict(zip(given, holds, strict=True))


def _sentences(
    source: str,
    split: str,
    table: _SplitTable,
    columns: Mapping[str, FileColumn],
    repair: bool,
    tell: Any,
    skip: formats.Skip | None,
) -> Iterator[Sentence]:
    turned = []
    names = [name for name in columns if columns[name].name != SKIP]
    for count, row in enumerate(table.rows(names)):
        with formats.skipping(skip):
            cells = {columns[name]: _cells(row, name, table.labels.get(name), columns[name]) for name in names}
            words = next(values for column, values in cells.items() if column.name == WORD)
            for name, values in zip(names, cells.values(), strict=True):
                if len(values) != len(words) and columns[name].name != "id":
                    what = f"expected a value a word, found {len(values)} for {len(words)} words"
                    raise formats.malformed(row.source, row.number, f"column {name}: {what}; repair the row", row.unit)
            if words:
                turned.append((row, count, cells))
    kinds = list(columns.values())
    notation = Notation(kinds, lambda column: (cells[column] for _, _, cells in turned), repair)
    for row, count, cells in turned:
        own = next((values[0] for column, values in cells.items() if column.name == "id" and values), None)
        places = [(row.number, word) for word in next(v for c, v in cells.items() if c.name == WORD)]
        plain = {column: values for column, values in cells.items() if column.name != "id"}
        with formats.skipping(skip):
            yield assemble(row.source, places, own or f"{split}-{count}", plain, notation, row.unit)
    for line in notation.converted():
        tell(f"{source}, split {split}: {line}")


def _cells(row: _Row, name: str, labels: Sequence[str] | None, column: FileColumn) -> list[str]:
    """A text a word; unknown ones are _."""
    value = row.values.get(name)
    if column.name == "id" and (value is None or type(value) in (str, int)):
        return [] if value is None else [str(value)]
    if column.name == "id" or not isinstance(value, list) or any(isinstance(cell, list | dict) for cell in value):
        wanted = "a text" if column.name == "id" else "a list with a value a word"
        what = f"column {name}: expected {wanted}, found {str(value)[:60]!r}"
        raise formats.malformed(row.source, row.number, what, row.unit)
    if labels is None and all(type(cell) is str for cell in value):
        return value
    with formats.on_lines(row.source, [(row.number, None)] * len(value), f"column {name}", row.unit):
        return [_cell(place, cell, labels, column.name) for place, cell in enumerate(value)]


def _cell(place: int, cell: Any, labels: Sequence[str] | None, holds: str) -> str:
    """Raises formats.WordError."""
    if isinstance(cell, str) and (labels is None or cell in labels):
        return cell
    if labels is not None:
        if cell in _UNKNOWN:
            return "_"
        if type(cell) is int and 0 <= cell < len(labels):
            return labels[cell]
        what = f"0 to {len(labels) - 1}, or one of their names (ClassLabel), found {cell!r}; correct it or add a name"
        raise formats.WordError(place, f"expected a label from {what}")
    if cell is None and holds != WORD:
        return "_"
    if type(cell) is not int:
        raise formats.WordError(place, f"expected text, found {cell!r}; write text into this column")
    if holds not in (WORD, "head", "lemma"):
        raise formats.WordError(place, "expected labels, found numbers that have no names (ClassLabel); write text")
    return str(cell)
