"""Curves of pretrainings and where they break: what a figure and a table of them show. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtlprune.analyses.onset.breaks import LEAST, find_break
from mtlprune.files import RunError, read_json_lines
from mtlprune.reports.grid import markdown_cell, markdown_document
from mtlprune.runs import RunFolder

CURVES = "curves.jsonl"


@dataclass(frozen=True)
class Measure:
    """One number that is followed.

    Attributes:
        key: in curves.jsonl.
        name, unit: as shown.
        falling: whether its drop is looked for.
        beside: key of a baseline, or a number that is one.
        called: what that baseline is.
    """

    key: str
    name: str
    unit: str
    falling: bool = False
    beside: str | float | None = None
    called: str = ""


MEASURES = (
    Measure("loss", "Loss on dev", "nats a piece", falling=True),
    Measure("uas_single", "UAS, one head for all", "%", beside="offset_single", called="best offset"),
    Measure("uas_best", "UAS, a head a relation", "%", beside="offset_best", called="best offsets"),
    Measure("arc_weight", "Attention along arcs, any head", "mean weight"),
    Measure("blimp", "BLiMP", "%", beside=50.0, called="chance"),
    Measure("twonn_mean", "Dimension of sentences", "TwoNN", falling=True),
)


@dataclass(frozen=True)
class PretrainingLog:
    """One run as it is logged.

    Attributes:
        name: of its configuration; its folder's too where several are named alike.
        release: the update from which its λ is 0, if it has one.
        lines: of curves.jsonl, in order.
        total: updates it is to make.
        strength: its λ.
    """

    name: str
    path: str
    release: int | None
    lines: tuple[dict[str, Any], ...]
    total: int
    strength: float

    def points(self, key: str) -> list[tuple[float, float]]:
        """(update, value) where it is known."""
        found = [(line["step"], line.get(key)) for line in self.lines]
        return [(float(step), float(value)) for step, value in found if isinstance(value, int | float)]

    def break_of(self, measure: Measure) -> float | None:
        """The update of its largest acceleration, on an axis of logarithms; None where there is none or too little."""
        points = [(step, value) for step, value in self.points(measure.key) if step > 0]
        if len(points) < LEAST:
            return None
        steps, values = zip(*points, strict=True)
        return find_break(steps, values, falling=measure.falling, axis="log").step


def read_pretrainings(paths: Sequence[Path]) -> list[PretrainingLog]:
    """Read run folders of `mtlprune pretrain`, finished or not.

    Raises:
        RunError: a folder holds none, nothing was logged yet, or two are one.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise RunError("a run is named twice; name each folder once")
    found = [_read(path) for path in paths]
    names = [log.name for log in found]
    return [
        log if names.count(log.name) == 1 else PretrainingLog(**{**vars(log), "name": f"{log.name} ({log.path})"})
        for log in found
    ]


def _read(path: Path) -> PretrainingLog:
    folder = RunFolder(path)
    log = folder.path / CURVES
    if not folder.config_path.is_file() or not log.is_file():
        raise RunError(
            f"{path}: expected the folder of a pretraining with config.yaml and {CURVES}, found none; "
            "`mtlprune pretrain` makes one"
        )
    tree = folder.read_config()
    lines = [line for _, line in read_json_lines(log)]
    if not lines or not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in lines):
        raise RunError(f"{log}: expected an object with a number step on each line, found none or others")
    syntax = tree.get("syntax") or {}
    total = int((tree.get("train") or {}).get("steps", lines[-1]["step"]))
    strength = float(syntax.get("strength", 0.0))
    return PretrainingLog(
        str(tree.get("name", path.name)), str(path), syntax.get("release"), tuple(lines), total, strength
    )


def summary(logs: Sequence[PretrainingLog]) -> dict[str, Any]:
    """Last values and breaks of all measures that any run has: what breaks.json holds."""
    shown = [measure for measure in MEASURES if any(log.points(measure.key) for log in logs)]
    runs = []
    for log in logs:
        entry: dict[str, Any] = {
            "name": log.name,
            "path": log.path,
            "lambda": log.strength,
            "release": log.release,
            "updates": log.lines[-1]["step"],
            "of": log.total,
        }
        for measure in shown:
            points = log.points(measure.key)
            entry[measure.key] = {"last": points[-1][1] if points else None, "break": log.break_of(measure)}
        runs.append(entry)
    return {"axis": "log", "measures": [measure.key for measure in shown], "runs": runs}


@markdown_document
def markdown(logs: Sequence[PretrainingLog]) -> str:
    """A row a run: the last value of each measure, and after @ the update of its break."""
    tree = summary(logs)
    shown = [measure for measure in MEASURES if measure.key in tree["measures"]]
    head = ["run", "λ", "updates", *(f"{measure.name} ({measure.unit})" for measure in shown)]
    rows = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for entry in tree["runs"]:
        until = f" until {entry['release']}" if entry["release"] is not None else ""
        cells = [markdown_cell(entry["name"]), f"{entry['lambda']:g}{until}", str(entry["updates"])]
        for measure in shown:
            last, at = entry[measure.key]["last"], entry[measure.key]["break"]
            value = "–" if last is None else f"{last:.2f}"
            cells.append(value if at is None else f"{value} @ {at:g}")
        rows.append("| " + " | ".join(cells) + " |")
    note = (
        "Last value @ update of the break: the point of the largest acceleration of the curve (of its drop, for loss "
        "and dimension), slopes on an axis of log updates."
    )
    return "\n".join(["# Pretrainings", "", *rows, "", note, ""])
