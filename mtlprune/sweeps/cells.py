"""From the file of a sweep to its cells: configurations, digests, and which cell needs which."""

from __future__ import annotations

import copy
import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtlprune.config import Config, apply_override, build_config, find_config, merged, read_tree
from mtlprune.sweeps.folder import Place, find_label, write_index
from mtlprune.sweeps.identity import REFERENCES, data_fingerprint, data_splits, digest
from mtlprune.sweeps.sheet import Recipe, Sheet, SweepError, nearest

MARK = "@"
"""Before the name of a cell, in a setting that names another run."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    config: Config
    """With the run folders of other cells in the place of their names."""
    digest: str
    needs: tuple[str, ...]
    """Cells that must be finished first."""
    place: Place
    evaluate: tuple[str, ...]
    """Splits to score it on, beside dev."""


@dataclass(frozen=True)
class Sweep:
    """All cells of a file, by name, each after those it needs."""

    name: str
    file: Path
    root: Path
    cells: Mapping[str, Cell]

    def write_index(self) -> None:
        """Let other verbs know which folders are this sweep's."""
        rows = {
            c.name: {"folder": c.place.label, "digest": c.digest, "needs": list(c.needs)} for c in self.cells.values()
        }
        write_index(self.root, self.name, self.file, rows)


def resolve(sheet: Sheet, root: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Make the cells of a sweep.

    Args:
        root: the sweep's folder.
        overrides: ``key.path=value`` for all cells; they win over the file.

    Raises:
        SweepError: cells that need each other in a circle, one that is not there, or two that are the same run.
        ConfigError: a configuration that cannot be used; the message names the cell.
        CorpusError: no corpus at data.path.
    """
    beside = sheet.path.parent / sheet.base
    base = read_tree(beside if beside.is_file() else find_config(sheet.base))
    recipes = {recipe.name: recipe for recipe in sheet.recipes()}
    trees = {name: _tree(base, recipe, overrides) for name, recipe in recipes.items()}
    needs = {name: _references(sheet, name, tree, recipes) for name, tree in trees.items()}
    cells: dict[str, Cell] = {}
    fingerprints: dict[str, str] = {}
    for name in _in_order(sheet, {name: tuple(found.values()) for name, found in needs.items()}):
        tree = trees[name]
        for key, other in needs[name].items():
            block, _, leaf = key.partition(".")
            tree[block][leaf] = str(cells[other].place.run.path)
        config = build_config(tree, f"{sheet.path}, cell {name}")
        path = config.data.path
        if path not in fingerprints:
            fingerprints[path] = data_fingerprint(Path(path))
        letters = digest(config, fingerprints[path], {key: cells[o].digest for key, o in needs[name].items()})
        _refuse_splits(sheet, name, config)
        place = Place(root, find_label(root, name, letters))
        cells[name] = Cell(name, config, letters, tuple(dict.fromkeys(needs[name].values())), place, sheet.evaluate)
    _refuse_twins(sheet, cells.values())
    return Sweep(sheet.name, sheet.path, root, cells)


def _refuse_splits(sheet: Sheet, name: str, config: Config) -> None:
    """Splits that the corpus does not have would show only when everything else is done."""
    there = data_splits(Path(config.data.path))
    for key, split in [("data.train", config.data.train), ("data.dev", config.data.dev)]:
        if split not in there:
            raise SweepError(
                f"{sheet.path}, cell {name}: {key}: {config.data.path} has no split {split!r}"
                f"{nearest(split, there)}; found {', '.join(there)}"
            )
    for split in sheet.evaluate:
        if split not in there:
            raise SweepError(
                f"{sheet.path}: evaluate: {config.data.path} has no split {split!r}{nearest(split, there)}; found "
                f"{', '.join(there)}"
            )


def _tree(base: dict[str, Any], recipe: Recipe, overrides: Sequence[str]) -> dict[str, Any]:
    tree = copy.deepcopy(base)
    tree["name"] = recipe.title or recipe.name
    for layer in recipe.layers:
        tree = merged(tree, copy.deepcopy(layer))
    for override in overrides:
        apply_override(tree, override)
    return tree


def _references(sheet: Sheet, name: str, tree: dict[str, Any], recipes: Mapping[str, Recipe]) -> dict[str, str]:
    """Setting → the cell it names."""
    found = {}
    for block, key in REFERENCES:
        inner = tree.get(block)
        value = inner.get(key) if isinstance(inner, dict) else None
        if not isinstance(value, str) or not value.startswith(MARK):
            continue
        where = f"{sheet.path}, cell {name}: {block}.{key}"
        other = _filled(where, value[len(MARK) :], recipes[name].values)
        if other not in recipes:
            raise SweepError(f"{where}: there is no cell {other}{nearest(other, recipes)} in this sweep")
        found[f"{block}.{key}"] = other
    return found


def _filled(where: str, name: str, values: Mapping[str, str]) -> str:
    """The name with the cell's own value in the place of each {axis}."""
    for axis in re.findall(r"\{([^{}]*)\}", name):
        if axis not in values:
            there = ", ".join(values) or "none, since the cell stands by itself"
            raise SweepError(f"{where}: there is no axis {axis}{nearest(axis, values)}; axes are {there}")
        name = name.replace(f"{{{axis}}}", values[axis])
    return name


def _in_order(sheet: Sheet, needs: Mapping[str, Collection[str]]) -> list[str]:
    """Every cell after those it needs, otherwise as in the file."""
    ordered: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise SweepError(f"{sheet.path}: cells need each other in a circle: {' → '.join([*path, name])}")
        for other in needs[name]:
            if other not in ordered:
                visit(other, (*path, name))
        ordered.setdefault(name)

    for name in needs:
        visit(name, ())
    return list(ordered)


def _refuse_twins(sheet: Sheet, cells: Iterable[Cell]) -> None:
    seen: dict[str, str] = {}
    for cell in cells:
        first = seen.setdefault(cell.digest, cell.name)
        if first != cell.name:
            raise SweepError(
                f"{sheet.path}: {first} and {cell.name} are the same run, in every setting that matters to them; "
                "exclude one of them"
            )


def narrowed(
    sweep: Sweep, only: Sequence[str] = (), seeds: Sequence[int] = (), encoders: Sequence[str] = ()
) -> dict[str, Cell]:
    """Some of the cells, and those that they need.

    Args:
        only: names of cells, or patterns such as ``gates-*``.
        seeds, encoders: values of train.seed and encoder.name (or its last part).

    Raises:
        SweepError: nothing is called so.
    """
    for wanted in only:
        if not fnmatch.filter(sweep.cells, wanted):
            raise SweepError(f"--only: {sweep.file} has no cell {wanted}{nearest(wanted, sweep.cells)}")
    _check(
        sweep,
        "--seeds",
        "seed",
        [str(seed) for seed in seeds],
        {str(c.config.train.seed) for c in sweep.cells.values()},
    )
    _check(sweep, "--encoders", "encoder", encoders, {n for c in sweep.cells.values() for n in _names(c)})
    chosen: set[str] = set()
    for cell in reversed(list(sweep.cells.values())):  # cells come after those they need
        named = not only or any(fnmatch.fnmatchcase(cell.name, wanted) for wanted in only)
        seeded = not seeds or cell.config.train.seed in seeds
        encoded = not encoders or bool(_names(cell) & set(encoders))
        if cell.name in chosen or (named and seeded and encoded):
            chosen |= {cell.name, *cell.needs}
    if not chosen:
        raise SweepError(f"{sweep.file}: no cell meets --only, --seeds and --encoders together")
    return {name: cell for name, cell in sweep.cells.items() if name in chosen}


def _names(cell: Cell) -> set[str]:
    name = cell.config.encoder.name
    return {name, name.rpartition("/")[2]}


def _check(sweep: Sweep, option: str, what: str, wanted: Iterable[str], there: Collection[str]) -> None:
    for value in wanted:
        if value not in there:
            names = ", ".join(sorted(there))
            raise SweepError(
                f"{option}: {sweep.file} has no cell with {what} {value}{nearest(value, there)}; found {names}"
            )
