"""Where each column of a comparison stands: side by side, pairs of tasks as a triangle, a block of rows an encoder."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mtlprune.layers import in_order, layer_order
from mtlprune.reports.grid import Grid, Strong, probability
from mtlprune.reports.scores.comparisons import Comparison, ScoreColumn, column_order, family_suffix

if TYPE_CHECKING:
    from mtlprune.reports.scores.tests import Tested

BESIDE = 3  # so many differences at most stand beside their scores
MORE = "‡"
"""Marks what has seen more training than its neighbours."""
Row = tuple[str, str]
"""Encoder and task."""


@dataclass
class Slot:
    """A column as it is printed."""

    title: str
    places: dict[Row, int] = field(default_factory=dict)
    """Row → place in ``Comparison.columns``."""
    in_triangle: bool = False


def slots(comparison: Comparison) -> list[Slot]:
    """The printed columns. A pair POS+DEP fills the row of POS under +DEP, and that of DEP under +POS."""
    found: dict[str, Slot] = {}
    encoders, tasks = comparison.encoders(), comparison.tasks()
    columns = comparison.columns
    extras = [place for place, column in enumerate(columns) if not column.runs]
    trained = [place for place, column in enumerate(columns) if column.runs]
    pairs = [column.runs[0] for column in columns if column.in_triangle]
    partners = in_order(task for run in pairs for task in run.tasks)
    for place in extras + sorted(trained, key=lambda place: column_order(columns[place].runs)):
        column = columns[place]
        if not column.in_triangle:
            slot = found.setdefault(column.title, Slot(column.title))
            slot.places |= {(e, task): place for e in encoders if column.encoder in ("", e) for task in tasks}
            continue
        run = column.runs[0]
        suffix = family_suffix(run, [pair for pair in pairs if pair.encoder == run.encoder])
        for partner in partners:
            title = f"+{partner.upper()}{suffix}"
            slot = found.setdefault(title, Slot(title, in_triangle=True))
            if partner in run.tasks:
                slot.places |= {(column.encoder, task): place for task in run.tasks if task != partner}
    return list(found.values())


def has_triangle(comparison: Comparison) -> bool:
    """Whether pairs of tasks are among the columns."""
    return any(column.in_triangle for column in comparison.columns)


def _compared(comparison: Comparison, slot: Slot) -> bool:
    return any(place in comparison.against for place in slot.places.values())


def apart(comparison: Comparison) -> bool:
    """Whether differences have a table of their own, in the same layout, so that both fit a page."""
    many = sum(_compared(comparison, slot) for slot in slots(comparison)) > BESIDE
    return many or (has_triangle(comparison) and bool(comparison.against))


def grids(comparison: Comparison) -> list[Grid]:
    """The scores with their differences, or one after the other."""
    printed = slots(comparison)
    if not apart(comparison):
        return [_grid(comparison, printed, scores=True, differences=True)]
    compared = [slot for slot in printed if _compared(comparison, slot)]
    return [
        _grid(comparison, printed, scores=True, differences=False),
        _grid(comparison, compared, scores=False, differences=True),
    ]


def _grid(comparison: Comparison, printed: Sequence[Slot], scores: bool, differences: bool) -> Grid:
    header = ["task"]
    cells: list[Callable[[Row], str]] = [lambda row: comparison.row_title(row[1])]
    if several := len(comparison.encoders()) > 1:
        header, cells = ["encoder", *header], [lambda row: row[0], *cells]
    for slot in printed:
        columns = [comparison.columns[place] for place in slot.places.values()]
        if scores:
            header.append(slot.title)
            cells.append(partial(_score_cell, comparison, printed, slot))
        if scores and any(run.heads for column in columns for run in column.runs):
            header.append("heads")
            cells.append(partial(_heads_cell, comparison, slot))
        if differences and _compared(comparison, slot):
            header.append("Δ" if scores else f"Δ {slot.title}")
            cells.append(partial(_difference_cell, comparison, slot, scores))
    rows = [(encoder, task) for encoder in comparison.encoders() for task in comparison.tasks()]
    return Grid(header, [[text(row) for text in cells] for row in rows], texts=1 + several)


def _score_cell(comparison: Comparison, printed: Sequence[Slot], slot: Slot, row: Row) -> str:
    place, (_, task) = slot.places.get(row), row
    values = comparison.columns[place].values(task) if place is not None else []
    text = cell(values, numbered=seeds_of_all(comparison) is None or not has_triangle(comparison))
    rivals = {p for p in (other.places.get(row) for other in printed) if p is not None}
    if place is not None and comparison.more_training(place, task):
        return f"{text}{MORE}"
    return Strong(text) if place in best(comparison, task, rivals) else text


def best(comparison: Comparison, task: str, rivals: set[int]) -> set[int]:
    """The columns with the highest mean, as it is printed; none where there is only one, or all are equal.

    Columns that have seen more training than the others are left out.
    """
    means = {
        place: round(statistics.mean(values), 2)
        for place in rivals
        if not comparison.more_training(place, task) and (values := comparison.columns[place].values(task))
    }
    if not means:
        return set()
    top = {place for place, mean in means.items() if mean == max(means.values())}
    return top if len(top) < len(means) else set()


def seeds_of_all(comparison: Comparison) -> int | None:
    """How many seeds every trained column has; None where that differs, or is one."""
    numbers = {len(c.runs_of(task)) for c in comparison.columns for task in comparison.tasks() if c.runs_of(task)}
    return numbers.pop() if len(numbers) == 1 and numbers != {1} else None


def _heads_cell(comparison: Comparison, slot: Slot, row: Row) -> str:
    place = slot.places.get(row)
    return heads(comparison.columns[place], row[1]) if place is not None else "–"


def heads(column: ScoreColumn, task: str) -> str:
    """Heads open or kept, of all: "36/72"; with several seeds their mean, and its spread where they differ."""
    found = [run.heads[task] for run in column.runs_of(task) if task in run.heads]
    if not found:
        return "–"
    kept = [open_ for open_, _ in found]
    spread = f" ± {statistics.stdev(kept):.1f}" if len(set(kept)) > 1 else ""
    mean = statistics.mean(kept)
    return f"{mean:.1f}{spread}/{found[0][1]}" if spread else f"{kept[0]}/{found[0][1]}"


def _difference_cell(comparison: Comparison, slot: Slot, interval: bool, row: Row) -> str:
    place = slot.places.get(row)
    return "–" if place is None else _marked(comparison, place, row[1], interval)


def _marked(comparison: Comparison, place: int, task: str, interval: bool) -> str:
    if place not in comparison.against:
        return "–"
    column, other = comparison.columns[place], comparison.columns[comparison.against[place]]
    text = difference(column.values(task), other.values(task))
    more = MORE if comparison.more_training(place, task) else ""
    test = comparison.tests.get((place, task))
    if test is None:
        return f"{text}{more}"
    between = f" {span(*test.interval)}" if interval else ""
    return f"{text}{test.mark}{more}{between}"


def cell(values: Sequence[float], numbered: bool = True) -> str:
    """The mean; with two values or more ± the sample standard deviation and, if ``numbered``, their number."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "–"
    number = f" (n={len(values)})" if numbered else ""
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}{number}"


def difference(mine: Sequence[float], theirs: Sequence[float]) -> str:
    """Difference of the means, with its sign."""
    return f"{statistics.mean(mine) - statistics.mean(theirs):+.2f}" if mine and theirs else "–"


def span(low: float, high: float) -> str:
    """An interval; – where it is not defined."""
    return "–" if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]"


def details(comparison: Comparison) -> Grid:
    """Every tested difference: its size, intervals and p-values; those over seeds and sentences first."""
    encoders, columns = comparison.encoders(), comparison.columns
    several = len(encoders) > 1
    with_seeds = any(not math.isnan(test.difference.wide_low) for test in comparison.tests.values())
    header = [*(["encoder"] if several else []), "task", "difference", "Δ"]
    if with_seeds:
        header += ["95 %, seeds and sentences", "p", "p (Holm)", f"p (within ±{comparison.margin:g})"]
    header += ["95 %, sentences", "d", "p, sentences", "p (Holm), sentences", "runs"]
    rows = []
    for (place, task), test in sorted(comparison.tests.items(), key=lambda item: _row_order(comparison, *item[0])):
        found, column, other = test.difference, columns[place], columns[comparison.against[place]]
        rows.append(
            [
                *([column.encoder] if several else []),
                task.upper(),
                f"{column.title} − {other.title}",
                _marked(comparison, place, task, interval=False),
                *(_over_seeds(test) if with_seeds else []),
                span(found.low, found.high),
                "–" if math.isnan(found.effect) else f"{found.effect:+.2f}",
                probability(found.p),
                probability(test.p_holm),
                f"{found.seeds[0]}, {found.seeds[1]}",
            ]
        )
    return Grid(header, rows, texts=2 + several)


def _over_seeds(test: Tested) -> list[str]:
    found = test.difference
    figures = (found.wide_p, test.wide_p_holm, test.equivalence_p)
    return [span(found.wide_low, found.wide_high), *map(probability, figures)]


def _row_order(comparison: Comparison, place: int, task: str) -> tuple[int, int, tuple[int, str]]:
    return comparison.encoders().index(comparison.columns[place].encoder), place, layer_order(task)
