"""How training went: scores on dev and losses by epoch (metrics.jsonl), open heads by step (gates.jsonl)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mtlprune.reports.page.gates import ClaimSet
from mtlprune.reports.page.html import Html, element, folded, joined, paragraph
from mtlprune.reports.page.parts import Part
from mtlprune.reports.page.plots import Look, Point, Series, curves, legend
from mtlprune.reports.page.scores import Scored, looks
from mtlprune.reports.scores.comparisons import Comparison
from mtlprune.runs import RunFolder

Reading = Callable[[dict[str, Any], str], float | None]


def part(tables: Sequence[Scored], sets: Sequence[ClaimSet]) -> Part | None:
    """The part of the page; None where no run left a log."""
    bodies: list[Html] = []
    logs = {
        run.path: RunFolder(run.path).read_metrics() for one in tables for c in one.comparison.columns for run in c.runs
    }
    for scored in tables:
        learning = _panels(scored.comparison, logs, _dev(scored.comparison), "dev score, %")
        if not learning:
            continue
        heading = f"Learning, {scored.title}" if len(tables) > 1 else "Learning"
        note = (
            "Score on the dev split after every epoch, in percent: a faint line a seed, a firm one for their mean. "
            "Dashed: trained jointly. The scales of the panels differ."
        )
        losses = _panels(scored.comparison, logs, _loss, "training loss")
        bodies += [
            element("h3", heading),
            element("div", learning, class_="panels"),
            _legend(scored.comparison),
            paragraph(note, class_="note"),
            folded("Training losses", element("div", losses, class_="panels")),
        ]
    if pruning := _pruning(sets):
        note = (
            "Open heads at every evaluation; a line a run. Where runs were pruned by importance or chance, their "
            "number is fixed from the start, so nothing is drawn."
        )
        bodies += [element("h3", "Pruning"), pruning, paragraph(note, class_="note")]
    caveats = [f"{path} has no metrics.jsonl, so no curve shows it." for path, log in logs.items() if not log]
    return Part("curves", "Learning and pruning", joined(bodies), tuple(caveats)) if bodies else None


def _dev(comparison: Comparison) -> Reading:
    def read(record: dict[str, Any], task: str) -> float | None:
        value = record.get("dev", {}).get(task, {}).get(comparison.name(task))
        return float(value) if isinstance(value, int | float) else None

    return read


def _loss(record: dict[str, Any], task: str) -> float | None:
    value = record.get("loss", {}).get(task)
    return float(value) if isinstance(value, int | float) else None


def _panels(comparison: Comparison, logs: dict[str, list[dict[str, Any]]], reading: Reading, what: str) -> list[Html]:
    styles, found = looks(comparison), []
    for task in comparison.tasks():
        series = []
        for column, look in zip(comparison.columns, styles, strict=True):
            seeds = [list(_points(logs[run.path], task, reading)) for run in column.runs_of(task)]
            if any(seeds):
                series.append(Series(column.title, look, [points for points in seeds if points]))
        if series:
            last = "; ".join(f"{one.name} {one.mean()[-1][1]:.2f}" for one in series)
            alt = f"{task.upper()}, {what} by epoch. At the end: {last}."
            found.append(
                curves(comparison.row_title(task) if reading is not _loss else task.upper(), alt, series, "epoch")
            )
    return found


def _points(log: Sequence[dict[str, Any]], task: str, reading: Reading) -> Iterator[Point]:
    for record in log:
        value = reading(record, task)
        if value is not None and isinstance(record.get("epoch"), int):
            yield float(record["epoch"]), value


def _legend(comparison: Comparison) -> Html:
    trained = [(c.title, look) for c, look in zip(comparison.columns, looks(comparison), strict=True) if c.runs]
    return legend(trained)


def _pruning(sets: Sequence[ClaimSet]) -> Html | None:
    panels = []
    for one in sets:
        if all(len({int((gates > 1e-3).sum()) for _, gates in claim.history}) == 1 for claim in one.claims):
            continue
        series = [
            Series(claimant.label, Look(place, claimant.joint), [_opened(claim.history) for claim in claimant.claims])
            for place, claimant in enumerate(one.claimants)
        ]
        last = "; ".join(f"{line.name} {line.mean()[-1][1]:.0f}" for line in series)
        alt = f"{one.title}: open heads by step. At the end: {last}."
        names = legend([(line.name, line.look) for line in series])
        panels.append(element("div", curves(one.title, alt, series, "step", floor=0.0), names))
    return element("div", panels, class_="panels") if panels else None


def _opened(history: Sequence[tuple[int, Any]]) -> list[Point]:
    return [(float(step), float((gates > 1e-3).sum())) for step, gates in history]
