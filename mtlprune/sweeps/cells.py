"""From the file of a sweep to its cells: configurations, digests, and which cell needs which; and runs that
were trained by themselves, taken in as cells where they are the same run."""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from mtlprune.config.blocks import TrainConfig, TreatmentConfig
from mtlprune.config.config import Config, apply_override, build_config, find_config, merged, read_tree
from mtlprune.corpora.store import read_info
from mtlprune.corpora.tables import collector_paused
from mtlprune.io.block import Block, is_class
from mtlprune.io.files import write_text
from mtlprune.runs.folder import RunFolder, flat
from mtlprune.sweeps.folder import Place, find_label, labels, write_index
from mtlprune.sweeps.specification import Recipe, SweepError, SweepSpecification, nearest

# -- What makes two runs the same: the settings that change a result, without those that do not --


REFERENCES = (("train", "start"), ("pruning", "importance_of"), ("pruning", "layers_like"))
"""Settings that name another run, beside those of `TreatmentConfig.runs`."""
NAMING = ("train", "pruning", "treatment")
"""Blocks that hold such settings."""
WITHOUT_EFFECT = ("threads", "device", "checkpoint_minutes", "tensorboard", "wandb", "log_uas")
"""Settings of training that change how fast or how openly, not what is computed (threads: beyond rounding)."""


LETTERS = 8

Known = dict[tuple[Any, ...], tuple[Block, str]]
"""Blocks that several configurations share, by their identity and what else matters, and what counts of them."""


def digest(config: Config, fingerprint: str, others: Mapping[str, str]) -> str:
    """The first eight letters of :func:`whole_digest`, which name folders."""
    return whole_digest(config, fingerprint, others, {})[:LETTERS]


def whole_digest(config: Config, fingerprint: str, others: Mapping[str, str], known: Known) -> str:
    """A SHA-256: the same for configurations that give the same run, and for no others.

    The data count by their fingerprint, not by their path; other runs by their own digest; decoders of tasks that are
    not trained do not count. Only what differs from the defaults does, so that settings which later releases add
    change no digest.

    Args:
        fingerprint: of the corpus.
        others: ``train.start`` and the like → digest of the run they name.
        known: filled; makes digests of many configurations cheap.
    """
    beside: dict[str, tuple[Any, ...]] = {"data": (fingerprint,), "decoders": config.tasks}
    for block, key in REFERENCES:
        beside[block] = (*beside.get(block, ()), (key, others.get(f"{block}.{key}")))
    beside["treatment"] = tuple((k.partition(".")[2], v) for k, v in others.items() if k.startswith("treatment."))
    shown = []
    for part, name, default in PARTS:
        text = _text(part, getattr(config, part), beside.get(part, ()), known)
        if part in ALWAYS or (text != "{}" and text != default):
            shown.append(f"{name}: {text}")
    return hashlib.sha256(f"{{{', '.join(shown)}}}".encode()).hexdigest()


ALWAYS = ("tasks", "data", "encoder", "decoders", "train", "pruning")
"""Parts of a configuration that stand in its identity though nothing in them differs from the defaults."""


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


PARTS = [
    (part, _as_json(part), _as_json(None if field.is_required() or isinstance(field.default, Block) else field.default))
    for part, field in sorted(Config.model_fields.items())
    if part != "name"
]
"""Every part of a configuration that counts, its name as JSON, and what it is where nothing is said."""


def _text(part: str, value: Any, beside: tuple[Any, ...], known: Known) -> str:
    """The JSON of what counts of a part of a configuration; ``beside`` is what that depends on, too."""
    if not isinstance(value, Block):
        return _as_json(value)
    name = (id(value), *beside)
    if name not in known:
        known[name] = value, _as_json(_counted(part, value, beside))
    return known[name][1]


def _counted(part: str, block: Any, beside: tuple[Any, ...]) -> dict[str, Any]:
    tree = block.model_dump(mode="json", exclude_defaults=True)
    if part == "data":
        return {**{key: value for key, value in tree.items() if key != "path"}, "fingerprint": beside[0]}
    if part == "decoders":
        return {task: tree[task] for task in beside if tree.get(task)}
    if part == "train":
        needs = {"tau": block.mixing == "sampled", "balance_window": block.balance == "running_mean"}
        tree = {key: value for key, value in tree.items() if needs.get(key, key not in WITHOUT_EFFECT)}
    if part == "treatment":
        return _within(tree, dict(beside))
    if part in ("train", "pruning"):
        tree |= {key: other for key, other in beside if key in tree and other is not None}
    return tree


def _within(tree: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """A copy with other values at some paths such as distil.teachers.pos."""
    found: dict[str, Any] = copy.deepcopy(dict(tree))
    for path, value in values.items():
        *above, last = path.split(".")
        inner = found
        for key in above:
            inner = inner[key]
        inner[last] = value
    return found


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
        """Let other commands know which folders are this sweep's."""
        rows = {
            c.name: {"folder": c.place.label, "digest": c.digest, "needs": list(c.needs)} for c in self.cells.values()
        }
        write_index(self.root, self.name, self.file, rows)


@collector_paused()
def resolve(specification: SweepSpecification, root: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Make the cells of a sweep.

    Args:
        root: the sweep's folder.
        overrides: ``key.path=value`` for all cells; they win over the file.

    Raises:
        SweepError: cells that need each other in a circle, one that is not there, or two that are the same run.
        ConfigError: a configuration that cannot be used; the message names the cell.
        CorpusError: no corpus at data.path.
    """
    beside = specification.path.parent / specification.base
    base = read_tree(beside if beside.is_file() else find_config(specification.base))
    recipes = {recipe.name: recipe for recipe in specification.recipes()}
    shared = _Shared(base, dict(specification.settings), overrides)
    blocks = {name: shared.blocks(recipe) for name, recipe in recipes.items()}
    needs = {name: _references(specification, name, found, recipes) for name, found in blocks.items()}
    cells: dict[str, Cell] = {}
    noted: dict[str, dict[str, Any]] = {}
    same: dict[str, tuple[str, str]] = {}
    known: Known = {}
    there = labels(root)
    for name in _in_order(specification, {name: tuple(found.values()) for name, found in needs.items()}):
        others = {key: cells[other] for key, other in needs[name].items()}
        paths = {key: str(root / other.place.label) for key, other in others.items()}
        config = shared.config(blocks[name], paths, f"{specification.path}, cell {name}")
        path = config.data.path
        if path not in noted:
            noted[path] = read_info(Path(path))
        digests = {key: other.digest for key, other in others.items()}
        whole = whole_digest(config, noted[path]["fingerprint"], digests, known)
        first = same.setdefault(whole[:LETTERS], (whole, name))
        if first[0] == whole and first[1] != name:
            raise SweepError(
                f"{specification.path}: {first[1]} and {name} are the same run, in every setting that matters; exclude "
                "one of them"
            )
        letters = whole[:LETTERS] if first[1] == name else whole[: 2 * LETTERS]  # of 160,000, some share eight letters
        _refuse_splits(specification, name, config, noted[path]["splits"])
        place = Place(root, find_label(root, name, letters, there))
        needed = tuple(dict.fromkeys(needs[name].values()))
        cells[name] = Cell(name, config, letters, needed, place, specification.evaluate)
    return Sweep(specification.name, specification.path, root, cells)


def _refuse_splits(specification: SweepSpecification, name: str, config: Config, there: Iterable[str]) -> None:
    """Splits that the corpus does not have would show only when everything else is done."""
    asked = [(f", cell {name}: data.{key}", getattr(config.data, key)) for key in ("train", "dev")]
    for where, split in (*asked, *((": evaluate", split) for split in specification.evaluate)):
        if split not in there:
            raise SweepError(
                f"{specification.path}{where}: {config.data.path} has no split {split!r}{nearest(split, there)}; "
                f"found {', '.join(there)}"
            )


@dataclass(frozen=True)
class _Block:
    """A top-level part of a configuration, which many cells share."""

    tree: Any
    model: Any
    """The same, checked; the tree itself where it is no block, or a wrong one."""

    @cached_property
    def alike(self) -> str | int:
        """The same for equal parts, but for the seed of training; models are kept, and so their id."""
        if isinstance(self.model, TrainConfig):
            return repr({**self.model.__dict__, "seed": None})
        return self.model if isinstance(self.model, str) else id(self.model)


class _Shared:
    """Configurations of cells; a block that several cells have alike is joined and checked once.

    Args:
        base, settings: under all layers of a cell of its own; the second one is every cell's first layer.
        overrides: over them.
    """

    def __init__(self, base: dict[str, Any], settings: dict[str, Any], overrides: Sequence[str]) -> None:
        self.base = base
        self.overrides: dict[str, list[str]] = {}
        for override in overrides:
            tree: dict[str, Any] = {}
            apply_override(tree, override)
            self.overrides.setdefault(next(iter(tree)), []).append(override)
        self.found: dict[tuple[Any, ...], _Block] = {}
        self.checked: dict[tuple[Any, ...], Config] = {}
        self.under = {
            key: [layer for layer in (base, settings) if key in layer]
            for key in dict.fromkeys([*self.overrides, *base, *settings])
            if key != "name"
        }
        self.common = {key: self._block(key, given) for key, given in self.under.items()}

    def blocks(self, recipe: Recipe) -> dict[str, _Block]:
        """The blocks of a cell by key, its name among them."""
        titled = {"name": recipe.title or recipe.name}
        names = [layer for layer in (self.base, titled, *recipe.layers) if "name" in layer]
        own: dict[str, list[dict[str, Any]]] = {}
        for layer in recipe.layers[1:]:
            for key in layer:
                if key != "name":
                    own.setdefault(key, [*self.under.get(key, ())]).append(layer)
        changed = {key: self._block(key, given) for key, given in own.items()}
        return {**self.common, "name": self._block("name", names), **changed}

    def _block(self, key: str, layers: Sequence[dict[str, Any]]) -> _Block:
        if key == "name":  # its own layer is gone at once, and another one may get its id
            last = layers[-1][key]
            return self._made(key, layers) if key in self.overrides else _Block(last, last)
        names = (key, *map(id, layers))
        if names not in self.found:
            self.found[names] = self._made(key, layers)
        return self.found[names]

    def _made(self, key: str, layers: Sequence[dict[str, Any]]) -> _Block:
        tree: dict[str, Any] = {}
        for layer in layers:
            tree = merged(tree, {key: layer[key]})
        if key in self.overrides:
            tree = copy.deepcopy(tree)
        for override in self.overrides.get(key, ()):
            apply_override(tree, override)
        value = tree[key]
        kind = Config.model_fields[key].annotation if key in Config.model_fields else None
        if isinstance(value, dict) and is_class(kind) and issubclass(kind, Block):
            with contextlib.suppress(ValidationError):  # which will be said of the cell
                return _Block(value, kind.model_validate(value))
        return _Block(value, value)

    def config(self, blocks: Mapping[str, _Block], others: Mapping[str, str], source: str) -> Config:
        """The configuration of a cell. Raises ConfigError: a setting is wrong.

        Args:
            others: ``train.start`` and the like → the folder of the run they name.
            source: what messages call it.
        """
        same = tuple((key, block.alike) for key, block in blocks.items())
        if same in self.checked:  # no check of blocks against each other asks for the seed, or which run is named
            own = {key: _naming(others, key, blocks[key].model) for key in NAMING if key in blocks}
            return self.checked[same].model_copy(update=own)
        parts = {key: _naming(others, key, block.model) for key, block in blocks.items()}
        try:
            config = Config.model_validate(parts)
            if all(isinstance(parts.get(block), Block) for block in ("train", "pruning")) and isinstance(
                parts.get("treatment", TreatmentConfig()), Block
            ):
                self.checked[same] = config
            return config
        except ValidationError:  # places in its messages are those of plain keys and values
            return build_config({key: _naming(others, key, block.tree) for key, block in blocks.items()}, source)


def _naming(others: Mapping[str, str], key: str, part: Any) -> Any:
    """A part of a configuration with the folders of the runs it names."""
    paths = {where.partition(".")[2]: path for where, path in others.items() if where.startswith(f"{key}.")}
    if not paths:
        return part
    if key == "treatment":
        tree = part if isinstance(part, dict) else part.model_dump(mode="json", exclude_defaults=True)
        named = _within(tree, paths)
        return named if isinstance(part, dict) else TreatmentConfig.model_validate(named)
    return {**part, **paths} if isinstance(part, dict) else part.model_copy(update=paths)


def _references(
    specification: SweepSpecification, name: str, blocks: Mapping[str, _Block], recipes: Mapping[str, Recipe]
) -> dict[str, str]:
    """Setting → the cell it names."""
    found = {}
    trees = {block: blocks[block].tree for block in NAMING if block in blocks}
    given = {f"{b}.{key}": tree[key] for b, key in REFERENCES if isinstance(tree := trees.get(b), dict) and key in tree}
    treated = trees.get("treatment")
    given |= {f"treatment.{path}": value for path, value in flat(treated if isinstance(treated, dict) else {})}
    for setting, value in given.items():
        if not isinstance(value, str) or not value.startswith(MARK):
            continue
        where = f"{specification.path}, cell {name}: {setting}"
        other = _filled(where, value[len(MARK) :], recipes[name].values)
        if other not in recipes:
            raise SweepError(f"{where}: there is no cell {other}{nearest(other, recipes)} in this sweep")
        found[setting] = other
    return found


def _filled(where: str, name: str, values: Mapping[str, str]) -> str:
    """The name with the cell's own value in the place of each {axis}."""
    for axis in re.findall(r"\{([^{}]*)\}", name):
        if axis not in values:
            there = ", ".join(values) or "none, since the cell stands by itself"
            raise SweepError(f"{where}: there is no axis {axis}{nearest(axis, values)}; axes are {there}")
        name = name.replace(f"{{{axis}}}", values[axis])
    return name


def _in_order(specification: SweepSpecification, needs: Mapping[str, Collection[str]]) -> list[str]:
    """Every cell after those it needs, otherwise as in the file."""
    ordered: dict[str, None] = {}
    for start in needs:
        path: dict[str, Iterator[str]] = {}  # cells begun, and what is left of those that each needs
        name: str | None = start if start not in ordered else None
        while name is not None:
            left = path.setdefault(name, iter(needs[name]))
            other = next((other for other in left if other not in ordered), None)
            if other in path:
                raise SweepError(
                    f"{specification.path}: cells need each other in a circle: {' → '.join([*path, other])}"
                )
            if other is None:
                ordered[name] = None
                del path[name]
                name = next(reversed(path), None)
            else:
                name = other
    return list(ordered)


def narrowed(
    sweep: Sweep, only: Sequence[str] = (), seeds: Sequence[int] = (), encoders: Sequence[str] = ()
) -> dict[str, Cell]:
    """Some of the cells, and those that they need. Raises SweepError: nothing is called so.

    Args:
        only: names of cells, or patterns such as ``gates-*``.
        seeds, encoders: values of train.seed and encoder.name (or its last part).
    """
    for wanted in only:
        if not fnmatch.filter(sweep.cells, wanted):
            raise SweepError(f"--only: {sweep.file} has no cell {wanted}{nearest(wanted, sweep.cells)}")
    known = {str(cell.config.train.seed) for cell in sweep.cells.values()}
    _check(sweep, "--seeds", "seed", map(str, seeds), known)
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


class Adopted(NamedTuple):
    """What became of a run that was offered."""

    run: Path
    cell: str | None
    """The cell it is now; None where it is none."""
    note: str
    """Why it is none, or which of its settings had to be read otherwise."""


def adopt(sweep: Sweep, offered: Iterable[Path]) -> Iterator[Adopted]:
    """Link each finished run into the sweep's folder as the cell whose configuration it has.

    Names, threads, devices and paths may differ; data must have the same fingerprint; another run that it made use of
    is looked for where the run says, then beside it under the same name. A cell with ``precision: auto`` takes a run
    of either precision.

    Args:
        offered: run folders, and folders of run folders.

    Raises:
        SweepError: there is no run.
    """
    cells = {cell.digest: cell for cell in sweep.cells.values()}
    for run in _runs(offered):
        if not run.is_finished():
            yield Adopted(run.path, None, "it is not trained to the end")
        elif "pruned" in run.read_manifest():
            yield Adopted(run.path, None, "its heads were removed")
        else:
            yield _adopt(run, cells)


def _runs(offered: Iterable[Path]) -> Iterator[RunFolder]:
    for path in offered:
        inner = sorted(found.parent for found in path.glob("*/config.yaml"))
        if not (path / "config.yaml").is_file() and not inner:
            raise SweepError(f"--adopt: {path} is no run folder, and holds none")
        yield from map(RunFolder, [path] if (path / "config.yaml").is_file() else inner)


def _adopt(run: RunFolder, cells: Mapping[str, Cell]) -> Adopted:
    moved: dict[str, str] = {}
    found = {run_digest(run, any_precision, moved) for any_precision in (False, True)}
    cell = next((cells[letters] for letters in found if letters in cells), None)
    if cell is None:
        return Adopted(run.path, None, "no cell has its configuration")
    target = cell.place.root / find_label(cell.place.root, cell.name, cell.digest, labels(cell.place.root))
    if (target / "config.yaml").is_file():
        same = target.resolve() == run.path.resolve()
        return Adopted(run.path, cell.name if same else None, "" if same else f"cell {cell.name} has a run already")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink():  # to a run that is gone
        target.unlink()
    target.symlink_to(os.path.relpath(run.path.resolve(), target.parent.resolve()), target_is_directory=True)
    note = "; ".join(f"{old} was read as {new}" for old, new in moved.items())
    write_text(cell.place.beside("adopted"), f"{run.path.resolve()}\n" + (f"{note}\n" if note else ""))
    return Adopted(run.path, cell.name, note)


def run_digest(run: RunFolder, any_precision: bool = False, moved: dict[str, str] | None = None) -> str:
    """The digest of a finished run, as a cell of the same configuration would have it.

    Args:
        any_precision: as if it had been asked for ``precision: auto``.
        moved: filled with the paths of other runs that were found elsewhere than the run says.
    """
    config = build_config(run.read_config(), str(run.config_path))
    others = {}
    named = {f"{block}.{key}": getattr(getattr(config, block), key) for block, key in REFERENCES}
    for setting, given in (named | {f"treatment.{key}": path for key, path in config.treatment.runs.items()}).items():
        other = run.other(given) if given else None
        if other is not None:
            if moved is not None and other.path != Path(given):
                moved[given] = str(other.path)
            others[setting] = run_digest(other, any_precision, moved)
    if any_precision:
        config = config.model_copy(update={"train": config.train.model_copy(update={"precision": "auto"})})
    return digest(config, run.read_manifest()["data"]["fingerprint"], others)
