"""Columns of scores with their differences tested over seeds and sentences, as tables and pages show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from mtlprune.reports.scores.tables import MARGIN, Comparison, Tested
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
        setting_names = ", ".join(filter(None, [f"{tasks} tasks jointly", runs.pruning, runs.treatment, runs.regime]))
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
