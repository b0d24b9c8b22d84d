"""Counts of runs by sentence, read from their folders and paired by the ids of sentences.

Letters: S runs, N sentences, K counts a score is made of.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.errors import command
from mtlprune.evaluation.scores import SCORES, count_names
from mtlprune.runs.columns import Columns, ScoredRun
from mtlprune.runs.folder import RunError
from mtlprune.statistics.resamples import System

_IN_MEMORY = 256
"""Runs whose counts of all tasks are kept while a table is tested."""


class CountsError(RunError):
    """Runs whose counts cannot be compared; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class RunCounts:
    """Counts of a run on the sentences whose layer is known, by sentence id."""

    path: str
    ids: tuple[str, ...]
    rows: NDArray[Any]
    """(N, K)"""


def counts_in(
    tree: dict[str, Any], task: str, kind: str, names: Sequence[str]
) -> tuple[tuple[str, ...], NDArray[Any]] | None:
    """Ids of the sentences whose layer is known, in their order, and their counts (N, K), out of a run's counts of a
    split; None where one of them is missing."""
    ids, columns = tree.get("ids", ()), tree.get("counts", {}).get(task, {})
    if not columns.keys() >= set(names):
        return None
    order = sorted((i for i in range(len(ids)) if columns[names[0]][i] is not None), key=ids.__getitem__)
    dtype = np.float64 if kind == "number" else np.int32
    rows = np.array([[columns[name][i] for i in order] for name in names], dtype).T
    return tuple(ids[i] for i in order), rows


class PairedCounts:
    """Counts of the runs of columns; each run is read once."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._read = functools.lru_cache(_IN_MEMORY)(self._read_run)
        self.counts_of = functools.cache(self._load_counts)

    def names(self, task: str) -> tuple[str, ...]:
        """The K counts that the score of a task is made of."""
        return count_names(self.columns.kind(task), self.columns.name(task))

    def _load_counts(self, place: int, task: str) -> list[RunCounts]:
        """Counts of all runs of a column that have a score of a task. Raises CountsError."""
        return [self._count(run, task) for run in self.columns.columns[place].runs_of(task)]

    def _read_run(self, run: ScoredRun) -> dict[str, Any]:
        try:
            return run.folder.read_counts(self.columns.split) if run.folder.has_counts(self.columns.split) else {}
        except RunError as error:
            raise CountsError(str(error)) from None

    def _count(self, run: ScoredRun, task: str) -> RunCounts:
        """Raises CountsError where counts are missing or damaged."""
        split = self.columns.split
        ids_and_rows = counts_in(self._read(run), task, self.columns.kind(task), self.names(task))
        if ids_and_rows is None:
            anew = f"`{command('evaluate', run.path, '--split', split.partition('.')[0])}` writes them"
            raise CountsError(f"{run.path} has no counts of {task} on {split}; {anew}")
        return RunCounts(run.path, *ids_and_rows)

    def system(self, rows: Sequence[NDArray[Any]], task: str, seeds: tuple[int, ...]) -> System:
        """The counts (N, K) of S runs as the system of their seeds."""
        score = SCORES[self.columns.kind(task)][self.columns.name(task)]
        return System(np.stack(rows), self.names(task), score, seeds)

    def refuse_unpaired(self, runs: Sequence[RunCounts]) -> None:
        """Raises CountsError where runs were not scored on the same sentences."""
        first = runs[0]
        for run in runs[1:]:
            if run.ids != first.ids:
                shared_ids = len(set(first.ids) & set(run.ids))
                raise CountsError(
                    f"{first.path} and {run.path} were not scored on the same sentences ({len(first.ids)} and "
                    f"{len(run.ids)}, of which {shared_ids} have the same id), so nothing can be paired"
                )
