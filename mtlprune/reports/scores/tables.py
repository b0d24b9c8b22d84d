"""Tables of scores from run folders: STL beside MTL, seeds as mean ± sample standard deviation, differences tested.

print(markdown(with_tests(compare([RunFolder("runs/a"), RunFolder("runs/b")], "test"))))
"""

import csv
import dataclasses
import io
import re
import statistics
from collections.abc import Iterator
from typing import Any

from mtlprune.errors import printable_lines
from mtlprune.files import json_text, plain
from mtlprune.reports.grid import Grid, latex_document, markdown_document
from mtlprune.reports.scores.comparisons import Comparison, ScoreColumn
from mtlprune.reports.scores.layouts import best, details, grids, legend, notes, slots, tests_legend


@markdown_document
def markdown(comparison: Comparison) -> str:
    """The table, what it shows, and where differences were tested every test and what limits it."""
    parts = [block.markdown() if isinstance(block, Grid) else f"{block}\n" for block in blocks(comparison)]
    if lines := notes(comparison):
        parts.append("".join(f"- {line}\n" for line in lines))
    return "\n".join(parts)


def blocks(comparison: Comparison) -> list[Grid | str]:
    """Tables, and in words what each shows."""
    made: list[Grid | str] = [*grids(comparison), legend(comparison)]
    return [*made, details(comparison), tests_legend(comparison)] if comparison.tests else made


def latex(comparison: Comparison) -> str:
    """The same tables, for \\input beside booktabs and longtable; what limits the tests stands in comments."""
    first, *rest = grids(comparison)
    parts = [_with_signs(first).latex("tab:scores", legend(comparison))]
    parts += [
        _with_signs(grid).latex("tab:differences", f"Differences to {comparison.reference or 'STL'}.") for grid in rest
    ]
    if comparison.tests:
        parts.append(_with_signs(details(comparison)).latex("tab:tests", tests_legend(comparison)))
    return latex_document(notes(comparison), parts)


def _with_signs(grid: Grid) -> Grid:
    """Hyphens before numbers become minus signs."""
    rows = [[type(text)(re.sub(r"(?<![\w.])-(?=\d)", "−", text)) for text in row] for row in grid.rows]
    return Grid(grid.header, rows, grid.texts)


def records(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """A record a number in the table, unrounded; None for what is not defined or was not tested."""
    rivals: dict[tuple[str, str], set[int]] = {}
    for rows in slots(comparison).values():
        for key, place in rows.items():
            rivals.setdefault(key, set()).add(place)
    for (encoder, task), places in rivals.items():
        top = best(comparison, task, places)
        for place in sorted(places):
            if values := comparison.columns[place].values(task):
                record = {
                    "encoder": encoder,
                    "task": task,
                    "score": comparison.name(task),
                    **_cell_record(comparison.columns[place], task, values),
                    "best": place in top,
                    "more_training": comparison.more_training(place, task) or None,
                    **_test_record(comparison, place, task),
                }
                yield plain(record)


def _cell_record(column: ScoreColumn, task: str, values: list[float]) -> dict[str, Any]:
    runs = column.runs_of(task)
    kept = [run.heads[task] for run in runs if task in run.heads]
    return {
        "column": column.title,
        "tasks": list(runs[0].tasks) if len({run.tasks for run in runs}) == 1 else None,
        "mean": statistics.mean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
        "seeds": [run.seed for run in runs],
        "updates": max((run.updates for run in runs), default=0) or None,
        "heads": statistics.mean(heads for heads, _ in kept) if kept else None,
        "heads_of": kept[0][1] if kept else None,
        "runs": [run.path for run in runs],
    }


def _test_record(comparison: Comparison, place: int, task: str) -> dict[str, Any]:
    """The difference and its test; the keys are the same for every number."""
    test, other = comparison.tests.get((place, task)), comparison.against.get(place)
    column = comparison.columns[place]
    theirs = comparison.columns[other].values(task) if other is not None else []
    found = test.difference if test else None
    flip = test.seeds if test else None
    over_sentences = ("low", "high", "effect", "p", "floor", "exact", "sentences", "differing")
    figures = (*over_sentences, "wide_low", "wide_high", "wide_p", "paired")
    return {
        "against": comparison.columns[other].title if other is not None else None,
        "delta": statistics.mean(column.values(task)) - statistics.mean(theirs) if theirs else None,
        **{name: getattr(found, name) if found else None for name in figures},
        **{
            name: getattr(test, name) if test else None
            for name in ("p_holm", "wide_p_holm", "equivalence_p", "significant")
        },
        "significant_of_these_runs": test.of_these_runs if test else None,
        **{f"seeds_{name}": getattr(flip, name) if flip else None for name in ("p", "floor", "agreeing")},
        "untested": comparison.untested.get((place, task)),
    }


def to_csv(comparison: Comparison) -> str:
    """A header and a line a number in the table; what is not defined is empty; lists are joined by ;."""
    rows = [
        {name: ";".join(map(str, value)) if isinstance(value, list) else value for name, value in record.items()}
        for record in records(comparison)
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return printable_lines(out.getvalue())


def to_json(comparison: Comparison) -> str:
    """All numbers, how they were tested, and the remarks."""
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
            {"run": run.path, **dataclasses.asdict(run)["setting"], "seed": run.seed}
            for column in comparison.columns
            for run in column.runs
        ],
    }
    return json_text(tree)
