"""Curves out of any log of JSON lines, their breaks in order, and lags between breaks of the same heads; torch-free.

A log is a file of one JSON object a line with a number ``step``; every other number in it, however deep, is a point of
a curve. Numbers in rows of rows, under one key, are curves of heads: layers of heads.

Letters: L layers, A heads a layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.onset.breaks import LEAST, Axis, Break, BreakError, find_break
from mtlprune.files import read_json_lines
from mtlprune.statistics.permutation import permuted, tail

Grid = NDArray[np.float64]


@dataclass(frozen=True)
class LoggedCurve:
    """One logged number.

    Attributes:
        name: folder, file and path, such as ``dep-1/metrics:dev.dep.las``, or ``dep-1/gates:gates.shared`` of a head.
        layer, head: from 0; −1 where it is of no head.
        steps, values: its points.
    """

    name: str
    layer: int
    head: int
    steps: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def falling(self) -> bool:
        """Whether it ends below where it began: then its drop is looked for."""
        return self.values[-1] < self.values[0]


@dataclass(frozen=True, eq=False)
class HeadBreaks:
    """Breaks of one number of all heads.

    Attributes:
        name: of the curves.
        steps: (L, A), NaN where there is no break.
    """

    name: str
    steps: Grid


@dataclass(frozen=True, eq=False)
class Lag:
    """By how many steps heads break later in ``second`` than in ``first``.

    Attributes:
        lags: of the heads that break in both.
        p: how often the mean absolute lag is as small when the heads of each layer change places.
    """

    first: str
    second: str
    lags: Grid
    p: float


def read_curves(path: Path) -> list[LoggedCurve]:
    """All curves of a log, or of all logs in a folder, in the order of their first points.

    Raises:
        BreakError: no such file, no log in the folder, or lines without a step.
        RunError: a line that is not JSON.
    """
    if not path.exists():
        raise BreakError(f"{path}: there is no such log")
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise BreakError(f"{path}: expected a folder with logs (*.jsonl), found none")
    return [curve for file in files for curve in _read(file)]


def _read(file: Path) -> Iterator[LoggedCurve]:
    points: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for number, record in read_json_lines(file):
        step = record.get("step") if isinstance(record, dict) else None
        if not isinstance(step, (int, float)) or isinstance(step, bool):
            raise BreakError(f"{file}, line {number}: expected an object with a number step; this is no log of curves")
        for path, layer, head, value in _leaves(record, ""):
            if path not in ("step", "epoch"):
                points.setdefault((path, layer, head), []).append((float(step), value))
    for (path, layer, head), found in points.items():
        steps, values = zip(*found, strict=True)
        yield LoggedCurve(f"{file.absolute().parent.name}/{file.stem}:{path}", layer, head, steps, values)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, int, int, float]]:
    """Path, layer, head and number of everything that is a number; what a head lacks (null) is left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for layer, row in enumerate(value):
            for head, number in enumerate(row if isinstance(row, list) else []):
                if isinstance(number, (int, float)) and not isinstance(number, bool):
                    yield path, layer, head, float(number)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, -1, -1, float(value)


@dataclass(frozen=True, eq=False)
class Onsets:
    """Breaks of all curves.

    Attributes:
        single: curves of no head, the earliest break first, those without one last.
        heads: one entry a number that heads have.
        lags: between every two of them that have the same heads.
        short: names of numbers with fewer than three points, which are left out.
    """

    single: list[tuple[LoggedCurve, Break]]
    heads: list[HeadBreaks]
    lags: list[Lag]
    short: list[str]


def onsets(
    curves: Sequence[LoggedCurve],
    delta: float | None = None,
    axis: Axis = "step",
    permutations: int = 9999,
    seed: int = 0,
) -> Onsets:
    """Find and order all breaks.

    Raises:
        BreakError: no curve has three points, or :func:`mtlprune.analyses.onset.breaks.find_break` refuses one of them.
    """
    long = [curve for curve in curves if len(curve.steps) >= LEAST]
    if not long:
        most = max((len(curve.steps) for curve in curves), default=0)
        raise BreakError(
            f"a break needs a curve of at least {LEAST} points, and none of the {len(curves)} curves has more than "
            f"{most}; evaluate more often, or give logs of a longer training"
        )
    found = [(curve, _break(curve, delta, axis)) for curve in long]
    single = sorted((entry for entry in found if entry[0].layer < 0), key=lambda entry: _place(entry[1]))
    heads = _heads([entry for entry in found if entry[0].layer >= 0])
    generator = np.random.default_rng([seed, 27])
    lags = [
        lag(one, other, permutations, generator)
        for place, one in enumerate(heads)
        for other in heads[place + 1 :]
        if one.steps.shape == other.steps.shape
    ]
    return Onsets(single, heads, lags, sorted({curve.name for curve in curves} - {curve.name for curve in long}))


def _break(curve: LoggedCurve, delta: float | None, axis: Axis) -> Break:
    try:
        return find_break(curve.steps, curve.values, delta, curve.falling, axis)
    except BreakError as error:
        raise BreakError(f"{curve.name}: {error}") from None


def _place(found: Break) -> float:
    return math.inf if found.step is None else found.step


def _heads(found: Sequence[tuple[LoggedCurve, Break]]) -> list[HeadBreaks]:
    names: dict[str, list[tuple[LoggedCurve, Break]]] = {}
    for curve, at in found:
        names.setdefault(curve.name, []).append((curve, at))
    made = []
    for name, group in names.items():
        shape = max(curve.layer for curve, _ in group) + 1, max(curve.head for curve, _ in group) + 1
        steps = np.full(shape, np.nan)
        for curve, at in group:
            if at.step is not None:
                steps[curve.layer, curve.head] = at.step
        made.append(HeadBreaks(name, steps))
    return made


def lag(first: HeadBreaks, second: HeadBreaks, permutations: int, generator: np.random.Generator) -> Lag:
    """Lags of heads, and whether a head's two breaks lie nearer to each other than those of its neighbours.

    The null keeps each layer's breaks and gives them to other heads of the layer.
    """
    both = ~(np.isnan(first.steps) | np.isnan(second.steps))
    observed = (second.steps - first.steps)[both]
    if not len(observed):
        return Lag(first.name, second.name, observed, math.nan)
    null = np.zeros(permutations)
    for layer, here in enumerate(both):
        if here.any():
            row = second.steps[layer, here][None, None, None]
            parts = [part[:, 0, 0] for part in permuted(row, permutations, generator)]
            null += np.abs(np.concatenate(parts) - first.steps[layer, here]).sum(-1)
    size = both.sum()
    return Lag(first.name, second.name, observed, tail(-float(np.abs(observed).mean()), -null / size).p)
