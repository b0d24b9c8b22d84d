"""The section of learning curves in the HTML report: scores on dev and training losses by epoch, from metrics.jsonl."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from mtlprune.figures.charts import colours, figure, lines, panels, seeds_behind
from mtlprune.reports.analyses import Figure
from mtlprune.reports.page.render import Part
from mtlprune.reports.page.scores import Scored
from mtlprune.reports.scores.tables import Comparison

_Reading = Callable[[dict[str, Any], str], float | None]
"""Function of a line of metrics.jsonl and a task that returns the value to draw, or None."""
_Line = Sequence[tuple[float, float]]
"""The points (epoch, value) of a line."""
_Series = tuple[str, int, bool, Sequence[_Line]]
"""Name of a setting, index of its colour, whether its lines are dashed, and the line of each seed."""


def part(tables: Sequence[Scored]) -> Part | None:
    """Return the part of the report on learning curves, or None if no run has a log."""
    logs = {
        run.path: run.folder.read_metrics() for scored in tables for c in scored.comparison.columns for run in c.runs
    }
    learning = []
    for scored in tables:
        comparison = scored.comparison

        def dev(record: dict[str, Any], task: str, comparison: Comparison = comparison) -> float | None:
            return record.get("dev", {}).get(task, {}).get(comparison.name(task))

        if scores := _learning(comparison, logs, dev, "dev score, %"):
            losses = _learning(comparison, logs, _loss, "training loss")
            learning.append({"title": scored.title, "scores": scores, "losses": losses})
    caveats = [f"{path} has no metrics.jsonl, so no curve shows it." for path, log in logs.items() if not log]
    holds = {"learning": learning, "several": len(tables) > 1}
    return Part("curves", "Learning", holds, "runs", caveats, folded=True) if learning else None


def _loss(record: dict[str, Any], task: str) -> float | None:
    return record.get("loss", {}).get(task)


def _learning(
    comparison: Comparison, logs: Mapping[str, Sequence[dict[str, Any]]], reading: _Reading, y_title: str
) -> Figure | None:
    """Draw a panel for each task. The colour of a line shows the kind of run, the pruning and the encoder, and joint
    training is dashed."""
    kinds: dict[tuple[str, str, str], int] = {}
    panels_shown, titles, has_encoders = [], [], len(comparison.encoders()) > 1
    for task in comparison.tasks():
        parts = []
        for column in comparison.columns:
            runs = column.runs_of(task)
            if lines_by_seed := list(filter(None, (_points(logs[run.path], task, reading) for run in runs))):
                kind = runs[0].kind, runs[0].pruning, runs[0].encoder
                hue = kinds.setdefault(kind, len(kinds))
                parts.append(
                    (
                        f"{column.title}{has_encoders * f', {column.encoder}'}",
                        hue,
                        len(runs[0].tasks) > 1,
                        lines_by_seed,
                    )
                )
        if parts:
            panels_shown.append(parts)
            titles.append(task.upper() if reading is _loss else comparison.row_title(task))
    return _figure(panels_shown, titles, y_title)


def _points(log: Sequence[dict[str, Any]], task: str, reading: _Reading) -> list[tuple[float, float]]:
    return [(float(line["epoch"]), value) for line in log if (value := reading(line, task)) is not None]


def _figure(panels_shown: Sequence[Sequence[_Series]], titles: Sequence[str], y_title: str) -> Figure | None:
    """Draw panels with a common legend. Lines are means over the seeds that reached the epoch, and small dots are the
    seeds."""
    kinds = {name: hue for panel in panels_shown for name, hue, _, _ in panel}
    joint = {name: dashed for panel in panels_shown for name, _, dashed, _ in panel}
    names = pd.DataFrame({"name": pd.Categorical(list(kinds), list(kinds)), "joint": list(joint.values())})
    look = colours(names, "joint", kinds=kinds)
    charts, words = [], []
    for title, panel in zip(titles, panels_shown, strict=True):
        rows = [
            (name, seed, x, y)
            for name, _, _, lines_by_seed in panel
            for seed, line in enumerate(lines_by_seed)
            for x, y in line
        ]
        points = pd.DataFrame(rows, columns=["name", "seed", "x", "y"])
        points["name"] = pd.Categorical(points["name"], list(kinds))
        means = points.groupby(["name", "x"], observed=True, as_index=False)["y"].mean()
        words_of: dict[str, Any] = {"title": title, "x_title": "epoch", "y_title": y_title}
        with_seeds = points[points.groupby("name", observed=True)["seed"].transform("max") > 0]
        chart = lines(means, "x", "y", look=look, **words_of)
        charts.append(chart + seeds_behind(with_seeds, "x", "y", look["color"]) if len(with_seeds) else chart)
        last = means.groupby("name", observed=True)["y"].last()
        ends = "; ".join(f"{name} {y:.2f}" for name, y in last.items())
        words.append(f"{title}, {y_title} by epoch. At the end: {ends}.")
    return Figure(figure(panels(charts, 3)), " ".join(words)) if charts else None
