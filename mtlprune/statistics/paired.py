"""The counts of runs on each sentence, read from their folders, for comparisons of runs on the same sentences.

Letters in shapes: S runs, N sentences, K counts from which a score is computed.
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
"""Number of runs whose counts stay in memory."""


class CountsError(RunError):
    """The counts of runs cannot be compared. The message gives the reason and what to do."""


@dataclass(frozen=True, eq=False)
class RunCounts:
    """The counts of a run for one task, on the N sentences that are annotated with the task's layer."""

    path: str
    """Folder of the run."""
    ids: tuple[str, ...]
    """Ids of the sentences, sorted."""
    rows: NDArray[Any]
    """(N, K) counts."""


def counts_in(
    tree: dict[str, Any], task: str, kind: str, names: Sequence[str]
) -> tuple[tuple[str, ...], NDArray[Any]] | None:
    """Read the counts of a task from a run's counts of a split.

    Args:
        tree: the counts of the split, as ``RunFolder.read_counts`` returns them.
        task: name of the task.
        kind: kind of the task's layer.
        names: names of the K counts to read.

    Returns:
        The sorted ids of the sentences that are annotated with the layer, and their counts (N, K); None if a count is
        missing.
    """
    ids, columns = tree.get("ids", ()), tree.get("counts", {}).get(task, {})
    if not columns.keys() >= set(names):
        return None
    order = sorted((i for i in range(len(ids)) if columns[names[0]][i] is not None), key=ids.__getitem__)
    dtype = np.float64 if kind == "number" else np.int32
    rows = np.array([[columns[name][i] for i in order] for name in names], dtype).T
    return tuple(ids[i] for i in order), rows


class PairedCounts:
    """The counts of all runs in the columns of a table.

    Up to ``_IN_MEMORY`` runs stay in memory, so that a run is not read again for each of its tasks.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._read = functools.lru_cache(_IN_MEMORY)(self._read_run)
        self.counts_of = functools.cache(self._load_counts)

    def names(self, task: str) -> tuple[str, ...]:
        """Return the names of the K counts from which the score of a task is computed."""
        return count_names(self.columns.kind(task), self.columns.name(task))

    def _load_counts(self, column: int, task: str) -> list[RunCounts]:
        """Load the counts of all runs of a column that have a score of the task. Raises CountsError."""
        return [self._count(run, task) for run in self.columns.columns[column].runs_of(task)]

    def _read_run(self, run: ScoredRun) -> dict[str, Any]:
        try:
            return run.folder.read_counts(self.columns.split) if run.folder.has_counts(self.columns.split) else {}
        except RunError as error:
            raise CountsError(str(error)) from None

    def _count(self, run: ScoredRun, task: str) -> RunCounts:
        """Load the counts of a run for a task. Raises CountsError if they are missing or damaged."""
        split = self.columns.split
        ids_and_rows = counts_in(self._read(run), task, self.columns.kind(task), self.names(task))
        if ids_and_rows is None:
            advice = f"`{command('evaluate', run.path, '--split', split.partition('.')[0])}` writes them"
            raise CountsError(f"{run.path} has no counts of {task} on {split}; {advice}")
        return RunCounts(run.path, *ids_and_rows)

    def system(self, rows: Sequence[NDArray[Any]], task: str, seeds: tuple[int, ...]) -> System:
        """Build the system of S runs from their counts (N, K) of a task."""
        score = SCORES[self.columns.kind(task)][self.columns.name(task)]
        return System(np.stack(rows), self.names(task), score, seeds)

    def refuse_unpaired(self, runs: Sequence[RunCounts]) -> None:
        """Raise CountsError if the runs were not scored on the same sentences."""
        first = runs[0]
        for run in runs[1:]:
            if run.ids != first.ids:
                shared_ids = len(set(first.ids) & set(run.ids))
                raise CountsError(
                    f"{first.path} and {run.path} were not scored on the same sentences ({len(first.ids)} and "
                    f"{len(run.ids)}, of which {shared_ids} have the same id), so nothing can be paired"
                )
