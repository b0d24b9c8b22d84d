"""Makes records of runs (mtlprune.runs.records): what tables, maps, overlap and pages need, without weights and text.

for made in record(["runs/ewt5-minilm"], Path("results/ewt5-minilm/records"), gold):
    made.path, made.bytes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from mtlprune.config.blocks import filled
from mtlprune.evaluation.scores import count
from mtlprune.io.files import json_text, read_json, replacing_folder, write_json
from mtlprune.runs import records
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import EVIDENCE, RESULTS, RunError, RunFolder
from mtlprune.sentence import Sentence, declared
from mtlprune.statistics.significance import count_labels
from mtlprune.sweeps.folder import INDEX, Place, expanded, read_index

KEPT = (*EVIDENCE, "manifest.json", "latency.json", "encoder/heads.json")
"""What a record has of a run, beside scores and counts."""
Gold = Callable[[str, str, str], Sequence[Sentence]]
"""Folder of a run, fingerprint of its data, split → gold sentences. Raises RunError where they are not to be had."""


@dataclass(frozen=True)
class Recorded:
    """A record that was made."""

    path: Path
    bytes: int
    """Of its files; the gold tables are shared by the records beside it."""


def record(runs: Iterable[str | Path], out: Path, gold: Gold) -> Iterator[Recorded]:
    """Make a record in ``out`` of each run, or of each finished cell of a sweep; one of the same run is replaced.

    Args:
        runs: run folders and sweeps, as `mtlprune table` takes them.
        gold: where the gold sentences are that labels are counted with.

    Raises:
        RunError: no run, an unfinished one, a record; two runs of one name; ``out`` holds something else; no gold.
    """
    folders = [RunFolder.existing(path) for path in expanded(runs)]
    sweep = _sweep(folders)
    targets = _targets(folders, out, sweep)
    made_gold: dict[str, tuple[str, records.GoldTables]] = {}
    for folder, target in zip(folders, targets, strict=True):
        try:
            with replacing_folder(target) as beside:
                _write(folder, beside, out, gold, made_gold)
        except OSError as error:
            raise RunError(f"{target} could not be written ({error.strerror or error})") from error
        files = [target / name for name in (*records.contents(target), records.FILE)]
        yield Recorded(target, sum(path.stat().st_size for path in files))
    if sweep is not None:
        _write_index(sweep, out)


# -- before anything is written ----------------------------------------------------------------------------------------


def _sweep(folders: Sequence[RunFolder]) -> Path | None:
    """The folder of the sweep that runs are cells of, if any are. Raises RunError where it is more than one."""
    roots = {folder.path.parent.resolve(): folder.path.parent for folder in folders}
    found = [root for root in roots.values() if (root / INDEX).is_file()]
    if len(found) > 1:
        raise RunError(f"{found[0]} and {found[1]} are two sweeps; make their records in two folders")
    return found[0] if found else None


def _targets(folders: Sequence[RunFolder], out: Path, sweep: Path | None) -> list[Path]:
    """Where each run's record goes. Raises RunError where something forbids it."""
    if out.exists() and not out.is_dir():
        raise RunError(f"--out: {out} is a file; name a folder for the records")
    for path in sorted(out.iterdir()) if out.is_dir() else ():
        if not (path.name in (INDEX, records.GOLD) or path.name.startswith(".") or RunFolder(path).is_record):
            raise RunError(
                f"--out: {out} holds {path.name}, which is no record; choose another folder, or an empty one"
            )
    known = read_index(out).get("name") if (out / INDEX).is_file() else None
    if known is not None and sweep is not None and known != read_index(sweep).get("name"):
        raise RunError(f"--out: {out} holds records of the sweep {known}; choose another folder")
    targets: dict[Path, RunFolder] = {}
    for folder in folders:
        if folder.is_record:
            raise RunError(f"{folder.path} is a record already; copy it, and the folder gold beside it")
        if not folder.is_finished():
            raise RunError(f"{folder.path} is not trained to the end; the command that began it continues")
        target = out / Path(os.path.normpath(folder.path.absolute())).name
        if target in targets:
            raise RunError(f"{targets[target].path} and {folder.path} have the same name; record them in two folders")
        if RunFolder(target).is_record:
            there = read_json(target / records.FILE, RunError, f"remove {target}")
            if not isinstance(there, dict) or there.get("run") != _run_digest(folder):
                raise RunError(f"{target} is the record of another run than {folder.path}; choose another --out")
        targets[target] = folder
    return list(targets)


# -- one record --------------------------------------------------------------------------------------------------------


def _write(
    source: RunFolder, folder: Path, out: Path, gold: Gold, made_gold: dict[str, tuple[str, records.GoldTables]]
) -> None:
    """Write the record of a run into ``folder``, and its gold tables where they are missing."""
    _check_evidence(source)
    named: dict[str, dict[str, str]] = {}
    for name in (*KEPT, *(f"scores/{split}.json" for split in source.splits())):
        if (source.path / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(_portable(source, name))
    fingerprint = source.read_manifest()["data"]["fingerprint"]
    for split in source.splits():
        tables = None
        if (source.path / "predictions" / f"{split}.jsonl").is_file() and "." not in split:
            name, sentences = f"{fingerprint[:16]}-{split}", gold(str(source.path), fingerprint, split)
            if name not in made_gold:
                found = gold_tables(sentences)
                made_gold[name] = records.write_gold(out, name, found), found
            mark, tables = made_gold[name]
            named[split] = {"name": name, "sha256": mark}
            labels = _labels(source, split, sentences)
            path = folder / "labels" / f"{split}.parquet"
            records.write_labels(path, labels)
            if any(records.read_labels(path, tables, task) != rows for task, rows in labels.items()):
                raise RunError(f"{source.path}: counts of the labels of {split} could not be stored as they are")
        if source.has_counts(split):
            _write_counts(source, split, folder / "counts" / f"{split}.parquet", tables)
    tree = {
        "format": "mtlprune record",
        "version": records.VERSION,
        "run": _run_digest(source),
        "gold": named,
        "files": {name: records.digest((folder / name).read_bytes()) for name in records.contents(folder)},
    }
    write_json(folder / records.FILE, tree)


def _check_evidence(source: RunFolder) -> None:
    """Raises RunError where something that a record is read for is missing, or not what the run wrote."""
    source.verify()
    source.read_best()
    if filled(source.read_config())["pruning"]["method"] != "none":
        load_claims([source.path])
    for split in source.splits():
        for kind in RESULTS:
            source.result_path(kind, split)
        if why := source.why_damaged(split):
            raise RunError(why)


def _write_counts(source: RunFolder, split: str, path: Path, gold: records.GoldTables | None) -> None:
    found = source.read_counts(split)
    try:
        records.write_counts(path, found["ids"], found["counts"], gold)
        again = records.read_counts(path, gold)
    except (RunError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RunError(
            f"{source.path}/counts/{split}.json cannot be recorded ({error}); "
            f"`mtlprune evaluate {source.path} --split {split.partition('.')[0]}` writes it anew"
        ) from None
    if again != {"ids": found["ids"], "counts": {task: named for task, named in found["counts"].items() if named}}:
        raise RunError(f"{source.path}: counts of {split} could not be stored as they are")


def gold_tables(sentences: Sequence[Sentence]) -> records.GoldTables:
    """What a perfect prediction counts."""
    counts: dict[str, dict[str, list[int | None]]] = {}
    labels: dict[str, list[dict[str, int]]] = {}
    for task in declared(sentences):
        rows = [count(task, sentence, sentence) for sentence in sentences]
        names = sorted({name for row in rows if row is not None for name in row})
        if names:
            counts[task] = {name: [None if row is None else row.get(name, 0) for row in rows] for name in names}
            known = [None if row is None else count_labels(task, s, s) for s, row in zip(sentences, rows, strict=True)]
            labels[task] = [{label: items for label, (_, items, _) in (row or {}).items()} for row in known]
    return records.GoldTables([sentence.id for sentence in sentences], counts, labels)


def _labels(source: RunFolder, split: str, gold: Sequence[Sentence]) -> records.Labels:
    predicted = {sentence.id: sentence for sentence in source.read_predictions(split)}
    if predicted.keys() != {sentence.id for sentence in gold}:
        raise RunError(
            f"{source.path}/predictions/{split}.jsonl: expected predictions of the sentences that {split} has, found "
            f"others; `mtlprune evaluate {source.path} --split {split}` writes them anew"
        )
    try:
        return {t: [count_labels(t, g, predicted[g.id]) for g in gold] for t in source.read_scores(split)}
    except ValueError as error:
        raise RunError(
            f"{source.path}: predictions of {split} cannot be counted ({error}); `mtlprune evaluate` writes them anew"
        ) from None


# -- no places of this machine -----------------------------------------------------------------------------------------


def _portable(source: RunFolder, name: str) -> bytes:
    """A file of the run as the record has it: configuration and manifest without places of this machine."""
    if name == "config.yaml":
        tree, dump = source.read_config(), lambda tree: yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    elif name == "manifest.json":
        tree, dump = source.read_manifest(), json_text
    else:
        return (source.path / name).read_bytes()
    changed = without_places(tree)
    return (source.path / name).read_bytes() if changed == tree else dump(changed).encode("utf-8")


def without_places(value: Any, key: str = "") -> Any:
    """The same tree with absolute paths cut to their last part: /home/me/data/ewt5 is ./ewt5.

    Two encoders of one folder name must not become one, so the ``name`` of an encoder keeps eight digits of a digest.
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
    mark = f"-{records.digest(path.encode())[:8]}" if "name" in (key, option.rpartition(".")[2]) else ""
    return f"{option}{sign}./{PurePath(path).name}{mark}"


def _run_digest(source: RunFolder) -> str:
    """The same for runs of one configuration on the same data."""
    fingerprint = source.read_manifest()["data"]["fingerprint"]
    return records.digest(_portable(source, "config.yaml") + fingerprint.encode())


def _write_index(sweep: Path, out: Path) -> None:
    """sweep.json of the records: cells that are recorded, and those that are not finished."""
    index = read_index(sweep)
    cells = {
        name: cell
        for name, cell in index["cells"].items()
        if RunFolder(out / cell["folder"]).is_record or not Place(sweep, cell["folder"]).finished()
    }
    write_json(out / INDEX, without_places(index) | {"cells": cells})
