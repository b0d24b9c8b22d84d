"""Where curves of logs break: the point of their largest acceleration (Chen et al. 2024); lags between breaks of heads.

    find_break(steps, uas)                  # neighbours in the log
    find_break(steps, loss, falling=True)   # a curve that drops

break(f) = argmax_t [f(t + Δ) − f(t)] − [f(t) − f(t − Δ)], with Δ to the neighbours in the log. A log is a file of one
JSON object a line with a number ``step``; every other number in it, however deep, is a point of a curve. Numbers in
rows of rows, under one key, are curves of heads: layers of heads.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.breaks import Axis
from mtlprune.io.files import RunError, read_json_lines
from mtlprune.runs.results import Grid, Result, head_rows
from mtlprune.runs.study import packed_run
from mtlprune.statistics.permutation import layer_orders, tail

Place = tuple[str, int, int]
"""Name of a curve, layer and head from 1; 0 where it is of no head."""
Points = dict[Place, list[tuple[float, float]]]
"""Steps and values, in the order of the first ones."""
LEAST = 3
"""Points of a curve that may have a break."""
_ROUNDING = 1e-9  # of the largest slope: a smaller bend is rounding


class BreakError(RunError):
    """A curve has no break that could be looked for; the message says why."""


def measure(request: Request) -> Result:
    """All curves of all logs. Frames, by ``term``, the name of a curve:

    - ``curves``: ``break``, its step (NaN: none); n points. Of a curve that ends below where it began the drop is
      looked for.
    - ``heads``: ``break`` of curves that heads have.
    - ``lags``: by how many steps heads break later in ``other`` than in ``term``; without layer and head ``size``, the
      mean absolute ``lag`` of n heads, and its p.

    Raises:
        BreakError: no log where one is named, no curve of three points, or a curve that has no break to look for.
        RunError: a line that is not JSON.
    """
    options = request.options
    points = read_logs([Path(name) for name in request.names])
    long = {place: curveof_heads for place, curveof_heads in points.items() if len(curveof_heads) >= LEAST}
    if not long:
        most = max(map(len, points.values()), default=0)
        raise BreakError(
            f"a break needs a curve of at least {LEAST} points, and none of the {len(points)} curves has more than "
            f"{most}; evaluate more often, or give logs of a longer training"
        )
    curves: list[dict[str, Any]] = []
    steps: dict[str, dict[tuple[int, int], float]] = {}
    for (name, layer, head), curveof_heads in long.items():
        at, values = zip(*curveof_heads, strict=True)
        try:
            bent_at = find_break(at, values, values[-1] < values[0], options.axis)
        except BreakError as error:
            raise BreakError(f"{name}: {error}") from None
        step = np.nan if bent_at is None else bent_at
        if layer:
            steps.setdefault(name, {})[layer, head] = step
        else:
            number = sum(x > 0 for x in at) if options.axis == "log" else len(at)
            curves.append({"term": name, "measure": "break", "value": step, "n": number})
    grids = {name: _grid(curveof_heads) for name, curveof_heads in steps.items()}
    tests = {
        (first, second): lag_test(grids[first], grids[second], options.permutations, (request.seed, 27))
        for first, second in combinations(grids, 2)
        if grids[first].shape == grids[second].shape
    }
    short = sorted({name for name, *_ in points} - {name for name, *_ in long})
    about = {
        "logs": [str(name) for name in request.names],
        "settings": {**options.model_dump(mode="json"), "seed": request.seed},
        "encoders": [],
        "notes": [f"Fewer than three points, left out: {', '.join(short)}."] if short else [],
    }
    return Result("breaks", about, frames_of(curves, grids, {pair: p for pair, (_, p) in tests.items()}))


def frames_of(
    curves: Sequence[Mapping[str, Any]], grids: Mapping[str, Grid], tests: Mapping[tuple[str, str], float]
) -> dict[str, pd.DataFrame]:
    """Frames of a Result, of what there is: rows of ``curves``, breaks of heads by name, p by two names."""
    lags = []
    for (first, second), p in tests.items():
        lag_rows = head_rows({"lag": grids[second] - grids[first]}).dropna(subset=["value"])
        size = {"measure": "size", "value": lag_rows["value"].abs().mean(), "p": p, "n": len(lag_rows)}
        lags.append(pd.concat([lag_rows, pd.DataFrame([size])]).assign(term=first, other=second))
    parts = {
        "curves": [pd.DataFrame(curves)],
        "heads": [head_rows({"break": grid}).assign(term=name) for name, grid in grids.items()],
        "lags": [lag.astype({"layer": "Int64", "head": "Int64"}) for lag in lags],
    }
    frames = {name: pd.concat(each, ignore_index=True) for name, each in parts.items() if each}
    return {name: frame for name, frame in frames.items() if len(frame)}


def _grid(step_of_heads: Mapping[tuple[int, int], float]) -> Grid:
    grid = np.full(np.max(list(step_of_heads), axis=0), np.nan)
    for (layer, head), step in step_of_heads.items():
        grid[layer - 1, head - 1] = step
    return grid


# -- one curve, and two of the same heads ------------------------------------------------------------------------------


def find_break(steps: ArrayLike, values: ArrayLike, falling: bool = False, axis: Axis = "step") -> float | None:
    """The step of the largest acceleration, of equal ones the first; None for a line or one that only flattens out.

    Points need not be evenly spaced: slopes to both sides are compared, which is the published formula over Δ where
    they are.

    Args:
        steps: rising.
        values: as many.
        falling: look for the drop of a falling curve: −f.
        axis: ``log`` measures distances between logarithms of steps, for curves logged on a log schedule; a step 0 is
            left out.

    Raises:
        BreakError: fewer than three points, values that are not finite, steps that do not rise.
    """
    x, y = _checked(steps, values, axis)
    y = -y if falling else y
    slopes = np.diff(y) / np.diff(x)
    bends = np.diff(slopes)
    # values carry rounding errors of their own size, which slopes inherit
    noise = _ROUNDING * (np.abs(slopes).max() + np.abs(y).max() / (x[-1] - x[0]))
    highest = float(bends.max())
    if highest <= noise:
        return None
    place = 1 + int(np.flatnonzero(bends >= highest - noise)[0])
    return round(float(np.exp(x[place])), 6) if axis == "log" else float(x[place])


def _checked(steps: ArrayLike, values: ArrayLike, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    if axis == "log":
        x, y = np.log(x[x > 0]), y[x > 0]
    if len(x) < LEAST:
        raise BreakError(
            f"a break needs at least {LEAST} points, since it compares the slopes to both sides of one; found {len(x)}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise BreakError("a break needs finite numbers; some of these are infinite or not a number")
    if not (np.diff(x) > 0).all():
        raise BreakError("the steps of a curve must rise")
    return x, y


def lag_test(first: Grid, second: Grid, permutations: int, seed: tuple[int, ...]) -> tuple[float, float]:
    """Do a head's two breaks lie nearer to each other than those of its neighbours?

    Args:
        first, second: (L, A), steps of breaks; NaN where there is none.

    Returns:
        The mean absolute lag of the heads that break in both, and how often it is as small when the breaks of each
        layer go to other heads of the layer; NaN where no head breaks in both.
    """
    both = ~np.isnan(first + second)
    if not both.any():
        return float("nan"), float("nan")
    orders = layer_orders(np.nonzero(both)[0], permutations, seed)
    size = float(np.abs(second - first)[both].mean())
    return size, tail(-size, -np.abs(second[both][orders] - first[both]).mean(1))


# -- logs --------------------------------------------------------------------------------------------------------------


def read_logs(paths: Sequence[Path]) -> Points:
    """All curves of logs, and of all logs in folders. A curve is called after folder, file and path in a line, such as
    ``dep-1/metrics:dev.dep.las``; after the whole path of the file where two logs would be called alike.

    Raises:
        BreakError: no such file, no log in a folder, one named twice, or lines without a step.
        RunError: a line that is not JSON.
    """
    files: list[Path] = []
    for path in paths:
        packed = packed_run(path)
        if packed is None and not path.exists():
            raise BreakError(f"{path}: there is no such log")
        here = (
            [packed.file(name) for name in packed.files() if name.endswith(".jsonl")]
            if packed
            else sorted(path.glob("*.jsonl"))
            if path.is_dir()
            else [path]
        )
        if not here:
            raise BreakError(f"{path}: expected a folder with logs (*.jsonl), found none")
        files += here
    if twice := [file for file, times in Counter(file.resolve() for file in files).items() if times > 1]:
        raise BreakError(f"{twice[0]} is named twice; name each log once")
    called = [f"{file.absolute().parent.name}/{file.stem}" for file in files]
    points: Points = {}
    for file, name in zip(files, called, strict=True):
        where = name if called.count(name) == 1 else str(file.with_suffix(""))
        for number, record in read_json_lines(file):
            step = record.get("step") if isinstance(record, dict) else None
            if not isinstance(step, (int, float)) or isinstance(step, bool):
                raise BreakError(
                    f"{file}, line {number}: expected an object with a number step; this is no log of curves"
                )
            for key, layer, head, value in _leaves(record, ""):
                if key not in ("step", "epoch"):
                    points.setdefault((f"{where}:{key}", layer, head), []).append((float(step), value))
    return points


def _leaves(value: Any, path: str) -> Iterator[tuple[str, int, int, float]]:
    """Path, layer, head and number of everything that is a number; what a head lacks (null) is left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for layer, row in enumerate(value, 1):
            for head, number in enumerate(row if isinstance(row, list) else [], 1):
                if isinstance(number, (int, float)) and not isinstance(number, bool):
                    yield path, layer, head, float(number)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, 0, 0, float(value)
