"""How training went: scores on dev and losses by epoch (metrics.jsonl), open heads by step (gates.jsonl)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from mtlprune.reports.facets import HUES, Curve, Panel, facets
from mtlprune.reports.page.gates import ClaimSet
from mtlprune.reports.page.render import Part
from mtlprune.reports.page.scores import Scored
from mtlprune.reports.scores.comparisons import Comparison
from mtlprune.reports.sections import Figure
from mtlprune.runs import RunFolder

Reading = Callable[[dict[str, Any], str], float | None]
Line = Sequence[tuple[float, float]]


def part(tables: Sequence[Scored], sets: Sequence[ClaimSet]) -> Part | None:
    """The part of the page; None where no run left a log."""
    logs = {
        run.path: RunFolder(run.path).read_metrics() for one in tables for c in one.comparison.columns for run in c.runs
    }
    learning = []
    for scored in tables:
        comparison = scored.comparison
        if scores := list(_panels(comparison, logs, _dev(comparison), "dev score, %")):
            losses = list(_panels(comparison, logs, _loss, "training loss"))
            learning.append({"title": scored.title, "scores": scores, "losses": losses})
    pruning = list(_pruning(sets))
    caveats = [f"{path} has no metrics.jsonl, so no curve shows it." for path, log in logs.items() if not log]
    holds = {"learning": learning, "several": len(tables) > 1, "pruning": pruning}
    return Part("curves", "Learning and pruning", holds, caveats) if learning or pruning else None


def _dev(comparison: Comparison) -> Reading:
    return lambda record, task: record.get("dev", {}).get(task, {}).get(comparison.name(task))


def _loss(record: dict[str, Any], task: str) -> float | None:
    return record.get("loss", {}).get(task)


def _panels(
    comparison: Comparison, logs: Mapping[str, Sequence[dict[str, Any]]], reading: Reading, what: str
) -> Iterator[Figure]:
    """A panel a task: colours tell prunings (and baselines) apart, dashes joint training."""
    kinds = [(run.kind, run.pruning, run.encoder) for c in comparison.columns for run in c.runs[:1]]
    hues = {kind: hue for hue, kind in enumerate(dict.fromkeys(kinds))}
    for task in comparison.tasks():
        series = []
        for column in comparison.columns:
            lines = [list(_points(logs[run.path], task, reading)) for run in column.runs_of(task)]
            if any(lines):
                run = column.runs[0]
                hue = hues[run.kind, run.pruning, run.encoder]
                series.append((column.title, hue, len(run.tasks) > 1, [line for line in lines if line]))
        if series:
            title = task.upper() if reading is _loss else comparison.row_title(task)
            yield _figure(title, f"{task.upper()}, {what} by epoch", series, ("epoch", what), 2)


def _points(log: Sequence[dict[str, Any]], task: str, reading: Reading) -> Iterator[tuple[float, float]]:
    for record in log:
        value = reading(record, task)
        if isinstance(value, int | float) and isinstance(record.get("epoch"), int):
            yield float(record["epoch"]), float(value)


def _pruning(sets: Sequence[ClaimSet]) -> Iterator[Figure]:
    for one in sets:
        opened = [
            [[(float(step), float((gates > 1e-3).sum())) for step, gates in claim.history] for claim in claimant.claims]
            for claimant in one.claimants
        ]
        if any(len({number for _, number in line}) > 1 for lines in opened for line in lines):
            series = [
                (c.label, hue, c.joint, lines) for hue, (c, lines) in enumerate(zip(one.claimants, opened, strict=True))
            ]
            yield _figure(one.title, f"{one.title}: open heads by step", series, ("step", "open heads"), 0)


def _figure(
    title: str, what: str, series: Sequence[tuple[str, int, bool, Sequence[Line]]], axes: tuple[str, str], digits: int
) -> Figure:
    """Means over the seeds that have the x as lines, seeds as small dots.

    Args:
        series: name, number of the colour, whether dashed, a line a seed.
        digits: of the values at the end, in words; with none, what is drawn counts from 0.
    """
    curves, ends = [], []
    for name, hue, dashed, lines in series:
        values: dict[float, list[float]] = {}
        for x, y in (point for line in lines for point in line):
            values.setdefault(x, []).append(y)
        mean = [(x, fmean(ys)) for x, ys in sorted(values.items())]
        colour = HUES[hue % len(HUES)]
        if len(lines) > 1:
            curves.append(Curve(name, [point for line in lines for point in line], colour, joined=False, radius=1.1))
        curves.append(Curve(name, mean, colour, dashed))
        ends.append(f"{name} {mean[-1][1]:.{digits}f}")
    drawing = facets(title, (), [Panel("", curves, *axes, zero=not digits, whole=True)], 1)
    return Figure(drawing, f"{what}. At the end: {'; '.join(ends)}.")
