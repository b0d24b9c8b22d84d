"""The YAML file of a sweep: a base configuration, axes whose combinations are cells, and further cells by name.

This module reads and checks the file without importing torch.

name: mine                      # name of the folder, runs/mine; by default the name of the file
base: pruning-minilm-ewt5       # a preset or a configuration file
settings: {train: {epochs: 2}}  # settings of all cells, which override the base
grid:                           # one cell for each combination of values, named VALUE-VALUE-...
  regime: {none: {}, gates: {pruning: {method: gates}}}  # each value has a name and settings,
  tasks: [pos, dep]             # or an axis lists the values of one setting
  seed: [1, 2, 3]               # seed is short for train.seed, and encoder for encoder.name
only: [{regime: none}]          # combinations to include (default: all); a rule may list several values
exclude: [{tasks: dep, seed: 3}]
cells: {random: {encoder: {random: true}}}  # further cells, by name
evaluate: [test]                # splits on which each finished cell is scored, in addition to dev
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtlprune.config import nearest
from mtlprune.io.files import RunError, read_yaml
from mtlprune.io.strict import in_words

_KEYS = ("name", "base", "settings", "grid", "only", "exclude", "cells", "evaluate")
_SHORT = {"seed": "train.seed", "encoder": "encoder.name"}
"""Short name of an axis → the setting that it varies."""

_MOST_CELLS = 200_000
"""Largest number of combinations in a grid, before ``only`` and ``exclude``."""

Tree = dict[str, Any]


class SweepError(RunError):
    """A sweep cannot be run as requested. The message names the reason and the remedy."""


@dataclass(frozen=True)
class Recipe:
    """A cell as the file describes it, before its configuration is checked."""

    name: str
    values: Mapping[str, str]
    """Axis → name of the cell's value; empty for a cell that is listed by name."""
    layers: tuple[Tree, ...]
    """Settings that override the base, in this order."""

    @property
    def title(self) -> str:
        """The part of the name that cells share if only their seeds differ; "" for a cell that is listed by name."""
        return "-".join(value for axis, value in self.values.items() if _SHORT.get(axis, axis) != "train.seed")


@dataclass(frozen=True)
class SweepSpecification:
    """The content of a sweep's file. Its form is checked, but not the configurations of the cells."""

    path: Path
    name: str
    base: str
    settings: Tree = field(default_factory=dict)
    axes: Mapping[str, Mapping[str, Tree]] = field(default_factory=dict)
    """Axis → name of a value → settings of this value."""
    only: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    exclude: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    cells: Mapping[str, Tree] = field(default_factory=dict)
    evaluate: tuple[str, ...] = ()

    def recipes(self) -> Iterator[Recipe]:
        """Yield the cells in the order of the file. The last axis changes fastest."""
        for values in itertools.product(*self.axes.values()) if self.axes else ():
            values_by_axis = dict(zip(self.axes, values, strict=True))
            is_included = not self.only or any(_meets(values_by_axis, rule) for rule in self.only)
            if is_included and not any(_meets(values_by_axis, rule) for rule in self.exclude):
                trees = [self.axes[axis][value] for axis, value in values_by_axis.items()]
                yield Recipe("-".join(values), values_by_axis, (self.settings, *trees))
        for name, tree in self.cells.items():
            yield Recipe(name, {}, (self.settings, tree))


def _meets(values_by_axis: Mapping[str, str], rule: Mapping[str, tuple[str, ...]]) -> bool:
    return all(values_by_axis[axis] in values for axis, values in rule.items())


def is_specification(path: Path) -> bool:
    """Return True if a path is the YAML file of a sweep and not, for example, of a configuration."""
    if not path.is_file() or path.suffix not in (".yaml", ".yml"):
        return False
    tree = read_yaml(path, SweepError)
    return isinstance(tree, dict) and bool({"grid", "cells"} & tree.keys())


def read_specification(path: Path) -> SweepSpecification:
    """Read and check the file of a sweep. Raises SweepError if it does not exist, is no YAML, or has unknown keys or
    invalid values."""
    if not path.is_file():
        finding = "a folder" if path.is_dir() else "no such file"
        raise SweepError(f"{path}: expected the YAML file of a sweep (with grid or cells), found {finding}")
    return parse_specification(path, read_yaml(path, SweepError))


def parse_specification(path: Path, tree: Any) -> SweepSpecification:
    """Check the content of a sweep's file, which need not be written yet. Raises SweepError as read_specification."""
    if not isinstance(tree, dict):
        raise SweepError(f"{path}: expected keys and values, found {in_words(tree)}")
    for key in tree:
        if key not in _KEYS:
            raise SweepError(
                f"{path}: unknown key {key}{nearest(str(key), _KEYS)}; expected one of {', '.join(_KEYS)}. Settings of "
                "all cells belong under settings"
            )
    if not isinstance(tree.get("base"), str):
        raise SweepError(f"{path}: base: expected a preset or a configuration file, found {tree.get('base')!r}")
    if not tree.get("grid") and not tree.get("cells"):
        raise SweepError(
            f"{path}: expected a grid or cells, found neither; add one, or train the file of a single run "
            "with `mtlprune train`"
        )
    settings, grid, cells = (_mapping(path, key, tree.get(key)) for key in ("settings", "grid", "cells"))
    axes = {name: _axis(path, name, values) for name, values in grid.items()}
    specification = SweepSpecification(
        path,
        _label(path, "name", tree.get("name", path.stem)),
        tree["base"],
        settings,
        axes,
        _rules(path, tree, "only", axes),
        _rules(path, tree, "exclude", axes),
        {_label(path, "cells", name): _mapping(path, name, settings) for name, settings in cells.items()},
        tuple(str(split) for split in _list(tree.get("evaluate") or [])),
    )
    _check_cells(specification)
    return specification


def _check_cells(specification: SweepSpecification) -> None:
    """Raise SweepError if a sweep has too many cells, two cells of the same name, or none."""
    cell_count = math.prod(map(len, specification.axes.values())) if specification.axes else 0
    if cell_count > _MOST_CELLS:
        raise SweepError(
            f"{specification.path}: grid: its axes have {cell_count:,} combinations, and at most {_MOST_CELLS:,} are "
            "planned at once (before only and exclude); shorten the axes, or divide the file"
        )
    names_seen: set[str] = set()
    for recipe in specification.recipes():
        if recipe.name in names_seen:
            raise SweepError(f"{specification.path}: two cells are called {recipe.name}; rename one of them")
        names_seen.add(recipe.name)
    if not names_seen:
        raise SweepError(f"{specification.path}: only and exclude leave no cell; change one of the two")


def _mapping(path: Path, location: str, value: Any) -> Tree:
    if value is not None and not isinstance(value, dict):
        raise SweepError(f"{path}: {location}: expected keys and values such as {{tasks: pos}}, found {value!r}")
    return value or {}


def _axis(path: Path, axis: Any, values: Any) -> dict[str, Tree]:
    """Return the settings of each value of an axis, which maps names to settings or lists values of a setting.

    Raises:
        SweepError: the axis has no values, or two values would have the same name.
    """
    if isinstance(values, dict) and values:
        location = f"grid.{axis}"
        return {
            _label(path, location, name): _mapping(path, f"{location}.{name}", settings)
            for name, settings in values.items()
        }
    if not isinstance(values, list) or not values:
        raise SweepError(f"{path}: grid.{axis}: expected names with settings, or a list of values, found {values!r}")
    settings_by_name: dict[str, Tree] = {}
    for value in values:
        text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
        name = _label(path, f"grid.{axis}", re.sub(r"[^\w.+]+", "-", text.rpartition("/")[2]))
        if name in settings_by_name:
            raise SweepError(f"{path}: grid.{axis}: two values would both be called {name}; name the values")
        settings_by_name[name] = _nested(_SHORT.get(axis, str(axis)), value)
    return settings_by_name


def _nested(key: str, value: Any) -> Tree:
    """Turn the path of a setting into a tree: train.seed, 1 → {"train": {"seed": 1}}."""
    first, dot, remainder = key.partition(".")
    return {first: _nested(remainder, value) if dot else value}


def _label(path: Path, location: str, name: Any) -> str:
    """Return a name as text. Raises SweepError if it cannot be part of the name of a folder."""
    if isinstance(name, bool) or name is None:
        raise SweepError(f"{path}: {location}: YAML reads a name there as {name}; write it in quotes")
    if not re.fullmatch(r"\w[\w.+-]*", str(name)):
        raise SweepError(f"{path}: {location}: expected a name of letters, digits, - _ . and +, found {name!r}")
    return str(name)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _rules(
    path: Path, tree: Tree, key: str, axes: Mapping[str, Mapping[str, Tree]]
) -> tuple[Mapping[str, tuple[str, ...]], ...]:
    """Return the rules of ``only`` or ``exclude``, each of which maps axes to names of values.

    Raises:
        SweepError: an axis or a value does not exist.
    """
    rules = []
    for rule in _list(tree.get(key) or []):
        if not isinstance(rule, dict) or not rule:
            raise SweepError(f"{path}: {key}: expected combinations such as {{tasks: pos}}, found {rule!r}")
        for axis, values in rule.items():
            if axis not in axes:
                raise SweepError(f"{path}: {key}: there is no axis {axis}{nearest(str(axis), axes)} in grid")
            for value in map(str, _list(values)):
                if value not in axes[axis]:
                    values_known = ", ".join(axes[axis])
                    raise SweepError(
                        f"{path}: {key}: axis {axis} has no value {value}{nearest(value, axes[axis])}; it has "
                        f"{values_known}"
                    )
        rules.append({axis: tuple(map(str, _list(values))) for axis, values in rule.items()})
    return tuple(rules)
