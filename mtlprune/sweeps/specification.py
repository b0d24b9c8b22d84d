"""The file of a sweep: a base, axes whose combinations are cells, and cells named one by one. Knows nothing of torch.

name: mine                      # of the folder, runs/mine; the file's own name, if not given
base: pruning-minilm-ewt5       # a preset or a configuration file
settings: {train: {epochs: 2}}  # of all cells, laid over the base
grid:                           # cells are all combinations of one value an axis, named VALUE-VALUE-...
  regime: {none: {}, gates: {pruning: {method: gates}}}  # a name for each value, and the settings it stands for
  tasks: [pos, dep]             # or plain values of a setting
  seed: [1, 2, 3]               # short for train.seed, as encoder is for encoder.name
only: [{regime: none}]          # combinations to make (all, if not given); several values as a list
exclude: [{tasks: dep, seed: 3}]
cells: {random: {encoder: {random: true}}}  # further cells, by name
evaluate: [test]                # splits to score each finished cell on, beside dev
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

KEYS = ("name", "base", "settings", "grid", "only", "exclude", "cells", "evaluate")
_SHORT = {"seed": "train.seed", "encoder": "encoder.name"}
"""Axis → the setting that it stands for."""

_MOST_CELLS = 200_000
"""Combinations of a grid that are planned at once."""

Tree = dict[str, Any]


class SweepError(RunError):
    """A sweep that cannot be done as asked; the message says why and what to do."""


@dataclass(frozen=True)
class Recipe:
    """A cell as the file has it."""

    name: str
    values: Mapping[str, str]
    """Axis → the name of its value; nothing for a cell named on its own."""
    layers: tuple[Tree, ...]
    """Settings to be laid over the base, one after the other."""

    @property
    def title(self) -> str:
        """The name that its seeds have in common, without the value of the axis ``seed``."""
        return "-".join(value for axis, value in self.values.items() if _SHORT.get(axis, axis) != "train.seed")


@dataclass(frozen=True)
class SweepSpecification:
    """The file of a sweep, checked as far as its own form goes."""

    path: Path
    name: str
    base: str
    settings: Tree = field(default_factory=dict)
    axes: Mapping[str, Mapping[str, Tree]] = field(default_factory=dict)
    """Axis → name of a value → settings."""
    only: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    exclude: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    cells: Mapping[str, Tree] = field(default_factory=dict)
    evaluate: tuple[str, ...] = ()

    def recipes(self) -> Iterator[Recipe]:
        """The cells in the order of the file, the last axis changing fastest."""
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
    """True where a YAML file is that of a sweep, not a configuration."""
    if not path.is_file() or path.suffix not in (".yaml", ".yml"):
        return False
    tree = read_yaml(path, SweepError)
    return isinstance(tree, dict) and bool({"grid", "cells"} & tree.keys())


def read_specification(path: Path) -> SweepSpecification:
    """Read the file of a sweep. Raises SweepError: no such file, no YAML, an unknown key, a value of another form than
    expected."""
    if not path.is_file():
        finding = "a folder" if path.is_dir() else "no such file"
        raise SweepError(f"{path}: expected the YAML file of a sweep (with grid or cells), found {finding}")
    return parse_specification(path, read_yaml(path, SweepError))


def parse_specification(path: Path, tree: Any) -> SweepSpecification:
    """The same of the content of a file, which need not be written yet."""
    if not isinstance(tree, dict):
        raise SweepError(f"{path}: expected keys and values, found {in_words(tree)}")
    for key in tree:
        if key not in KEYS:
            raise SweepError(
                f"{path}: unknown key {key}{nearest(str(key), KEYS)}; expected one of {', '.join(KEYS)}. Settings of "
                "all cells belong under settings"
            )
    if not isinstance(tree.get("base"), str):
        raise SweepError(f"{path}: base: expected a preset or a configuration file, found {tree.get('base')!r}")
    if not tree.get("grid") and not tree.get("cells"):
        raise SweepError(f"{path}: expected a grid or cells, found neither; add one")
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
    """Name of a value → its settings."""
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
    first, dot, remainder = key.partition(".")
    return {first: _nested(remainder, value) if dot else value}


def _label(path: Path, location: str, name: Any) -> str:
    """A name that can be part of a folder's."""
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
    """only or exclude: each a mapping of axes to names of values. Raises SweepError for those that do not exist."""
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
