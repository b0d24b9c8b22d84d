"""Cells of a sweep, made from its file: configurations, digests, and which cell needs which. Knows nothing of torch."""

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
from mtlprune.runs.settings import flat
from mtlprune.sweeps.folder import Place, folders_by_digest, write_index
from mtlprune.sweeps.specification import Recipe, SweepError, SweepSpecification, nearest

REFERENCES = ("train.start", "pruning.importance_of", "pruning.layers_like")
"""Settings that name another run, beside those of `TreatmentConfig.runs`."""
WITHOUT_EFFECT = ("threads", "device", "checkpoint_minutes", "tensorboard", "log_uas", "log_train_loss")
"""Settings of training that change how fast or how openly, not what is computed (threads: beyond rounding)."""
_ALWAYS_HASHED = ("data", "encoder", "decoders", "train", "pruning")
"""Blocks that stand in the identity of a run though nothing in them differs from the defaults."""
_LETTERS = 8
"""Letters of a digest in the name of a folder; twice as many where two cells share these."""
MARK = "@"
"""Before the name of a cell, in a setting that names another run."""


def digest(config: Config, fingerprint: str, digests_of_runs: Mapping[str, str]) -> str:
    """A SHA-256: the same for configurations that give the same run, and for no others. ``others``: ``train.start`` and
    the like → digest of the run they name.

    The data count by their fingerprint, not by their path; other runs by their own digest; of rates that differ between
    tasks those of this run; decoders of tasks that are not trained do not count. Only what differs from the defaults
    does, so that settings which later releases add change no digest.
    """
    rates = {name: config.train.rate(name, config.tasks) for name in ("encoder_rate", "decoder_rate")}
    config = config.model_copy(update={"train": config.train.model_copy(update=rates)})
    tree = config.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
    tree = {part: settings for part, settings in tree.items() if settings != {}}
    tree |= {part: tree.get(part, {}) for part in _ALWAYS_HASHED} | {"tasks": list(config.tasks)}
    tree["data"] = {key: value for key, value in tree["data"].items() if key != "path"} | {"fingerprint": fingerprint}
    tree["decoders"] = {task: tree["decoders"][task] for task in config.tasks if tree["decoders"].get(task)}
    has_effect = {"tau": config.train.mixing == "sampled", "balance_window": config.train.balance == "running_mean"}
    has_effect |= dict.fromkeys(WITHOUT_EFFECT, False)
    tree["train"] = {key: value for key, value in tree["train"].items() if has_effect.get(key, True)}
    for path, run_digest in digests_of_runs.items():
        _set_at_path(tree, path, run_digest)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _set_at_path(tree: dict[str, Any], path: str, value: str) -> None:
    """Replace the setting at a path such as treatment.distil.teachers.pos."""
    *blocks, last = path.split(".")
    for block in blocks:
        tree = tree[block]
    tree[last] = value


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
        """Let other commands know which folders are this sweep's."""
        rows = {
            c.name: {"folder": c.place.label, "digest": c.digest, "needs": list(c.needs)} for c in self.cells.values()
        }
        write_index(self.root, self.name, self.file, rows)


def resolve(
    specification: SweepSpecification, root: Path, overrides: Sequence[str] = (), planned: bool = False
) -> Sweep:
    """The cells of a sweep.

    Args:
        overrides: ``key.path=value`` for all cells; they win over the file.
        planned: only shown, so that the corpus need not be there yet.

    Raises:
        SweepError: cells that need each other in a circle, one that is not there, or two that are the same run.
        ConfigError: a configuration that cannot be used; the message names the cell.
        CorpusError: no corpus at data.path.
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
            absent = planned and not (Path(path) / INFO).is_file()
            infos[path] = {"fingerprint": "", "splits": None} if absent else read_info(Path(path))
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


def _tree(base: dict[str, Any], recipe: Recipe, overrides: Sequence[str]) -> dict[str, Any]:
    """The settings of a cell, of its own to be changed."""
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
    """Setting → the cell it names."""
    references = {}
    blocks = {name: tree[name] for name in ("train", "pruning", "treatment") if isinstance(tree.get(name), dict)}
    for setting, value in flat(blocks):
        if not isinstance(value, str) or not value.startswith(MARK):
            continue
        location = f"{specification.path}, cell {recipe.name}: {setting}"
        referenced = _filled(location, value.removeprefix(MARK), recipe.values)
        if referenced not in recipes:
            raise SweepError(
                f"{location}: expected a cell of this sweep, found {referenced}{nearest(referenced, recipes)}"
            )
        references[setting] = referenced
    return references


def _filled(location: str, name: str, values: Mapping[str, str]) -> str:
    """The name with the cell's own value in the place of each {axis}."""
    for axis in re.findall(r"\{([^{}]*)\}", name):
        if axis not in values:
            axes = ", ".join(values) or "none, because the cell is not part of the grid"
            raise SweepError(f"{location}: there is no axis {axis}{nearest(axis, values)}; axes are {axes}")
        name = name.replace(f"{{{axis}}}", values[axis])
    return name


def _in_order(specification: SweepSpecification, needs: Mapping[str, Collection[str]]) -> list[str]:
    """Every cell after those it needs."""
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise SweepError(f"{specification.path}: expected cells without a circle of needs, found: {circle}") from None


def _refuse_splits(specification: SweepSpecification, name: str, config: Config, splits: Iterable[str]) -> None:
    """Splits that the corpus does not have would show only when everything else is done."""
    data_splits = [(f", cell {name}: data.{key}", getattr(config.data, key)) for key in ("train", "dev")]
    for location, split in (*data_splits, *((": evaluate", split) for split in specification.evaluate)):
        if split not in splits:
            raise SweepError(
                f"{specification.path}{location}: {config.data.path} has no split {split!r}{nearest(split, splits)}; "
                f"found {', '.join(splits)}"
            )


def select_cells(sweep: Sweep, patterns: Sequence[str]) -> dict[str, Cell]:
    """The cells of these names, or patterns such as ``gates-*``, and those that they need; all, if none is given.
    Raises SweepError: nothing is called so."""
    selected: set[str] = set()
    for pattern in patterns or ["*"]:
        matching = fnmatch.filter(sweep.cells, pattern)
        if not matching:
            raise SweepError(f"--only: {sweep.file} has no cell {pattern}{nearest(pattern, sweep.cells)}")
        selected.update(matching)
    # In reverse order, as cells come after those that they need: a needed cell is met after whoever needs it.
    for cell in reversed(list(sweep.cells.values())):
        if cell.name in selected:
            selected.update(cell.needs)
    return {name: cell for name, cell in sweep.cells.items() if name in selected}
