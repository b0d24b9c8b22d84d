"""The folder of a sweep: the run folders of its cells, the state of each cell, and the runs that a path stands for.

sweep.json                 cell → run folder
CELL-DIGEST/               run folder of a cell
cells/CELL-DIGEST.yaml     configuration of the cell
cells/CELL-DIGEST.log      log of the processes that worked on the cell
cells/CELL-DIGEST.failed   reason why the last process failed, in one sentence

A process that works on a cell locks its run folder. This module does not import torch.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal

from mtlprune.errors import MtlpruneError, command, plural
from mtlprune.io.files import path_inside, read_json, reading, write_json, write_text
from mtlprune.runs.folder import RunError, RunFolder, run_name
from mtlprune.runs.study import FILE as STUDY
from mtlprune.runs.study import matches, open_study
from mtlprune.sweeps.specification import SweepError, SweepSpecification, is_specification, nearest, read_specification

log = logging.getLogger(__name__)

INDEX = "sweep.json"
CELL_LOGS = "cells"
_RUNS = Path("runs")

Kind = Literal["done", "running", "failed", "blocked", "left"]


@dataclass(frozen=True)
class Place:
    """The run folder of a cell, and the cell's files in ``cells``.

    Attributes:
        root: folder of the sweep.
        label: name of the run folder, CELL-DIGEST.
    """

    root: Path
    label: str

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.root / self.label)

    def path_of(self, kind: str) -> Path:
        """Return the path of the cell's file of a kind: "yaml", "log" or "failed"."""
        return self.root / CELL_LOGS / f"{self.label}.{kind}"

    def finished(self) -> bool:
        """Return True if the run is trained to its end and undamaged; ``run.check_whole`` names what is damaged."""
        try:
            self.run.check_whole()
            return self.run.is_finished()
        except MtlpruneError:
            return False

    def unscored(self, splits: Iterable[str]) -> list[str]:
        """Return the given splits without valid results of a finished cell, and dev if its results are damaged."""
        dev = [split for split in self.run.splits() if split == self.run.config.data.dev]
        return [split for split in dict.fromkeys([*dev, *splits]) if self.run.why_damaged(split)]

    def why_unusable(self) -> str | None:
        """Return why the cell is left out of tables and figures: the damage, or "" if it is not finished; else None."""
        try:
            self.run.check_whole()
            if not self.finished():
                return ""
        except MtlpruneError as error:
            return str(error)
        return next((cause for split in self.run.splits() if (cause := self.run.why_damaged(split))), None)

    def write_failure(self, reason: str) -> None:
        """Store the reason why the last process of the cell failed."""
        write_text(self.path_of("failed"), reason + "\n")

    def read_failure(self) -> str | None:
        """Return the stored reason why the last process of the cell failed, or None if it did not fail."""
        path = self.path_of("failed")
        return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None


@dataclass(frozen=True)
class State:
    """The state of a cell. The kind "left" means that work on the cell remains and no process does it now."""

    kind: Kind
    note: str = ""
    """Progress, the reason of a failure, or what is still missing."""
    trained: bool = field(default=False, compare=False)
    """True if the run is trained to its end, whether or not it is scored."""
    seconds: float | None = field(default=None, compare=False)
    """Seconds of training; None if the run is not trained, or does not record them."""


def state(place: Place, splits: Iterable[str] = ()) -> State:
    """Determine the state of a cell, without regard to the cells that it needs.

    Args:
        splits: splits on which the cell has to be scored, in addition to dev.
    """
    if not (place.run.path.exists() or place.path_of("failed").exists()):
        return State("left")
    try:
        with reading(place.run.path, SweepError):
            return _state(place, list(splits))
    # An error in one cell becomes its state, so that it does not stop the other cells.
    except MtlpruneError as error:
        return State("failed", str(error))


def _state(place: Place, splits: list[str]) -> State:
    """Determine the state of a cell that has been started. Raises MtlpruneError if its run is damaged."""
    trained = place.finished()
    seconds = (place.run.read_manifest()["finished"].get("seconds") or None) if trained else None
    unscored = place.unscored(splits) if trained else []
    if trained and not unscored:
        return State("done", "", trained, seconds)
    if place.run.in_use():
        return State("running", _progress(place, trained), trained, seconds)
    place.run.check_whole()
    if (reason := place.read_failure()) is not None:
        return State("failed", reason, trained, seconds)
    if trained:
        return State("left", f"trained; to be scored on {', '.join(unscored)}", trained, seconds)
    return State("left", f"begun, {_progress(place, trained)}" if place.run.has("config.yaml") else "")


def _progress(place: Place, trained: bool) -> str:
    """Describe the progress of a run that is not done."""
    if trained:
        return "scoring"
    if not place.run.has("config.yaml"):
        return "beginning"
    train, count = place.run.config.train, len(place.run.read_metrics())
    by_epoch = train.evaluate_every is None
    return f"{count} of {train.epochs} epochs done" if by_epoch else f"{plural(count, 'evaluation')} done"


def folders_by_digest(root: Path) -> dict[str, str]:
    """Return run folders by the digest with which their names end. The cell may have had another name at the time."""
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return {name.rpartition("-")[2]: name for name in names if (root / name / "config.yaml").is_file()}


def write_index(root: Path, name: str, specification: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Write sweep.json, from which other commands learn the runs of cells.

    Args:
        specification: path of the sweep's file.
        cells: name → "folder", "digest" and "needs".

    Raises:
        SweepError: the folder is a study, in which no runs can be trained.
    """
    if open_study(root) is not None:
        raise SweepError(
            f"{root}: expected a folder of runs, found a study, in which no run can be trained; name another --out"
        )
    index = {"format": "mtlprune sweep", "version": 1, "name": name, "file": str(specification), "cells": dict(cells)}
    write_json(root / INDEX, index)


def read_index(root: Path) -> dict[str, Any]:
    """Read "name", "file" and "cells" of a sweep from sweep.json. Raises SweepError if it is missing or damaged."""
    if not (root / INDEX).is_file():
        raise SweepError(
            f"{root} holds no sweep (no {INDEX} in it); `{command('sweep', 'FILE', '--out', root)}` makes one"
        )
    remedy = "remove it: the command that began the sweep or comparison writes it again"
    with reading(root / INDEX, SweepError, remedy):
        index: dict[str, Any] = read_json(root / INDEX, SweepError, remedy)
        for cell in index["cells"].values():
            path_inside(root, cell["folder"], root / INDEX)
            if not cell["folder"].endswith(cell.get("digest", "")):
                raise ValueError(f"folder {cell['folder']} of a cell of digest {cell['digest']}")
    return index


def default_folder(specification: SweepSpecification) -> Path:
    """Return the folder of a sweep for which the user named none: runs/NAME.

    If `mtlprune compare` wrote the sweep's file, the folder is ``runs`` next to the file.
    """
    default_path = specification.path.parent / _RUNS
    is_same_sweep = (default_path / INDEX).is_file() and Path(
        read_index(default_path)["file"]
    ).name == specification.path.name
    return default_path if is_same_sweep else _RUNS / specification.name


# -- sweeps, studies and patterns that stand for runs ----------------------------------------------------------------


def found_runs(path: str | Path, pattern: str = "*", left_out: list[str] | None = None) -> list[Path]:
    """Return the runs of the finished cells of a sweep, or of the packed cells of a study.

    A run comes after the runs that it needs.

    Args:
        path: folder of the sweep, file of a sweep with the default folder, or folder of a study.
        pattern: pattern of cell names such as ``gates-*``, or several with commas between them.
        left_out: list to which a sentence is appended about the cells that are not finished or packed, and one about
            each damaged cell.

    Raises:
        SweepError: there is no sweep or study, no cell matches, or no matching cell is finished or packed.
    """
    path = Path(path)
    root = default_folder(read_specification(path)) if path.is_file() else path
    study = open_study(root)
    kind, ready_word = ("sweep", "finished") if study is None else ("study", "packed")
    cells = _read_cells(root)
    matching = {name: run for name, run in cells.items() if matches(name, pattern)}
    if not matching:
        raise SweepError(
            f"{path}: the {kind} has no cell {pattern}{nearest(pattern, cells)}; it has {_examples([*cells])}"
        )
    present = {name: run for name, run in matching.items() if run is not None}
    reasons = {name: None if study else Place(root, run).why_unusable() for name, run in present.items()}
    missing = [name for name in matching if reasons.get(name, "") == ""]
    damaged = {name: cause for name, cause in reasons.items() if cause}
    usable = [root / present[name] for name, cause in reasons.items() if cause is None]
    notes = [f"{path}: cell {name} is left out: {reason}" for name, reason in damaged.items()]
    if missing and usable:
        count_words = f"{len(missing)} of {len(matching)} cells {'is' if len(missing) == 1 else 'are'}"
        notes.append(f"{path}: {count_words} not {ready_word} and left out: {_examples(missing)}")
    for note in notes:
        log.warning("%s", note)
    if left_out is not None:
        left_out += notes
    if not usable:
        problem = f"of the cells asked for none is {ready_word}" + (", or can be read" if damaged else "")
        remedy = "run `mtlprune sweep`" if study is None else "name runs of them to `mtlprune runs pack`"
        raise SweepError(f"{path}: {problem} ({_examples(list(matching))}); {remedy}")
    return usable


def _holds_runs(root: Path) -> bool:
    """Return True for the folder of a sweep or of a study."""
    return (root / INDEX).is_file() or (root / STUDY).is_file()


def _read_cells(root: Path) -> dict[str, str | None]:
    """Return the name of each cell's run, for a sweep or a study. In a study, None marks a cell that was not packed."""
    if (study := open_study(root)) is not None:
        return dict(study.cells)
    return {name: cell["folder"] for name, cell in read_index(root)["cells"].items()}


def expanded(runs: Iterable[str | Path], having: str = "", left_out: list[str] | None = None) -> list[Path]:
    """Expand the arguments of a command into run folders.

    An argument is a run folder, a folder of `mtlprune train --seeds` (its seeds), a pattern such as ``runs/gates-*``,
    the folder or file of a sweep (its finished cells), or the folder of a study (its packed cells). ``:PATTERN`` after
    a sweep or study, as in ``runs/mine:gates-*``, selects some of its cells.

    Args:
        having: if an argument stands for several runs, keep only runs that have a file of this name.
        left_out: as in ``found_runs``.

    Raises:
        RunError: no run matches a pattern, or one of the errors of ``found_runs``.
    """
    return [run for runs_argument in runs for run in _expanded_one(str(runs_argument), having, left_out)]


def _expanded_one(runs_argument: str, having: str, left_out: list[str] | None) -> list[Path]:
    """Expand one argument of ``expanded``. Raises RunError if no run is found."""
    folder_part, sign, pattern = runs_argument.rpartition(":")
    for place, cells in ((runs_argument, "*"), (folder_part, pattern)) if sign else ((runs_argument, "*"),):
        if _holds_runs(Path(place)) or is_specification(Path(place)):
            return _having(having, found_runs(place, cells, left_out))
    if seeds := _seeds(Path(runs_argument)):
        runs = _having(having, seeds)
    elif Path(runs_argument).exists() or not has_magic(runs_argument):
        return [Path(runs_argument)]
    else:
        paths = map(Path, sorted(glob(runs_argument)))  # noqa: PTH207 (whole paths too)
        matching = [path for path in paths if _is_run(path) or _holds_runs(path) or _seeds(path)]
        # A match without such runs is no error if another match has them, so only the sum is filtered.
        runs = _having(having, (run for path in matching for run in _expanded_one(str(path), "", left_out)))
    if not runs:
        raise RunError(
            f"no run{having and f' with {having}'} is found at {runs_argument}; check the path or pattern, or train "
            "a run with `mtlprune train`"
        )
    return runs


def _seeds(folder: Path) -> list[Path]:
    """Return the runs of `mtlprune train --seeds` in a folder, unless the folder is a run itself."""
    return [] if _is_run(folder) else sorted(path.parent for path in folder.glob("seed-*/config.yaml"))


def output_folders(out: Path, runs: Sequence[RunFolder]) -> list[Path]:
    """Return the folder for the output of each run: ``out`` for a single run, and otherwise a folder in it.

    Raises:
        RunError: two runs have the same name.
    """
    names = [run_name(run.path) for run in runs]
    for name, count in Counter(names).items():
        if count > 1:
            raise RunError(f"expected runs of different names, found {name} twice; name one of the two at a time")
    return [out] if len(runs) == 1 else [out / name for name in names]


def _having(file: str, runs: Iterable[Path]) -> list[Path]:
    """Return the runs that have a file, or all runs if ``file`` is empty."""
    return [run for run in runs if not file or RunFolder(run).has(file)]


def _is_run(folder: Path) -> bool:
    """Return True if a folder is a run folder, whether or not the run is finished."""
    return (folder / "config.yaml").is_file()


def _examples(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
