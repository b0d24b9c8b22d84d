"""Read Hugging Face data sets: a name on the hub, a folder that ``save_to_disk`` wrote, or Parquet and JSON files."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any

from mtlprune.corpora import CorpusError, formats, is_reachable
from mtlprune.corpora.formats.columns import (
    SKIP,
    WORD,
    FileColumn,
    Notation,
    assemble,
    mark_unread_columns,
    parse_columns,
)
from mtlprune.corpora.formats.rows import describes_texts, parse_row_columns, row_sentence
from mtlprune.errors import MtlpruneError, out_of_memory
from mtlprune.io.files import read_json, read_yaml
from mtlprune.sentence import Sentence

_USUAL_COLUMNS = {
    "tokens": WORD, "words": WORD, "form": WORD, "pos_tags": "pos", "pos": "pos", "upos": "upos:tags",
    "xpos": "xpos:tags", "ner_tags": "ner", "ner": "ner", "chunk_tags": "chunk:spans", "head": "head",
    "deprel": "relation", "id": "id", "sent_id": "id",
}  # fmt: skip
"""Usual name of a column → its content, which is assumed if ``--columns`` is not given."""
_SPLITS = {"training": "train", "testing": "test", **dict.fromkeys(("validation", "valid", "val"), "dev")}
"""Usual name of a split → our name."""
_UNKNOWN = (None, -1, -100)
"""Values of words without a label: None, -1 (as in ClassLabel), and -100 (which PyTorch's losses ignore)."""


def read_dataset(
    source: str,
    columns: str | None = None,
    repair: bool = False,
    tell: formats.Tell = lambda line: None,
    names_by_split: Mapping[str, Sequence[str]] | None = None,
    skip: formats.Skip | None = None,
    unread_layers: Container[str] = (),
) -> dict[str, Sequence[Sentence]]:
    """Read a data set whose rows are sentences, and whose columns contain lists with one value per word.

    If ``columns`` describes whole texts (``text=words``), its rows are read by :func:`formats.rows.row_sentence`
    instead.

    Args:
        source: a folder that ``save_to_disk`` wrote, a file or folder of Parquet or JSON rows, or else
            NAME[:SUBSET][@REVISION] on the hub.
        columns: the contents of columns, such as ``tokens=word,labels=ner``; by default the usual names are recognised.
            Numbers with names (ClassLabel) become these names.
        repair, skip, unread_layers: as in ``read_columns``.
        tell: receives what was inferred and what was converted.
        names_by_split: train, dev or test → splits of the data set. By default all splits are read, and validation
            becomes dev.

    Returns:
        name of a split → its sentences.

    Raises:
        CorpusError: the hub cannot be reached, the data set does not exist, or a row is malformed.
    """
    # The library converts local files into its cache, which is a temporary folder here, so that nothing remains.
    with tempfile.TemporaryDirectory(prefix="mtlprune-") as cache:
        with _as_corpus_error(
            source, "a dataset" if Path(source).exists() else "a folder, or a dataset that can be reached"
        ):
            tables = _tables(source, cache)
        tables_by_split = _splits(source, list(tables), names_by_split or {})
        if left := [
            name for name in tables if name not in {name for names in tables_by_split.values() for name in names}
        ]:
            tell(f"{source}: the splits {', '.join(left)} were left out; name splits with --train, --dev and --test")
        splits: dict[str, Sequence[Sentence]] = {}
        for split, names in tables_by_split.items():
            sentences: list[Sentence] = []
            for name in names:
                table = tables[name]
                if describes_texts(columns):
                    sentences += _whole_rows(f"{source}, split {name}", name, table, columns or "", skip, unread_layers)
                    continue
                columns_read = _choose(source, table.column_names, columns)
                columns_read = dict(
                    zip(columns_read, mark_unread_columns(list(columns_read.values()), unread_layers), strict=True)
                )
                if not splits and not sentences:
                    taken_for = ", ".join(
                        f"{column} as {file_column.name}" for column, file_column in columns_read.items()
                    )
                    unread_names = ", ".join(column for column in table.column_names if column not in columns_read)
                    tell(
                        f"{source}: read {taken_for}"
                        f"{unread_names and f'; {unread_names} were left out, and --columns can name them'}"
                    )
                sentences += _sentences(f"{source}, split {name}", name, table, columns_read, repair, tell, skip)
            splits[split] = sentences
    return splits


@contextlib.contextmanager
def _as_corpus_error(source: str, expectation: str) -> Iterator[None]:
    """Convert any error of a library in the ``with`` block to a CorpusError that reports its original cause.

    An error that reports a lack of memory is raised unchanged.
    """
    try:
        yield
    except CorpusError:
        raise
    except MtlpruneError as error:
        raise CorpusError(str(error)) from error
    # Libraries and servers raise exceptions of many types here, so every type is caught.
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if out_of_memory(cause):
            raise
        problem = " ".join(str(cause).split())[:300]
        raise CorpusError(
            f"{source}: expected {expectation}, found {type(cause).__name__}: {problem or 'no word'}"
        ) from error


def _splits(source: str, available: Sequence[str], names_by_split: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the splits of the data set that form each split of the corpus.

    Raises:
        CorpusError: a named split does not exist, or names are needed to assign the splits.
    """
    tables_by_split = {split: list(names) for split, names in names_by_split.items() if names}
    for split, names in tables_by_split.items():
        if unknown := [name for name in names if name not in available]:
            raise CorpusError(
                f"{source}: --{split}: expected one of the splits {', '.join(available)}, found {unknown[0]!r}"
            )
    for name in () if tables_by_split else available:
        tables_by_split.setdefault(_SPLITS.get(name, name), []).append(name)
        if not re.fullmatch(r"\w+", name) or len(tables_by_split[_SPLITS.get(name, name)]) > 1:
            problem = f"splits train, dev (or validation) and test, found {', '.join(available)}"
            raise CorpusError(f"{source}: expected {problem}; name them with --train NAME --dev NAME --test NAME")
    return tables_by_split


def _tables(source: str, cache: str) -> dict[str, Any]:
    """Return the table (datasets.Dataset) of each split by its name.

    Raises:
        CorpusError: the data set cannot be found or has another format.
    """
    import datasets
    from huggingface_hub import constants

    path, options = Path(source), {}
    if path.is_file():
        kind = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}.get(path.suffix)
        if kind is None:
            problem = "a dataset (.parquet, .json, .jsonl, or a folder of them), found a file of another kind"
            raise CorpusError(f"{source}: expected {problem}; for lines of text name another format, such as columns")
        options = {"path": kind, "data_files": source, "cache_dir": cache}
    elif path.exists():
        options = {"path": source, "cache_dir": cache}
    else:
        # Without this check, the library would retry for a long time before it reports that the hub is unreachable.
        if not constants.HF_HUB_OFFLINE and not is_reachable(constants.ENDPOINT):
            hub = f"the hub ({constants.ENDPOINT}) cannot be reached; check the path, or connect to the hub"
            raise CorpusError(f"{source}: expected a folder or file, found none, and {hub}")
        name, subset, revision = re.fullmatch(r"([^:@]*)(?::([^@]*))?(?:@(.*))?", source).groups()  # type: ignore[union-attr]
        options = {"path": name, "name": subset, "revision": revision}
    _check_files([path] if path.is_file() else [*path.rglob("*.*")])
    if not path.is_file():
        _refuse_outside_files(_descriptions(options.get("path", source), options.get("revision")))
    # The library would read a path with * or [ as a pattern and find nothing, so it gets a link without these.
    if has_magic(source) and path.exists():
        link, resolved = Path(cache, f"rows{path.suffix}"), path.resolve()
        link.symlink_to(resolved) if path.is_file() else shutil.copytree(resolved, link, copy_function=os.symlink)
        options = {key: str(link) if value == source else value for key, value in options.items()}
    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
        loaded: Any = datasets.load_from_disk(source) if saved else datasets.load_dataset(**options)
    finally:
        if not hidden:
            datasets.enable_progress_bars()
    for rows in loaded.values() if not saved else ():
        for name, feature in rows.features.items():
            # The library reads a column of both text and numbers as JSON, with quotes around the text. Labels would
            # then be wrong, so the column is refused.
            if "Json(" in repr(feature):
                problem = "values of one kind, found several, such as text and numbers; write text into all rows"
                raise CorpusError(f"{source}, column {name}: expected {problem}")
    return {str(split): rows for split, rows in (loaded if isinstance(loaded, dict) else {"all": loaded}).items()}


def _label_names(location: str, features: Any) -> dict[str, Sequence[str]]:
    """Return the names of the labels that the numbers in each column of lists encode.

    Raises CorpusError if a name is not text.
    """
    inner = {name: getattr(feature, "feature", None) for name, feature in features.items()}
    labels = {name: names for name, feature in inner.items() if (names := getattr(feature, "names", None)) is not None}
    for name, names in labels.items():
        if wrong := [label for label in names if not isinstance(label, str)]:
            raise CorpusError(f"{location}, column {name}: expected names of labels, found {wrong[0]!r}; write text")
    return labels


def _rows(source: str, table: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict from column names to values."""
    with _as_corpus_error(source, "rows"):
        for batch in table.select_columns(names).with_format("arrow").iter(1000):
            columns = [batch.column(name).to_pylist() for name in names]
            yield from (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


# -- Descriptions of a data set: these may only refer to files inside its folder, because the library would otherwise
# read any file or address that a downloaded description names --

_OUTSIDE_FOLDER = re.compile(r"^[/\\~]|^\w:[/\\]|(^|[/\\])\.\.([/\\]|$)|://|::")
_README, _YAML = "README.md", ".huggingface.yaml"


def _descriptions(source: str, revision: str | None) -> Iterator[Path]:
    """Yield the existing files that describe where the files of a data set are."""
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


def _refuse_outside_files(descriptions: Iterable[Path]) -> None:
    """Raise CorpusError if a description names an address, or a file outside the folder of the data set."""
    from huggingface_hub import metadata_load

    for file in descriptions:
        with _as_corpus_error(str(file), "a description of a dataset"):
            read: Any = {_README: metadata_load, _YAML: read_yaml}.get(file.name, read_json)
            file_names = list(_strings(read(file)))
        if outside_names := [name for name in file_names if _OUTSIDE_FOLDER.search(name)]:
            problem = f"names of files in the folder of the dataset, found {outside_names[0]!r}"
            raise CorpusError(f"{file}: expected {problem}; put the file there and correct the name")


def _strings(value: Any, is_data_file: bool = False) -> Iterator[str]:
    """Yield all text in a description under the keys that name files."""
    if isinstance(value, str) and is_data_file:
        yield value
    for part in value if isinstance(value, list) else ():
        yield from _strings(part, is_data_file)
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from _strings(part, is_data_file or key in ("data_files", "data_dir", "_data_files", "splits"))


# -- Files of rows -----------------------------------------------------------------------------------------------------


def _check_files(files: Iterable[Path]) -> None:
    """Raise CorpusError if JSON is empty or not UTF-8, or Parquet files give different names to the labels of a column.

    The library does not check this.
    """
    from datasets import Features
    from pyarrow import parquet

    names: dict[str, Sequence[str]] = {}
    for file in sorted(files):
        text = file.suffix in (".json", ".jsonl")
        # A sum reads all lines, so that each line is checked to be UTF-8.
        if text and not sum(bool(line.text.strip()) for line in formats.read_lines(file)):
            raise CorpusError(f"{file}: expected rows of a dataset, found none; check the file")
        with _as_corpus_error(str(file), "a dataset"):
            features = Features.from_arrow_schema(parquet.read_schema(file)) if file.suffix == ".parquet" else {}
            for name, label_names in _label_names(str(file), features).items():
                if names.setdefault(name, label_names) != label_names:
                    problem = (
                        f"the labels {', '.join(names[name])} as in the files before, found {', '.join(label_names)}"
                    )
                    raise CorpusError(
                        f"{file}, column {name}: expected {problem}; build the files separately, and merge the corpora"
                    )


# -- Sentences from rows -----------------------------------------------------------------------------------------------


def _choose(source: str, names: Sequence[str], columns: str | None) -> dict[str, FileColumn]:
    """Return the content of each column that is read, from ``--columns`` or from the usual names.

    Raises:
        CorpusError: a column is missing or named twice, no column has words, or a content cannot be read.
    """
    if columns is None:
        columns_by_name = {name: _USUAL_COLUMNS[name] for name in names if name in _USUAL_COLUMNS}
        if not {"head", "relation"} <= set(columns_by_name.values()):
            columns_by_name = {
                name: content for name, content in columns_by_name.items() if content not in ("head", "relation")
            }
        # If a data set has columns for both UPOS and XPOS, UPOS becomes pos, because every treebank has UPOS.
        if "pos" not in columns_by_name.values():
            tags = next((name for name in ("upos", "xpos") if name in columns_by_name), None)
            columns_by_name |= {tags: "pos"} if tags else {}
        # If several columns have the same content, such as tokens and words, the first of them is read.
        names_by_content: dict[str, str] = {}
        for name, content in columns_by_name.items():
            names_by_content.setdefault(content, name)
        columns_by_name = {name: content for content, name in names_by_content.items()}
    else:
        pairs = [part.strip().rpartition("=")[::2] for part in columns.split(",")]
        columns_by_name = dict(pairs)
        if len(columns_by_name) < len(pairs):
            raise CorpusError(f"--columns: expected each column once, found one named twice in {columns!r}")
    wrong = sorted(set(columns_by_name) - set(names))
    if wrong or WORD not in columns_by_name.values():
        problem = f"no column {wrong[0] or '(say NAME=word)'!r}" if wrong else f"no column with {WORD}s"
        raise CorpusError(
            f"{source}: found {problem}; it has {', '.join(names)}; name their contents, such as --columns "
            "tokens=word,tags=ner"
        )
    contents = parse_columns(",".join(columns_by_name.values()))
    if any(column.kind == "frames" for column in contents):
        raise CorpusError(f"{source}: frames cannot be read from a dataset; use propbank or jsonl")
    return dict(zip(columns_by_name, contents, strict=True))


def _sentences(
    source: str,
    split: str,
    table: Any,
    columns: Mapping[str, FileColumn],
    repair: bool,
    tell: formats.Tell,
    skip: formats.Skip | None,
) -> Iterator[Sentence]:
    """Yield the sentences of a split with one value per word.

    Raises:
        CorpusError: a row does not have one value per word.
    """
    labels = _label_names(source, table.features)
    names = [name for name in columns if columns[name].name != SKIP]
    sentences = []
    for number, row in enumerate(_rows(source, table, names)):
        with formats.skipping(skip), formats.on_lines(source, [(number, None)], unit="row"):
            cells = {columns[name]: _cells(row, name, labels.get(name), columns[name]) for name in names}
            words = next(values for column, values in cells.items() if column.name == WORD)
            for name, values in zip(names, cells.values(), strict=True):
                if len(values) != len(words) and columns[name].name != "id":
                    problem = f"column {name}: expected one value per word, found {len(values)} for {len(words)} words"
                    raise formats.malformed(source, number, f"{problem}; repair the row", "row")
            if words:
                sentences.append((number, cells))
    notation = Notation(list(columns.values()), lambda column: (cells[column] for _, cells in sentences), repair)
    for number, cells in sentences:
        row_id = next((values[0] for column, values in cells.items() if column.name == "id" and values), None)
        plain = {column: values for column, values in cells.items() if column.name != "id"}
        rows = [(number, None)] * len(next(values for column, values in cells.items() if column.name == WORD))
        with formats.skipping(skip):
            yield assemble(source, rows, row_id or f"{split}-{number}", plain, notation, "row")
    for line in notation.converted():
        tell(f"{source}: {line}")


def _whole_rows(
    source: str, split: str, table: Any, columns: str, skip: formats.Skip | None, unread_layers: Container[str]
) -> Iterator[Sentence]:
    """Yield the sentences or pairs of a split with one text or pair of texts per row.

    Raises:
        CorpusError: a column does not exist.
    """
    contents = parse_row_columns(columns)
    if wrong := sorted(set(contents) - set(table.column_names)):
        have = ", ".join(table.column_names)
        raise CorpusError(f"{source}: found no column {wrong[0]!r}; it has {have}; correct --columns")
    label_names = {
        name: names for name, feature in table.features.items() if (names := getattr(feature, "names", None))
    }
    names = _label_names(source, table.features) | label_names
    for number, row in enumerate(_rows(source, table, list(contents))):
        with formats.skipping(skip):
            yield row_sentence(source, number, "row", row, contents, f"{split}-{number}", unread_layers, names)


def _cells(row: Mapping[str, Any], name: str, labels: Sequence[str] | None, column: FileColumn) -> list[str]:
    """Return one text per word, with ``_`` for an unknown value; of a column of ids, only the id if there is one.

    Raises formats.WordError.
    """
    value = row.get(name)
    if column.name == "id" and (value is None or type(value) in (str, int)):
        return [] if value is None else [str(value)]
    if column.name == "id" or not isinstance(value, list) or any(isinstance(cell, list | dict) for cell in value):
        expectation = "a text" if column.name == "id" else "a list with one value per word"
        raise formats.WordError(0, f"column {name}: expected {expectation}, found {str(value)[:60]!r}")
    return [_cell(f"column {name}: word {index}", cell, labels, column.name) for index, cell in enumerate(value)]


def _cell(location: str, cell: Any, labels: Sequence[str] | None, content: str) -> str:
    """Return the text of one value, or ``_`` if it is unknown. Raises formats.WordError."""
    if isinstance(cell, str) and (labels is None or cell in labels):
        return cell
    if (labels is not None and cell in _UNKNOWN) or (cell is None and content != WORD):
        return "_"
    if labels is not None:
        if type(cell) is int and 0 <= cell < len(labels):
            return labels[cell]
        problem = f"a label from 0 to {len(labels) - 1}, or one of their names (ClassLabel), found {cell!r}; correct it"
    elif type(cell) is not int:
        problem = f"text, found {cell!r}; write text into this column"
    elif content not in (WORD, "head", "lemma"):
        problem = "labels, found numbers that have no names (ClassLabel); write text"
    else:
        return str(cell)
    raise formats.WordError(0, f"{location}: expected {problem}")
