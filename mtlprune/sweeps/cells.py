"""The cells of a sweep: their configurations, digests and dependencies, made from the sweep's file.

This module does not import torch.
"""

import copy
import fnmatch
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from mtlprune.config.config import Config, apply_override, build_config, find_config, merged, read_tree
from mtlprune.corpora.store import INFO, read_info
from mtlprune.runs.settings import WITHOUT_EFFECT, flat
from mtlprune.sweeps.folder import INDEX, Place, folders_by_digest, read_index, write_index
from mtlprune.sweeps.specification import Recipe, SweepError, SweepSpecification, nearest

_ALWAYS_HASHED = ("data", "encoder", "decoders", "train", "pruning")
"""Blocks that are part of a digest even if all of their settings have the default values."""
_LETTERS = 8
"""Letters of a digest in the name of a run folder; doubled if another cell of the sweep has the same first letters."""
_MARK = "@"
"""Prefix of a setting's value that is the name of a cell instead of the path of a run."""


def digest(config: Config, fingerprint: str, digests_of_runs: Mapping[str, str]) -> str:
    """Compute a SHA-256 that two configurations share if and only if they define the same run.

    The data enter by their fingerprint instead of their path, and other runs by their digests. Learning rates that
    depend on the task enter as the rates of this run, and decoders of tasks that are not trained are left out. Settings
    with default values are left out, so that settings which later releases add change no digest.

    Args:
        digests_of_runs: setting that names another run, such as ``train.start`` → digest of that run.
    """
    rates = {name: config.train.rate(name, config.tasks) for name in ("encoder_rate", "decoder_rate")}
    config = config.model_copy(update={"train": config.train.model_copy(update=rates)})
    tree = config.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
    tree = {part: settings for part, settings in tree.items() if settings != {}}
    tree |= {part: tree.get(part, {}) for part in _ALWAYS_HASHED} | {"tasks": list(config.tasks)}
    tree["data"] = {key: value for key, value in tree["data"].items() if key != "path"} | {"fingerprint": fingerprint}
    tree["decoders"] = {task: tree["decoders"][task] for task in config.tasks if tree["decoders"].get(task)}
    has_effect = {"tau": config.train.mixing == "sampled", "balance_window": config.train.balance == "running_mean"}
    tree["train"] = {key: value for key, value in tree["train"].items() if has_effect.get(key, True)}
    for path in WITHOUT_EFFECT:
        block, name = path.split(".")
        tree[block].pop(name, None)
    for path, run_digest in digests_of_runs.items():
        _set_at_path(tree, path, run_digest)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _set_at_path(tree: dict[str, Any], path: str, value: str) -> None:
    """Replace the setting at a path such as treatment.distil.teachers.pos in place."""
    *blocks, last = path.split(".")
    for block in blocks:
        tree = tree[block]
    tree[last] = value


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    config: Config
    """The settings of the run. Names of other cells are already replaced by their run folders."""
    digest: str
    needs: tuple[str, ...]
    """Names of the cells that must be finished first."""
    place: Place
    evaluate: tuple[str, ...]
    """Splits on which the finished run is scored, in addition to dev."""


@dataclass(frozen=True)
class Sweep:
    """All cells of a sweep's file by name, ordered so that a cell comes after the cells that it needs."""

    name: str
    file: Path
    root: Path
    cells: Mapping[str, Cell]

    def write_index(self) -> None:
        """Write sweep.json, from which other commands learn the run folders of the sweep.

        The folder of a cell depends on the fingerprints of its corpus and of those of the cells that it needs. If one
        of them is missing, the entry of an earlier index is kept; without one, the cell is left out.
        """
        unknown: set[str] = set()
        for cell in self.cells.values():
            if not (_has_corpus(cell.config) and unknown.isdisjoint(cell.needs)):
                unknown.add(cell.name)
        earlier = read_index(self.root)["cells"] if unknown and (self.root / INDEX).is_file() else {}
        rows = {
            name: earlier[name]
            if name in unknown
            else {"folder": cell.place.label, "digest": cell.digest, "needs": list(cell.needs)}
            for name, cell in self.cells.items()
            if name not in unknown or name in earlier
        }
        write_index(self.root, self.name, self.file, rows)


def resolve(
    specification: SweepSpecification, root: Path, overrides: Sequence[str] = (), planned: bool = False
) -> Sweep:
    """Make the cells of a sweep from the content of its file.

    Args:
        root: folder of the sweep, in which the run folders of the cells are.
        overrides: ``key.path=value`` for all cells; they take precedence over the file.
        planned: a corpus may be missing, because cells are only displayed, or only some of them will run.

    Raises:
        SweepError: cells need each other in a cycle, a cell needs one that does not exist, two cells define the same
            run, or a corpus lacks a split.
        ConfigError: a configuration is invalid; the message names the cell.
        CorpusError: there is no corpus at data.path.
    """
    base_path = specification.path.parent / specification.base
    base = read_tree(base_path if base_path.is_file() else find_config(specification.base))
    recipes = {recipe.name: recipe for recipe in specification.recipes()}
    trees = {name: _tree(base, recipe, overrides) for name, recipe in recipes.items()}
    needs = {name: _references(specification, recipe, trees[name], recipes) for name, recipe in recipes.items()}
    cells: dict[str, Cell] = {}
    infos: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    names_used: set[str] = set()
    labels = folders_by_digest(root)
    for name in _in_order(
        specification, {name: tuple(needs_of_setting.values()) for name, needs_of_setting in needs.items()}
    ):
        for setting, needed_name in needs[name].items():
            _set_at_path(trees[name], setting, str(root / cells[needed_name].place.label))
        config = build_config(trees[name], f"{specification.path}, cell {name}")
        path = config.data.path
        if path not in infos:
            absent = planned and not _has_corpus(config)
            infos[path] = {"fingerprint": f"missing: {path}", "splits": None} if absent else read_info(Path(path))
        digests = {setting: cells[needed].digest for setting, needed in needs[name].items()}
        full_digest = digest(config, infos[path]["fingerprint"], digests)
        if full_digest in names:
            raise SweepError(
                f"{specification.path}: {names[full_digest]} and {name} are the same run in every setting that has an "
                "effect; exclude one of the two"
            )
        letters = full_digest[: _LETTERS if full_digest[:_LETTERS] not in names_used else 2 * _LETTERS]
        names[full_digest] = name
        names_used.add(letters)
        if infos[path]["splits"] is not None:
            _refuse_splits(specification, name, config, infos[path]["splits"])
        place = Place(root, labels.get(letters, f"{name}-{letters}"))
        needed = tuple(dict.fromkeys(needs[name].values()))
        cells[name] = Cell(name, config, letters, needed, place, specification.evaluate)
    return Sweep(specification.name, specification.path, root, cells)


def _has_corpus(config: Config) -> bool:
    return (Path(config.data.path) / INFO).is_file()


def _tree(base: dict[str, Any], recipe: Recipe, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a cell as a new tree that may be changed."""
    tree = merged(base, {"name": recipe.title or recipe.name})
    for layer in recipe.layers:
        tree = merged(tree, layer)
    tree = copy.deepcopy(tree)
    for override in overrides:
        apply_override(tree, override)
    return tree


def _references(
    specification: SweepSpecification, recipe: Recipe, tree: Mapping[str, Any], recipes: Collection[str]
) -> dict[str, str]:
    """Return the name of the cell to which the value of a setting refers, for each such setting. Raises SweepError for
    a cell or axis that does not exist."""
    references = {}
    blocks = {name: tree[name] for name in ("train", "pruning", "treatment") if isinstance(tree.get(name), dict)}
    for setting, value in flat(blocks):
        if not isinstance(value, str) or not value.startswith(_MARK):
            continue
        location = f"{specification.path}, cell {recipe.name}: {setting}"
        referenced = _filled(location, value.removeprefix(_MARK), recipe.values)
        if referenced not in recipes:
            raise SweepError(
                f"{location}: expected a cell of this sweep, found {referenced}{nearest(referenced, recipes)}"
            )
        references[setting] = referenced
    return references


def _filled(location: str, name: str, values: Mapping[str, str]) -> str:
    """Replace each {axis} in the name of a cell by the value that the referring cell has on this axis.

    Raises:
        SweepError: the referring cell has no such axis.
    """
    for axis in re.findall(r"\{([^{}]*)\}", name):
        if axis not in values:
            axes = ", ".join(values) or "none, because the cell is not part of the grid"
            raise SweepError(f"{location}: there is no axis {axis}{nearest(axis, values)}; axes are {axes}")
        name = name.replace(f"{{{axis}}}", values[axis])
    return name


def _in_order(specification: SweepSpecification, needs: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names of the cells, ordered so that a cell comes after the cells that it needs.

    Raises:
        SweepError: the needs form a circle.
    """
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise SweepError(f"{specification.path}: expected cells without a circle of needs, found: {circle}") from None


def _refuse_splits(specification: SweepSpecification, name: str, config: Config, splits: Iterable[str]) -> None:
    """Raise SweepError if the corpus lacks a split, because this would otherwise show only after training."""
    data_splits = [(f", cell {name}: data.{key}", getattr(config.data, key)) for key in ("train", "dev")]
    for location, split in (*data_splits, *((": evaluate", split) for split in specification.evaluate)):
        if split not in splits:
            raise SweepError(
                f"{specification.path}{location}: {config.data.path} has no split {split!r}{nearest(split, splits)}; "
                f"found {', '.join(splits)}"
            )


def select_cells(sweep: Sweep, patterns: Sequence[str]) -> dict[str, Cell]:
    """Select cells by names or patterns such as ``gates-*``, with the cells that they need.

    Without patterns, all cells are selected.

    Raises:
        SweepError: a pattern matches no cell.
    """
    selected: set[str] = set()
    for pattern in patterns or ["*"]:
        matching = fnmatch.filter(sweep.cells, pattern)
        if not matching:
            raise SweepError(f"--only: {sweep.file} has no cell {pattern}{nearest(pattern, sweep.cells)}")
        selected.update(matching)
    # A cell comes after those that it needs, so in reverse order one pass also adds the needs of needed cells.
    for cell in reversed(list(sweep.cells.values())):
        if cell.name in selected:
            selected.update(cell.needs)
    return {name: cell for name, cell in sweep.cells.items() if name in selected}
