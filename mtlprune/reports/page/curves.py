"""How training went: scores on dev and losses by epoch (metrics.jsonl), open heads by step (gates.jsonl); and what
removing heads saves (latency.json)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.figures.charts import Interval, colours, figure, lines, panels, seeds_behind
from mtlprune.figures.grid import Grid, percent
from mtlprune.io.files import RunError, read_json, reading
from mtlprune.reports.analyses import Figure
from mtlprune.reports.page.claims import Selection
from mtlprune.reports.page.render import Part, forest_figure
from mtlprune.reports.page.scores import Scored
from mtlprune.reports.scores.comparisons import Comparison

Reading = Callable[[dict[str, Any], str], float | None]
Line = Sequence[tuple[float, float]]
Series = tuple[str, int, bool, Sequence[Line]]
"""Name, number of the colour, whether dashed, a line for each seed."""


def part(tables: Sequence[Scored], sets: Sequence[Selection]) -> Part | None:
    """The part of the page; None where no run left a log."""
    logs = {run.path: run.folder.read_metrics() for one in tables for c in one.comparison.columns for run in c.runs}
    learning = []
    for scored in tables:
        comparison = scored.comparison

        def dev(record: dict[str, Any], task: str, comparison: Comparison = comparison) -> float | None:
            return record.get("dev", {}).get(task, {}).get(comparison.name(task))

        if scores := _learning(comparison, logs, dev, "dev score, %"):
            losses = _learning(comparison, logs, _loss, "training loss")
            learning.append({"title": scored.title, "scores": scores, "losses": losses})
    pruning = _pruning(sets)
    caveats = [f"{path} has no metrics.jsonl, so no curve shows it." for path, log in logs.items() if not log]
    holds = {"learning": learning, "several": len(tables) > 1, "pruning": pruning}
    return Part("curves", "Learning and pruning", holds, "runs", caveats, folded=True) if learning or pruning else None


def _loss(record: dict[str, Any], task: str) -> float | None:
    return record.get("loss", {}).get(task)


def _learning(
    comparison: Comparison, logs: Mapping[str, Sequence[dict[str, Any]]], reading: Reading, what: str
) -> Figure | None:
    """One panel for each task: colours tell prunings (and baselines) apart, dashes joint training."""
    kinds: dict[tuple[str, str, str], int] = {}
    shown, titles, several = [], [], len(comparison.encoders()) > 1
    for task in comparison.tasks():
        parts = []
        for column in comparison.columns:
            runs = column.runs_of(task)
            if each := list(filter(None, (_points(logs[run.path], task, reading) for run in runs))):
                kind = runs[0].kind, runs[0].pruning, runs[0].encoder
                hue = kinds.setdefault(kind, len(kinds))
                parts.append((f"{column.title}{several * f', {column.encoder}'}", hue, len(runs[0].tasks) > 1, each))
        if parts:
            shown.append(parts)
            titles.append(task.upper() if reading is _loss else comparison.row_title(task))
    return _figure(shown, titles, ("epoch", what), 2)


def _points(log: Sequence[dict[str, Any]], task: str, reading: Reading) -> list[tuple[float, float]]:
    return [(float(line["epoch"]), value) for line in log if (value := reading(line, task)) is not None]


def _pruning(sets: Sequence[Selection]) -> Figure | None:
    shown, titles = [], []
    for one in sets:
        lines = [
            [
                [(float(step), float((gates > OPEN_ABOVE).sum())) for step, gates in claim.history]
                for claim in each.claims
            ]
            for each in one.run_groups
        ]
        if any(len({number for _, number in line}) > 1 for each in lines for line in each):
            named = enumerate(zip(one.run_groups, lines, strict=True))
            shown.append([(c.label, hue, c.joint, each) for hue, (c, each) in named])
            titles.append(one.title)
    return _figure(shown, titles, ("step", "open heads"), 0)


def _figure(
    shown: Sequence[Sequence[Series]], titles: Sequence[str], axes: tuple[str, str], digits: int
) -> Figure | None:
    """Panels of means over the seeds that have the x as lines, seeds as small dots, with one legend.

    Args:
        digits: of the values at the end, in words; with none, what is drawn counts from 0.
    """
    kinds = {name: hue for panel in shown for name, hue, _, _ in panel}
    joint = {name: dashed for panel in shown for name, _, dashed, _ in panel}
    names = pd.DataFrame({"name": pd.Categorical(list(kinds), list(kinds)), "joint": list(joint.values())})
    look = colours(names, "joint", kinds=kinds)
    charts, words = [], []
    for title, panel in zip(titles, shown, strict=True):
        rows = [(name, seed, x, y) for name, _, _, each in panel for seed, line in enumerate(each) for x, y in line]
        points = pd.DataFrame(rows, columns=["name", "seed", "x", "y"])
        points["name"] = pd.Categorical(points["name"], list(kinds))
        means = points.groupby(["name", "x"], observed=True, as_index=False)["y"].mean()
        words_of: dict[str, Any] = {"title": title, "x_title": axes[0], "y_title": axes[1], "of": "runs"}
        several = points[points.groupby("name", observed=True)["seed"].transform("max") > 0]
        chart = lines(means, "x", "y", zero=not digits, look=look, **words_of)
        charts.append(chart + seeds_behind(several, "x", "y", look["color"]) if len(several) else chart)
        last = means.groupby("name", observed=True)["y"].last()
        ends = "; ".join(f"{name} {y:.{digits}f}" for name, y in last.items())
        words.append(f"{title}, {axes[1]} by {axes[0]}. At the end: {ends}.")
    return Figure(figure(panels(charts, 3)), " ".join(words)) if charts else None


# -- what removing heads saves, from the latency.json that `mtlprune export --remove --latency` leaves -----------------


LATENCY = "latency.json"


def latency_part(files: Sequence[Path]) -> Part | None:
    """The part of the page; None where nothing was measured."""
    shown, caveats = [], []
    for file in (path / LATENCY if path.is_dir() else path for path in files):
        title, remedy = (
            str(file.parent if file.name == LATENCY else file),
            "`mtlprune export RUN --remove --latency --out DIR` measures and writes it",
        )
        with reading(file, RunError, remedy):
            tree = read_json(file, RunError, remedy)
            shown.append(_one(title, tree))
        if float(tree.get("load") or 0) > 1.5 * float(tree.get("threads") or 1):
            caveats.append(
                f"{title}: the machine was busy while it was measured (load {tree['load']} on {tree.get('threads')} "
                "threads); the fastest round counts, yet times are rough."
            )
        if worse := [f"{c['batch']} × {c['length']}" for c in tree["cells"] if c["encoder"]["gain"] <= 0]:
            caveats.append(f"{title}: removal saves no time at batch × length {', '.join(worse)}.")
    return Part("latency", "What removal saves", {"files": shown}, "runs", caveats) if files else None


def _one(title: str, tree: dict[str, Any]) -> dict[str, Any]:
    conditions = ("device", "precision", "threads", "torch", "load")
    caption = "Time of the encoder saved, by batch × length: a dot; the line goes from there to the ideal."
    what = "Time of the encoder saved, batch × length"
    return {
        "title": title,
        "saved": forest_figure([_saved(cell) for cell in tree["cells"]], what, "time saved, %", caption),
        "encoder": _table(tree, "encoder", f"Latency of {title}, encoder"),
        "attention": _table(tree, "attention", f"Latency of {title}, attention blocks"),
        "about": ", ".join(f"{name} {tree[name]}" for name in conditions if name in tree),
    }


def _saved(cell: dict[str, Any]) -> Interval:
    """A dot at what is saved, a line to what would be ideal."""
    gain, ideal = (100 * float(cell["encoder"][name]) for name in ("gain", "ideal_gain"))
    where = f"{cell['batch']} × {cell['length']}"
    words = f"{where}: {percent(gain / 100)} (ideal {percent(ideal / 100)})"
    return Interval(words, gain, min(gain, ideal), max(gain, ideal), True, words)


def _table(tree: dict[str, Any], part: str, name: str) -> Grid:
    header = ["batch", "length", "all heads, ms", "masked, ms", "removed, ms", "saved", "ideal", "of the ideal"]
    rows = []
    for cell in tree["cells"]:
        latency, share = cell[part], cell[part].get("reached")
        times = [f"{1000 * latency['seconds'][kind]:.1f}" for kind in ("full", "masked", "removed")]
        reached = "–" if share is None else percent(share) if -0.5 <= share <= 1.5 else "noise"
        gains = [percent(latency["gain"]), percent(latency["ideal_gain"]), reached]
        rows.append([str(cell["batch"]), str(cell["length"]), *times, *gains])
    return Grid(header, rows, 0, name)
