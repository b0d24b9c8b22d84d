"""Train one Transformer encoder on several NLP tasks and find the attention heads that each task relies on.

This file is the public Python interface. A loaded model annotates sentences:

    model = mtlprune.load("runs/mtl-5")
    [sentence] = model.parse("The dog saw a cat .")
    sentences = model.parse(["The dog saw a cat .", "Ann sleeps ."])
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtlprune.io.processor import has_amx

if TYPE_CHECKING:
    from pandas import DataFrame

    from mtlprune.figures.maps import GateMaps
    from mtlprune.model import MultiTaskModel
    from mtlprune.reports.analyses import ShownResult
    from mtlprune.reports.scores.tables import Comparison
    from mtlprune.runs.folder import RunFolder as RunFolder
    from mtlprune.sentence import Sentence as Sentence

__all__ = ["RunFolder", "Sentence", "load", "maps", "read_results", "read_runs", "table"]

# oneDNN caches a compiled kernel with its buffers for every matrix shape that it met recently. With AMX a kernel takes
# 3 ms to compile and about a megabyte. tasks/products.py rounds the number of rows so that few shapes occur, about 950
# in 50 joint steps of five tasks, and the larger capacity holds them all. On an AMD processor without AMX a kernel
# takes 1.9 ms and 2.2 MB, and the smaller capacity costs no time (results/speed/training.md). oneDNN reads the variable
# at its first product, so it is set on import.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1024" if has_amx() else "128")

__version__ = "0.2.0"


def __dir__() -> list[str]:
    """Return the names of the public interface."""
    return [*__all__, "__version__"]


# Type checkers see the imports above instead, so that they still report a misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import RunFolder or Sentence at first use, so that ``import mtlprune`` loads neither numpy nor torch."""
        from importlib import import_module

        modules = {"RunFolder": "mtlprune.runs.folder", "Sentence": "mtlprune.sentence"}
        if name not in modules:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)


def load(run: str | Path | RunFolder, task: str | None = None) -> MultiTaskModel:
    """Load the best model of a run, which can parse sentences.

    Args:
        run: the folder of the run.
        task: the task whose best weights are loaded. By default, the weights that are best for all tasks together are
            loaded.

    Raises:
        RunError: the folder holds no run, the run has no weights yet or was changed or damaged, or it has no such task.
    """
    from mtlprune.model import MultiTaskModel

    return MultiTaskModel.load(_path_of(run), task=task)


def read_runs(*runs: str | Path | RunFolder) -> DataFrame:
    """Read the scores and settings of runs, as in ``read_runs("runs/*").query("main and split == 'test'")``.

    Args:
        runs: run folders, folders that `train --seeds` or a sweep made, a study (finished runs packed without weights)
            or ``STUDY:PATTERN``, or patterns such as ``runs/*``. Folders without a run that match a pattern are left
            out.

    Returns:
        A data frame with a row for each run, split, task and score. The columns are ``run``, ``split``, ``task``,
        ``score`` (the name of the score), ``main`` (whether the score is the main score of the task), ``value`` in
        percent, and one column for each setting, such as ``train.seed``.

    Raises:
        RunError: no run is found, or a run is damaged.
    """
    from pandas import DataFrame

    return DataFrame([row for run in _run_folders(runs) for row in run.score_rows()])


def table(
    *runs: str | Path | RunFolder, split: str = "test", against: str = "", resamples: int = 10_000, seed: int = 0
) -> Comparison:
    """Compare runs as ``mtlprune table`` does, with one row per task and several seeds as mean ± standard deviation.

    Args:
        runs: the same as for ``read_runs``.
        split: the split whose scores are shown.
        against: the title of the column with which the other columns are compared, STL (single-task learning) by
            default.
        resamples: the number of resamples of the sentences for each test, or 0 for no tests.
        seed: the random seed of the resamples.

    Returns:
        A comparison, which notebooks show as a table. Its ``frame()`` is a data frame of all numbers.

    Raises:
        RunError: no run is found, a run has no scores on the split, or the runs do not belong in one table.
    """
    from mtlprune.reports.scores.comparisons import compare, with_tests

    comparison = compare(_run_folders(runs), split, reference=against)
    return with_tests(comparison, resamples, seed) if resamples and comparison.against else comparison


def maps(*runs: str | Path | RunFolder, palette: Literal["colourblind", "rgb"] = "colourblind") -> GateMaps:
    """Draw the heads that runs claim, as ``mtlprune claims`` does. An example is ``maps("runs/gates-*",
    palette="rgb")["rgb-POS"]``.

    Maps of seeds, means, all tasks and differences need several runs.

    Args:
        runs: the same as for ``read_runs``. Runs without gates that match a pattern are left out.
        palette: the colours of the maps of seeds.

    Returns:
        The maps by name, which notebooks display. ``maps(...)[name].numbers`` holds the numbers that a map
        shows (gates, or their differences), by name, each an array of shape (layers, heads).

    Raises:
        RunError: no run is found, a run is damaged, or a run given by its name has no gates.
    """
    from mtlprune.figures.maps import GateMaps, claim_maps
    from mtlprune.runs.claims import group, load_claims

    claims = load_claims(run.path for run in _run_folders(runs, "gates.jsonl"))
    return GateMaps({gate_map.name: gate_map for gate_map in claim_maps(group(claims), palette)})


def read_results(folder: str | Path) -> dict[str, ShownResult]:
    """Read the results of analyses by the names of the analyses. ``read_results("folder")["smoothing"].frames``
    contains data frames.

    Args:
        folder: a folder that `mtlprune analyze ... --out` wrote.

    Returns:
        The results by name. Notebooks show their findings, figures and tables.

    Raises:
        ResultError: a result is damaged, or the folder holds none.
    """
    from mtlprune.analyses.analysis import results_in
    from mtlprune.reports.analyses import ShownResult

    results = results_in(Path(folder))
    return {name: ShownResult(result.analysis, result.about, result.frames) for name, result in results.items()}


def _run_folders(runs: Iterable[str | Path | RunFolder], having: str = "") -> list[RunFolder]:
    """Return the folders of the runs. If an argument stands for several runs, only those with the file ``having``."""
    from mtlprune.runs.folder import RunFolder
    from mtlprune.sweeps.folder import expanded

    return [RunFolder.existing(path) for path in expanded(map(_path_of, runs), having)]


def _path_of(run: str | Path | RunFolder) -> str | Path:
    return run if isinstance(run, str | Path) else run.path
