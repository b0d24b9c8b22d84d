"""Run records: run folders without weights and without text, small enough to be kept with the results they explain.

RECORDS/NAME/                 a record: the files of the run folder NAME, but for these
    record.json               that it is one: version, digests, SHA-256 of every file, which gold tables it refers to
    counts/SPLIT.parquet      in the place of counts/SPLIT.json
    labels/SPLIT.parquet      counts of every label in every sentence, in the place of predictions and corpus
RECORDS/gold/DATA-SPLIT.counts.parquet, DATA-SPLIT.labels.parquet
                              both tables as a perfect prediction has them; a record holds how its run differs
RECORDS/sweep.json            of a recorded sweep

This file knows the tables and checks records; mtlprune.sweeps.recording makes records of runs.

Letters: N sentences.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtlprune.io.files import RunError, read_json, reading, replacing
from mtlprune.io.strict import in_words

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "record.json"
GOLD = "gold"
VERSION = 1
ANEW = "make the record anew with `mtlprune runs record`"

Counts = Mapping[str, Mapping[str, Sequence[int | None]]]
"""Task → name of a count → N numbers; None: the layer of that sentence is unknown."""
Labels = Mapping[str, Sequence[Mapping[str, tuple[int, int, int]] | None]]
"""Task → N times label → correct, gold, predicted; None: the layer of that sentence is unknown."""


@dataclass(frozen=True)
class GoldTables:
    """A split as a perfect prediction counts it."""

    ids: Sequence[str]
    counts: Counts
    labels: Mapping[str, Sequence[Mapping[str, int]]]
    """Task → N times label → gold items."""

    def known(self, task: str) -> list[bool]:
        """Of each sentence, whether gold knows the layer."""
        columns = list(self.counts.get(task, {}).values())
        return [value is not None for value in columns[0]] if columns else [False] * len(self.ids)


# -- checking ----------------------------------------------------------------------------------------------------------


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def contents(folder: Path) -> list[str]:
    """Names of the files in a folder and below, record.json and hidden ones left out."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(name) for name in names if str(name) != FILE and not any(part.startswith(".") for part in name.parts)]


def read_record(folder: Path) -> dict[str, Any]:
    """record.json of a record whose files are those it was made with.

    Raises:
        RunError: it is damaged or of another version, or a file is missing, changed or added.
    """
    tree = read_json(folder / FILE, RunError, ANEW)
    version = tree.get("version") if isinstance(tree, dict) else None
    if version != VERSION:
        raise RunError(f"{folder / FILE}: expected a record of version {VERSION}, found {in_words(version)}; {ANEW}")
    files, gold = tree.get("files"), tree.get("gold")
    if not isinstance(files, dict) or not isinstance(gold, dict) or not isinstance(tree.get("run"), str):
        raise RunError(f"{folder / FILE}: expected run, files and gold of a record; {ANEW}")
    different = sorted(files.keys() ^ set(contents(folder)))
    if different:
        what = "is missing" if different[0] in files else "is no part of this record"
        raise RunError(f"{folder / different[0]} {what}; {ANEW}")
    for name, wanted in files.items():
        with reading(folder / name, RunError, ANEW):
            if digest((folder / name).read_bytes()) != wanted:
                raise RunError(f"{folder / name} is not as it was recorded (its SHA-256 differs); {ANEW}")
    return tree


# -- tables ------------------------------------------------------------------------------------------------------------


def write_gold(folder: Path, name: str, gold: GoldTables) -> str:
    """Write both gold tables, or keep those that hold the same; gives their digest.

    Records refer to them by it, so they stay as they are even where another version of pyarrow would write other bytes.
    """
    with contextlib.suppress(RunError, OSError):
        mark = _gold_digest(folder, name)
        if read_gold(folder, name, mark) == gold:
            return mark
    rows = [
        (task, place, label, number)
        for task, sentences in gold.labels.items()
        for place, labels in enumerate(sentences)
        for label, number in sorted(labels.items())
    ]
    tables = {"counts": _counts_table(gold.counts, gold.ids), "labels": _rows_table(rows, ("items",))}
    for kind, table in tables.items():
        with replacing(_gold_path(folder, name, kind)) as beside:
            _write_parquet(beside, table)
    return _gold_digest(folder, name)


def _gold_path(folder: Path, name: str, kind: str) -> Path:
    return folder / GOLD / f"{name}.{kind}.parquet"


def _gold_digest(folder: Path, name: str) -> str:
    return digest(b"".join(_gold_path(folder, name, kind).read_bytes() for kind in ("counts", "labels")))


@functools.lru_cache(maxsize=8)
def read_gold(folder: Path, name: str, wanted: str) -> GoldTables:
    """Gold tables of RECORDS. Not to be changed: they are read once.

    Args:
        folder: RECORDS, in which records lie.
        wanted: their digest.

    Raises:
        RunError: they are missing, damaged, or others than the record was made with.
    """
    where = f"{folder / GOLD / name}.*.parquet"
    with reading(where, RunError, "a record is read beside the folder gold that was made with it: copy both"):
        if _gold_digest(folder, name) != wanted:
            raise RunError(f"{where} are not those that the record was made with (their SHA-256 differs); {ANEW}")
        ids, counts = _from_counts_table(_read_parquet(_gold_path(folder, name, "counts")))
        labels: dict[str, list[dict[str, int]]] = {task: [{} for _ in ids] for task in counts}
        for task, place, label, number in _rows(_read_parquet(_gold_path(folder, name, "labels"))):
            labels[task][place][label] = number
    return GoldTables(ids, counts, labels)


def write_counts(path: Path, ids: Sequence[str], counts: Counts, gold: GoldTables | None) -> None:
    """Counts of a run on a split, as differences to gold where that is given.

    Raises:
        RunError: the counts are not of the sentences of ``gold``.
    """
    if gold is None:
        _write_parquet(path, _counts_table(counts, ids))
        return
    if list(ids) != list(gold.ids):
        raise RunError("its counts are not of the sentences that the corpus has")
    differences: dict[str, dict[str, list[int]]] = {}
    for task, columns in counts.items():
        for name, values in columns.items():
            if [value is not None for value in values] != gold.known(task):
                raise RunError(f"its counts of {task} know other sentences than the corpus does")
            perfect = gold.counts[task].get(name, [0] * len(ids))
            pairs = zip(values, perfect, strict=True)
            differences.setdefault(task, {})[name] = [(mine or 0) - (theirs or 0) for mine, theirs in pairs]
    _write_parquet(path, _counts_table(differences))


def read_counts(path: Path, gold: GoldTables | None) -> dict[str, Any]:
    """ids and counts, as counts/SPLIT.json of a run has them. Raises RunError where the file is damaged."""
    with reading(path, RunError, ANEW):
        ids, stored = _from_counts_table(_read_parquet(path))
        if gold is None:
            return {"ids": ids, "counts": stored}
        counts: dict[str, dict[str, list[int | None]]] = {}
        for task, columns in stored.items():
            known = gold.known(task)
            for name, values in columns.items():
                perfect = gold.counts[task].get(name, [0] * len(known))
                rows = zip(values, perfect, known, strict=True)
                whole = [mine + (theirs or 0) if there else None for mine, theirs, there in rows]
                counts.setdefault(task, {})[name] = whole
        return {"ids": list(gold.ids), "counts": counts}


def write_labels(path: Path, labels: Labels) -> None:
    """Where a run differs from gold: labels it missed, and labels it gave wrongly."""
    rows = [
        (task, place, label, gold - correct, predicted - correct)
        for task, sentences in labels.items()
        for place, counted in enumerate(sentences)
        for label, (correct, gold, predicted) in sorted((counted or {}).items())
        if not correct == gold == predicted
    ]
    _write_parquet(path, _rows_table(rows, ("missed", "wrong")))


def read_labels(path: Path, gold: GoldTables, task: str) -> list[dict[str, tuple[int, int, int]] | None]:
    """Correct, gold and predicted items of every label by sentence. Raises RunError where the file is damaged."""
    with reading(path, RunError, ANEW):
        found: list[dict[str, tuple[int, int, int]] | None] = [
            {label: (number, number, number) for label, number in labels.items()} if known else None
            for labels, known in zip(gold.labels[task], gold.known(task), strict=True)
        ]
        for its, place, label, missed, wrong in _rows(_read_parquet(path)):
            counted = found[place] if its == task else None
            if counted is not None:
                items = gold.labels[task][place].get(label, 0)
                counted[label] = (items - missed, items, items - missed + wrong)
        return found


def _counts_table(
    counts: Mapping[str, Mapping[str, Sequence[int | None]]], ids: Sequence[str] | None = None
) -> pa.Table:
    import pyarrow as pa

    arrays = {} if ids is None else {"id": pa.array(ids, pa.string())}
    columns = {f"{task}.{name}": values for task, named in counts.items() for name, values in named.items()}
    return pa.table(arrays | {name: pa.array(values, pa.int32()) for name, values in columns.items()})


def _from_counts_table(table: pa.Table) -> tuple[list[str], dict[str, dict[str, list[Any]]]]:
    counts: dict[str, dict[str, list[Any]]] = {}
    for column in table.column_names:
        task, dot, name = column.partition(".")
        if dot:
            counts.setdefault(task, {})[name] = table[column].to_pylist()
    return table["id"].to_pylist() if "id" in table.column_names else [], counts


def _rows_table(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> pa.Table:
    """Long form: task, sentence (its place in the split), label, numbers."""
    import pyarrow as pa

    kinds = [pa.string(), pa.int32(), pa.string(), *[pa.int32()] * len(names)]
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table(arrays, ["task", "sentence", "label", *names])


def _rows(table: pa.Table) -> zip[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _write_parquet(path: Path, table: pa.Table) -> None:
    """Small, and the same bytes for the same table; not yet on disk when this returns."""
    import pyarrow.parquet as pq

    packed = {"id": "DELTA_BYTE_ARRAY", "sentence": "DELTA_BINARY_PACKED"}
    packed = {name: packed[name] for name in table.column_names if name in packed}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        store_schema=False,
        write_statistics=False,
        use_dictionary=[name for name in table.column_names if name not in packed],
        column_encoding=packed,
    )


def _read_parquet(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(path, memory_map=False)
