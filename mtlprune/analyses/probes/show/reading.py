"""Reading the result folders of `mtlprune probe`: probes.parquet and probes.json.

found = read_probes(["results/probes"])
found.labels["pretrained", 0, "sound", "pos"]["NN"].accuracy
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.probes.show.results import (
    CONTROLS,
    MODES,
    NONE,
    OF_NO_WEIGHTS,
    TITLES,
    Key,
    LabelResult,
    ProbeResults,
)
from mtlprune.files import RunError, read_json, reading

TABLE, SUMMARY = "probes.parquet", "probes.json"
_WORDS = ("encoder", "run", "mode", "control", "task", "label")
_COUNTS = ("seed", "items", "layer", "head")
_NUMBERS = ("dev", "test")


def read_probes(folders: Iterable[str | Path]) -> ProbeResults:
    """Read one result folder or several of the same corpus and the same size of encoder.

    Raises:
        RunError: no results, damaged ones, or ones that do not belong together; named by folder and column.
    """
    paths = list(dict.fromkeys(Path(folder) for folder in folders))
    if not paths:
        raise RunError("no folder with probe results is named; `mtlprune probe` makes one")
    head = _one_setting(paths)
    notes: list[str] = []
    found: dict[Key, dict[str, LabelResult]] = {}
    runs: dict[Key, str] = {}
    origin: dict[Key, Path] = {}
    for path in paths:
        here, named = _read_folder(path, head["few"], notes)
        for key, labels in here.items():
            if key in found and not _alike(found[key], labels):
                raise RunError(
                    f"{origin[key]} and {path} hold different results of {key.encoder}, seed {key.seed}, {key.mode}, "
                    f"{key.task}; one encoder and seed is one result, so name one of the folders"
                )
            found.setdefault(key, labels)
            origin.setdefault(key, path)
            runs.setdefault(key, named[key])
    shape = _one_shape(paths, found)
    _share_controls(found, notes)
    setting = (head["corpus"], head["fingerprint"], head["specials"], head["few"])
    return ProbeResults(*setting, shape, found, runs, tuple(map(str, paths)), list(dict.fromkeys(notes)))


def _one_setting(paths: Sequence[Path]) -> dict[str, Any]:
    """What all folders say of corpus and method. Raises RunError where they differ."""
    summaries = [_setting(path) for path in paths]
    for path, summary in zip(paths, summaries, strict=True):
        for name in ("fingerprint", "specials", "few"):
            if summary[name] != summaries[0][name]:
                raise RunError(
                    f"{paths[0]} and {path} differ in {name} ({summaries[0][name]} and {summary[name]}), so their "
                    "numbers do not belong side by side; plot them apart"
                )
    return summaries[0]


def _one_shape(paths: Sequence[Path], found: Mapping[Key, Mapping[str, LabelResult]]) -> tuple[int, int]:
    sizes = {(result.heads.shape[0], result.heads.shape[1]) for labels in found.values() for result in labels.values()}
    if len(sizes) != 1:
        listed = ", ".join(sorted(f"{layers} × {heads}" for layers, heads in sizes)) or "none"
        raise RunError(
            f"{', '.join(map(str, paths))}: expected encoders with equally many layers and heads, found {listed}; "
            "heads of different encoders do not correspond, so plot them apart"
        )
    return sizes.pop()


def _alike(one: Mapping[str, LabelResult], other: Mapping[str, LabelResult]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[label].heads, other[label].heads, equal_nan=True) for label in one
    )


def read_summary(folder: Path) -> dict[str, Any]:
    """What probes.json holds. Raises RunError where it is missing or damaged."""
    path = folder / SUMMARY
    if folder.is_file():
        raise RunError(f"{folder} is a file; name the folder that `mtlprune probe` wrote")
    if not path.exists():
        raise RunError(f"{folder} holds no probe results ({SUMMARY} is missing); `mtlprune probe` makes them")
    tree = read_json(path, RunError, "probe anew")
    if not isinstance(tree, dict) or type(tree.get("few")) is not int:
        raise RunError(f"{path}: expected corpus, fingerprint, specials and few (a whole number); probe anew")
    return tree


def _setting(folder: Path) -> dict[str, Any]:
    tree = read_summary(folder)
    said = {name: _words(tree.get(name, "")) for name in ("corpus", "fingerprint", "specials")}
    return {**said, "few": tree["few"]}


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass
class _Columns:
    """The table as arrays; words as their numbers in ``names``."""

    codes: dict[str, NDArray[np.int64]]
    names: dict[str, list[str]]
    values: dict[str, NDArray[Any]]


def _read_table(path: Path) -> _Columns:
    """The columns needed. Raises RunError where one is missing or holds something else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = (*_WORDS, *_COUNTS, *_NUMBERS, "best")
    try:
        with reading(path, RunError, "probe anew"):
            there = pq.read_schema(path).names
        missing = [name for name in wanted if name not in there]
        if missing:
            raise RunError(f"{path}: expected the column {missing[0]}, found {', '.join(there)}; probe anew")
        table = pq.read_table(path, columns=list(wanted))
        codes, names = {}, {}
        for name in _WORDS:
            column = table[name].cast(pa.string()).combine_chunks().dictionary_encode()
            codes[name] = np.asarray(column.indices.fill_null(-1), np.int64)
            names[name] = column.dictionary.to_pylist()
        values: dict[str, NDArray[Any]] = {name: np.asarray(table[name].cast(pa.int64())) for name in _COUNTS}
        values |= {name: np.asarray(table[name].cast(pa.float64()), np.float64) for name in _NUMBERS}
        values["best"] = np.asarray(table["best"].cast(pa.bool_()), bool)
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise RunError(f"{path}: not readable as probe results ({str(error).splitlines()[0]}); probe anew") from None
    empty = next((name for name in _WORDS if (codes[name] < 0).any()), None)
    if empty or not len(values["best"]):
        raise RunError(f"{path}: {f'a cell of the column {empty} is empty' if empty else 'no row'}; probe anew")
    wrong = values["test"][(values["test"] < 0) | (values["test"] > 100 + 1e-9)]
    if wrong.size:
        raise RunError(f"{path}, column test: expected percent from 0 to 100, found {wrong[0]:g}; probe anew")
    return _Columns(codes, names, values)


def _read_folder(folder: Path, few: int, notes: list[str]) -> tuple[dict[Key, dict[str, LabelResult]], dict[Key, str]]:
    path = folder / TABLE
    table = _read_table(path)
    real: dict[Key, dict[str, NDArray[np.int64]]] = {}
    controls: dict[tuple[Key, str], dict[str, float]] = {}
    runs: dict[Key, str] = {}
    for rows in _groups(table):
        encoder, mode, control, task, label = (
            table.names[name][table.codes[name][rows[0]]] for name in ("encoder", "mode", "control", "task", "label")
        )
        key = Key(encoder, int(table.values["seed"][rows[0]]), mode, task)
        if mode not in MODES or control not in (NONE, *CONTROLS):
            raise RunError(
                f"{path}: found the mode {mode!r} and the control {control!r}; expected one of {', '.join(MODES)} and "
                f"of {', '.join((NONE, *CONTROLS))}; probe anew"
            )
        if control == NONE:
            real.setdefault(key, {})[label] = rows
            runs[key] = table.names["run"][table.codes["run"][rows[0]]]
        else:
            chosen = _chosen(table, rows)
            if chosen is not None:
                controls.setdefault((key, label), {})[control] = float(table.values["test"][chosen])
    shape = int(table.values["layer"].max()), int(table.values["head"].max())
    found: dict[Key, dict[str, LabelResult]] = {}
    lost: dict[str, dict[str, None]] = {}
    for key, by_label in real.items():
        for label, rows in by_label.items():
            where = f"{path}: {key.encoder}, seed {key.seed}, {key.mode}, {key.task} {label}"
            result = _label(table, rows, controls.get((key, label), {}), few, shape, where)
            if result is None:
                lost.setdefault(key.task.upper(), {})[label] = None
            else:
                found.setdefault(key, {})[label] = result
    why = "no item to choose a head on, or none to test it on"
    notes += [f"{task}: left out are {', '.join(labels)} ({why})." for task, labels in lost.items()]
    # the most frequent first, as everywhere in the field; equally frequent ones by name
    return {key: dict(sorted(labels.items(), key=_rank)) for key, labels in found.items()}, runs


def _rank(named: tuple[str, LabelResult]) -> tuple[int, str]:
    return -named[1].items, named[0]


def _groups(table: _Columns) -> list[NDArray[np.int64]]:
    """Rows that differ in nothing but the head, each group in the order of the file."""
    parts = [table.codes[name] for name in ("encoder", "mode", "control", "task", "label")] + [table.values["seed"]]
    order = np.lexsort(parts[::-1])
    changes = np.zeros(len(order), bool)
    for part in parts:
        ordered = part[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    return np.split(order, np.flatnonzero(changes))


def _chosen(table: _Columns, rows: NDArray[np.int64]) -> int | None:
    """The row marked as best; where none is, the one that is best on dev; None where no number allows a choice."""
    marked = rows[table.values["best"][rows]]
    usable = marked[~np.isnan(table.values["test"][marked])]
    if len(usable):
        return int(usable[0])
    dev = table.values["dev"][rows]
    ready = ~np.isnan(dev) & ~np.isnan(table.values["test"][rows])
    return int(rows[ready][np.argmax(dev[ready])]) if ready.any() else None


def _label(
    table: _Columns,
    rows: NDArray[np.int64],
    controls: Mapping[str, float],
    few: int,
    shape: tuple[int, int],
    where: str,
) -> LabelResult | None:
    """The label's heads side by side; None where nothing can be said. Raises RunError for rows that contradict."""
    layer, head = table.values["layer"][rows], table.values["head"][rows]
    if min(layer.min(), head.min()) < 1 or len(np.unique(layer * (shape[1] + 1) + head)) < len(rows):
        raise RunError(f"{where}: expected every head once, layers and heads counted from 1; probe anew")
    if table.values["best"][rows].sum() > 1:
        raise RunError(f"{where}: expected one head marked as best, found several; probe anew")
    items = int(table.values["items"][rows[0]])
    chosen = _chosen(table, rows)
    if chosen is None or items < 1:
        return None
    grid = np.full(shape, np.nan)  # heads that are removed or closed have no number
    grid[layer - 1, head - 1] = table.values["test"][rows]
    best = table.values["layer"][chosen], table.values["head"][chosen]
    return LabelResult(
        items, int(best[0]), int(best[1]), float(table.values["test"][chosen]), grid, dict(controls), items < few
    )


def _share_controls(found: dict[Key, dict[str, LabelResult]], notes: list[str]) -> None:
    """Give encoders without them the controls that do not depend on what an encoder has learnt."""
    pool: dict[tuple[str, str, str, str], list[float]] = {}
    for key, labels in found.items():
        for label, result in labels.items():
            for control in OF_NO_WEIGHTS & result.controls.keys():
                pool.setdefault((key.mode, key.task, label, control), []).append(result.controls[control])
    shared: set[str] = set()
    for key, labels in found.items():
        for label, result in labels.items():
            more = {
                control: float(np.mean(pool[key.mode, key.task, label, control]))
                for control in CONTROLS
                if control not in result.controls and (key.mode, key.task, label, control) in pool
            }
            if more:
                shared |= more.keys()
                labels[label] = dataclasses.replace(result, controls={**result.controls, **more})
    if shared:
        listed = ", ".join(TITLES[control] for control in CONTROLS if control in shared)
        notes.append(f"Controls that no fine-tuning changes ({listed}) are shared by all encoders.")
