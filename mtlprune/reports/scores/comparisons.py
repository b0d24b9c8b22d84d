"""Comparison of settings: columns of scores, and tests of their differences over seeds and sentences, for tables and
the HTML report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from mtlprune.reports.scores.tables import MARGIN, Comparison, DifferenceTests
from mtlprune.runs.columns import ScoreColumn, in_columns
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.groups import TRAINED_WITH, DescribedRun
from mtlprune.statistics.paired import CountsError, PairedCounts
from mtlprune.statistics.resamples import System
from mtlprune.statistics.significance import differences, holm, sign_flip


def compare(
    runs: Iterable[RunFolder | DescribedRun],
    split: str,
    extra: Mapping[str, Mapping[str, float]] | None = None,
    reference: str = "",
    by_corpus: bool = False,
) -> Comparison:
    """Group runs into the columns of a table, without tests. The arguments are those of ``in_columns``."""
    return Comparison(**vars(in_columns(runs, split, extra, reference, by_corpus)))


def with_tests(comparison: Comparison, resamples: int = 10_000, seed: int = 0, margin: float = MARGIN) -> Comparison:
    """Return a comparison with a test of each difference, or the reason why there is no test.

    Args:
        comparison: the columns of scores.
        resamples: number of resamples of each test.
        seed: seed of the resamples.
        margin: margin in points of the tests of equivalence, which show that a difference is smaller than the margin.

    Raises:
        ValueError: ``resamples`` is less than one.
    """
    counts, columns = PairedCounts(comparison), comparison.columns
    systems: list[System] = []
    system_indices: dict[tuple[int, str], int] = {}
    pairs: dict[tuple[int, str], tuple[int, int]] = {}
    untested: dict[tuple[int, str], str] = {}
    for index, task in comparison.compared():
        sides = [(index, task), (comparison.against[index], task)]
        try:
            runs = [counts.counts_of(*side) for side in sides]
            counts.refuse_unpaired([*runs[0], *runs[1]])
        except CountsError as error:
            untested[index, task] = str(error)
            continue
        for side, side_runs in zip(sides, runs, strict=True):
            if side not in system_indices:
                system_indices[side] = len(systems)
                seeds = tuple(run.seed for run in columns[side[0]].runs_of(task))
                systems.append(counts.system([run.rows for run in side_runs], task, seeds))
        pairs[index, task] = system_indices[sides[0]], system_indices[sides[1]]
    tested = dict(zip(pairs, differences(systems, list(pairs.values()), resamples, seed), strict=True))
    tests = {}
    for question, columns_of_question in _questions(comparison).items():
        cells = [cell for cell in tested if cell[0] in columns_of_question]
        corrected = holm([tested[cell].p for cell in cells])
        wide = holm([tested[cell].wide_p for cell in cells])
        for (index, task), p, wide_p in zip(cells, corrected, wide, strict=True):
            difference = tested[index, task]
            flip = _over_seeds(columns[index], columns[comparison.against[index]], task)
            margin_p = difference.equivalence_p(margin)
            tests[index, task] = DifferenceTests(difference, question, float(p), float(wide_p), margin_p, flip)
    tests = {cell: tests[cell] for cell in tested}
    return dataclasses.replace(
        comparison, tests=tests, untested=untested, resamples=resamples, seed=seed, margin=margin
    )


def _questions(comparison: Comparison) -> dict[str, set[int]]:
    """Group the compared columns into questions, within which p-values are corrected.

    The columns of a question have the same number of tasks and differ only in their tasks. If the user chose the
    reference column, all columns belong to one question. The correction must not depend on other columns of a table,
    because otherwise the verdict on a difference would change from table to table.

    Returns:
        title of the question → indices of its columns.
    """
    if comparison.reference:
        return {f"all − {comparison.reference}": set(comparison.against)}
    columns, families = comparison.columns, dict[str, list[int]]()
    for index in comparison.against:
        run = columns[index].runs[0]
        settings = {path: value for path, value in run.settings.items() if not path.startswith(TRAINED_WITH)}
        kind = columns[index].encoder, len(run.tasks), run.pruning, run.treatment, sorted(settings.items())
        families.setdefault(repr(kind), []).append(index)
    questions: dict[str, set[int]] = {}
    for indices in families.values():
        first, reference = columns[indices[0]], columns[comparison.against[indices[0]]]
        runs, tasks = first.runs[0], len(first.runs[0].tasks)
        setting_names = ", ".join(filter(None, [f"{tasks} tasks jointly", runs.pruning, runs.treatment, runs.regime]))
        title = f"{first.title if len(indices) == 1 else setting_names} − {reference.title}"
        title += f", {first.encoder}" if len(comparison.encoders()) > 1 else ""
        questions.setdefault(title, set()).update(indices)
    return questions


def _over_seeds(column: ScoreColumn, reference: ScoreColumn, task: str) -> float | None:
    """Return the p-value of a sign-flip test over seeds, or None unless both columns have the same 2 to 20 seeds."""
    first_scores, second_scores = (
        {run.seed: run.scores[task] for run in side.runs_of(task)} for side in (column, reference)
    )
    if first_scores.keys() != second_scores.keys() or not 2 <= len(first_scores) <= 20:
        return None
    return sign_flip([first_scores[seed] - second_scores[seed] for seed in sorted(first_scores)])
