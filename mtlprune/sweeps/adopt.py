"""Runs that were trained by themselves or in another sweep, taken in as cells of which they are the same run."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mtlprune.config.config import build_config
from mtlprune.io.files import write_text
from mtlprune.runs.folder import RunFolder
from mtlprune.sweeps.cells import LETTERS, REFERENCES, Cell, Sweep, digest
from mtlprune.sweeps.specification import SweepError


class Adopted(NamedTuple):
    """The fate of a run that was offered."""

    run: Path
    cell: str | None
    """The cell it is now; None where it is none."""
    note: str
    """The reason that it is none, or the settings that had to be read otherwise."""


def adopt(sweep: Sweep, offered: Iterable[Path]) -> Iterator[Adopted]:
    """Link each finished run into the sweep's folder as the cell whose configuration it has. ``offered``: run folders,
    and folders of run folders. Raises SweepError: there is no run.

    Names, threads, devices and paths may differ; data must have the same fingerprint; another run that it made use of
    is looked for where the run says, then beside it under the same name. A cell with ``precision: auto`` takes a run
    of either precision.
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
        inner = sorted(config.parent for config in path.glob("*/config.yaml"))
        if not (path / "config.yaml").is_file() and not inner:
            raise SweepError(f"--adopt: {path} is no run folder, and holds none")
        yield from map(RunFolder, [path] if (path / "config.yaml").is_file() else inner)


def _adopt(run: RunFolder, cells: Mapping[str, Cell]) -> Adopted:
    new_paths: dict[str, str] = {}
    digests = [run_digest(run, any_precision, new_paths)[:LETTERS] for any_precision in (False, True)]
    cell = next((cells[letters] for letters in digests if letters in cells), None)
    if cell is None:
        return Adopted(run.path, None, "no cell has its configuration")
    target = cell.place.run.path
    if (target / "config.yaml").is_file():
        is_in_place = target.resolve() == run.path.resolve()
        return Adopted(
            run.path, cell.name if is_in_place else None, "" if is_in_place else f"cell {cell.name} has a run already"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # A link to a run that has gone since then is replaced.
    if target.is_symlink():
        target.unlink()
    target.symlink_to(os.path.relpath(run.path.resolve(), target.parent.resolve()), target_is_directory=True)
    note = "; ".join(f"{old} was read as {new}" for old, new in new_paths.items())
    write_text(cell.place.path_of("adopted"), f"{run.path.resolve()}\n" + (f"{note}\n" if note else ""))
    return Adopted(run.path, cell.name, note)


def run_digest(run: RunFolder, any_precision: bool, new_paths: dict[str, str]) -> str:
    """The digest of a finished run, as a cell of the same configuration would have it. ``any_precision``: as if it had
    been asked for ``precision: auto``; ``moved``: filled with the paths of other runs that were found elsewhere than
    the run says."""
    config = build_config(run.read_config(), str(run.config_path))
    runs_named = {f"treatment.{key}": path for key, path in config.treatment.runs.items()}
    for setting in REFERENCES:
        block, _, key = setting.partition(".")
        runs_named[setting] = getattr(getattr(config, block), key)
    other_digests = {}
    for setting, path in runs_named.items():
        referenced = run.referenced_run(path) if path else None
        if referenced is not None:
            if referenced.path != Path(path):
                new_paths[path] = str(referenced.path)
            other_digests[setting] = run_digest(referenced, any_precision, new_paths)[:LETTERS]
    if any_precision:
        config = config.model_copy(update={"train": config.train.model_copy(update={"precision": "auto"})})
    return digest(config, run.read_manifest()["data"]["fingerprint"], other_digests)
