"""The record that every analysis is.

From a record follow, written once: the command and its options (cli), the Result folder (results.py), Markdown,
figures and the section of the report page (reports/analyses.py), and the columns of the table of heads. Neither a
record nor what shows it loads torch: what measures is imported when it is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.frames import Declaration, declaration
from mtlprune.io.block import Block
from mtlprune.io.plugins import PluginError, described

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mtlprune.runs.results import Result


@dataclass(frozen=True)
class Column:
    """One measure of the frame ``heads`` as a column of the table of heads: its mean over the seeds of an encoder."""

    measure: str
    title: str
    meaning: str
    tested: bool = True
    """Whether it is compared with other columns; what only restates another one is not."""


@dataclass(frozen=True, eq=False)
class HeadColumn:
    """One number, or a few words, for each head: a column of the table of heads.

    Attributes:
        name: its heading.
        source: the analysis that it comes from, claims, or gradients.
        values: (L, A), NaN or "" where nothing is known of a head.
        tested: whether it is compared with other columns; what only restates another one is not.
        meaning: the reduction that makes it.
    """

    name: str
    source: str
    values: NDArray[np.float64] | NDArray[np.str_]
    tested: bool = True
    meaning: str = ""


@dataclass(frozen=True)
class Request:
    """A request to an analysis.

    Attributes:
        names: run folders and encoders.
        corpus, split, sentences: what encoders read; Path() where no corpus is named, ``sentences`` None for all.
        claims: runs with gates, for groups of heads.
        options: of the analysis.
        seed: of samples and permutations.
        device: where encoders run.
        on_status: called with what is under way, and with how many steps it has, where that is known.
        on_batch: called after each batch with the number of steps, if it is not 1.
        further: more corpora, of which the same is measured.
        pool: processes that measure runs side by side (`harness.processes`); this process measures one after another,
            if not given.
    """

    names: Sequence[str]
    corpus: Path
    options: Any
    split: str = "dev"
    sentences: int | None = None
    claims: Sequence[Path] = ()
    seed: int = 0
    device: str = "cpu"
    on_status: Callable[..., None] = lambda words, total=None: None
    on_batch: Callable[..., None] = lambda steps=1: None
    further: Sequence[Path] = ()
    pool: Executor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """What goes to another process has neither its pool nor what draws progress on the terminal."""
        callbacks = ("on_status", "on_batch", "pool")
        return partial(Request, **{name: value for name, value in vars(self).items() if name not in callbacks}), ()


@dataclass(frozen=True)
class Analysis:
    """One analysis.

    Attributes:
        name: its package in mtlprune.analyses, its command, and what its files begin with.
        title: of its section and its Markdown; the section's anchor is ``key``, the name if not given.
        question: one line of help.
        help: what the command does, in paragraphs.
        needs: what it reads: "encoders" (runs and encoders over the sentences of a corpus), "splits" (of all its
            splits, not of one), "corpora" (of several, too), "generated" (of none: sentences are generated),
            "sentences" (a few of a corpus, which need not be named), "decoders" (of runs only, each for its own tasks),
            "claims" (also runs with gates), "runs" (runs with gates only), "results" (also folders of other analyses),
            "scores" (scored runs or records of them), "processes" (several, which share the runs out among them).
        options: its own settings.
        columns: of the table of heads; None where ``head_columns`` of ``show.py`` makes them: (Result, label of an
            encoder) → list of HeadColumn, and notes in sentences.
    """

    name: str
    title: str
    question: str
    help: str
    key: str = ""
    needs: frozenset[str] = frozenset({"encoders"})
    options: type[Block] = Block
    columns: tuple[Column, ...] | None = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.name)

    def measure(self, request: Request) -> Result:
        """Compute it: ``measure`` of the package's ``measure.py``, which loads torch."""
        result: Result = import_module(f"{_package(self.name)}.measure").measure(request)
        self.declared.check(result)
        return result

    @property
    def declared(self) -> Declaration:
        """The frames, tables and figures that the package's ``frames.yaml`` declares."""
        return declaration(_package(self.name))

    @property
    def show(self) -> Any:
        """The package's ``show.py``: ``about`` and ``findings`` (Result → sentences), ``TABLES`` (name of a declared
        table → function Result → its rows; a Grid, or a list, where tables depend on the data) and ``FIGURES`` (name of
        a declared figure → function Result → chart; where figures depend on the data, a function Result → name →
        Chart)."""
        return import_module(f"{_package(self.name)}.show")


def find(name: str) -> Analysis:
    """The record of an analysis, by its name."""
    try:
        analysis: Analysis = import_module(_package(name)).ANALYSIS
    except BaseException as error:  # also sys.exit
        if name not in ANALYSES.added or isinstance(error, KeyboardInterrupt):
            raise
        where = described(ANALYSES.added[name])
        raise PluginError(
            f"{where} cannot be used ({type(error).__name__}: {error}); repair or uninstall it"
        ) from error
    return analysis


def usable() -> list[Analysis]:
    """The records of all analyses but those of installed packages that cannot be imported, of which a warning tells."""
    records = []
    for name in ANALYSES:
        try:
            records.append(find(name))
        except PluginError as error:
            log.warning("%s", error)
    return records


def _package(name: str) -> str:
    """The name by which the package of an analysis is imported."""
    return f"mtlprune.analyses.{ANALYSES.built_in[name]}" if name in ANALYSES.built_in else ANALYSES.added[name].value


def read(folder: Path, name: str) -> Result:
    """The Result of an analysis in a folder.

    Raises:
        ResultError: there is none, or a damaged one.
    """
    from mtlprune.runs.results import ResultError, read_result

    path = Path(folder) / f"{name}.json"
    if path.is_file():
        return read_result(path)
    command = name if name == "claims" else f"analyze {name}"
    if (path.parent / "config.yaml").is_file():
        raise ResultError(
            f"{folder}: expected a folder of results, found a run; name the folder that `mtlprune {command}` wrote "
            "(--out)"
        )
    raise ResultError(f"{path} is missing; `mtlprune {command} ... --out {folder}` makes it")


def results_in(folder: Path) -> dict[str, Result]:
    """Every Result in a folder, by the name of its analysis. Raises ResultError: a damaged one, or none."""
    from mtlprune.runs.results import ResultError

    results = {name: read(folder, name) for name in ANALYSES if (Path(folder) / f"{name}.json").is_file()}
    if not results:
        raise ResultError(
            f"{folder} holds no Result of {', '.join(ANALYSES)}; name a folder that `mtlprune analyze ... --out DIR` "
            "wrote"
        )
    return results
