"""Studies: many finished runs in a few files, without weights and text, small enough to be kept with what they show.

STUDY/study.json                 which runs, of which sweep, and the SHA-256 of the other files
STUDY/runs-SHA.parquet           a row a run: name, tasks, seed, and the text of its small files, a column a file
STUDY/counts-SHA.parquet         by run, split, task, count, sentence: the difference to gold; zeros are left out
STUDY/labels-SHA.parquet         by run, split, task, label, sentence: items missed and given wrongly; optional
STUDY/gold/DATA-SPLIT-SHA.json.gz   what a perfect prediction counts, as JSON; may lie elsewhere, for several studies

RunFolder("STUDY/NAME") reads a run of a study as it reads a run folder. Names of files have the start of their SHA-256
and study.json is replaced last, so a process that is killed while it adds runs leaves the study as it was.
mtlprune.sweeps.packing packs runs.

Letters: N sentences.
"""

from __future__ import annotations

import fnmatch
import functools
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any

from mtlprune.io.files import RunError, one_writer, read_json, reading, remove, verify_file, write_bytes, write_json
from mtlprune.io.strict import parse_json, parse_yaml

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "study.json"
FORMAT, VERSION = "mtlprune study", 1
ANEW = "bring that file back, or pack the runs anew with `mtlprune runs pack`"
TABLES = {
    "counts": ("run", "split", "task", "count", "sentence", "difference"),
    "labels": ("run", "split", "task", "label", "sentence", "missed", "wrong"),
}
"""Table → its columns; those from "sentence" on are numbers."""
ROWS = 1 << 13
"""Of a row group: those of a run or two, so that reading a run reads little more."""
COUNTED = "counted"
"""Column of the runs, as JSON: split → the name of its "gold", its "tasks", and whether it has "labels"."""

Counts = Mapping[str, Mapping[str, Sequence[int | None]]]
"""Task → name of a count → N numbers; None: the layer of that sentence is unknown."""
Labels = Mapping[str, Sequence[Mapping[str, tuple[int, int, int]] | None]]
"""Task → N times label → correct, gold, predicted; None: the layer of that sentence is unknown."""


@dataclass(frozen=True)
class Gold:
    """A split as a perfect prediction counts it."""

    ids: Sequence[str]
    counts: Counts
    labels: Mapping[str, Sequence[Mapping[str, int] | None]]
    """Task → N times label → items."""

    def count_differences(self, counts: Counts) -> Iterator[tuple[str, str, int, int]]:
        """Task, name, sentence and difference of each count that differs.

        Raises:
            RunError: other counts than here, or a layer that is unknown in other sentences.
        """
        for task, columns in counts.items():
            own = self.counts.get(task, {})
            if columns.keys() != own.keys():
                raise RunError(f"expected counts of {task} by the names {', '.join(own)}, found {', '.join(columns)}")
            for name, values in columns.items():
                pairs = list(zip(values, own[name], strict=True))
                if any((one is None) != (gold is None) for one, gold in pairs):
                    raise RunError(f"its counts of {task} know other sentences than the corpus does")
                yield from (
                    (task, name, n, (one or 0) - (gold or 0)) for n, (one, gold) in enumerate(pairs) if one != gold
                )

    def label_differences(self, labels: Labels) -> Iterator[tuple[str, str, int, int, int]]:
        """Task, label, sentence, items missed and items given wrongly, where there are any."""
        for task, sentences in labels.items():
            for sentence, counted in enumerate(sentences):
                for label, (correct, gold, predicted) in sorted((counted or {}).items()):
                    if not correct == gold == predicted:
                        yield task, label, sentence, gold - correct, predicted - correct


@functools.lru_cache(maxsize=8)
def read_gold(path: Path, digest: str) -> Gold:
    """The gold of a split, which is not to be changed: it is read once.

    Raises:
        RunError: it is missing or damaged, or its SHA-256 is another one.
    """
    with reading(path, RunError, "a study is read beside its gold: copy both"):
        try:
            text = gzip.decompress(path.read_bytes())
        except (gzip.BadGzipFile, EOFError, zlib.error):
            text = b""
        if sha256(text).hexdigest() != digest:
            raise ValueError("not the gold that the study was packed with")
        return Gold(**parse_json(text.decode()))


# -- reading -----------------------------------------------------------------------------------------------------------


class PackedFile(PosixPath):
    """A file of a run of a study: a path that can be read, though nothing lies there."""

    content: str | None = None

    def is_file(self, **_: Any) -> bool:
        return self.content is not None

    exists = is_file

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        if self.content is None:
            raise FileNotFoundError
        return io.BytesIO(self.content.encode()) if "b" in mode else io.StringIO(self.content)


@dataclass(frozen=True)
class Study:
    """What study.json says, and the tables beside it."""

    cells: Mapping[str, str | None]
    """Cell of the sweep, in its order → its run; None: it was not finished. A run of no sweep is a cell."""
    sweep: Mapping[str, str] = field(default_factory=dict)
    """Its "name" and "file"; nothing for runs of no sweep."""
    gold: Mapping[str, str] = field(default_factory=dict)
    """DATA-SPLIT → SHA-256 of the JSON."""
    gold_folder: str = "gold"
    """As seen from the study."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """runs, counts, labels → SHA-256."""
    folder: Path = Path()

    def table(self, name: str) -> Path:
        """The file of a table. Raises RunError where it is not the one that was written."""
        path = self.folder / f"{name}-{self.tables[name][:8]}.parquet"
        _verify(path, self.tables[name])
        return path

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Run → column → what it holds."""
        import pyarrow.parquet as pq

        return {row["run"]: row for row in pq.read_table(self.table("runs")).to_pylist()} if self.tables else {}

    def paths(self, pattern: str = "*") -> list[Path]:
        """Runs by the names of their cells; several patterns with commas."""
        return [self.folder / run for cell, run in self.cells.items() if run is not None and matches(cell, pattern)]

    def gold_file(self, name: str, digest: str) -> Path:
        return Path(os.path.normpath(self.folder / self.gold_folder)) / f"{name}-{digest[:8]}.json.gz"


_verify = functools.lru_cache(maxsize=256)(functools.partial(verify_file, remedy=ANEW))


def matches(cell: str, pattern: str) -> bool:
    """Whether the name of a cell is one of those that a pattern, or several with commas, means."""
    return any(fnmatch.fnmatchcase(cell, each) for each in pattern.split(","))


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
        raise RunError(f"{folder} is no study (it has no {FILE}); `mtlprune runs pack` makes one")
    return study


@functools.lru_cache(maxsize=64)
def _read_study(folder: Path, *_: int) -> Study:
    path = folder / FILE
    tree = read_json(path, RunError, ANEW)
    with reading(path, RunError, ANEW):
        if (tree.pop("format"), version := tree.pop("version")) != (FORMAT, VERSION):
            raise ValueError(f"expected a study of version {VERSION}, found {version!r}")
        return Study(**tree, folder=folder)


class PackedRun:
    """A run of a study."""

    def __init__(self, study: Study, name: str) -> None:
        self.study, self.name = study, name
        self.row = study.rows[name]
        self.counted: dict[str, Any] = parse_json(self.row[COUNTED])

    def file(self, name: str) -> PackedFile:
        path = PackedFile(self.study.folder / self.name / name)
        path.content = self.row.get(name)
        return path

    def logs(self) -> list[PackedFile]:
        return [
            self.file(name) for name, text in sorted(self.row.items()) if name.endswith(".jsonl") and text is not None
        ]

    def splits(self) -> list[str]:
        return sorted(Path(name).stem for name, text in self.row.items() if name.startswith("scores/") and text)

    def read_counts(self, split: str) -> dict[str, Any]:
        """ids and counts, as counts/SPLIT.json of a run folder has them."""
        gold = self._gold(split)
        counts: dict[str, dict[str, list[Any]]] = {
            task: {name: list(values) for name, values in gold.counts[task].items()}
            for task in self.counted[split]["tasks"]
        }
        for task, name, sentence, difference in self._differences("counts", split):
            counts[task][name][sentence] += difference
        return {"ids": list(gold.ids), "counts": counts}

    def has_labels(self, split: str) -> bool:
        return bool(self.counted.get(split, {}).get("labels"))

    def read_labels(self, split: str, task: str) -> dict[str, dict[str, tuple[int, int, int]] | None]:
        """Sentence → label → correct, gold and predicted items; None where the layer is unknown."""
        gold = self._gold(split)
        perfect = gold.labels[task]
        counted = [None if items is None else {label: (n, n, n) for label, n in items.items()} for items in perfect]
        for its, label, sentence, missed, wrong in self._differences("labels", split):
            if its == task and (labels := counted[sentence]) is not None:
                items = labels.get(label, (0, 0, 0))[1]
                labels[label] = (items - missed, items, items - missed + wrong)
        return dict(zip(gold.ids, counted, strict=True))

    def _gold(self, split: str) -> Gold:
        name = self.counted[split]["gold"]
        digest = self.study.gold[name]
        return read_gold(self.study.gold_file(name, digest), digest)

    def _differences(self, table: str, split: str) -> Iterator[tuple[Any, ...]]:
        import pyarrow.parquet as pq

        own = [("run", "=", self.name), ("split", "=", split)]
        rows = pq.read_table(self.study.table(table), columns=list(TABLES[table][2:]), filters=own)
        return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def packed_run(path: Path) -> PackedRun | None:
    """The run of a study that a path STUDY/NAME means, if there is one. Raises RunError where the study is damaged."""
    study = open_study(path.parent)
    return PackedRun(study, path.name) if study is not None and path.name in study.rows else None


# -- writing -----------------------------------------------------------------------------------------------------------


class Additions:
    """Runs that are to be added to a study.

    Args:
        study: where, or where one is to be begun.
        gold_folder: for the gold of a study that is begun; in the study if not given.
    """

    def __init__(self, study: Path, gold_folder: Path | None = None) -> None:
        place = "gold" if gold_folder is None else os.path.relpath(gold_folder, study)
        self.study = open_study(study) or Study({}, gold_folder=place, folder=study)
        self.gold: dict[str, Gold] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.tables: dict[str, list[pa.Table]] = {name: [] for name in TABLES}

    def add(
        self,
        name: str,
        files: Mapping[str, str],
        counts: Mapping[str, tuple[str, Counts]],
        labels: Mapping[str, Labels],
    ) -> None:
        """Add a run.

        Args:
            files: name → text.
            counts: split → the name of its gold, which is there, and counts.
            labels: split → counts of labels; nothing if they are not to be kept.

        Raises:
            RunError: counts are of other sentences than the gold.
        """
        tree = parse_yaml(files["config.yaml"])
        counted = {
            split: {"gold": gold, "tasks": list(tasks), "labels": split in labels}
            for split, (gold, tasks) in counts.items()
        }
        about = {"run": name, "tasks": tree["tasks"], "seed": tree["train"]["seed"], COUNTED: json.dumps(counted)}
        self.rows[name] = about | dict(files)
        for split, (gold, tasks) in counts.items():
            rows = self.gold[gold].count_differences(tasks)
            self.tables["counts"].append(_table("counts", [(name, split, *row) for row in rows]))
            if split in labels:
                wrong = self.gold[gold].label_differences(labels[split])
                self.tables["labels"].append(_table("labels", [(name, split, *row) for row in wrong]))

    def write(self, cells: Mapping[str, str | None], sweep: Mapping[str, str]) -> None:
        """Write the study with them; whoever reads it meanwhile reads it as it was.

        Args:
            cells: as those of a study.

        Raises:
            RunError: the study is damaged or has other gold, or the disk refuses.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        before, folder = self.study, self.study.folder
        with one_writer(folder):
            if (open_study(folder) or before) != before:
                raise RunError(f"{folder} has changed meanwhile; pack the runs again")
            digests = {name: _write_gold(before, name, gold) for name, gold in self.gold.items()}
            rows = before.rows | self.rows
            names = ("run", "tasks", "seed", *sorted({name for row in rows.values() for name in row}))
            columns = {name: [rows[run].get(name) for run in sorted(rows)] for name in names}
            written = {"runs": _write_table(folder, "runs", pa.table(columns))}
            for name, tables in self.tables.items():
                kept = [pq.read_table(before.table(name))] if name in before.tables else []
                if kept or tables:
                    written[name] = _write_table(folder, name, pa.concat_tables([*kept, *tables]).sort_by("run"))
            known = {cell: before.cells.get(cell) or cells.get(cell) for cell in {**cells, **before.cells}}
            after = replace(
                before, cells=known, sweep=sweep or before.sweep, gold={**before.gold, **digests}, tables=written
            )
            tree = {name: value for name, value in vars(after).items() if name not in ("folder", "rows")}
            write_json(folder / FILE, {"format": FORMAT, "version": VERSION, **tree})
            remove(*{*folder.glob("*-????????.parquet")} - {after.table(name) for name in written})


def _write_gold(study: Study, name: str, gold: Gold) -> str:
    """Write the gold of a split where it is not there yet, and give its SHA-256."""
    text = json.dumps(vars(gold)).encode()
    digest = sha256(text).hexdigest()
    if study.gold.get(name, digest) != digest:
        raise RunError(f"{study.folder} was packed with other gold of {name}; choose another --out")
    write_bytes(study.gold_file(name, digest), gzip.compress(text, mtime=0))
    return digest


def _table(name: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    import pyarrow as pa

    names = TABLES[name]
    values = list(zip(*rows, strict=True)) or [()] * len(names)
    numbers = names.index("sentence")
    kinds = [pa.string() if place < numbers else pa.int32() for place in range(len(names))]
    return pa.table([pa.array(*pair) for pair in zip(values, kinds, strict=True)], names)


def _write_table(folder: Path, name: str, table: pa.Table) -> str:
    """Write NAME-SHA.parquet, small, and give its SHA-256."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    packed = {"sentence": "DELTA_BINARY_PACKED"} if "sentence" in table.column_names else {}
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=ROWS,
        compression="zstd",
        compression_level=19,
        store_schema=False,
        use_dictionary=[column for column in table.column_names if column not in packed],
        column_encoding=packed,
        write_statistics=["run", "split"],
    )
    content = sink.getvalue().to_pybytes()
    digest = sha256(content).hexdigest()
    write_bytes(folder / f"{name}-{digest[:8]}.parquet", content)
    return digest
