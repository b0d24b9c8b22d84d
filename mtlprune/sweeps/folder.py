"""The folder of a sweep: its cells' run folders, and beside them who works on which, and why some failed.

sweep.json                 cell → run folder
CELL-DIGEST/               a run folder, or a link to one that was adopted
cells/CELL-DIGEST.yaml     its configuration
cells/CELL-DIGEST.owner    who works on it
cells/CELL-DIGEST.log      what its last process said
cells/CELL-DIGEST.failed   why it failed, as JSON

Knows nothing of torch.
"""

from __future__ import annotations

import datetime
import fcntl
import fnmatch
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtlprune.runs import RunFolder, replacing
from mtlprune.sweeps.owners import Owner, is_alive, read_owner
from mtlprune.sweeps.sheet import SweepError, is_sheet, nearest, read_sheet

log = logging.getLogger(__name__)

INDEX = "sweep.json"
ASIDE = "cells"
RUNS = Path("runs")

Kind = Literal["done", "running", "failed", "blocked", "left"]


@dataclass(frozen=True)
class Place:
    """Where a cell lives.

    Args:
        root: the sweep's folder.
        label: the run folder's name, CELL-DIGEST.
    """

    root: Path
    label: str

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.root / self.label)

    def beside(self, kind: str) -> Path:
        """The file of a kind: yaml, owner, log or failed."""
        return self.root / ASIDE / f"{self.label}.{kind}"

    def finished(self) -> bool:
        """Trained to the end, as far as the run folder tells. Raises RunError where it is damaged."""
        return self.run.config_path.is_file() and "finished" in self.run.read_manifest()

    def unscored(self, splits: Iterable[str]) -> list[str]:
        """The splits among these that a finished cell is not scored on yet."""
        return [split for split in splits if split not in self.run.splits()]

    # -- failures ----------------------------------------------------------------------------------------------------

    def write_failure(self, reason: str, attempt: Mapping[str, Any]) -> None:
        """Keep why the cell failed. ``attempt`` says more: who tried."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
        record = {"reason": reason, "at": at, "log": str(self.beside("log")), **attempt}
        with replacing(self.beside("failed")) as beside:
            beside.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def read_failure(self) -> dict[str, Any] | None:
        """Why the last attempt failed; None where none did."""
        try:
            return json.loads(self.beside("failed").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as error:
            raise SweepError(f"{self.beside('failed')}: not readable as JSON ({error.msg}); remove it") from None

    def owner(self) -> Owner | None:
        """The living owner of the cell, if it has one."""
        path = self.beside("owner")
        owner = read_owner(path)
        return owner if owner is not None and is_alive(path, owner) else None

    def in_use(self) -> bool:
        """Whether a process outside the sweep, such as `mtlprune train`, trains in the run folder."""
        lock = self.root / self.label / ".lock"
        try:
            with lock.open("rb+") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


@dataclass(frozen=True)
class State:
    """Where a cell stands."""

    kind: Kind
    note: str = ""
    """By whom, why, or after what."""
    failure: dict[str, Any] | None = None


def state(place: Place, splits: Iterable[str] = ()) -> State:
    """Where a cell stands, its dependencies aside.

    Args:
        splits: that it is to be scored on, beside dev.
    """
    if place.finished() and not place.unscored(splits):
        return State("done", "record" if place.run.is_record else "")
    owner = place.owner()
    if owner is not None:
        return State("running", f"{owner} since {owner.since}, {_progress(place)}")
    if place.in_use():
        return State("running", f"a process outside the sweep, {_progress(place)}")
    failure = place.read_failure()
    if failure is not None:
        return State("failed", str(failure.get("reason")), failure)
    if place.finished():
        return State("left", f"trained; to be scored on {', '.join(place.unscored(splits))}")
    return State("left", f"begun, {_progress(place)}" if place.run.config_path.is_file() else "")


def _progress(place: Place) -> str:
    if not place.run.config_path.is_file():
        return "beginning"
    epochs = place.run.read_config().get("train", {}).get("epochs", "?")
    done = len(place.run.read_metrics())
    return "scoring" if place.finished() else f"{done} of {epochs} epochs done"


def find_label(root: Path, cell: str, digest: str) -> str:
    """The name of the folder of a cell: that of the same digest, whatever the cell was called when it was made."""
    wanted = f"{cell}-{digest}"
    if (root / wanted / "config.yaml").is_file():
        return wanted
    for path in sorted(root.glob(f"*-{digest}")):
        if (path / "config.yaml").is_file():
            return path.name
    return wanted


def write_index(root: Path, name: str, sheet: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Write sweep.json, so that other verbs find the runs of cells.

    Args:
        cells: name → folder, digest, needs.

    Raises:
        SweepError: records of a sweep are there; its cells are trained elsewhere.
    """
    if (root / INDEX).is_file() and any(
        Place(root, c["folder"]).run.is_record for c in read_index(root)["cells"].values()
    ):
        raise SweepError(f"{root} holds records of runs, among which no run can be trained; name another --out")
    index = {"format": "mtlprune sweep", "version": 1, "name": name, "file": str(sheet), "cells": dict(cells)}
    with replacing(root / INDEX) as beside:
        beside.write_text(json.dumps(index, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def read_index(root: Path) -> dict[str, Any]:
    """What ``write_index`` wrote. Raises SweepError."""
    try:
        index = json.loads((root / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SweepError(
            f"{root} holds no sweep (no {INDEX} in it); `mtlprune sweep FILE --out {root}` makes one"
        ) from None
    except json.JSONDecodeError as error:
        raise SweepError(f"{root / INDEX}, line {error.lineno}: not readable as JSON ({error.msg})") from None
    cells = index.get("cells") if isinstance(index, dict) else None
    if not isinstance(cells, dict) or not all(isinstance(c, dict) and "folder" in c for c in cells.values()):
        raise SweepError(f"{root / INDEX}: expected the folder of each cell; `mtlprune sweep FILE` writes it anew")
    return index


def default_folder(name: str) -> Path:
    """Where a sweep of that name lives unless it is told otherwise."""
    return RUNS / name


# -- sweeps in the place of runs -------------------------------------------------------------------------------------


def found_runs(path: str | Path, pattern: str = "*") -> list[Path]:
    """Run folders of the finished cells of a sweep, in the order of its file.

    Args:
        path: the sweep's folder, or its file where the folder is the usual one.
        pattern: of the cells' names, such as ``gates-*``; several with commas.

    Raises:
        SweepError: no sweep there, no such cell, or none of them finished.
    """
    path = Path(path)
    root = default_folder(read_sheet(path).name) if path.is_file() else path
    cells = read_index(root)["cells"]
    patterns = pattern.split(",")
    chosen = [name for name in cells if any(fnmatch.fnmatchcase(name, wanted) for wanted in patterns)]
    if not chosen:
        raise SweepError(
            f"{path}: the sweep has no cell {pattern}{nearest(pattern, cells)}; it has {_some(list(cells))}"
        )
    found = {name: root / cells[name]["folder"] for name in chosen if Place(root, cells[name]["folder"]).finished()}
    missing = [name for name in chosen if name not in found]
    if not found:
        raise SweepError(f"{path}: none of the cells asked for is finished ({_some(chosen)}); run `mtlprune sweep`")
    if missing:
        many = f"{len(missing)} of {len(chosen)}"
        log.warning("%s: %s cells are not finished and left out: %s", path, many, _some(missing))
    return list(found.values())


def expanded(runs: Iterable[str | Path], having: str = "") -> list[Path]:
    """Run folders, with those of its finished cells in the place of each sweep.

    A sweep is named by its folder or file; with ``:PATTERN`` behind it, such as ``runs/mine:gates-*``, some of its
    cells are meant.

    Args:
        having: of a sweep's runs, only those with this file in them.
    """
    found: list[Path] = []
    for given in runs:
        whole, sign, pattern = str(given).rpartition(":")
        for place, cells in ((str(given), "*"), (whole, pattern)) if sign else ((str(given), "*"),):
            if (Path(place) / INDEX).is_file() or is_sheet(Path(place)):
                found += [run for run in found_runs(place, cells) if not having or (run / having).is_file()]
                break
        else:
            found.append(Path(given))
    return found


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
