"""Tables of scores: single-task and joint runs in columns, with mean ± sample standard deviation over seeds, and tests
of differences.

    print(markdown(with_tests(compare([RunFolder("runs/a"), RunFolder("runs/b")], "test"))))

Rows are tasks, with a block of rows for each encoder. Joint runs of two tasks share columns: a column +POS has the
scores of all tasks that were trained jointly with POS, so these columns form a triangle.
"""

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from mtlprune.errors import plural, printable_lines
from mtlprune.figures.grid import (
    DETECTABLE,
    Grid,
    Strong,
    html,
    latex_document,
    markdown_document,
    mean_sd,
    points,
    probability,
)
from mtlprune.io.files import json_text, plain
from mtlprune.layers import in_order, layer_order
from mtlprune.reports.scores import plain_heads
from mtlprune.runs.columns import Columns, ScoreColumn, ScoredRun, column_order, paths_that_differ
from mtlprune.runs.folder import run_name
from mtlprune.runs.groups import differing_settings, family_suffix
from mtlprune.statistics.significance import Difference
from mtlprune.statistics.standard_errors import LEVEL

MARGIN = 1.0
"""Default margin in points: settings whose difference is smaller are called equivalent."""


@dataclass(frozen=True)
class DifferenceTests:
    """A difference of a table with its tests.

    Attributes:
        difference: the difference, its intervals and its uncorrected p-values.
        question: title of the question to which the difference belongs, such as MTL-5 − STL. P-values are corrected
            (Holm) over the differences of a question.
        p_holm: corrected p-value over sentences, with these runs held fixed.
        wide_p_holm: corrected p-value over seeds and sentences; NaN if a setting has only one seed, or if no error can
            be estimated.
        equivalence_p: p-value of the test that the difference is smaller than the margin of the table, over seeds and
            sentences; NaN in the same cases as ``wide_p_holm``.
        seeds: p-value of a sign-flip test over seeds only; None unless both settings have the same 2 to 20 seeds.
    """

    difference: Difference
    question: str
    p_holm: float
    wide_p_holm: float
    equivalence_p: float
    seeds: float | None

    @property
    def significant(self) -> bool:
        """Whether the difference is significant over seeds and sentences; never true with only one run of a setting."""
        return self.wide_p_holm < LEVEL

    @property
    def of_these_runs(self) -> bool:
        """Whether the difference is significant over sentences only, which shows that these runs differ, but not that
        runs with other seeds would."""
        return not self.significant and self.p_holm < LEVEL

    @property
    def detectable(self) -> float:
        """Minimum detectable effect in points; NaN if the difference is significant (over sentences, if a setting has
        only one seed)."""
        is_significant = self.significant if self.difference.has_seeds else self.of_these_runs
        return math.nan if is_significant else self.difference.detectable

    @property
    def mark(self) -> str:
        """Mark of the difference in tables: * if significant over seeds and sentences, † if over sentences only."""
        return "*" if self.significant else "†" if self.of_these_runs else ""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval over seeds and sentences, or over sentences only if a setting has a single seed."""
        difference = self.difference
        wide = difference.wide_low, difference.wide_high
        return wide if difference.has_seeds else (difference.low, difference.high)


@dataclass
class Comparison(Columns):
    """A table of scores, with tests of the differences between columns.

    Attributes:
        tests: (index of the column, task) → test of the difference from the reference column.
        untested: (index of the column, task) → reason why there is no test.
        resamples: number of resamples of each test; 0 without tests.
        seed: seed of the resamples.
        margin: margin of the tests of equivalence, in points.
        left_out: sentences on runs of a sweep that are not in the table, and why.
        speeds: name of a run's folder → sentences per second after removal of its closed heads, divided by those with
            the closed heads masked.
    """

    tests: dict[tuple[int, str], DifferenceTests] = field(default_factory=dict)
    untested: dict[tuple[int, str], str] = field(default_factory=dict)
    resamples: int = 0
    seed: int = 0
    margin: float = MARGIN
    left_out: tuple[str, ...] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return markdown(self)

    def _repr_html_(self) -> str:
        return html([*blocks(self), *notes(self)])

    def frame(self) -> pd.DataFrame:
        """Return a data frame with a row for each score of the table, without rounding. The command ``mtlprune table
        --format csv`` writes the same rows. Columns include column, task, score, n, mean, sd and, if a difference was
        tested, its size, intervals and p-values."""
        return pd.DataFrame(records(self))


@markdown_document
def markdown(comparison: Comparison) -> str:
    """Return the table in Markdown, with its legend and notes and, if differences were tested, a table of all tests."""
    parts = [block.markdown() if isinstance(block, Grid) else f"{block}\n" for block in blocks(comparison)]
    if lines := notes(comparison):
        parts.append("".join(f"- {line}\n" for line in lines))
    return "\n".join(parts)


def blocks(comparison: Comparison) -> list[Grid | str]:
    """Return all tables, each followed by its legend."""
    tests: list[Grid | str] = [details(comparison), tests_legend(comparison)] if comparison.tests else []
    return [*grids(comparison), legend(comparison), *tests]


def latex(comparison: Comparison) -> str:
    """Return the tables of scores, differences and tests as LaTeX, for \\input in a document with the packages booktabs
    and longtable. The notes become comments."""
    first, *further_grids = grids(comparison)
    parts = [_with_signs(first).latex("tab:scores", legend(comparison))]
    parts += [
        _with_signs(grid).latex("tab:differences", f"Differences from {comparison.reference or 'STL'}.")
        for grid in further_grids
    ]
    if comparison.tests:
        parts.append(_with_signs(details(comparison)).latex("tab:tests", tests_legend(comparison)))
    return latex_document(notes(comparison), parts)


def _with_signs(grid: Grid) -> Grid:
    """Replace hyphens before numbers by minus signs in all cells."""
    rows = [[type(text)(re.sub(r"(?<![\w.])-(?=\d)", "−", text)) for text in row] for row in grid.rows]
    return Grid(grid.header, rows, grid.texts)


def records(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield a record for each score in the table, without rounding. Undefined or untested values are None."""
    rivals: dict[tuple[str, str], set[int]] = {}
    for rows in _slots(comparison).values():
        for key, index in rows.items():
            rivals.setdefault(key, set()).add(index)
    for (encoder, task), indices in rivals.items():
        top = best(comparison, task, indices)
        for index in sorted(indices):
            if values := comparison.columns[index].values(task):
                speeds = _speeds(comparison, comparison.columns[index].runs_of(task))
                record = {
                    "encoder": encoder,
                    "task": task,
                    "score": comparison.name(task),
                    **_cell_record(comparison.columns[index], task, values),
                    "speed": statistics.mean(speeds) if speeds else None,
                    "best": index in top,
                    "more_training": comparison.more_training(index, task) or None,
                    **_test_record(comparison, index, task),
                }
                yield plain(record)


def _cell_record(column: ScoreColumn, task: str, values: list[float]) -> dict[str, Any]:
    """Return the part of a record that describes the score and its runs."""
    runs = column.runs_of(task)
    open_counts = [run.heads[task] for run in runs if task in run.heads]
    return {
        "column": column.title,
        "tasks": list(runs[0].tasks) if len({run.tasks for run in runs}) == 1 else None,
        "mean": statistics.mean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
        "seeds": [run.seed for run in runs],
        "updates": max((run.updates for run in runs), default=0) or None,
        "heads": statistics.mean(heads for heads, _ in open_counts) if open_counts else None,
        "heads_of": open_counts[0][1] if open_counts else None,
        "runs": [run.path for run in runs],
    }


def _test_record(comparison: Comparison, index: int, task: str) -> dict[str, Any]:
    """Return the part of a record that describes the difference and its tests. All records have the same keys."""
    test, reference = comparison.tests.get((index, task)), comparison.against.get(index)
    column = comparison.columns[index]
    rivals = comparison.columns[reference].values(task) if reference is not None else []
    difference = test.difference if test else None
    error = difference.wide_error if difference else None
    over_sentences = ("low", "high", "effect", "p", "floor", "exact", "sentences", "differing", "detectable")
    return {
        "against": comparison.columns[reference].title if reference is not None else None,
        "delta": statistics.mean(column.values(task)) - statistics.mean(rivals) if rivals else None,
        **{name: getattr(difference, name, None) for name in (*over_sentences, *_WIDE)},
        **{
            name: getattr(test, name, None)
            for name in ("question", "p_holm", "wide_p_holm", "equivalence_p", "significant")
        },
        "wide_error_seeds": (list(error.seeds) or None) if error else None,
        "wide_error_noise": (list(error.noise) or None) if error else None,
        "wide_error_sentences": error.sentences if error else None,
        "wide_free": (list(error.free) or None) if error else None,
        "significant_of_these_runs": test.of_these_runs if test else None,
        "seeds_p": test.seeds if test else None,
        "untested": comparison.untested.get((index, task)),
    }


_WIDE = ("wide_low", "wide_high", "wide_p", "paired")


def to_csv(comparison: Comparison) -> str:
    """Return the records of ``records`` as CSV. Undefined values are empty, and the items of lists are joined by ;."""
    rows = [
        {name: ";".join(map(str, value)) if isinstance(value, list) else value for name, value in record.items()}
        for record in records(comparison)
    ]
    return printable_lines(pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n"))


def to_json(comparison: Comparison) -> str:
    """Return the records of ``records`` as JSON, with the options of the tests, the legends, the notes and the settings
    of the runs."""
    tree = {
        "split": comparison.split,
        "resamples": comparison.resamples,
        "seed": comparison.seed,
        "margin": comparison.margin,
        "tests": len(comparison.tests),
        "legend": [legend(comparison), *([tests_legend(comparison)] if comparison.tests else [])],
        "notes": notes(comparison),
        "cells": list(records(comparison)),
        "settings": [
            {"run": run.path, **run.settings, "seed": run.seed} for column in comparison.columns for run in column.runs
        ],
    }
    return json_text(tree)


_MAX_DIFFERENCES_BESIDE = 3
"""The largest number of columns of differences next to the scores. With more, differences have a separate table."""
MORE_TRAINING_MARK = "‡"
"""Mark of scores of settings with more training than the other settings of the row."""
_Row = tuple[str, str]
"""A row of the printed table: encoder and task."""


_Slots = dict[str, dict[_Row, int]]
"""Title of the printed column → row → index in ``Comparison.columns``."""


def _slots(comparison: Comparison) -> _Slots:
    """Assign the columns of a comparison to printed columns.

    The scores of a pair of tasks such as POS+DEP are printed in two columns: that of POS in the column +DEP, and that
    of DEP in the column +POS.
    """
    printed: _Slots = {}
    encoders, tasks = comparison.encoders(), comparison.tasks()
    columns = comparison.columns
    extras = [index for index, column in enumerate(columns) if not column.runs]
    trained = [index for index, column in enumerate(columns) if column.runs]
    pairs = [column.runs[0] for column in columns if column.in_triangle]
    partners = in_order(task for run in pairs for task in run.tasks)
    for index in extras + sorted(trained, key=lambda index: column_order(columns[index].runs)):
        column = columns[index]
        if not column.in_triangle:
            rows = {(e, task): index for e in encoders if column.encoder in ("", e) for task in tasks}
            printed.setdefault(column.title, {}).update(rows)
            continue
        run = column.runs[0]
        suffix = family_suffix(run, [pair for pair in pairs if pair.encoder == run.encoder])
        for partner in partners:
            rows = {(column.encoder, task): index for task in run.tasks if task != partner}
            printed.setdefault(f"+{partner.upper()}{suffix}", {}).update(rows if partner in run.tasks else {})
    return printed


def _has_triangle(comparison: Comparison) -> bool:
    """Return whether pairs of tasks are among the columns."""
    return any(column.in_triangle for column in comparison.columns)


def _compared(comparison: Comparison, indices: dict[_Row, int]) -> bool:
    return any(index in comparison.against for index in indices.values())


def _has_separate_differences(comparison: Comparison) -> bool:
    """Return whether differences are printed in a separate table of the same layout, so that both tables fit on a
    page."""
    is_crowded = (
        sum(_compared(comparison, indices) for indices in _slots(comparison).values()) > _MAX_DIFFERENCES_BESIDE
    )
    return is_crowded or (_has_triangle(comparison) and bool(comparison.against))


def grids(comparison: Comparison) -> list[Grid]:
    """Return one table with scores and differences, or a table of scores and a table of differences."""
    printed = _slots(comparison)
    if not _has_separate_differences(comparison):
        return [_grid(comparison, printed, scores=True, differences=True)]
    compared = {title: indices for title, indices in printed.items() if _compared(comparison, indices)}
    return [
        _grid(comparison, printed, scores=True, differences=False),
        _grid(comparison, compared, scores=False, differences=True),
    ]


def narrow(comparison: Comparison) -> list[Grid]:
    """Return a narrow table for each compared column, for display in a terminal, with both scores, the difference, its
    interval and its p-value."""
    grids = []
    for index, reference_index in comparison.against.items():
        column, reference, rows = comparison.columns[index], comparison.columns[reference_index], []
        for task in (task for task in comparison.tasks() if (index, task) in comparison.tests):
            test, scores = (
                comparison.tests[index, task],
                [statistics.mean(column.values(task)) for column in (reference, column)],
            )
            p = test.wide_p_holm if test.difference.has_seeds else test.p_holm
            row = [comparison.row_title(task), *map("{:.2f}".format, scores)]
            rows.append([*row, tested_difference(comparison, index, task, interval=True), probability(p)])
        title = f"{column.title} − {reference.title}" + f", {column.encoder}" * (len(comparison.encoders()) > 1)
        grids.append(Grid(["task", reference.title, column.title, "Δ [95 %]", "p (Holm)"], rows, title=title))
    return [grid for grid in grids if grid.rows]


def _grid(comparison: Comparison, printed: _Slots, scores: bool, differences: bool) -> Grid:
    """Return a table of the printed columns, with scores, differences or both."""
    has_encoders = len(comparison.encoders()) > 1
    header, slots_shown = ["encoder"] * has_encoders + ["task"], []
    for title, indices in printed.items():
        columns = [comparison.columns[index] for index in indices.values()]
        headed = scores and any(run.heads for column in columns for run in column.runs)
        timed = any(_speeds(comparison, column.runs) for column in columns) * headed
        compared = differences and _compared(comparison, indices)
        header += [title] * scores + ["heads"] * headed + ["speed"] * timed
        header += ["Δ" if scores else f"Δ {title}"] * compared
        slots_shown.append((indices, headed, timed, compared))
    rows = []
    for row in ((encoder, task) for encoder in comparison.encoders() for task in comparison.tasks()):
        if has_encoders and not any(comparison.columns[p[row]].values(row[1]) for p in printed.values() if row in p):
            continue  # only another encoder or corpus has this task
        cells = [row[0]] * has_encoders + [comparison.row_title(row[1])]
        rivals = {indices[row] for indices in printed.values() if row in indices}
        for indices, headed, timed, compared in slots_shown:
            index = indices.get(row)
            runs = [] if index is None else comparison.columns[index].runs_of(row[1])
            cells += [_score(comparison, rivals, index, row[1])] * scores
            cells += ["–" if index is None else heads(comparison.columns[index], row[1])] * headed
            cells += [mean_sd(_speeds(comparison, runs))] * timed
            cells += ["–" if index is None else tested_difference(comparison, index, row[1], scores)] * compared
        rows.append(cells)
    return Grid(header, rows, texts=1 + has_encoders)


def _score(comparison: Comparison, rivals: set[int], index: int | None, task: str) -> str:
    if index is None:
        return mean_sd([])
    number = len(comparison.columns[index].values(task))
    is_numbered = number > 1 and (_seeds_of_all(comparison) is None or not _has_triangle(comparison))
    return score(comparison, rivals, index, task, f" (n={number})" * is_numbered)


def score(comparison: Comparison, rivals: set[int], index: int, task: str, suffix: str = "") -> str:
    """Format mean and standard deviation of a cell. The text is bold if the cell is the best of ``rivals`` (indices of
    columns), and is marked if the setting has more training than others."""
    text = mean_sd(comparison.columns[index].values(task)) + suffix
    if comparison.more_training(index, task):
        return f"{text}{MORE_TRAINING_MARK}"
    return Strong(text) if index in best(comparison, task, rivals) else text


def best(comparison: Comparison, task: str, rivals: set[int]) -> set[int]:
    """Return the indices of the columns with the highest mean, rounded as in the table.

    The set is empty if all columns have the same mean, or if there is only one column. Columns with more training than
    the others are left out.
    """
    means = {
        index: round(statistics.mean(values), 2)
        for index in rivals
        if not comparison.more_training(index, task) and (values := comparison.columns[index].values(task))
    }
    if not means:
        return set()
    top = {index for index, mean in means.items() if mean == max(means.values())}
    return top if len(top) < len(means) else set()


def _seeds_of_all(comparison: Comparison) -> int | None:
    """Return the number of seeds of all trained columns, or None if the numbers differ or are one."""
    numbers = {len(c.runs_of(task)) for c in comparison.columns for task in comparison.tasks() if c.runs_of(task)}
    return numbers.pop() if len(numbers) == 1 and numbers != {1} else None


def heads(column: ScoreColumn, task: str) -> str:
    """Format the number of open or kept heads out of all heads, such as ``36/72``. If seeds differ, it is the mean with
    its standard deviation."""
    open_and_total = [run.heads[task] for run in column.runs_of(task) if task in run.heads]
    if not open_and_total:
        return "–"
    open_counts = [open_ for open_, _ in open_and_total]
    deviation = f" ± {statistics.stdev(open_counts):.1f}" if len(set(open_counts)) > 1 else ""
    mean = statistics.mean(open_counts)
    return f"{mean:.1f}{deviation}/{open_and_total[0][1]}" if deviation else f"{open_counts[0]}/{open_and_total[0][1]}"


def _speeds(comparison: Comparison, runs: Iterable[ScoredRun]) -> list[float]:
    """Return the speeds of those runs whose speed was measured."""
    names = [run_name(Path(run.path)) for run in runs]
    return [comparison.speeds[name] for name in names if name in comparison.speeds]


def tested_difference(comparison: Comparison, index: int, task: str, interval: bool) -> str:
    """Format the difference of a cell from its reference, with the marks of its test and, if requested, with its
    interval. A cell without a reference is a dash."""
    if index not in comparison.against:
        return "–"
    column, reference = comparison.columns[index], comparison.columns[comparison.against[index]]
    text = difference(column.values(task), reference.values(task))
    marker = MORE_TRAINING_MARK if comparison.more_training(index, task) else ""
    test = comparison.tests.get((index, task))
    if test is None:
        return f"{text}{marker}"
    interval_text = f" {span(*test.interval)}" if interval else ""
    return f"{text}{test.mark}{marker}{interval_text}"


def difference(values: Sequence[float], reference_values: Sequence[float]) -> str:
    """Format the difference of two means with its sign; a dash if one of them has no values."""
    return f"{statistics.mean(values) - statistics.mean(reference_values):+.2f}" if values and reference_values else "–"


def span(low: float, high: float) -> str:
    """Format an interval; a dash if it is undefined."""
    return "–" if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]"


def details(comparison: Comparison) -> Grid:
    """Return a table of all tested differences with their intervals and p-values, first those over seeds and sentences,
    then those over sentences only."""
    encoders, columns = comparison.encoders(), comparison.columns
    has_encoders = len(encoders) > 1
    with_seeds = any(test.difference.has_seeds for test in comparison.tests.values())
    header = [*["encoder"] * has_encoders, "task", "difference", "Δ", "detectable"]
    if with_seeds:
        header += ["95 %, seeds and sentences", "p", "p (Holm)", f"p (within ±{comparison.margin:g})"]
    header += ["95 %, sentences", "d", "p, sentences", "p (Holm), sentences", "runs"]

    def order(cell: tuple[int, str]) -> tuple[int, int, tuple[int, str]]:
        return encoders.index(columns[cell[0]].encoder), cell[0], layer_order(cell[1])

    rows = []
    for index, task in sorted(comparison.tests, key=order):
        test, column, reference = comparison.tests[index, task], columns[index], columns[comparison.against[index]]
        gap = test.difference
        row = [*[column.encoder] * has_encoders, task.upper(), f"{column.title} − {reference.title}"]
        detectable = "–" if math.isnan(test.detectable) else f"{test.detectable:.2f}"
        row += [tested_difference(comparison, index, task, interval=False), detectable]
        if with_seeds:
            row.append(span(gap.wide_low, gap.wide_high))
            row += map(probability, (gap.wide_p, test.wide_p_holm, test.equivalence_p))
        row += [span(gap.low, gap.high), "–" if math.isnan(gap.effect) else f"{gap.effect:+.2f}"]
        rows.append([*row, probability(gap.p), probability(test.p_holm), f"{gap.seeds[0]}, {gap.seeds[1]}"])
    return Grid(header, rows, texts=2 + has_encoders)


# -- sentences -------------------------------------------------------------------------------------------------------


def legend(comparison: Comparison, intervals: bool = True) -> str:
    """Return sentences that explain the cells of the table. ``intervals``: whether cells show intervals of
    differences."""
    columns, spread_in_words = comparison.columns, ""
    if any(len(column.values(task)) > 1 for column in columns for task in comparison.tasks()):
        number = _seeds_of_all(comparison) if _has_triangle(comparison) else None
        spread_in_words = f", as mean ± sample standard deviation over {f'n = {number}' if number else 'n'} seeds"
    parts = [f"Scores are percentages on {comparison.split}{spread_in_words}"]
    if _has_triangle(comparison):
        parts.append("+POS means training together with POS and nothing else")
    if any(run.heads for column in columns for run in column.runs):
        parts.append("Heads are given as the number of open or kept heads out of all heads")
    if comparison.speeds:
        parts.append(
            "Speed is the number of sentences per second without the closed heads, divided by the number with closed "
            "heads masked"
        )
    parts += _differences(comparison)
    parts += _marks(comparison)
    if intervals and comparison.tests and not _has_separate_differences(comparison):
        seeds = [test.difference.has_seeds for test in comparison.tests.values()]
        sources_of_variance = "seeds and sentences" + ("" if all(seeds) else " (with one seed, over sentences)")
        parts.append(f"Brackets hold 95 % intervals over {sources_of_variance if any(seeds) else 'sentences'}")
    parts += _more_training(comparison)
    parts += () if comparison.reference else _other_settings(comparison)
    unfinished = [run.path for column in columns for run in column.runs if not run.finished]
    if unfinished:
        parts.append(f"Runs that have not finished training are {', '.join(unfinished)}")
    return ". ".join(parts) + "."


def _differences(comparison: Comparison) -> Iterator[str]:
    """Yield clauses of the legend that define Δ."""
    columns = comparison.columns
    if comparison.reference:
        yield f"Δ is the difference from {comparison.reference}"
    elif any(len(columns[index].runs[0].tasks) > 1 for index in comparison.against):
        yield "Δ is MTL − STL"
    pruned = [columns[index].title for index in comparison.against if len(columns[index].runs[0].tasks) == 1]
    if pruned and not comparison.reference:
        yield f"In {', '.join(dict.fromkeys(pruned))}, Δ is the difference from STL with all heads"


def _other_settings(comparison: Comparison) -> Iterator[str]:
    """Yield clauses of the legend on compared columns that differ from STL in further settings, and on columns whose
    runs differ in settings."""
    columns = comparison.columns
    differing = {
        index: _differing_paths(comparison, index, reference) for index, reference in comparison.against.items()
    }
    for is_joint, difference_words in ((True, "the tasks differ"), (False, "pruning differs")):
        titles = [
            columns[index].title
            for index, paths in differing.items()
            if paths and (len(columns[index].runs[0].tasks) > 1) == is_joint
        ]
        if titles:
            yield f"In {', '.join(dict.fromkeys(titles))}, {difference_words} from STL, and other settings also differ"
    for column in columns:
        if mixed := differing_settings(column.runs):
            yield f"The runs of {column.title} differ in {', '.join(mixed)}"


def _marks(comparison: Comparison) -> Iterator[str]:
    """Yield clauses of the legend that explain the marks after differences."""
    tests = list(comparison.tests.values())
    over_seeds = [test.difference.has_seeds for test in tests]
    if any(over_seeds):
        yield f"* means p < {LEVEL} (Holm) over seeds and sentences"
    if not all(over_seeds):
        only = "of these runs only, because one seed shows nothing about other seeds"
        yield f"† means p < {LEVEL} (Holm) over sentences, {only}"
    elif any(test.of_these_runs for test in tests):
        yield (
            f"† means p < {LEVEL} (Holm) over sentences of these runs only, but over seeds and sentences the "
            "difference is not significant"
        )


def _more_training(comparison: Comparison) -> Iterator[str]:
    """Yield the clause of the legend on settings with more training than others."""
    cells = [
        (column, comparison.more_training(k, t))
        for k, column in enumerate(comparison.columns)
        for t in comparison.tasks()
    ]
    reasons = dict.fromkeys(f"{column.title}: {reason}" for column, reason in cells if reason)
    if reasons:
        yield (
            f"{MORE_TRAINING_MARK} marks settings with more training than the others of their row, which are never in "
            f"bold ({'; '.join(reasons)})"
        )


def _differing_paths(comparison: Comparison, index: int, reference: int) -> list[str]:
    """Return the settings other than tasks and pruning in which the runs of a column differ from the reference."""
    runs_column, reference_column = comparison.columns[index], comparison.columns[reference]
    pairs = [
        (runs_column.runs_of(task), reference_column.runs_of(task)) for at, task in comparison.compared() if at == index
    ]
    return sorted({path for runs_of_pair, stl in pairs for path in paths_that_differ(runs_of_pair[0], stl[0])})


def tests_legend(comparison: Comparison) -> str:
    """Return the legend of the table of tests: the source of variance of each interval and p-value, and the method."""
    tests = list(comparison.tests.values())
    questions = [f"{name}: {count}" for name, count in Counter(test.question for test in tests).items()]
    sentences = sorted({test.difference.sentences for test in tests})
    span = f"{sentences[0]:,}" if len(sentences) == 1 else f"{sentences[0]:,} to {sentences[-1]:,}"
    parts = [
        f"The tests pair {span} sentences and compute scores from resampled counts, {comparison.resamples:,} resamples "
        "each"
    ]
    if any(test.difference.has_seeds for test in tests):
        free = sorted({number for test in tests for number in test.difference.wide_error.free})
        parts += [
            "Over seeds and sentences, the error of seeds follows a t distribution with ν = seeds − 1"
            + (f" ({', '.join(map(str, free))})" if free else "")
            + ", and the error of sentences is computed by bootstrap",
            f"p (within ±{comparison.margin:g}) is that of two one-sided tests and is not corrected. If it is below "
            f"{LEVEL}, the difference is smaller than {points(comparison.margin)}",
        ]
    parts += [
        "Over sentences alone, these runs are held fixed, the interval is computed by bootstrap, and p by "
        "randomisation",
        "All p are two-sided except those within the margin",
        "p (Holm) is corrected over the differences of one question, and intervals are not",
        f"The questions have these numbers of differences: {' · '.join(questions)}",
        "d is Δ divided by its standard deviation between sentences",
    ]
    return f"{'. '.join(parts)}. {DETECTABLE}"


def notes(comparison: Comparison) -> list[str]:
    """Return sentences on runs that are left out, on what the tests cannot show, and on differences without an interval
    or a test."""
    unknown = {cell: test.difference.unknown for cell, test in comparison.tests.items()}
    without_error = "The difference of {} has no interval, because {}. Its error cannot be estimated."
    return [
        *comparison.left_out,
        *plain_heads.warnings(comparison),
        *_reach(comparison),
        *_seeds(comparison),
        *(without_error.format(cells, reason) for reason, cells in _cells_by_reason(comparison, unknown)),
        *(
            f"There is no test of {cells}: {reason}."
            for reason, cells in _cells_by_reason(comparison, comparison.untested)
        ),
    ]


def _reach(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on tests over sentences alone whose smallest possible p-value is not significant."""
    tests = comparison.tests
    if not tests:
        return
    sizes = Counter(test.question for test in tests.values())
    number, smallest = min(((sizes[t.question], t.difference.floor) for t in tests.values()), key=math.prod)
    if smallest * number >= LEVEL:
        is_exact = all(test.difference.exact for test in tests.values())
        advice = "more sentences are needed" if is_exact else "give more --resamples"
        yield (
            f"No p over sentences alone can be below {LEVEL}, because the smallest possible p is {smallest:.2g} "
            f"({min(1.0, smallest * number):.2g} after correction for {plural(number, 'difference')}); {advice}."
        )
        return
    for (index, task), test in tests.items():
        gap = test.difference
        if gap.floor >= LEVEL:
            yield (
                f"Only {gap.differing} of {gap.sentences:,} sentences differ for {task.upper()} in "
                f"{comparison.columns[index].title}, so p over sentences alone cannot go below {gap.floor:.2g}."
            )


def _seeds(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on conclusions that the number of seeds does not allow."""
    if not comparison.tests:
        return
    numbers = {min(test.difference.seeds) for test in comparison.tests.values()}
    if 1 in numbers:
        yield (
            "For settings with one run, the tests show whether these runs differ on other sentences of this kind. They "
            "do not show whether runs with other seeds differ, so nothing is called significant. A test of differences "
            f"below the margin of {comparison.margin:g} points needs two or more seeds."
        )
    for number in sorted(numbers - {1}):
        floor = 2 / 2**number
        if floor >= LEVEL:
            yield (
                f"A two-sided sign-flip test over {number} seeds alone cannot go below {floor:.4g}, so seeds alone "
                f"cannot reach {LEVEL} without an assumed distribution. The interval over seeds and sentences "
                "assumes that seeds vary normally."
            )


def _cells_by_reason(comparison: Comparison, reasons: Mapping[tuple[int, str], str]) -> Iterator[tuple[str, str]]:
    """Yield each reason with a list of its cells in words. Cells with an empty reason are left out."""
    cells = defaultdict(list)
    for (index, task), reason in reasons.items():
        cells[reason].append(f"{task.upper()} in {comparison.columns[index].title}")
    yield from ((reason, ", ".join(cells_of_reason)) for reason, cells_of_reason in cells.items() if reason)
