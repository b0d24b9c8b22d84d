"""The differences of a table, tested over sentences: counts read from run folders, tests, Holm's correction."""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.evaluation.scores import SCORES, count_names
from mtlprune.reports.scores.comparisons import MARGIN, Comparison, ScoreColumn, ScoredRun
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.statistics.significance import LEVEL, Difference, SignFlip, System, differences, holm, sign_flip

OF_GOLD = frozenset({"gold", "words", "words_no_punct"})
"""Counts that depend on gold only: equal for all runs of a sentence."""
HELD = 256
"""Runs whose counts of all tasks are held while a table is tested."""


class CountsError(RunError):
    """Runs whose counts cannot be compared; the message says why and what to do."""


@dataclass(frozen=True)
class Tested:
    """A difference of a table and its test."""

    difference: Difference
    p_holm: float
    """Of these runs, over sentences; corrected within the table."""
    wide_p_holm: float
    """Over seeds and sentences; corrected within the table. NaN without two seeds on either side, or where no error can
    be estimated."""
    equivalence_p: float
    """That the difference is smaller than the table's margin, over seeds and sentences; NaN as above."""
    seeds: SignFlip | None
    """Over the seeds alone, where both settings have the same ones, two or more."""

    @property
    def significant(self) -> bool:
        """Beyond seeds and sentences; never with one run on a side."""
        return self.wide_p_holm < LEVEL

    @property
    def of_these_runs(self) -> bool:
        """Beyond sentences only: these very runs differ, their settings are not shown to."""
        return not self.significant and self.p_holm < LEVEL

    @property
    def mark(self) -> str:
        """* beyond seeds and sentences; † beyond sentences only."""
        return "*" if self.significant else "†" if self.of_these_runs else ""

    @property
    def interval(self) -> tuple[float, float]:
        """Over seeds and sentences, or over sentences where there are no two seeds on either side."""
        found = self.difference
        return (found.wide_low, found.wide_high) if found.has_seeds else (found.low, found.high)


@dataclass(frozen=True, eq=False)
class Counted:
    """Counts of a run on the sentences whose layer is known, by sentence id."""

    path: str
    ids: tuple[str, ...]
    rows: NDArray[np.int32]
    """(N, K)"""


def with_tests(comparison: Comparison, resamples: int = 10_000, seed: int = 0, margin: float = MARGIN) -> Comparison:
    """The same comparison with its differences tested, or with the reason why one is not.

    Args:
        margin: in points; a difference is also tested against being as large as that.

    Raises:
        ValueError: fewer than one resample.
    """
    read = functools.lru_cache(HELD)(partial(read_counts, comparison.split))

    @functools.cache
    def counted(place: int, task: str) -> list[Counted]:
        runs = comparison.columns[place].runs_of(task)
        return [count_run(run, task, comparison.split, read(run.path)) for run in runs]

    systems: list[System] = []
    places: dict[tuple[int, str], int] = {}
    asked: list[tuple[int, str]] = []
    untested: dict[tuple[int, str], str] = {}
    for place, task in comparison.compared():
        sides = [(place, task), (comparison.against[place], task)]
        try:
            runs = [counted(*side) for side in sides]
            names = count_names(comparison.kind(task), comparison.name(task))
            refuse_unpaired([*runs[0], *runs[1]], names)
        except CountsError as error:
            untested[place, task] = str(error)
            continue
        for side, each in zip(sides, runs, strict=True):
            if side not in places:
                places[side] = len(systems)
                seeds = tuple(run.seed for run in comparison.columns[side[0]].runs_of(task))
                score = SCORES[comparison.kind(task)][comparison.name(task)]
                systems.append(System(np.stack([run.rows for run in each]), names, score, seeds))
        asked.append((place, task))
    pairs = [(places[place, task], places[comparison.against[place], task]) for place, task in asked]
    found = differences(systems, pairs, resamples, seed)
    corrected = holm([difference.p for difference in found])
    wide = holm([difference.wide_p for difference in found])
    tests = {
        (place, task): Tested(
            difference,
            float(p),
            float(wide_p),
            difference.equivalence_p(margin),
            _over_seeds(comparison.columns[place], comparison.columns[comparison.against[place]], task),
        )
        for (place, task), difference, p, wide_p in zip(asked, found, corrected, wide, strict=True)
    }
    return dataclasses.replace(
        comparison, tests=tests, untested=untested, resamples=resamples, seed=seed, margin=margin
    )


def read_counts(split: str, path: str) -> dict[str, Any]:
    """The counts of a run; nothing where it has none. Raises CountsError."""
    folder = RunFolder(path)
    try:
        return folder.read_counts(split) if folder.has_counts(split) else {}
    except RunError as error:
        raise CountsError(str(error)) from None


def count_run(run: ScoredRun, task: str, split: str, tree: dict[str, Any]) -> Counted:
    """Raises CountsError where they are missing, damaged, or do not give the run's score."""
    names, score = count_names(run.layer_kinds[task], run.names[task]), SCORES[run.layer_kinds[task]][run.names[task]]
    anew = f"`mtlprune evaluate {run.path} --split {split.partition('.')[0]}` writes them"
    ids, held = tree.get("ids", ()), tree.get("counts", {}).get(task, {})
    if not held.keys() >= set(names):
        raise CountsError(f"{run.path} has no counts of {task} on {split}; {anew}")
    if twice := [name for name, times in Counter(ids).items() if times > 1]:
        raise CountsError(f"{run.path}: several sentences of {split} have the id {twice[0]}, so none can be paired")
    order = sorted((i for i in range(len(ids)) if held[names[0]][i] is not None), key=ids.__getitem__)
    rows = np.array([[held[name][i] for i in order] for name in names], dtype=None if order else np.int64).T
    if rows.dtype.kind != "i":
        raise CountsError(f"{run.path}: counts of {task} on {split} are no whole numbers; {anew}")
    again = float(score(dict(zip(names, rows.reshape(-1, len(names)).sum(0).astype(float).tolist(), strict=True))))
    if not len(rows) or not math.isclose(again, run.scores[task], abs_tol=1e-6):
        raise CountsError(
            f"{run.path}: the counts of {task} on {split} give {again:.4f}, its scores say {run.scores[task]:.4f}; "
            f"{anew} anew"
        )
    return Counted(run.path, tuple(ids[i] for i in order), rows.astype(np.int32))


def refuse_unpaired(runs: Sequence[Counted], names: tuple[str, ...]) -> None:
    """Raises CountsError where runs were not scored on the same sentences, or not against the same gold."""
    of_gold = [k for k, name in enumerate(names) if name in OF_GOLD]
    first = runs[0]
    for other in runs[1:]:
        if other.ids != first.ids:
            alike = len(set(first.ids) & set(other.ids))
            raise CountsError(
                f"{first.path} and {other.path} were not scored on the same sentences ({len(first.ids)} and "
                f"{len(other.ids)}, of which {alike} have the same id), so nothing can be paired"
            )
        if not (other.rows[:, of_gold] == first.rows[:, of_gold]).all():
            raise CountsError(f"{first.path} and {other.path} were scored against different gold, by their counts")


def _over_seeds(column: ScoreColumn, other: ScoreColumn, task: str) -> SignFlip | None:
    ours, theirs = ({run.seed: run.scores[task] for run in side.runs_of(task)} for side in (column, other))
    if ours.keys() != theirs.keys() or not 2 <= len(ours) <= 20:
        return None
    return sign_flip([ours[seed] - theirs[seed] for seed in sorted(ours)])
