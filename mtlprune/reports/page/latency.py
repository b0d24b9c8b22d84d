"""What removing heads saves, from the latency.json that `mtlprune prune` leaves in the run it makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtlprune.files import RunError, read_json, reading
from mtlprune.reports.charts import Interval
from mtlprune.reports.grid import Grid
from mtlprune.reports.page.render import Part, forest_figure

FILE = "latency.json"


def read(path: Path) -> dict[str, Any]:
    """One file, or that of a run folder. Raises RunError where it is missing or holds something else."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise RunError(f"{file} is missing; `mtlprune prune RUN --out DIR` measures and writes it")
    remedy = "expected cells with batch, length and seconds of the encoder and its attention, see `mtlprune prune`"
    tree = read_json(file, RunError, remedy)
    with reading(file, RunError, remedy):
        for cell in tree["cells"]:
            for name in ("encoder", "attention"):
                part = cell[name]
                float(part["ideal_gain"]), float(part["gain"])
                [float(part["seconds"][kind]) for kind in ("full", "masked", "removed")]
            int(cell["batch"]), int(cell["length"])
    return tree


def part(files: Sequence[Path]) -> Part | None:
    """The part of the page; None where nothing was measured."""
    if not files:
        return None
    read_files = [(_title(file), read(file)) for file in files]
    caveats = []
    for title, tree in read_files:
        if float(tree.get("load") or 0) > 1.5 * float(tree.get("threads") or 1):
            caveats.append(
                f"{title}: the machine was busy while it was measured (load {tree['load']} on {tree.get('threads')} "
                "threads); the fastest round counts, yet times are rough."
            )
        if worse := [f"{c['batch']} × {c['length']}" for c in tree["cells"] if c["encoder"]["gain"] <= 0]:
            caveats.append(f"{title}: removal saves no time at batch × length {', '.join(worse)}.")
    return Part("latency", "What removal saves", {"files": [_one(*one) for one in read_files]}, caveats)


def _title(file: Path) -> str:
    return str(file.parent if file.name == FILE else file)


def _one(title: str, tree: dict[str, Any]) -> dict[str, Any]:
    told = ("device", "precision", "threads", "torch", "load")
    caption = "Time of the encoder saved, by batch × length: a dot; the line goes from there to the ideal."
    what = "Time of the encoder saved, batch × length"
    return {
        "title": title,
        "saved": forest_figure([_saved(cell) for cell in tree["cells"]], what, "time saved, %", caption),
        "encoder": _table(tree, "encoder", f"Latency of {title}, encoder"),
        "attention": _table(tree, "attention", f"Latency of {title}, attention blocks"),
        "about": ", ".join(f"{name} {tree[name]}" for name in told if name in tree),
    }


def _saved(cell: dict[str, Any]) -> Interval:
    """A dot at what is saved, a line to what would be ideal."""
    gain, ideal = (100 * float(cell["encoder"][name]) for name in ("gain", "ideal_gain"))
    where = f"{cell['batch']} × {cell['length']}"
    told = f"{_percent(gain / 100)} (ideal {_percent(ideal / 100)})"
    return Interval(f"{where}: {told}", gain, min(gain, ideal), max(gain, ideal), True, f"{where}: {told}")


def _table(tree: dict[str, Any], part: str, name: str) -> Grid:
    header = ["batch", "length", "all heads, ms", "masked, ms", "removed, ms", "saved", "ideal", "of the ideal"]
    rows = []
    for cell in tree["cells"]:
        found, share = cell[part], cell[part].get("reached")
        times = [f"{1000 * found['seconds'][kind]:.1f}" for kind in ("full", "masked", "removed")]
        reached = "–" if share is None else _percent(share) if -0.5 <= share <= 1.5 else "noise"
        gains = [_percent(found["gain"]), _percent(found["ideal_gain"]), reached]
        rows.append([str(cell["batch"]), str(cell["length"]), *times, *gains])
    return Grid(header, rows, 0, name)


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %".replace("-", "−")
