"""Columns of the table of heads, from what probes and other analyses wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses import ANALYSES, analysis
from mtlprune.analyses.analysis import find, read
from mtlprune.analyses.heads.columns import HeadColumn, HeadTable, HeadTableError, claim_columns, claims_in
from mtlprune.analyses.probes.show.reading import known, modes, read_probes, shape
from mtlprune.files import read_json, reading
from mtlprune.layers import in_order

Floats = NDArray[np.float64]
NAMED = 3
"""Labels named for a head."""


def add_probes(table: HeadTable, folder: Path, of: str) -> None:
    """By task the head's best gain over the best control (percentage points), and the labels of the best gains.

    Labels with few items and root are left out; where an encoder has several seeds the first is read. A best of many
    labels is above 0 more often than one label is.

    Raises:
        RunError: no readable results.
        HeadTableError: none of this encoder.
    """
    found = read_probes([folder])
    labels = found.frames["labels"]
    if of not in (encoders := list(labels["encoder"].unique())):
        raise _not_there(folder, of, encoders)
    own = labels[labels["encoder"] == of]
    mode = next(mode for mode in modes(found) if mode in set(own["mode"]))
    seeds = sorted(own.loc[own["mode"] == mode, "seed"].unique())
    if len(seeds) > 1:
        table.notes.append(f"Probes of {of}: seed {seeds[0]} of {', '.join(map(str, seeds))}.")
    rows = known(found, mode, of, seeds[0])
    sure = rows[~rows["few"] & ~rows["apart"] & rows["gain"].notna()]
    if not len(sure):
        table.notes.append(f"{folder}: no label of {of} has a control and enough items, so there is no gain of probes.")
        return
    columns = []
    for task in in_order(sure["task"].unique()):
        grid = np.full(shape(found), np.nan)
        best = sure[sure["task"] == task].groupby(["layer", "head"])["gain"].max()
        for (layer, head), gain in best.items():
            grid[layer - 1, head - 1] = gain
        columns.append(HeadColumn(f"probe gain {task.upper()}", "probes", grid))
    table.add(columns, str(folder))
    words = [["" for _ in range(shape(found)[1])] for _ in range(shape(found)[0])]
    beyond = sure[sure["gain"] > 0].assign(name=sure["task"].str.upper() + " " + sure["label"])
    for (layer, head), mine in beyond.sort_values(["gain", "name"], ascending=False).groupby(["layer", "head"]):
        told = mine[["name", "gain"]].head(NAMED).itertuples(index=False)
        words[layer - 1][head - 1] = ", ".join(f"{name} {gain:+.1f}" for name, gain in told)
    table.words["best labels over control"] = words


def add_analyses(table: HeadTable, folder: Path, of: str) -> None:
    """What every analysis in a folder says of the heads of one encoder; means where it was read with several seeds.

    Raises:
        HeadTableError: no known result there, a damaged one, or none of this encoder.
    """
    here = [name for name in FILES if (folder / name).is_file()]
    if not here:
        raise HeadTableError(
            f"{folder} holds none of {', '.join(FILES)}; name a folder that `mtlprune analyze ... --out DIR` wrote"
        )
    for name in here:
        path = folder / name
        source = name.removesuffix(".json")
        if source == "claims":  # of runs of many labels, whatever ``of`` is
            table.add(claim_columns(claims_in(read(folder, source))), str(path))
            continue
        hidden: set[str] = set()
        meanings: dict[str, str] = {}
        with reading(path, HeadTableError, "make it anew"):
            if source in ANALYSES.values():
                columns, result = find(source).columns, read(folder, source)
                labelled = [(one["encoder"], _named(result.grids(one), columns)) for one in result.about["encoders"]]
                hidden = {column.title for column in columns if not column.tested}
                meanings = {column.title: column.meaning for column in columns}
            else:
                encoders = read_json(path, HeadTableError, "make it anew")["encoders"]
                labelled = [(str(one.get("label", one.get("encoder"))), READERS[name](one)) for one in encoders]
            each = [grids for label, grids in labelled if label == of]
            if not each:
                raise _not_there(folder, of, [label for label, _ in labelled])
        if len(each) > 1:
            table.notes.append(f"{name}: means of {len(each)} results of {of}.")
        found = {key: np.mean([one[key] for one in each], axis=0) for key in each[0]}
        if not found:
            table.notes.append(f"{path} says nothing of single heads.")
        for key, values in found.items():
            table.add([HeadColumn(key, source, values, key not in hidden, meanings.get(key, ""))], str(path))


def _named(grids: Mapping[str, Floats], columns: Sequence[analysis.Column]) -> dict[str, Floats]:
    """By title, what is known of any head."""
    known = {column.title: grids[column.measure] for column in columns if column.measure in grids}
    return {title: grid for title, grid in known.items() if not np.isnan(grid).all()}


def _not_there(folder: Path, of: str, there: Sequence[str]) -> HeadTableError:
    return HeadTableError(f"{folder} has no result of {of!r}; expected --of {' or '.join(dict.fromkeys(there))}")


def _grid(rows: Sequence[Sequence[float | None]]) -> Floats:
    return np.array([[math.nan if value is None else value for value in row] for row in rows], np.float64)


def _listed(heads: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Floats]:
    """From one record a head, layers and heads counted from 1; heads without a record are NaN."""
    if not heads:
        return {}
    shape = max(head["layer"] for head in heads), max(head["head"] for head in heads)
    found = {}
    for key, name in names.items():
        if any(head.get(key) is not None for head in heads):
            grid = found[name] = np.full(shape, np.nan)
            for head in heads:
                value = head.get(key)
                grid[head["layer"] - 1, head["head"] - 1] = math.nan if value is None else value
    return found


READERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Floats]]] = {}
"""Of analyses without a record."""
FILES = sorted({*READERS, *(f"{name}.json" for name in ANALYSES.values() if find(name).columns)}, reverse=True)
