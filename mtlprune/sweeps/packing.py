"""Packs runs into a study (mtlprune.runs.study): what tables, maps, overlap and pages need, without weights and text.

pack(["runs/ewt5-minilm"], Path("results/ewt5-minilm/records"), gold)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import yaml

from mtlprune.config.blocks import filled
from mtlprune.evaluation.scores import count
from mtlprune.io.files import json_text, read_text
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import EVIDENCE, RESULTS, RunError, RunFolder
from mtlprune.runs.study import Additions, Counts, Gold, Labels, open_study
from mtlprune.sentence import Sentence, declared
from mtlprune.statistics.significance import count_labels
from mtlprune.sweeps.folder import INDEX, Place, expanded, read_index

KEPT = (*EVIDENCE, "manifest.json", "latency.json", "encoder/heads.json")
"""Files that a study has of a run, beside scores."""
GoldReader = Callable[[str, str, str], Sequence[Sentence]]
"""Folder of a run, fingerprint of its data, split → gold sentences. Raises RunError where they are not to be had."""

log = logging.getLogger(__name__)


def pack(
    runs: Iterable[str | Path], out: Path, gold: GoldReader, gold_folder: Path | None = None, labels: bool = True
) -> None:
    """Add runs, or the finished cells of a sweep, to the study ``out``; those that it has already are left as they are.

    Args:
        runs: run folders and sweeps, as `mtlprune table` takes them.
        gold: reads the gold sentences that counts are differences to.
        gold_folder: for the gold of a study that is begun; in the study if not given.
        labels: count the labels of every sentence, too, which pages compare.

    Raises:
        RunError: no run, an unfinished or packed one; a name that another run has; ``out`` is something else; no gold.
    """
    folders = [RunFolder.existing(path) for path in expanded(runs)]
    sweep = _sweep(folders)
    _check_out(out, sweep)
    added = Additions(out, gold_folder)
    for folder in folders:
        _add(folder, added, gold, labels)
    if added.rows:
        cells = {name: name for name in added.rows} if sweep is None else _cells(sweep, added)
        about = {} if sweep is None else {key: without_places(read_index(sweep)[key]) for key in ("name", "file")}
        added.write(cells, about)


def _sweep(folders: Sequence[RunFolder]) -> Path | None:
    """The folder of the sweep that runs are cells of, if any are. Raises RunError where it is more than one."""
    roots = {folder.path.parent.resolve(): folder.path.parent for folder in folders}
    sweeps = [root for root in roots.values() if (root / INDEX).is_file()]
    if len(sweeps) > 1:
        raise RunError(f"{sweeps[0]} and {sweeps[1]} are two sweeps; pack them into two studies")
    return sweeps[0] if sweeps else None


def _check_out(out: Path, sweep: Path | None) -> None:
    """Raises RunError where no study can be in a folder, or one of another sweep is."""
    if out.exists() and not out.is_dir():
        raise RunError(f"--out: {out} is a file; name a folder for the study")
    study = open_study(out)
    if study is None:
        for path in sorted(out.iterdir()) if out.is_dir() else ():
            if not path.name.startswith(".") and path.name != "gold":
                raise RunError(f"--out: {out} holds {path.name} and no study; choose another folder, or an empty one")
    elif study.sweep and sweep is not None and study.sweep["name"] != read_index(sweep).get("name"):
        raise RunError(f"--out: {out} is a study of the sweep {study.sweep['name']}; choose another folder")


def _cells(sweep: Path, added: Additions) -> dict[str, str | None]:
    """Cell → its run, of those that are packed; None of a cell that is not finished."""
    packed = added.study.rows.keys() | added.rows.keys()
    folders = {name: cell["folder"] for name, cell in read_index(sweep)["cells"].items()}
    return {
        name: run if run in packed else None
        for name, run in folders.items()
        if run in packed or not Place(sweep, run).finished()
    }


# -- one run -----------------------------------------------------------------------------------------------------------


def _add(source: RunFolder, added: Additions, gold: GoldReader, with_labels: bool) -> None:
    """Add what a study keeps of a run, unless the study has it."""
    _check_evidence(source)
    name, files = Path(os.path.normpath(source.path.absolute())).name, dict(_files(source))
    if name in added.rows:
        raise RunError(f"two of the runs have the name {name}; pack them into two studies")
    if (known := added.study.rows.get(name)) is not None:
        if any(known.get(file) != text for file, text in files.items()):
            raise RunError(
                f"{added.study.folder} has another run of the name {name} than {source.path}; choose another --out"
            )
        return
    counts: dict[str, tuple[str, Counts]] = {}
    labels: dict[str, Labels] = {}
    fingerprint = source.read_manifest()["data"]["fingerprint"]
    for split in source.splits():
        if ".on-" in split:
            log.warning("%s: counts of %s are left out: their gold is that of another corpus", source.path, split)
            continue
        sentences = gold(str(source.path), fingerprint, plain := split.partition(".")[0])
        gold_name = f"{fingerprint[:16]}-{plain}"
        if gold_name not in added.gold:
            added.gold[gold_name] = gold_counts(sentences)
        counted = source.read_counts(split)
        if counted["ids"] != added.gold[gold_name].ids:
            raise RunError(f"{source.path}: its counts of {split} are not of the sentences that the corpus has")
        counts[split] = gold_name, counted["counts"]
        if with_labels:
            labels[split] = _labels(source, split, sentences)
    added.add(name, files, counts, labels)


def _check_evidence(source: RunFolder) -> None:
    """Raises RunError where something that a study is read for is missing, or not what the run wrote."""
    if source.packed is not None:
        raise RunError(f"{source.path} is packed already; copy the study, and its gold")
    if not source.is_finished():
        raise RunError(f"{source.path} is not trained to the end; the command that began it continues")
    source.verify()
    source.read_best()
    if filled(source.read_config())["pruning"]["method"] != "none":
        load_claims([source.path])
    for split in source.splits():
        for kind in RESULTS:
            source.result_path(kind, split)
        if why := source.why_damaged(split):
            raise RunError(why)


def gold_counts(sentences: Sequence[Sentence]) -> Gold:
    """What a perfect prediction counts."""
    counts: dict[str, dict[str, list[int | None]]] = {}
    labels: dict[str, list[dict[str, int] | None]] = {}
    for task in declared(sentences):
        rows = [count(task, sentence, sentence) for sentence in sentences]
        if names := sorted({name for row in rows if row is not None for name in row}):
            counts[task] = {name: [None if row is None else row.get(name, 0) for row in rows] for name in names}
            counted = (
                None if row is None else count_labels(task, s, s) for s, row in zip(sentences, rows, strict=True)
            )
            labels[task] = [
                None if row is None else {label: items for label, (_, items, _) in row.items()} for row in counted
            ]
    return Gold([sentence.id for sentence in sentences], counts, labels)


def _labels(source: RunFolder, split: str, gold: Sequence[Sentence]) -> Labels:
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


def _files(source: RunFolder) -> Iterable[tuple[str, str]]:
    """Name and text of each file that a study keeps: configuration and manifest without places of this machine."""
    yield "config.yaml", yaml.safe_dump(without_places(source.read_config()), sort_keys=False, allow_unicode=True)
    yield "manifest.json", json_text(without_places(source.read_manifest()))
    for name in (*KEPT, *(f"scores/{split}.json" for split in source.splits())):
        if name not in ("config.yaml", "manifest.json") and source.file(name).is_file():
            yield name, read_text(source.file(name))


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
    mark = f"-{sha256(path.encode()).hexdigest()[:8]}" if "name" in (key, option.rpartition(".")[2]) else ""
    return f"{option}{sign}./{PurePath(path).name}{mark}"
