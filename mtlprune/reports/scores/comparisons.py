"""Columns of scores with their differences tested over seeds and sentences, as tables and pages show them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mtlprune.figures.grid import html
from mtlprune.runs.columns import Columns, ScoreColumn, in_columns
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.groups import TRAINED_WITH, DescribedRun
from mtlprune.statistics.paired import CountsError, PairedCounts
from mtlprune.statistics.resamples import System
from mtlprune.statistics.significance import LEVEL, Difference, differences, holm, sign_flip

if TYPE_CHECKING:
    from pandas import DataFrame

MARGIN = 1.0
"""In points: differences smaller than this are called equivalent."""


@dataclass(frozen=True)
class Tested:
    """A difference of a table and its test."""

    difference: Difference
    question: str
    """The question that it is one of the answers to, such as MTL-5 − STL; p are corrected over its differences."""
    p_holm: float
    """p of these runs, over sentences; corrected within the question."""
    wide_p_holm: float
    """Over seeds and sentences; corrected within the question. NaN without two seeds on either side, or where no error
    can be estimated."""
    equivalence_p: float
    """That the difference is smaller than the table's margin, over seeds and sentences; NaN as above."""
    seeds: float | None
    """p of a sign-flip test over the seeds alone, where both settings have the same ones, two or more."""

    @property
    def significant(self) -> bool:
        """Beyond seeds and sentences; never with one run on a side."""
        return self.wide_p_holm < LEVEL

    @property
    def of_these_runs(self) -> bool:
        """Beyond sentences only: these very runs differ, their settings are not shown to."""
        return not self.significant and self.p_holm < LEVEL

    @property
    def detectable(self) -> float:
        """Minimum detectable effect in points where the difference is not shown, else NaN."""
        is_significant = self.significant if self.difference.has_seeds else self.of_these_runs
        return math.nan if is_significant else self.difference.detectable

    @property
    def mark(self) -> str:
        """* beyond seeds and sentences; † beyond sentences only."""
        return "*" if self.significant else "†" if self.of_these_runs else ""

    @property
    def interval(self) -> tuple[float, float]:
        """Over seeds and sentences, or over sentences where there are no two seeds on either side."""
        difference = self.difference
        wide = difference.wide_low, difference.wide_high
        return wide if difference.has_seeds else (difference.low, difference.high)


@dataclass
class Comparison(Columns):
    """Columns side by side, with the tests of their differences."""

    tests: dict[tuple[int, str], Tested] = field(default_factory=dict)
    """Column and task → the test of that difference."""
    untested: dict[tuple[int, str], str] = field(default_factory=dict)
    """Column and task → why there is no test of that difference."""
    resamples: int = 0
    """Resamples of each test; 0 where none was asked for."""
    seed: int = 0
    margin: float = MARGIN
    """Margin of the tests of equivalence, in points."""
    left_out: tuple[str, ...] = ()
    """Sentences on cells of a sweep that are not in it, and why."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Name of a run's folder → sentences a second without its closed heads, over those with a mask."""

    def __repr__(self) -> str:
        from mtlprune.reports.scores import tables

        return tables.markdown(self)

    def _repr_html_(self) -> str:
        from mtlprune.reports.scores import tables

        return html([*tables.blocks(self), *tables.notes(self)])

    def frame(self) -> DataFrame:
        """A row for each number of the table, unrounded: column, task, score, n, mean, sd and, where a difference was
        tested, its size, intervals and p-values; what ``mtlprune table --format csv`` writes."""
        from pandas import DataFrame

        from mtlprune.reports.scores import tables

        return DataFrame(tables.records(self))


def compare(
    runs: Iterable[RunFolder | DescribedRun],
    split: str,
    extra: Mapping[str, Mapping[str, float]] | None = None,
    reference: str = "",
    by_corpus: bool = False,
) -> Comparison:
    """Group runs into columns, as ``in_columns`` does, yet without tests."""
    return Comparison(**vars(in_columns(runs, split, extra, reference, by_corpus)))


def with_tests(comparison: Comparison, resamples: int = 10_000, seed: int = 0, margin: float = MARGIN) -> Comparison:
    """The same comparison with its differences tested, or with the reason why one is not.

    Args:
        margin: in points; a difference is also tested against being as large as that.

    Raises:
        ValueError: fewer than one resample.
    """
    counts, columns = PairedCounts(comparison), comparison.columns
    systems: list[System] = []
    places: dict[tuple[int, str], int] = {}
    pairs: dict[tuple[int, str], tuple[int, int]] = {}
    untested: dict[tuple[int, str], str] = {}
    for place, task in comparison.compared():
        sides = [(place, task), (comparison.against[place], task)]
        try:
            runs = [counts.counts_of(*side) for side in sides]
            counts.refuse_unpaired([*runs[0], *runs[1]])
        except CountsError as error:
            untested[place, task] = str(error)
            continue
        for side, side_runs in zip(sides, runs, strict=True):
            if side not in places:
                places[side] = len(systems)
                seeds = tuple(run.seed for run in columns[side[0]].runs_of(task))
                systems.append(counts.system([run.rows for run in side_runs], task, seeds))
        pairs[place, task] = places[sides[0]], places[sides[1]]
    tested = dict(zip(pairs, differences(systems, list(pairs.values()), resamples, seed), strict=True))
    tests = {}
    for question, places_of in _questions(comparison).items():
        cells = [cell for cell in tested if cell[0] in places_of]
        corrected = holm([tested[cell].p for cell in cells])
        wide = holm([tested[cell].wide_p for cell in cells])
        for (place, task), p, wide_p in zip(cells, corrected, wide, strict=True):
            difference = tested[place, task]
            flip = _over_seeds(columns[place], columns[comparison.against[place]], task)
            margin_p = difference.equivalence_p(margin)
            tests[place, task] = Tested(difference, question, float(p), float(wide_p), margin_p, flip)
    tests = {cell: tests[cell] for cell in tested}
    return dataclasses.replace(
        comparison, tests=tests, untested=untested, resamples=resamples, seed=seed, margin=margin
    )


def _questions(comparison: Comparison) -> dict[str, set[int]]:
    """Question → the columns whose differences answer it: those of as many tasks that differ in nothing but the tasks,
    or, where a column was asked for to compare with, all.

    The correction for several tests must not depend on what else a table happens to show, else one difference has
    another verdict in each table.
    """
    if comparison.reference:
        return {f"all − {comparison.reference}": set(comparison.against)}
    columns, families = comparison.columns, dict[str, list[int]]()
    for place in comparison.against:
        run = columns[place].runs[0]
        settings = {path: value for path, value in run.settings.items() if not path.startswith(TRAINED_WITH)}
        kind = columns[place].encoder, len(run.tasks), run.pruning, run.treatment, sorted(settings.items())
        families.setdefault(repr(kind), []).append(place)
    questions: dict[str, set[int]] = {}
    for places in families.values():
        first, reference = columns[places[0]], columns[comparison.against[places[0]]]
        runs, tasks = first.runs[0], len(first.runs[0].tasks)
        setting_names = ", ".join(filter(None, [f"{tasks} tasks together", runs.pruning, runs.treatment, runs.regime]))
        title = f"{first.title if len(places) == 1 else setting_names} − {reference.title}"
        title += f", {first.encoder}" if len(comparison.encoders()) > 1 else ""
        questions.setdefault(title, set()).update(places)
    return questions


def _over_seeds(column: ScoreColumn, reference: ScoreColumn, task: str) -> float | None:
    first_scores, second_scores = (
        {run.seed: run.scores[task] for run in side.runs_of(task)} for side in (column, reference)
    )
    if first_scores.keys() != second_scores.keys() or not 2 <= len(first_scores) <= 20:
        return None
    return sign_flip([first_scores[seed] - second_scores[seed] for seed in sorted(first_scores)])
