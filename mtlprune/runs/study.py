"""Studies: finished runs that are packed into two files without weights and corpus text, small enough to be published.

STUDY/study.json         cells and their runs, the sweep, and the SHA-256 of the table
STUDY/runs-SHA.parquet   one row per run: name, tasks, seed, and the text of its small files (one column per file)

RunFolder("STUDY/NAME") reads a run of a study like a run folder, and mtlprune.sweeps.packing packs runs. The table is
sorted by run, and several runs are compressed together, because the counts of a sentence differ little between runs.
The column counts/SPLIT.json is the file of the run. The column labels/SPLIT.json replaces predictions and corpus and
counts every label in every sentence. The name of the table contains the beginning of its SHA-256, and study.json is
replaced last, so a process that is killed while it adds runs leaves the study unchanged.
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
    remove_temporary_paths,
    verify_file,
    write_bytes,
    write_json,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FILE = "study.json"
MAJORITY = "majority.json"
"""File next to the runs of a comparison or a study: fingerprint of the corpus → split → layer → majority baseline."""
FORMAT, VERSION = "mtlprune study", 1
REMEDY = "restore the file, or pack the runs again with `mtlprune runs pack`"
"""Advice in errors about a damaged study."""
ROWS = 16
"""Number of runs that are compressed together. Reading a large file of one run reads those of the others as well."""
_LARGE = ("counts/", "labels/")
"""Prefixes of large files, which are read only when needed. All small files of a study are read at once."""


@dataclass(frozen=True)
class Study:
    """A study: the content of study.json, with access to the table of runs."""

    folder: Path
    sha256: str
    cells: Mapping[str, str | None]
    """Cell → run, in the order of the sweep; None if the cell was not packed. A run that belongs to no sweep counts as
    a cell."""
    sweep: Mapping[str, str] = field(default_factory=dict)
    """Keys "name" and "file" of the sweep; empty if the runs belong to no sweep."""

    @property
    def table(self) -> pq.ParquetFile:
        """The table of runs. Raises RunError if it is not the file that was written."""
        return _open_table(_path(self.folder, self.sha256), self.sha256)

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The row of each run, as values by column, without large files."""
        small = [name for name in self.table.schema_arrow.names if not name.startswith(_LARGE)]
        return {row["run"]: row for row in self.table.read(small).to_pylist()}

    def paths(self, pattern: str = "*") -> list[Path]:
        """Return the paths (STUDY/NAME) of the packed runs whose cells match a pattern (see ``matches``)."""
        return [self.folder / run for cell, run in self.cells.items() if run is not None and matches(cell, pattern)]

    def text(self, run: str, name: str) -> str | None:
        """Return the text of a file of a run, or None if the run has no file of this name."""
        if not name.startswith(_LARGE):
            return self.rows[run].get(name)
        group, row = divmod(list(self.rows).index(run), ROWS)
        return _read_group(_path(self.folder, self.sha256), self.sha256, group, name)[row]


def _path(folder: Path, digest: str) -> Path:
    return folder / f"runs-{digest[:8]}.parquet"


def tables(folder: Path) -> list[Path]:
    """Return the tables in the folder of a study: the current one, and those that killed processes left behind.

    A file counts as a table only if its name contains the beginning of its SHA-256, so that no other file is removed.
    """
    paths = sorted(folder.glob("runs-????????.parquet"))
    return [path for path in paths if path.is_file() and _path(folder, file_sha256(path)) == path]


@functools.lru_cache(maxsize=64)
def _open_table(path: Path, digest: str) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    if len(table_files := tables(path.parent)) == 1 and sha256(table_files[0].read_bytes()).hexdigest() != digest:
        raise RunError(
            f"{path.parent / FILE} was changed or damaged, because it names another table than {table_files[0].name}; "
            f"{REMEDY}"
        )
    verify_file(path, digest, REMEDY)
    return pq.ParquetFile(path)


@functools.lru_cache(maxsize=16)
def _read_group(path: Path, digest: str, group: int, name: str) -> list[str | None]:
    table = _open_table(path, digest)
    has_column = name in table.schema_arrow.names
    return table.read_row_group(group, [name])[name].to_pylist() if has_column else [None] * ROWS


def matches(cell: str, pattern: str) -> bool:
    """Return True if the name of a cell matches a pattern, or one of several patterns that are separated by commas."""
    return any(fnmatch.fnmatchcase(cell, part) for part in pattern.split(","))


def open_study(folder: Path) -> Study | None:
    """Open the study in a folder; None if there is no study. Raises RunError if it is damaged."""
    try:
        status = (folder / FILE).stat()
    except OSError:
        return None
    return _read_study(folder, status.st_ino, status.st_mtime_ns)


def read_study(folder: Path) -> Study:
    """Read the study in a folder. Raises RunError if there is no study, or if it is damaged."""
    if (study := open_study(folder)) is None:
        raise RunError(f"{folder}: expected a study with {FILE}, found none; `mtlprune runs pack` makes one")
    return study


@functools.lru_cache(maxsize=64)
def _read_study(folder: Path, *_: int) -> Study:
    path = folder / FILE
    tree = read_json(path, RunError, REMEDY)
    with reading(path, RunError, REMEDY):
        if (tree.pop("format"), version := tree.pop("version")) != (FORMAT, VERSION):
            raise ValueError(f"expected a study of version {VERSION}, found {version!r}")
        study = Study(folder, **tree)
        for name in (study.sha256, *(run for run in study.cells.values() if run is not None)):
            path_inside(folder, name, path)
        return study


class PackedRun:
    """A run of a study, whose files are texts in the table of the study."""

    def __init__(self, study: Study, name: str) -> None:
        self.study, self.name = study, name

    def text(self, name: str) -> str | None:
        """Return the text of a file, or None if the run has no file of this name."""
        return self.study.text(self.name, name)

    def files(self) -> list[str]:
        """Return the names of the run's small files, sorted."""
        row = self.study.rows[self.name]
        return sorted(name for name in row if "." in name and row[name] is not None)


def packed_run(path: Path) -> PackedRun | None:
    """Return the run at a path STUDY/NAME, or None if the path is no such run. Raises RunError if the study is
    damaged."""
    study = open_study(path.parent)
    return PackedRun(study, path.name) if study is not None and path.name in study.rows else None


def add_runs(
    folder: Path, rows: Mapping[str, Mapping[str, Any]], cells: Mapping[str, str | None], sweep: Mapping[str, str]
) -> None:
    """Add runs to a study, or create the study. Processes that read the study meanwhile read it without the new runs.

    Files that a killed process left behind are removed, also if there is no run to add.

    Args:
        rows: name of a new run → tasks, seed, and the text of each file by name.
        cells: cell → run, as in Study.cells.
        sweep: "name" and "file" of the sweep, as in Study.sweep; empty keeps those of the existing study.

    Raises:
        RunError: the study is damaged or has another run of a cell, another process added a run of the same name, or
            the files cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with one_writer(folder):
        before = open_study(folder)
        remove_temporary_paths(folder)
        previous = {} if before is None else before.cells
        for cell, run in cells.items():
            if run is not None and (previous.get(cell) or run) != run:
                raise RunError(
                    f"{folder}: expected the run {previous[cell]} of the cell {cell}, found {run}; choose another "
                    "--out, or remove this study and pack all runs again"
                )
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
        run_of_cell = {cell: previous.get(cell) or cells.get(cell) for cell in {**cells, **previous}}
        sweep_record = sweep or ({} if before is None else before.sweep)
        write_json(
            folder / FILE,
            {"format": FORMAT, "version": VERSION, "sweep": sweep_record, "sha256": digest, "cells": run_of_cell},
        )
        remove(*{*tables(folder)} - {_path(folder, digest)})
