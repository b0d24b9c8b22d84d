"""Views of pretraining runs: their curves and the breaks of these curves, as a table, as JSON and as a figure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from mtlprune.figures.charts import HEIGHT, SOFT, Spec, data, figure, lines, panels
from mtlprune.figures.grid import Grid, markdown_document
from mtlprune.io.files import RunError, json_lines
from mtlprune.runs.folder import CURVES, RunFolder
from mtlprune.statistics.curves import MIN_POINTS, find_break


class Measure(NamedTuple):
    """A measure whose curve is shown.

    Attributes:
        key: key of the measure in curves.jsonl.
        name: title of the panel.
        unit: unit of the values, or the method that computes them; title of the vertical axis.
        falling: whether the break of the curve is that of a drop instead of a rise.
        reference: key of a baseline in curves.jsonl, or the baseline as a number.
        called: name of the baseline.
    """

    key: str
    name: str
    unit: str
    falling: bool = False
    reference: str | float | None = None
    called: str = ""


MEASURES = (
    Measure("loss", "Loss on dev", "nats per sub-word", falling=True),
    Measure("uas_single", "UAS, one head for all", "%", reference="offset_single", called="best offset"),
    Measure("uas_best", "UAS, best head per relation", "%", reference="offset_best", called="best offsets"),
    Measure("arc_weight", "Attention along arcs, any head", "mean weight"),
    Measure("pairs", "Minimal pairs", "% right", reference=50.0, called="chance"),
    Measure("twonn_mean", "Dimension of sentences", "TwoNN", falling=True),
)


@dataclass(frozen=True)
class PretrainingLog:
    """The log of a pretraining run.

    Attributes:
        name: name in the configuration, followed by the folder if several runs have the same name.
        path: folder of the run.
        release: the update from which the weight λ of the syntactic penalty is 0, or None.
        lines: the lines of curves.jsonl, one for each evaluation.
        total: number of updates of the whole training.
        strength: the weight λ of the syntactic penalty; 0 without the penalty.
        every: number of updates between evaluations at a constant interval, or None.
    """

    name: str
    path: str
    release: int | None
    lines: tuple[dict[str, Any], ...]
    total: int
    strength: float
    every: int | None = None

    def points(self, key: str) -> list[tuple[float, float]]:
        """Return (update, value) for each evaluation that has a value of a measure."""
        points = [(line["step"], line.get(key)) for line in self.lines]
        return [(float(step), float(value)) for step, value in points if isinstance(value, int | float)]

    def break_of(self, measure: Measure) -> float | None:
        """Return the update at which the curve of a measure accelerates most, on a logarithmic axis of updates, or None
        without such an update or with too few points."""
        points = [(step, value) for step, value in self.points(measure.key) if step > 0]
        if len(points) < MIN_POINTS:
            return None
        steps, values = zip(*points, strict=True)
        return find_break(steps, values, falling=measure.falling)

    def even_break_of(self, measure: Measure) -> float | None:
        """Return the update at which the curve accelerates most among evaluations at a constant interval, on a linear
        axis, as in the publication, or None."""
        points = [(step, value) for step, value in self.points(measure.key) if self.every and step % self.every == 0]
        if len(points) < MIN_POINTS:
            return None
        steps, values = zip(*points, strict=True)
        return find_break(steps, values, falling=measure.falling, axis="linear")


def read_pretrainings(paths: Sequence[Path]) -> list[PretrainingLog]:
    """Read the logs of pretraining runs, finished or not, from run folders or runs of a study.

    Raises:
        RunError: a folder holds no pretraining run or an empty log, or a folder is named twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise RunError("expected each folder once, found one that is named twice; name each folder once")
    logs = [_read(path) for path in paths]
    names = [log.name for log in logs]
    return [log if names.count(log.name) == 1 else replace(log, name=f"{log.name} ({log.path})") for log in logs]


def _read(path: Path) -> PretrainingLog:
    folder = RunFolder(path)
    if not folder.has("config.yaml") or not folder.has(CURVES):
        raise RunError(
            f"{path}: expected the folder of a pretraining with config.yaml and {CURVES}, found none; "
            "`mtlprune train` makes one"
        )
    tree = folder.read_config()
    log = folder.path / CURVES
    logged = [line for _, line in json_lines(folder.read_text(CURVES), log)]
    if not logged or not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in logged):
        raise RunError(f"{log}: expected an object with a number step on each line, found none or others")
    syntax = tree.get("syntax") or {}
    total = int((tree.get("train") or {}).get("steps", logged[-1]["step"]))
    strength = float(syntax.get("strength", 0.0))
    name, interval = str(tree.get("name", path.name)), (tree.get("watch") or {}).get("every")
    return PretrainingLog(name, str(path), syntax.get("release"), tuple(logged), total, strength, interval)


def _measured(logs: Sequence[PretrainingLog]) -> list[Measure]:
    """Return the measures for which at least one run has values."""
    return [measure for measure in MEASURES if any(log.points(measure.key) for log in logs)]


def summary(logs: Sequence[PretrainingLog]) -> dict[str, Any]:
    """Return the content of pretraining.json: the last values and the breaks of all measures, for each run."""
    measures = _measured(logs)
    runs = []
    for log in logs:
        entry: dict[str, Any] = {"name": log.name, "path": log.path, "lambda": log.strength, "release": log.release}
        entry |= {"updates": log.lines[-1]["step"], "of": log.total}
        for measure in measures:
            points = log.points(measure.key)
            entry[measure.key] = {"last": points[-1][1] if points else None, "break": log.break_of(measure)}
            if log.every:
                entry[measure.key]["even_break"] = log.even_break_of(measure)
        runs.append(entry)
    return {"axis": "log", "measures": [measure.key for measure in measures], "runs": runs}


@markdown_document
def markdown(logs: Sequence[PretrainingLog]) -> str:
    """Return a Markdown table with a row for each run. A cell holds the last value of a measure, the update of its
    break after @, and in brackets the break among evaluations at a constant interval."""
    measures, rows = _measured(logs), []
    for entry in summary(logs)["runs"]:
        release_note = f" until {entry['release']}" if entry["release"] is not None else ""
        cells = [
            ("–" if cell["last"] is None else f"{cell['last']:.2f}")
            + ("" if cell["break"] is None else f" @ {cell['break']:g}")
            + ("" if cell.get("even_break") is None else f" ({cell['even_break']:g})")
            for cell in (entry[measure.key] for measure in measures)
        ]
        rows.append([entry["name"], f"{entry['lambda']:g}{release_note}", str(entry["updates"]), *cells])
    header = ["run", "λ", "updates", *(f"{measure.name} ({measure.unit})" for measure in measures)]
    note = (
        "Cells hold the last value and, after @, the update of the break. The break is the point of the largest "
        "acceleration of the curve (of its drop, for loss and dimension), with slopes on an axis of log updates. "
        "Brackets hold the break over even steps, as published."
    )
    return f"# Pretrainings\n\n{Grid(header, rows).markdown()}\n{note}\n"


def chart(logs: Sequence[PretrainingLog]) -> Spec:
    """Draw a panel for each measure, with a line for each run. A ring marks a break, with a dashed line to the axis.

    The axis of updates is logarithmic. Values that were measured before the first update are at its left end.
    """
    steps = [line["step"] for log in logs for line in log.lines if line["step"] > 0] or [1]
    start = min(steps) ** 1.08 / max(*steps, 2 * min(steps)) ** 0.08  # position of values before the first update
    ticks = [tick for power in range(9) for tick in (10**power, 3 * 10**power) if start <= tick <= max(steps)]
    explained = [
        "Updates are on a log axis, whose left end is before the first update. Rings are breaks of the curves, which "
        "are their largest acceleration (of the drop, for loss and dimension). Dashed lines are values without "
        "learning."
    ]
    grid = panels([_panel(measure, logs, start, ticks) for measure in _measured(logs)], 3)
    return figure(grid, "Pretraining: loss, syntactic attention, minimal pairs, dimension", explained)


def _panel(
    measure: Measure, logs: Sequence[PretrainingLog], start: float, ticks: Sequence[int]
) -> alt.LayerChart | alt.FacetChart:
    names = []
    for log in logs:
        release_note = f" until update {log.release}" if log.release is not None else ""
        names.append(f"{log.name}: λ {log.strength:g}{release_note}" if log.strength else log.name)
    rows = [
        {"name": name, "update": step or start, "value": value, "break": step == log.break_of(measure)}
        for name, log in zip(names, logs, strict=True)
        for step, value in log.points(measure.key)
    ]
    frame = pd.DataFrame(rows).astype({"name": pd.CategoricalDtype(names, ordered=True)})
    x_axis = alt.X(
        "update:Q",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(grid=False, format="~s", values=ticks),
        title="updates",
    )
    base = [v for log in logs for _, v in log.points(str(measure.reference))]
    base = [measure.reference] if isinstance(measure.reference, float) else base
    # The name of the baseline is in the title, because curves would cross it next to the line of the baseline.
    title = measure.name + f" (dashed: {measure.called})" * bool(base)
    curves = lines(frame, "update", "value", title=title, y_title=measure.unit).encode(x_axis)
    break_points = alt.Chart(data(frame[frame["break"]])).encode(x_axis, alt.Color("name:N"))
    rings = break_points.mark_point(size=100, filled=False, opacity=1).encode(alt.Y("value:Q"))
    down = break_points.mark_rule(strokeDash=[3, 3]).encode(alt.Y("value:Q"), alt.Y2(value=HEIGHT))
    layers = [curves, down, rings]
    if base:
        across_all = alt.Chart(alt.InlineData(values=[{"value": max(base)}])).encode(alt.Y("value:Q"))
        layers.append(across_all.mark_rule(strokeDash=[5, 3], color=SOFT))
    return alt.layer(*layers)
