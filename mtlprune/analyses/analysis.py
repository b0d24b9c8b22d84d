"""The record of an analysis, and functions that find records and read the Results of analyses.

The record is the single source of the analysis's command and its options (``cli``), its folder of results
(``runs/results.py``), its Markdown, figures and section of the report (``reports/analyses.py``), and its columns of
the table of heads. Records and views do not import torch; the measurement is imported when it is called.
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
    """A column of the table of heads that shows a measure of the frame ``heads``, as the mean over an encoder's seeds.

    Attributes:
        measure: name of the measure.
        title: heading of the column.
        meaning: what the numbers mean.
        tested: whether the column is correlated with other columns. A column that only restates another one is not.
    """

    measure: str
    title: str
    meaning: str
    tested: bool = True


@dataclass(frozen=True, eq=False)
class HeadColumn:
    """A column of the table of heads, with a number or a few words for each head.

    Attributes:
        name: heading of the column.
        source: name of the analysis from which the column comes.
        values: (L, A), NaN or "" for heads without a value.
        tested: whether the column is correlated with other columns. A column that only restates another one is not.
        meaning: what the values mean, and how they are computed.
    """

    name: str
    source: str
    values: NDArray[np.float64] | NDArray[np.str_]
    tested: bool = True
    meaning: str = ""


@dataclass(frozen=True)
class Request:
    """The input of an analysis, as the command line or a caller specifies it.

    Attributes:
        names: run folders and encoders.
        corpus, split, sentences: the text that encoders read. ``corpus`` is Path() if no corpus is named, and
            ``sentences`` is the number of sentences, or None for all.
        claims: runs with gates, whose open heads define groups of heads that are compared or closed.
        options: options of the analysis.
        seed: seed of samples and permutations.
        device: PyTorch device of encoders.
        on_status: called with a description of what is computed now, and its number of steps if known. A step is a
            sentence, an evaluation or the like.
        on_batch: called after each batch, with the number of steps of the batch if it is not 1. In a process of a pool
            both functions are those of `REPORTERS`, or do nothing.
        further: further corpora on which the same is measured.
        pool: worker processes that measure runs in parallel (`harness.processes`). Without a pool, this process
            measures one run after another.
        store: folder that stores the counts of evaluations until the result is written, so that an interrupted
            analysis can go on. None stores nothing.
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
    store: Path | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the pool and the progress callbacks, which cannot be sent to another process, when pickling."""
        callbacks = ("on_status", "on_batch", "pool")
        return partial(_received, {name: value for name, value in vars(self).items() if name not in callbacks}), ()


REPORTERS: dict[str, Callable[..., None]] = {}
"""Functions ``on_status`` and ``on_batch`` that send the progress of this process to the process that shows it."""


def _received(fields: dict[str, Any]) -> Request:
    """Return a request that was sent to this process."""
    return Request(**{**fields, **REPORTERS})


@dataclass(frozen=True)
class Analysis:
    """The record of an analysis.

    Attributes:
        name: name of the package in mtlprune.analyses, of the command, and the start of the names of result files.
        title: title of the section of the report and of the Markdown file.
        question: the question that the analysis answers, as one line of help.
        help: description of the command, in paragraphs.
        key: anchor of the section of the report; the name if not given.
        needs: the inputs of the analysis, any of "encoders" (runs and encoders, which read sentences of a corpus),
            "splits" (all splits of the corpus instead of one), "corpora" (also several corpora), "generated" (no
            corpus, because sentences are generated), "sentences" (a few sentences of a corpus, which may be left out),
            "decoders" (only runs, each with its decoders), "claims" (also runs with gates), "runs" (only runs with
            gates), "results" (also folders of other analyses), "scores" (runs with scores, or records of them) and
            "processes" (several worker processes, which share the runs).
        options: class of the analysis's options.
        columns: columns of the table of heads. If None, the function ``head_columns`` of ``show.py`` computes them: it
            takes a Result and the label of an encoder, and returns a list of HeadColumn and notes in sentences.
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
        """Run the analysis with the function ``measure`` of the package's ``measure.py``, which imports torch.

        Raises:
            ValueError: the Result has a frame or column that ``frames.yaml`` does not declare.
        """
        result: Result = import_module(f"{_package(self.name)}.measure").measure(request)
        self.declared.check(result)
        return result

    @property
    def declared(self) -> Declaration:
        """The frames, tables and figures that the package's ``frames.yaml`` declares."""
        return declaration(_package(self.name))

    @property
    def show(self) -> Any:
        """The module ``show.py`` of the package, with the views of a Result.

        The module has the functions ``about`` and ``findings``, which turn a Result into sentences. ``TABLES`` maps the
        name of a declared table to a function of the Result that returns the rows, or a Grid or list of Grids if the
        tables depend on the data. ``FIGURES`` maps the name of a declared figure to a function of the Result that
        returns its chart. If figures depend on the data, ``FIGURES`` is a function of the Result that returns a
        dictionary from names to Charts.
        """
        return import_module(f"{_package(self.name)}.show")


def find(name: str) -> Analysis:
    """Return the record of an analysis by its name.

    Raises:
        PluginError: the analysis of an installed package cannot be imported.
    """
    try:
        analysis: Analysis = import_module(_package(name)).ANALYSIS
    except BaseException as error:  # code of an installed package may also call sys.exit
        if name not in ANALYSES.added or isinstance(error, KeyboardInterrupt):
            raise
        where = described(ANALYSES.added[name])
        raise PluginError(
            f"{where} cannot be used ({type(error).__name__}: {error}); repair or uninstall it"
        ) from error
    return analysis


def usable() -> list[Analysis]:
    """Return the records of all analyses. Analyses of installed packages that cannot be imported are left out with a
    warning."""
    records = []
    for name in ANALYSES:
        try:
            records.append(find(name))
        except PluginError as error:
            log.warning("%s", error)
    return records


def _package(name: str) -> str:
    """Return the import path of the package of an analysis."""
    return f"mtlprune.analyses.{ANALYSES.built_in[name]}" if name in ANALYSES.built_in else ANALYSES.added[name].value


def read(folder: Path, name: str) -> Result:
    """Read the Result of an analysis from a folder.

    Raises:
        ResultError: the folder has no such Result, or the Result is damaged.
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
    """Read all Results of a folder, by the name of the analysis.

    Raises:
        ResultError: the folder has no Result, or a Result is damaged.
    """
    from mtlprune.runs.results import ResultError

    if not Path(folder).is_dir():
        raise ResultError(f"{folder}: expected a folder of results, found no such folder; check the path")
    results = {name: read(folder, name) for name in ANALYSES if (Path(folder) / f"{name}.json").is_file()}
    if not results:
        folders = sorted({path.parent.name for name in ANALYSES for path in Path(folder).glob(f"*/{name}.json")})
        advice = f", such as {Path(folder) / folders[0]}" if folders else ""
        raise ResultError(
            f"{folder} holds no result of {', '.join(ANALYSES)}; name a folder that `mtlprune analyze ... --out DIR` "
            f"wrote{advice}"
        )
    return results
