"""Studies: many finished runs in two files, without weights and text, small enough to be kept with what they show.

STUDY/study.json         cells and their runs, the sweep, and the SHA-256 of the table
STUDY/runs-SHA.parquet   a row a run: name, tasks, seed, and the text of its small files, a column a file

RunFolder("STUDY/NAME") reads a run of a study as it reads a run folder. The table is sorted by run and compressed some
runs at a time, for counts of one sentence differ little among them; counts/SPLIT.json is the file of the run, and
labels/SPLIT.json counts every label in every sentence, in the place of predictions and corpus. The table's name begins
its SHA-256 and study.json is replaced last, so a process that is killed while it adds runs leaves the study as it was.
mtlprune.sweeps.packing packs runs.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtlprune.io.files import (
    RunError,
    file_sha256,
    one_writer,
    path_inside,
    read_json,
    reading,
    remove,
    remove_halves,
    verify_file,
    write_bytes,
    write_json,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FILE = "study.json"
MAJORITY = "majority.json"
"""Beside the runs of a comparison or a study: fingerprint of the corpus → split → layer → majority baseline."""
FORMAT, VERSION = "mtlprune study", 1
ANEW = "restore the file, or pack the runs again with `mtlprune runs pack`"
ROWS = 16
"""Runs that are compressed together: one is not read without the others."""
LARGE = ("counts/", "labels/")
"""Prefixes of the names of files that are read one at a time; all others of a study are read at once."""


@dataclass(frozen=True)
class Study:
    """The content of study.json, and the table beside it."""

    folder: Path
    sha256: str
    cells: Mapping[str, str | None]
    """Cell of the sweep, in its order → its run; None: it was not packed. A run of no sweep is a cell."""
    sweep: Mapping[str, str] = field(default_factory=dict)
    """Its "name" and "file"; nothing for runs of no sweep."""

    @property
    def table(self) -> pq.ParquetFile:
        """Raises RunError where it is not the one that was written."""
        return _open_table(_path(self.folder, self.sha256), self.sha256)

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Run → column → what it holds, but for large files."""
        small = [name for name in self.table.schema_arrow.names if not name.startswith(LARGE)]
        return {row["run"]: row for row in self.table.read(small).to_pylist()}

    def paths(self, pattern: str = "*") -> list[Path]:
        """Runs by the names of their cells; several patterns with commas."""
        return [self.folder / run for cell, run in self.cells.items() if run is not None and matches(cell, pattern)]

    def text(self, run: str, name: str) -> str | None:
        """A file of a run; None where it has none of that name."""
        if not name.startswith(LARGE):
            return self.rows[run].get(name)
        group, row = divmod(list(self.rows).index(run), ROWS)
        return _read_group(_path(self.folder, self.sha256), self.sha256, group, name)[row]


def _path(folder: Path, digest: str) -> Path:
    return folder / f"runs-{digest[:8]}.parquet"


def tables(folder: Path) -> list[Path]:
    """The tables in the folder of a study: the one that study.json names, and those that killed processes left.

    A file is a table of ours where its name is the beginning of its own SHA-256; nobody else's file is ever removed.
    """
    paths = sorted(folder.glob("runs-????????.parquet"))
    return [path for path in paths if path.is_file() and _path(folder, file_sha256(path)) == path]


@functools.lru_cache(maxsize=64)
def _open_table(path: Path, digest: str) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    if len(table_files := tables(path.parent)) == 1 and sha256(table_files[0].read_bytes()).hexdigest() != digest:
        raise RunError(
            f"{path.parent / FILE} was changed or damaged, because it names another table than {table_files[0].name}; "
            f"{ANEW}"
        )
    verify_file(path, digest, ANEW)
    return pq.ParquetFile(path)


@functools.lru_cache(maxsize=16)
def _read_group(path: Path, digest: str, group: int, name: str) -> list[str | None]:
    table = _open_table(path, digest)
    has_column = name in table.schema_arrow.names
    return table.read_row_group(group, [name])[name].to_pylist() if has_column else [None] * ROWS


def matches(cell: str, pattern: str) -> bool:
    """Return True where a pattern, or one of several with commas, means the name of a cell."""
    return any(fnmatch.fnmatchcase(cell, part) for part in pattern.split(","))


def open_study(folder: Path) -> Study | None:
    """The study in a folder; None where there is none. Raises RunError where it is damaged."""
    try:
        status = (folder / FILE).stat()
    except OSError:
        return None
    return _read_study(folder, status.st_ino, status.st_mtime_ns)


def read_study(folder: Path) -> Study:
    """The study in a folder. Raises RunError where there is none, or it is damaged."""
    if (study := open_study(folder)) is None:
        raise RunError(f"{folder}: expected a study with {FILE}, found none; `mtlprune runs pack` makes one")
    return study


@functools.lru_cache(maxsize=64)
def _read_study(folder: Path, *_: int) -> Study:
    path = folder / FILE
    tree = read_json(path, RunError, ANEW)
    with reading(path, RunError, ANEW):
        if (tree.pop("format"), version := tree.pop("version")) != (FORMAT, VERSION):
            raise ValueError(f"expected a study of version {VERSION}, found {version!r}")
        study = Study(folder, **tree)
        for name in (study.sha256, *(run for run in study.cells.values() if run is not None)):
            path_inside(folder, name, path)
        return study


class PackedRun:
    """A run of a study."""

    def __init__(self, study: Study, name: str) -> None:
        self.study, self.name = study, name

    def text(self, name: str) -> str | None:
        """A file; None where the run has none of that name."""
        return self.study.text(self.name, name)

    def files(self) -> list[str]:
        """Names of the small ones."""
        row = self.study.rows[self.name]
        return sorted(name for name in row if "." in name and row[name] is not None)


def packed_run(path: Path) -> PackedRun | None:
    """The run of a study that a path STUDY/NAME means, if there is one. Raises RunError where the study is damaged."""
    study = open_study(path.parent)
    return PackedRun(study, path.name) if study is not None and path.name in study.rows else None


def add_runs(
    folder: Path, rows: Mapping[str, Mapping[str, Any]], cells: Mapping[str, str | None], sweep: Mapping[str, str]
) -> None:
    """Add runs to a study, or begin one; whoever reads it meanwhile reads it as it was. What a process that was killed
    while it added runs has left in the folder goes, also where there is no run to add.

    Args:
        rows: run, which the study does not have → tasks, seed, and name of a file → its text.
        cells: as those of a study.

    Raises:
        RunError: the study is damaged, another process added a run of such a name, or the disk refuses.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with one_writer(folder):
        before = open_study(folder)
        remove_halves(folder)
        if not rows:
            if before is not None:
                remove(*{*tables(folder)} - {_path(folder, before.sha256)})
            return
        previous_rows = {} if before is None else {row["run"]: row for row in before.table.read().to_pylist()}
        if repeated := sorted(previous_rows.keys() & rows.keys()):
            raise RunError(f"{folder} already has a run {repeated[0]}; pack the runs again")
        all_rows: dict[str, Mapping[str, Any]] = {**previous_rows, **rows}
        names = sorted({name for row in all_rows.values() for name in row} - {"run", "tasks", "seed"})
        columns = {name: [all_rows[run].get(name) for run in sorted(all_rows)] for name in ("tasks", "seed", *names)}
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.table({"run": sorted(all_rows), **columns}),
            sink,
            row_group_size=ROWS,
            compression="zstd",
            compression_level=19,
            data_page_size=1 << 26,
            use_dictionary=False,
            write_statistics=False,
        )
        content = sink.getvalue().to_pybytes()
        digest = sha256(content).hexdigest()
        write_bytes(_path(folder, digest), content)
        previous = {} if before is None else before.cells
        digests = {cell: previous.get(cell) or cells.get(cell) for cell in {**cells, **previous}}
        sweep_record = sweep or ({} if before is None else before.sweep)
        write_json(
            folder / FILE,
            {"format": FORMAT, "version": VERSION, "sweep": sweep_record, "sha256": digest, "cells": digests},
        )
        remove(*{*tables(folder)} - {_path(folder, digest)})
