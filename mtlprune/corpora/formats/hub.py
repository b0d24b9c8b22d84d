"""Datasets in Hugging Face form: a name of the hub, a folder that save_to_disk wrote, or files of rows."""

import contextlib
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtlprune.corpora import CorpusError, answers
from mtlprune.corpora.formats import Skip, skipping
from mtlprune.corpora.formats.columns import SKIP, WORD, FileColumn, Notation, assemble, parse_columns, without
from mtlprune.errors import out_of_memory
from mtlprune.sentence import Sentence

USUAL = {
    "tokens": WORD, "words": WORD, "form": WORD, "pos_tags": "pos", "pos": "pos", "upos": "upos:tags",
    "xpos": "xpos:tags", "ner_tags": "ner", "ner": "ner", "chunk_tags": "chunk:spans", "head": "head",
    "deprel": "relation", "id": "id", "sent_id": "id",
}  # fmt: skip
"""Names of columns that are understood if nobody says what they hold."""
_SPLITS = {"validation": "dev", "valid": "dev", "val": "dev"}
_ROWS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}


def read_dataset(
    source: str,
    columns: str | None = None,
    subset: str | None = None,
    revision: str | None = None,
    repair: bool = False,
    tell: Any = lambda line: None,
    skip: Skip | None = None,
    unread: Container[str] = (),
) -> dict[str, Sequence[Sentence]]:
    """Read a dataset whose rows are sentences and whose columns are lists with a value a word.

    Args:
        source: a folder of ``save_to_disk``, a file or folder of Parquet or JSON rows, else a name of the hub.
        columns: ``tokens=word,labels=ner``; the usual ones, if not given. Numbers with names (ClassLabel) become those.
        subset, revision: of a name of the hub.
        repair: as in ``read_columns``.
        tell: is given what was taken for what, and what was converted.
        skip, unread: as in ``read_columns``.

    Returns:
        split → sentences; validation is called dev.

    Raises:
        CorpusError: the hub cannot be reached, there is no such dataset, or a row is malformed; in words.
    """
    with _loaded(source, subset, revision) as loaded:
        splits: dict[str, Sequence[Sentence]] = {}
        for split, rows in loaded.items():
            chosen = _choose(source, list(rows.column_names), columns)
            chosen = dict(zip(chosen, without(list(chosen.values()), unread), strict=True))
            if not splits:
                told = ", ".join(f"{name} as {column.name}" for name, column in chosen.items())
                rest = ", ".join(name for name in rows.column_names if name not in chosen)
                tell(f"{source}: read {told}{rest and f'; left out {rest}, which --columns can name'}")
            splits[_SPLITS.get(split, split)] = list(_sentences(source, split, rows, chosen, repair, tell, skip))
    return splits


@contextlib.contextmanager
def _loaded(source: str, subset: str | None, revision: str | None) -> Iterator[Mapping[str, Any]]:
    """Splits by name; what local files are turned into on the way does not stay."""
    import datasets
    from huggingface_hub import constants

    path = Path(source)
    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="mtlprune-") as cache:
        try:
            if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
                loaded = datasets.load_from_disk(source)
            elif path.is_file() and path.suffix in _ROWS:
                loaded = datasets.load_dataset(_ROWS[path.suffix], data_files=source, cache_dir=cache)
            elif path.exists():
                loaded = datasets.load_dataset(source, subset, cache_dir=cache)
            else:
                if not constants.HF_HUB_OFFLINE and not answers(constants.ENDPOINT):  # the library would try long
                    hub = f"the hub ({constants.ENDPOINT}) cannot be reached; check the path, or connect to the hub"
                    raise CorpusError(f"{source}: expected a folder or file, found none, and {hub}")
                loaded = datasets.load_dataset(source, subset, revision=revision)
        except CorpusError:
            raise
        except Exception as error:  # the library and those below it raise of all kinds
            if out_of_memory(error):
                raise
            what = " ".join(str(error).split())[:300] or type(error).__name__
            wanted = "a dataset" if path.exists() else "a folder, or a dataset of the hub that can be reached"
            raise CorpusError(f"{source}: expected {wanted}, found {type(error).__name__}: {what}") from error
        finally:
            if not hidden:
                datasets.enable_progress_bars()
        yield loaded if isinstance(loaded, dict) else {"all": loaded}


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
        given = dict(part.strip().rpartition("=")[::2] for part in columns.split(","))
    wrong = sorted(set(given) - set(names))
    if wrong or WORD not in given.values():
        what = f"no column {wrong[0] or '(say NAME=word)'!r}" if wrong else f"no column that is known to be {WORD}s"
        have = ", ".join(names)
        raise CorpusError(f"{source}: found {what}; it has {have}; say what they hold: --columns tokens=word,tags=ner")
    found = parse_columns(",".join(given.values()))
    if any(column.kind == "frames" for column in found):
        raise CorpusError(f"{source}: frames cannot be read from a dataset; use propbank or jsonl")
    return dict(zip(given, found, strict=True))


def _sentences(
    source: str, split: str, rows: Any, columns: Mapping[str, FileColumn], repair: bool, tell: Any, skip: Skip | None
) -> Iterator[Sentence]:
    table = rows.select_columns([name for name in columns if columns[name].name != SKIP])
    inner = {name: getattr(feature, "feature", None) for name, feature in table.features.items()}
    names = {name: getattr(feature, "names", None) for name, feature in inner.items()}
    turned = []
    for number, row in enumerate(table):
        where = f"{source}, split {split}, row {number}"
        with skipping(skip):
            named = {name: _cells(where, name, value, names[name], columns[name]) for name, value in row.items()}
            cells = {columns[name]: values for name, values in named.items()}
            words = next(values for column, values in cells.items() if column.name == WORD)
            for name, values in named.items():
                if len(values) != len(words) and columns[name].name != "id":
                    what = f"expected a value a word, found {len(values)} for {len(words)} words"
                    raise CorpusError(f"{where}, column {name}: {what}; repair the row")
            if words:
                turned.append((number, cells))
    kinds = list(columns.values())
    notation = Notation(kinds, lambda column: (cells[column] for _, cells in turned), repair)
    for number, cells in turned:
        own = next((values[0] for column, values in cells.items() if column.name == "id" and values), None)
        places = [(number, word) for word in next(v for c, v in cells.items() if c.name == WORD)]
        plain = {column: values for column, values in cells.items() if column.name != "id"}
        with skipping(skip):
            yield assemble(f"{source}, split {split}", places, own or f"{split}-{number}", plain, notation, "row")
    for line in notation.converted():
        tell(f"{source}, split {split}: {line}")


def _cells(where: str, name: str, value: Any, names: Sequence[str] | None, column: FileColumn) -> list[str]:
    """A text a word; unknown ones are _."""
    if column.name == "id":
        return [str(value)]
    if not isinstance(value, list) or any(isinstance(cell, list | dict) for cell in value):
        raise CorpusError(f"{where}, column {name}: expected a list with a value a word, found {str(value)[:60]!r}")
    if names is None:
        if column.kind in ("tags", "spans") and any(isinstance(cell, int) for cell in value):
            what = "found numbers that have no names (ClassLabel); put texts in their place"
            raise CorpusError(f"{where}, column {name}: expected labels, {what}")
        return ["_" if cell is None else str(cell) for cell in value]
    return ["_" if cell is None or cell < 0 else names[cell] for cell in value]
