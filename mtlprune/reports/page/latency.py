"""What removing heads saves, from the latency.json that `mtlprune prune` leaves in the run it makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtlprune.files import RunError, read_json, reading
from mtlprune.reports.page.html import Html, element, folded, joined, paragraph, scrolling, table
from mtlprune.reports.page.parts import Part

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
    read_files = [(file, read(file)) for file in files]
    caveats = []
    for file, tree in read_files:
        if float(tree.get("load") or 0) > 1.5 * float(tree.get("threads") or 1):
            caveats.append(
                f"{_title(file)}: the machine was busy while it was measured (load {tree['load']} on "
                f"{tree.get('threads')} threads); the fastest round counts, yet times are rough."
            )
        worse = [c for c in tree["cells"] if c["encoder"]["gain"] <= 0]
        if worse:
            places = ", ".join(f"{c['batch']} × {c['length']}" for c in worse)
            caveats.append(f"{_title(file)}: removal saves no time at batch × length {places}.")
    note = (
        "Seconds of the encoder's forward pass, the fastest round of each: all heads, heads masked (they are still "
        "computed), and heads removed. Ideal: the removed heads' share of the multiply-adds; soft-max, norms and "
        "embeddings are not counted."
    )
    return Part(
        "latency", "What removal saves", joined(paragraph(note), [_one(*one) for one in read_files]), tuple(caveats)
    )


def _title(file: Path) -> str:
    return str(file.parent if file.name == FILE else file)


def _one(file: Path, tree: dict[str, Any]) -> Html:
    about = ", ".join(
        f"{name} {tree[name]}" for name in ("device", "precision", "threads", "torch", "load") if name in tree
    )
    return joined(
        element("h3", _title(file)),
        _bars(tree["cells"]),
        _table(tree, "encoder", f"Latency of {_title(file)}, encoder"),
        folded("Attention blocks alone", _table(tree, "attention", "Latency, attention blocks")),
        paragraph(about, class_="note"),
    )


def _table(tree: dict[str, Any], part: str, name: str) -> Html:
    columns = ["batch", "length", "all heads, ms", "masked, ms", "removed, ms", "saved", "ideal", "of the ideal"]
    return table(columns, [_row(cell, part) for cell in tree["cells"]], name, texts=0, sortable=True)


def _row(cell: dict[str, Any], name: str) -> list[str]:
    found = cell[name]
    times = [f"{1000 * found['seconds'][kind]:.1f}" for kind in ("full", "masked", "removed")]
    share = found.get("reached")
    reached = "–" if share is None else _percent(share) if -0.5 <= share <= 1.5 else "noise"
    return [
        str(cell["batch"]),
        str(cell["length"]),
        *times,
        _percent(found["gain"]),
        _percent(found["ideal_gain"]),
        reached,
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %".replace("-", "−")


def _bars(cells: Sequence[dict[str, Any]]) -> Html:
    """Time saved beside the ideal, a bar a cell of the grid."""
    width, left, row = 520, 76, 20
    most = max([0.05, *(max(c["encoder"]["gain"], c["encoder"]["ideal_gain"]) for c in cells)])
    room = width - left - 110
    marks = []
    for place, cell in enumerate(cells):
        y = 6 + place * row
        gain, ideal = float(cell["encoder"]["gain"]), float(cell["encoder"]["ideal_gain"])
        told = f"batch {cell['batch']}, length {cell['length']}: {_percent(gain)} saved, ideal {_percent(ideal)}"
        at, end = left + ideal / most * room, left + max(gain, 0) / most * room
        words = {"x": round(max(at, end) + 10, 1), "y": y + 11, "class_": "tick"}
        bar = {"x": left, "y": y, "width": round(end - left, 1), "height": 13, "class_": "bar"}
        marks += [
            element("text", f"{cell['batch']} × {cell['length']}", x=left - 10, y=y + 11, class_="tick end"),
            element("rect", element("title", told), **bar),
            element("line", x1=round(at, 1), y1=y - 2, x2=round(at, 1), y2=y + 15, class_="whisker ideal"),
            element("text", f"{_percent(gain)} (ideal {_percent(ideal)})", **words),
        ]
    listed = "; ".join(f"{c['batch']} × {c['length']}: {_percent(c['encoder']['gain'])}" for c in cells)
    box = {"viewBox": f"0 0 {width} {12 + len(cells) * row}", "class_": "plot wide", "role": "img"}
    picture = element("svg", *marks, aria_label=f"Time of the encoder saved, batch × length. {listed}.", **box)
    caption = "Time of the encoder saved, by batch × length; the tick marks the ideal."
    return element("figure", scrolling("Time saved, drawn", picture), element("figcaption", caption))
