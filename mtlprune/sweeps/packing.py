"""Packs runs into a study (mtlprune.runs.study), which holds all that tables, maps and reports need of the runs.

Weights and the text of the corpus are left out.

pack(["runs/ewt5-minilm"], Path("results/ewt5-minilm/records"), gold)
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from mtlprune.io.files import json_text
from mtlprune.runs.folder import EVIDENCE, RunError, RunFolder, run_name
from mtlprune.runs.study import MAJORITY, add_runs, open_study, packed_run, read_study, tables
from mtlprune.sentence import Sentence
from mtlprune.statistics.labels import count_labels
from mtlprune.sweeps.folder import INDEX, Place, expanded, read_index

_PACKED_FILES = (*EVIDENCE, "manifest.json", "encoder/heads.json")
"""Files of a run that a study stores, in addition to scores and counts."""
Gold = Callable[[str, str, str], Sequence[Sentence]]
"""Function from the folder of a run, the fingerprint of its data and a split to the gold sentences. It raises RunError
if the sentences are not available."""


def pack(runs: Iterable[str | Path], out: Path, gold: Gold, labels: bool = True) -> None:
    """Add runs, or the finished cells of a sweep, to the study in ``out``, which is created if necessary.

    Runs that the study has already are left unchanged. Runs of other studies are copied, which merges studies.

    Args:
        runs: arguments as in ``sweeps.folder.expanded``.
        gold: function that returns the gold sentences of a split.
        labels: also store the label counts of every sentence, which reports compare.

    Raises:
        RunError: there is no run, a run is unfinished or damaged, packed and unpacked runs or runs of several sweeps
            are mixed, another run has the same name, ``out`` contains other files, or gold sentences are not available.
    """
    folders = [RunFolder.existing(path) for path in expanded(runs)]
    if folders and all(folder.packed is not None for folder in folders):
        return _join(folders, out)
    sweep = _sweep(folders)
    _check_out(out, sweep)
    rows: dict[str, dict[str, Any]] = {}
    for folder in folders:
        _check_evidence(folder)
        name, files = run_name(folder.path), dict(_files(folder))
        if name in rows:
            raise RunError(f"expected runs of different names, found {name} twice; pack the two runs into two studies")
        if (packed := packed_run(out / name)) is None:
            files |= dict(_labels(folder, gold)) if labels else {}
            tree = folder.read_config()
            tasks = [] if "corpora" in tree["data"] else list(folder.config.tasks)  # a pretraining run has no tasks
            rows[name] = {"tasks": tasks, "seed": tree["train"]["seed"], **files}
        elif any(packed.text(file) != text for file, text in files.items()):
            raise RunError(f"{out} has another run of the name {name} than {folder.path}; choose another --out")
    cells = {} if sweep is None else _cells(sweep, out, rows)
    cells |= {name: name for name in rows if name not in cells.values()}
    sweep_record = {} if sweep is None else {key: without_places(read_index(sweep)[key]) for key in ("name", "file")}
    add_runs(out, rows, cells, sweep_record)


def _join(folders: Sequence[RunFolder], out: Path) -> None:
    """Copy runs of studies into the study in ``out``, with the names of their cells.

    A run that several studies contain is stored once. Raises RunError if different runs have the same name or cell, or
    if ``out`` contains other files.
    """
    _check_out(out, None)
    rows: dict[str, dict[str, Any]] = {}
    cells: dict[str, str | None] = {}
    records: list[Mapping[str, str]] = []
    for root in dict.fromkeys(folder.path.parent for folder in folders):
        study, names = read_study(root), {folder.path.name for folder in folders if folder.path.parent == root}
        rows_of_study = {row.pop("run"): row for row in study.table.read().to_pylist()}
        for name in sorted(names):
            row = {key: value for key, value in rows_of_study[name].items() if value is not None}
            if rows.setdefault(name, row) != row:
                raise RunError(
                    f"{root} has another run {name} than the studies before it; choose the runs by a pattern"
                )
        for cell, run in study.cells.items():
            if run in names and cells.setdefault(cell, run) != run:
                raise RunError(f"{root} has another run of the cell {cell} than the studies before it")
        records.append(study.sweep)
    add_runs(out, rows, cells, records[0] if all(record == records[0] for record in records) else {})


def _sweep(folders: Sequence[RunFolder]) -> Path | None:
    """Return the folder of the sweep to which runs belong, or None. Raises RunError for runs of several sweeps."""
    roots = {folder.path.parent.resolve(): folder.path.parent for folder in folders}
    sweeps = [root for root in roots.values() if (root / INDEX).is_file()]
    if len(sweeps) > 1:
        raise RunError(
            f"expected runs of one sweep, found {sweeps[0]} and {sweeps[1]}; pack the sweeps into two studies"
        )
    return sweeps[0] if sweeps else None


def _check_out(out: Path, sweep: Path | None) -> None:
    """Raise RunError if a folder cannot hold a study, or holds a study of another sweep."""
    if out.exists() and not out.is_dir():
        raise RunError(f"--out: {out} is a file; name a folder for the study")
    study = open_study(out)
    if study is None:
        for path in sorted({*out.iterdir()} - {*tables(out), out / MAJORITY}) if out.is_dir() else ():
            if not path.name.startswith("."):
                raise RunError(
                    f"--out: {out}: expected a study or an empty folder, found {path.name}; choose another folder"
                )
    elif study.sweep and sweep is not None and study.sweep["name"] != read_index(sweep).get("name"):
        raise RunError(f"--out: {out} is a study of the sweep {study.sweep['name']}; choose another folder")


def _cells(sweep: Path, out: Path, rows: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the run of each cell of the sweep, or None for a cell that is not packed because it is not finished.

    Finished cells that are not packed are left out.
    """
    study = open_study(out)
    packed = {*rows, *(study.rows if study is not None else ())}
    folders = {name: cell["folder"] for name, cell in read_index(sweep)["cells"].items()}
    return {
        name: run if run in packed else None
        for name, run in folders.items()
        if run in packed or not Place(sweep, run).finished()
    }


# -- one run -----------------------------------------------------------------------------------------------------------


def _check_evidence(source: RunFolder) -> None:
    """Raise RunError unless a run is finished, not packed, and has all files as it wrote them."""
    if source.packed is not None:
        raise RunError(f"{source.path} is already packed; pack runs of studies and other runs separately")
    if not source.is_finished():
        raise RunError(f"{source.path} has not finished training; repeat its command to continue it")
    source.verify()
    for split in source.splits():
        if cause := source.why_damaged(split):
            raise RunError(cause)


def _labels(source: RunFolder, gold: Gold) -> Iterator[tuple[str, str]]:
    """Yield name and text of a JSON file with the label counts of each split.

    The JSON maps task → id of a sentence → label → numbers of correct, gold and predicted items.

    Raises:
        RunError: predictions of a split are missing, or are not those of the sentences that were scored.
    """
    fingerprint = source.read_manifest()["data"]["fingerprint"]
    for split in source.splits():
        # A dot in the name marks scores on another corpus, or scores of the weights that are best for a single task.
        # Label counts are stored only for the other splits.
        if "." in split:
            continue
        pairs = source.gold_and_predicted(split, gold(str(source.path), fingerprint, split))
        counts_by_task = {
            task: {sentence.id: count_labels(task, sentence, predicted) for sentence, predicted in pairs}
            for task in source.read_scores(split)
        }
        yield f"labels/{split}.json", json.dumps(counts_by_task)


# -- files without absolute paths --------------------------------------------------------------------------------------


def _files(source: RunFolder) -> Iterable[tuple[str, str]]:
    """Yield name and text of each file that a study stores. Configuration and manifest lose absolute paths."""
    yield "config.yaml", yaml.safe_dump(without_places(source.read_config()), sort_keys=False, allow_unicode=True)
    yield "manifest.json", json_text(without_places(source.read_manifest()))
    results = (f"{kind}/{split}.json" for split in source.splits() for kind in ("scores", "counts"))
    for name in (*_PACKED_FILES, *results):
        if name not in ("config.yaml", "manifest.json") and source.has(name):
            yield name, source.read_text(name)


def without_places(value: Any, key: str = "") -> Any:
    """Copy a tree with absolute paths cut to their last part: /home/me/data/ewt5 becomes ./ewt5.

    Eight digits of the path's SHA-256 are appended to the ``name`` of an encoder, so that two encoders in folders of
    the same name stay distinct.
    """
    if isinstance(value, Mapping):
        return {name: without_places(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(inner) for inner in value]
    if not isinstance(value, str):
        return value
    option, sign, path = ("", "", value) if value.startswith(("/", "~/")) else value.partition("=")
    if not path.startswith(("/", "~/")):
        return value
    mark = f"-{sha256(path.encode()).hexdigest()[:8]}" if "name" in (key, option.rpartition(".")[2]) else ""
    return f"{option}{sign}./{run_name(Path(path))}{mark}"
