"""mtlprune: which attention heads does each task claim?

model = mtlprune.load("runs/mtl-5")
[sentence] = model.parse("The dog saw a cat .")
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

    from mtlprune.model import MultiTaskModel
    from mtlprune.results import Result

# oneDNN keeps compiled kernels with their buffers, about a megabyte each, for the shapes it met last. Rows are rounded
# so that few shapes occur (tasks/products.py): about 950 in 50 joint steps of five tasks. Read at the first product.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1024")

__version__ = "0.1.0"


def load(run: str | Path, task: str | None = None) -> MultiTaskModel:
    """The best model of a run, ready to parse.

    Args:
        run: a run folder.
        task: take the weights that are best for this task, not those that are best for all.

    Raises:
        RunError: no run there, or nothing kept of it yet.
    """
    from mtlprune.model import MultiTaskModel  # here, so that `import mtlprune` does not load torch

    return MultiTaskModel.load(run, task=task)


def read_runs(*patterns: str | Path) -> DataFrame:
    """Scores of runs and records, with their settings: ``read_runs("runs/*").query("main and split == 'test'")``.

    Args:
        patterns: run folders, what `train --seeds` or a sweep made, or patterns such as ``runs/*``, of which folders
            that hold no run are left out.

    Returns:
        A row for each run, split, task and score: ``run``, ``split``, ``task``, ``score`` (its name), ``main`` (whether
        it is *the* score of the task), ``value`` in percent, and a column for each setting (``train.seed``).

    Raises:
        RunError: nothing is found, or a run is damaged.
    """
    from glob import glob

    from pandas import DataFrame

    from mtlprune.runs import RunError, RunFolder
    from mtlprune.sweeps.folder import expanded

    named = list(map(str, patterns))
    found = [path for name in named for path in (sorted(glob(name)) or [name])]  # noqa: PTH207 (whole paths too)
    made_by_train = ("config.yaml", "seed-*/config.yaml")
    runs = [
        path
        for path in dict.fromkeys(found)
        if path in named or any(any(Path(path).glob(made)) for made in made_by_train)
    ]
    if not runs:
        raise RunError(f"no run is found at {', '.join(named)}; `mtlprune train` makes one")
    return DataFrame([row for path in expanded(runs) for row in RunFolder.existing(path).score_rows()])


def read_results(folder: str | Path) -> dict[str, Result]:
    """What analyses found, by their names; ``read_results("found")["smoothing"].frames`` are data frames.

    Args:
        folder: that `mtlprune analyze ... --out` wrote, with this version or an earlier one.

    Raises:
        ResultError: a damaged Result, or none.
    """
    from mtlprune.analyses.analysis import results_in

    return results_in(Path(folder))
