"""Views of probes: sentences, tables and figures of a Result."""

import json
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import HeadColumn
from mtlprune.analyses.probes import AS_RELEASED, CONTROLS, SOUND
from mtlprune.analyses.probes.show.reading import PRETRAINED, STL, ProbePanel, known, modes, panels, shape, together
from mtlprune.figures.charts import ABOVE, DIVERGING, INK, PALE, RULE, SOFT, Chart, Spec, data, figure, head_map, spread
from mtlprune.figures.grid import Grid, Strong, mean_sd, number, shown_label
from mtlprune.layers import in_order
from mtlprune.runs.results import Result

FEW, SURE = "°", "*"
MEAN = "mean over labels"
_MEANS = ("accuracy", "best control", "gain", "beyond every control")

# -- sentences ---------------------------------------------------------------------------------------------------------


def about(result: Result) -> str:
    """Where the numbers come from."""
    return (
        "How well each head, without any training, tells each label, beside what chance, shuffled labels, the best "
        f"offset and a random encoder reach. Corpus {result.about['corpus']}, mode {' and '.join(modes(result))}. "
        f"{result.about['specials']}"
    )


def findings(result: Result) -> list[str]:
    """The main numbers, in sentences: first of the pretrained encoder, then means over labels of each encoder."""
    sentences = beyond_controls(panels(result, modes(result)[0]))
    few = result.about["few"]
    labels = result.frames["labels"]
    counted = labels[~labels["few"] & ~labels["apart"] & labels["gain"].notna()]
    for (mode, encoder, seed), rows in counted.groupby(["mode", "encoder", "seed"], sort=False):
        each = [
            f"{task.upper()} {here['test'].mean():.2f} ({(here['test'] - here['gain']).mean():.2f}, "
            f"{here['gain'].mean():+.2f}; {(here['gain'] > 0).sum()} of {len(here)})"
            for task, here in rows.groupby("task", sort=False)
        ]
        sentences.append(f"{mode}, {encoder}, seed {seed}: {', '.join(each)}.")
    if len(counted):
        sentences.append(
            f"The numbers are percent, means over labels of at least {few} test items: the best head (in brackets the "
            "best control, the gain over it, and how many labels have one)."
        )
    for split, numbers in result.about.get("splits", {}).items():
        if isinstance(numbers, dict) and numbers.get("too_long"):
            sentences.append(
                f"{numbers['too_long']} sentences of {split} are left out: an encoder cannot see them at once "
                "(attention between windows does not exist)."
            )
    roots = labels.loc[labels["apart"], ["task", "label"]].drop_duplicates()
    return sentences + [
        f"{task} {label} is left out of means: it is scored by attention to [CLS], where attention rests anyway."
        for task, label in roots.itertuples(index=False)
    ]


def beyond_controls(shown: Sequence[ProbePanel]) -> list[str]:
    """How many labels the untouched encoder's heads tell beyond every control."""
    parts = []
    for panel in shown:
        gains = [gain for label in panel.sure for gain in panel.values(PRETRAINED, label, "gain")]
        parts += [f"{panel.task.upper()} {sum(gain > 0 for gain in gains)} of {len(gains)}"] if gains else []
    sentence = f"Labels that a head of the pretrained encoder tells beyond every control: {', '.join(parts)}."
    return [sentence] if parts else []


def setting(result: Result) -> str:
    """The pretrained encoder, where it was probed, and the corpus."""
    return ", ".join(word for word in (pretrained(result), Path(result.about["corpus"]).name) if word)


def pretrained(result: Result) -> str:
    """The label of the untouched encoder; empty where it was not probed."""
    runs = (Path(one["run"]).name for one in result.about["encoders"] if one["encoder"] == PRETRAINED)
    return next(runs, "")


def lacking(shown: Sequence[ProbePanel]) -> list[str]:
    """The parts that are missing for a comparison, in words."""
    wanted = (
        (STL, "STL run", "no differences to STL"),
        (PRETRAINED, "pretrained encoder", "no scatter of best layers"),
    )
    without = [([panel.task.upper() for panel in shown if title not in panel.titles], *more) for title, *more in wanted]
    return [f"No {who} is among the results of {', '.join(tasks)}: {lost}." for tasks, who, lost in without if tasks]


TOLD = 3
"""Labels named for a head in the table of heads."""


def head_columns(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """By task the head's best gain over the best control (percentage points), and the labels of the best gains.

    Labels with few items and root are left out; where an encoder has several seeds the first is read. A best of many
    labels is above 0 more often than one label is.
    """
    probed, size = together([Path()], [result]), shape(result)
    labels = probed.frames["labels"]
    own = labels[labels["encoder"] == of]
    mode = next(mode for mode in modes(probed) if mode in set(own["mode"]))
    seeds = sorted(own.loc[own["mode"] == mode, "seed"].unique())
    listed = ", ".join(map(str, seeds))
    notes = [f"Probes of {of}: seed {seeds[0]} of {listed}."] if len(seeds) > 1 else []
    rows = known(probed, mode, of, seeds[0])
    sure = rows[~rows["few"] & ~rows["apart"] & rows["gain"].notna()]
    if not len(sure):
        why = f"No label of {of} has a control and enough items, so there is no gain of probes."
        return [], [*notes, why]
    columns = []
    meaning = "of the task's label that the head tells best: accuracy minus the best control, in points"
    for task in in_order(sure["task"].unique()):
        grid = np.full(size, np.nan)
        best = sure[sure["task"] == task].groupby(["layer", "head"], as_index=False)["gain"].max()
        grid[best["layer"] - 1, best["head"] - 1] = best["gain"]
        columns.append(HeadColumn(f"probe gain {task.upper()}", "probes", grid, meaning=meaning))
    words = np.full(size, "", dtype=object)
    beyond = sure[sure["gain"] > 0].assign(name=sure["task"].str.upper() + " " + sure["label"])
    for (layer, head), mine in beyond.sort_values(["gain", "name"], ascending=False).groupby(["layer", "head"]):
        first = mine[["name", "gain"]].head(TOLD).itertuples(index=False)
        words[layer - 1, head - 1] = ", ".join(f"{name} {gain:+.1f}" for name, gain in first)
    return [*columns, HeadColumn("best labels over control", "probes", words, tested=False)], notes


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(result: Result, mode: str | None = None, others: bool = False) -> list[Grid]:
    """A summary, then for each task its encoders beside STL and each encoder beside its controls.

    Args:
        mode: else the first of ``modes``; the summary has the other one too.
        others: also encoders trained for other tasks only.
    """
    here, *more = modes(result)
    mode = mode or here
    shown, few = panels(result, mode, others), result.about["few"]
    duplicates = [panel for other in (here, *more) if other != mode for panel in panels(result, other, others)]
    grids = [_summary(shown, few, duplicates)]
    for panel in shown:
        grids += _beside_stl(panel, result) if panel.compared else []
        grids += [_controls(panel, title, few) for title in panel.titles]
    return grids


TABLES = (tables,)


def _summary(shown: Sequence[ProbePanel], few: int, other: Sequence[ProbePanel]) -> Grid:
    """One row per task and encoder: means over its labels with enough items, and how many exceed every control."""
    beside = {(panel.task, title): _means(panel, title)[1:] for panel in other for title in panel.titles}
    header = ["task", "encoder", "seeds", "labels", *_MEANS]
    header += [f"{other[0].mode}: {name}" for name in _MEANS] if other else []
    rows = [
        [panel.task.upper(), title, str(panel.seeds[title]), *_means(panel, title)]
        + (beside.get((panel.task, title), ["–"] * 4) if other else [])
        for panel in shown
        for title in panel.titles
    ]
    caption = (
        f"Unweighted means over labels with {few} test items or more, root left aside. Best control: a mean over "
        "labels of each label's best one. Beyond: labels whose mean over seeds exceeds every control."
        + (f" Last columns: the same in the mode {other[0].mode}." if other else "")
    )
    return Grid(header, rows, 2, f"Summary, {shown[0].mode}", caption, "summary")


def _means(panel: ProbePanel, title: str) -> list[str]:
    """Number of labels, and _MEANS of them."""
    labels = [label for label in panel.sure if panel.values(title, label)]
    gains = [gain for label in labels if not math.isnan(gain := panel.mean(title, label, "gain"))]
    reached = _mean([panel.mean(title, label) for label in labels])
    gained = _mean(gains) if len(gains) == len(labels) else math.nan
    beyond = f"{sum(gain > 0 for gain in gains)} of {len(gains)}" if gains else "–"
    return [str(len(labels)), number(reached), number(reached - gained), signed(gained), beyond]


def _mean(values: Sequence[float]) -> float:
    known_values = [value for value in values if not math.isnan(value)]
    return statistics.mean(known_values) if known_values else math.nan


def _intervals(panel: ProbePanel, result: Result) -> dict[tuple[str, str], tuple[float, float]]:
    """Title and label → bounds of 95 % of the differences to STL when test sentences are drawn anew, in points; where
    there are some of the very seeds that are compared."""
    if "differences" not in result.frames:
        return {}
    gaps = result.frames["differences"]
    gaps = gaps[(gaps["mode"] == panel.mode) & (gaps["task"] == panel.task)]
    titles = dict(zip(panel.rows["encoder"], panel.rows["title"], strict=True))
    return {
        (title, row.label): (row.low, row.high)
        for row in gaps.itertuples()
        if (title := titles.get(row.encoder)) and (row.seeds, row.other_seeds) == (panel.seeds[title], panel.seeds[STL])
    }


def _beside_stl(panel: ProbePanel, result: Result) -> list[Grid]:
    """STL, then every other encoder with its difference to STL, the best of a row bold; and, where there are any, the
    differences with their paired intervals."""
    bounds_of, few = _intervals(panel, result), result.about["few"]
    columns = [STL, *panel.compared]
    changes, bounds = [], []
    for label in (*panel.labels, MEAN, *panel.apart):
        if label == MEAN:
            means = [number(_mean([panel.mean(title, label) for label in panel.sure])) for title in columns]
            gaps = [signed(_mean([panel.gap(title, label) for label in panel.sure])) for title in columns]
            cells = [part for pair in zip(means, gaps, strict=True) for part in pair]
            changes.append([MEAN, str(sum(panel.items[label] for label in panel.sure)), cells[0], *cells[2:]])
            continue
        best = max((round(mean, 2) for title in columns if (mean := panel.mean(title, label)) == mean), default=None)
        cells, intervals = [], []
        for title in columns:
            text = mean_sd(panel.values(title, label))
            cells.append(Strong(text) if round(panel.mean(title, label), 2) == best else text)
            if title != STL:
                low, high = bounds_of.get((title, label), (math.nan, math.nan))
                change, sure = signed(panel.gap(title, label)), low > 0 or high < 0
                cells.append(change + SURE * sure)
                text = "–" if math.isnan(low) else f"{change} [{number(low)}, {number(high)}]"
                intervals.append(Strong(text) if sure else text)
        changes.append([*_named(panel, label), *cells])
        bounds.append([*_named(panel, label), *intervals])
    tested = "differences" in result.frames
    starred = f" {SURE}: its 95 % interval (paired bootstrap over sentences) is beside 0." * tested
    caption = (
        f"Accuracy in percent, {_spread(panel, panel.titles)}. Δ: minus STL. Bold: best of the row."
        f"{starred}{_marks(panel, few)}"
    )
    header = ["label", "items", STL, *(part for title in panel.compared for part in (title, "Δ"))]
    task = panel.task.upper()
    grids = [Grid(header, changes, 1, f"{task}: encoders beside STL", caption, f"{panel.task}-changes")]
    caption = (
        "Difference of mean accuracies over seeds, in points, with its 95 % interval: bootstrap over test items, "
        f"paired. Bold: the interval lies on one side of 0.{_marks(panel, few)} –: not in the results for these seeds."
    )
    header, title = ["label", "items", *panel.compared], f"{task}: minus STL, with intervals"
    return [*grids, Grid(header, bounds, 1, title, caption, f"{panel.task}-intervals")] if tested else grids


def _controls(panel: ProbePanel, title: str, few: int) -> Grid:
    """Each label's chosen head, its accuracy, every control, and the gain over the best of them."""
    own = panel.rows[panel.rows["title"] == title]
    present = [name for name in CONTROLS if own[name].notna().any()]
    rows = []
    for label in (*panel.labels, *panel.apart):
        if values := panel.values(title, label):
            gain = panel.mean(title, label, "gain")
            heads = ", ".join(f"{row['layer']}-{row['head']}" for row in panel.of(title, label))
            controls = [number(panel.mean(title, label, name)) for name in present]
            gained = Strong(signed(gain)) if gain > 0 else signed(gain)
            rows.append([*_named(panel, label), heads, mean_sd(values), *controls, gained])
    caption = (
        f"Accuracy in percent, {_spread(panel, [title])}; {_CHOICE[panel.mode]}. Head: LAYER-HEAD, counted from 1"
        f"{', one a seed' if panel.seeds[title] > 1 else ''}. Gain: over the best control, bold where above 0."
        f"{_marks(panel, few)}"
    )
    header = ["label", "items", "head", "accuracy", *(CONTROLS[name] for name in present), "gain"]
    key = f"{panel.task}-{title.replace('+', 'with-').replace(', ', '-').replace(' ', '-')}-controls"
    return Grid(header, rows, 1, f"{panel.task.upper()}, {title}: beside the controls", caption, key)


def _named(panel: ProbePanel, label: str) -> list[str]:
    """A label with its marks, and its items."""
    marks = FEW * (label in panel.few) + " (apart)" * (label in panel.apart)
    return [label + marks, str(panel.items[label])]


_CHOICE = {
    SOUND: "head chosen on dev, reported on test",
    AS_RELEASED: "as released: head chosen on the test items it is reported on, centroids of the same items",
}


def _marks(panel: ProbePanel, few: int) -> str:
    apart = " root is found by attention to the first special token, a common resting place: apart, in no mean."
    mark = f" {FEW}: fewer than {few} test items; not in means."
    return mark * bool(panel.few) + apart * bool(panel.apart)


def _spread(panel: ProbePanel, titles: Collection[str]) -> str:
    many = sum(panel.seeds[title] > 1 for title in titles)
    if not many:
        return "one seed"
    return "mean ± sample standard deviation over seeds" + "; one seed where none stands" * (many < len(titles))


def signed(value: float) -> str:
    """Two decimals with a sign; 0 has none."""
    if math.isnan(value):
        return "–"
    rounded = f"{value:+.2f}".replace("-", "−")
    return "0.00" if rounded in ("+0.00", "−0.00") else rounded


# -- figures -----------------------------------------------------------------------------------------------------------

FAINT, ZERO = "#96969c", "#b2182b"
"""Not beyond every control, and what all is compared with."""
ROW, HEIGHT = 13, 400
"""From one label to the next, and of a panel, at least."""
SPAN = 50.0
"""Gains of so many points and more have the full colour: few heads exceed it, and fainter ones can still be seen."""
NAMED, FAR = 20, 8
"""Labels that have their names beside their ticks, the most frequent ones; and of those beyond an axis."""


class Picture(NamedTuple):
    """A figure, what it is of (kind, task, encoder, label) and what makes it."""

    name: str
    entry: dict[str, str]
    make: Callable[[], Spec]


def pictures(
    result: Result,
    shown: Sequence[ProbePanel],
    maps: Collection[str] = (PRETRAINED,),
) -> Iterator[Picture]:
    """For each task: best layers, differences to STL, and maps of heads.

    Args:
        maps: titles of the encoders whose heads are drawn.
    """
    for panel in shown:
        task = {"task": panel.task}
        if PRETRAINED in panel.titles:
            make = partial(layers_figure, result, panel, PRETRAINED)
            yield Picture(f"layers-{panel.task}", {"kind": "layers", **task, "encoder": PRETRAINED}, make)
        if panel.compared:
            make = partial(differences_figure, result, panel)
            yield Picture(f"differences-{panel.task}", {"kind": "differences", **task}, make)
        for title in (title for title in panel.titles if title in maps):
            name = re.sub(r"[^A-Za-z0-9-]", "_", title.replace("+", "with-"))
            entry = {"kind": "heads", **task, "encoder": title}
            yield Picture(f"heads-{panel.task}-{name}", entry, partial(_atlas, result, panel, title))


def FIGURES(result: Result) -> dict[str, Chart]:
    """The figures of the first mode."""
    words = {
        "layers": "Dots, one a label: layer of its best head across, gain over the best control upwards",
        "differences": "Ticks, one a label: accuracy minus STL, encoders side by side",
        "heads": "Maps of layers by heads, one a label: gain over the best control; framed: the head chosen",
    }
    made = {}
    for one in pictures(result, panels(result, modes(result)[0])):
        caption = words[one.entry["kind"]]
        make: Callable[[Any], Spec] = lambda _, one=one: one.make()  # type: ignore[misc]  # noqa: E731
        made[one.name] = Chart(make, f"{one.entry['task'].upper()}. {caption}", f"{caption}.")
    return made


def layers_figure(result: Result, panel: ProbePanel, title: str) -> Spec:
    """Each label at the layer of its chosen head (He and Choi 2021, Figure 3); of several seeds the first is shown,
    since a head cannot be averaged over seeds."""
    own = panel.rows[panel.rows["title"] == title]
    seed = own["seed"].iloc[0]
    own = own[own["seed"] == seed].assign(value=own["gain"])
    every = own[~own["apart"] & own["value"].notna()]
    tips = [
        f"layer {row['layer']}, head {row['head']}, {row['test']:.1f} % of {row['items']} items"
        + "".join(f"; {words} {row[name]:.1f}" for name, words in CONTROLS.items() if not math.isnan(row[name]))
        for row in every.to_dict("records")
    ]
    radius = (6 * (every["items"] / max(panel.items.values())) ** 0.5).clip(lower=2.5)
    marks = every.assign(column=every["layer"] - 1, told=tips, size=4 * radius**2, named=True)
    marks["colour"] = [ABOVE if gain > 0 else FAINT for gain in every["gain"]]
    bounds = _bounds_of(marks)
    off = marks[~marks["value"].between(*bounds)]
    of = f"; seed {seed} of {panel.seeds[title]}" if panel.seeds[title] > 1 else ""
    sure = every[every["gain"].notna() & ~every["few"]]
    many = "labels with enough items" if every["few"].any() else "labels"
    key = f"Blue: beyond every control ({(sure['gain'] > 0).sum()} of {len(sure)} {many}); grey: not. "
    ring = "Ring: few test items. " * bool(every["few"].any())
    lines = [
        f"{setting(result)}; {panel.mode}: {_CHOICE[panel.mode]}{of}.",
        f"{key if len(sure) else ''}{ring}Area of dots: test items.",
    ]
    for row in own[own["apart"]].itertuples():
        beside = "" if math.isnan(row.gain) else f", {row.gain:+.1f} over its best control"
        lines.append(f"{row.label} {_APART}: {row.test:.1f} %{beside} (layer {row.layer}, head {row.head}).")
    without = own.loc[~own["apart"] & own["gain"].isna(), "label"]
    if len(without):
        lines.append(f"Not drawn, since no control was probed: {', '.join(without)}.")
    lines += [f"Few items, and beyond the axis: {_far(off)}."] if len(off) else []
    names = [[str(layer)] for layer in range(1, shape(result)[0] + 1)]
    chart = _beside(marks, names, bounds, "accuracy minus best control (points)", "best control", dots=True)
    return figure(chart, f"{panel.task.upper()}, {title}: best layer and gain over the best control", lines)


_APART = "is found by attention to the first special token and stands apart"


def differences_figure(result: Result, panel: ProbePanel) -> Spec:
    """Every encoder but STL: mean accuracy over its seeds minus that of STL, a tick a label (He and Choi, Figure 4)."""
    columns = enumerate(panel.compared)
    rows = [(column, label, panel.gap(title, label)) for column, title in columns for label in panel.labels]
    marks = pd.DataFrame(rows, columns=["column", "label", "value"]).dropna(subset=["value"])
    items = marks["label"].map(panel.items)
    few, named = marks["label"].isin(panel.few), marks["label"].isin(panel.labels[:NAMED])
    tips = [f"{value:+.2f} points, {count} items" for value, count in zip(marks["value"], items, strict=True)]
    size = 5 + 39 * (items / max(panel.items.values())) ** 0.5
    marks = marks.assign(few=few, named=named, told=tips, size=size, colour=np.where(few, FAINT, INK))
    heads = []
    for column, title in enumerate(panel.compared):
        sure = marks.loc[(marks["column"] == column) & ~few, "value"]
        tips = [f"mean {sure.mean():+.1f}", f"{(sure < 0).sum()} of {len(sure)} below"]
        heads.append([title, *(tips if len(sure) else ["few items only", ""])])
    bounds = _bounds_of(marks)
    off = marks[~marks["value"].between(*bounds)]
    seeds = ", ".join(f"{title} {panel.seeds[title]}" for title in (STL, *panel.compared))
    lines = [
        f"{setting(result)}; {panel.mode}: {_CHOICE[panel.mode]}. Means over seeds ({seeds}).",
        "Longer ticks: more test items (length grows with the square root)."
        + f" Named: the {NAMED} most frequent of {len(panel.labels)} labels." * (len(panel.labels) > NAMED)
        + " Grey: few test items; they count in no mean." * bool(panel.few & set(panel.labels)),
    ]
    if len(off):
        called = off.assign(label=[f"{panel.compared[row.column]} {row.label}" for row in off.itertuples()])
        more = f" and {len(off) - FAR} more" * (len(off) > FAR)
        lines.append(f"Beyond the axis (few items): {_far(called[:FAR])}{more}.")
    for label in panel.apart:
        gaps = {title: panel.gap(title, label) for title in panel.compared}
        if words := ", ".join(f"{title} {gap:+.1f}" for title, gap in gaps.items() if not math.isnan(gap)):
            lines.append(f"{label} {_APART}: {words}.")
    chart = _beside(marks, heads, bounds, "accuracy minus STL (points)", STL, dots=False)
    return figure(chart, f"{panel.task.upper()}: accuracy minus STL", lines)


def _far(off: pd.DataFrame) -> str:
    return ", ".join(f"{shown_label(row.label)} {row.value:+.0f}" for row in off.itertuples())


def _bounds_of(marks: pd.DataFrame) -> tuple[float, float]:
    """A little beyond the values, at multiples of five; labels with few items stretch no axis, for one item may lie a
    hundred points off."""
    sure = marks.loc[~marks["few"], "value"]
    values = [*(sure if len(sure) else marks["value"]), 0.0]
    low, high = math.floor((min(values) - 1) / 5) * 5, math.ceil((max(values) + 1) / 5) * 5
    return low, max(high, low + 5)


def _beside(
    marks: pd.DataFrame, heads: Sequence[Sequence[str]], bounds: tuple[float, float], y: str, zero: str, dots: bool
) -> alt.LayerChart | alt.FacetChart:
    """Marks in columns, with their labels beside them: moved apart by the least sum of squared shifts that keeps their
    order, so that none overlaps, with a line to the mark.

    Args:
        marks: ``column`` (from 0), ``label``, ``value``, ``size`` (area of a dot, length of a tick), ``colour``,
            ``few``, ``named`` (whether the label is written) and ``told`` (more words for the pointer).
        heads: lines of words for each column: below it, or above it where ticks are drawn.
        bounds: of the vertical axis; marks beyond are left out.
        zero: what 0 means.
        dots: dots, which may be rings, or ticks.
    """
    table, edges, centres, height = _placed(marks, heads, bounds, dots)
    where = centres if dots else [edge + 8 for edge in edges[:-1]]
    axis = alt.Axis(
        orient="bottom" if dots else "top",
        values=where,
        labelExpr=f"{json.dumps(list(heads))}[indexof({json.dumps(where)}, datum.value)]",
        labelAlign="center" if dots else "left",
        labelLineHeight=14,
        labelPadding=6 + 14 * (max(map(len, heads)) - 1),
        grid=False,
        domain=False,
    )
    title = "layer of the best head" if dots else None
    across = alt.X("x:Q", scale=alt.Scale(domain=[0, edges[-1]], nice=False), title=title, axis=axis)
    ticks = alt.Axis(labelExpr="datum.value ? format(datum.value, '+d') : '0'")
    upwards = alt.Y("value:Q", scale=alt.Scale(domain=list(bounds), nice=False), title=y, axis=ticks)
    kept = ["x", "beside", "at", "start", "end", "value", "size", "label", "words", "told", "few", "named"]
    base = alt.Chart(data(table[[*kept, "colour", "fill", "ink", "begin", "stop", "thick"]]))
    named = base.transform_filter("datum.named")
    plain: dict[str, Any] = {"scale": None, "legend": None}
    tips = [alt.Tooltip("label:N"), alt.Tooltip("told:N", title="of it")]
    rules = alt.Chart(data(pd.DataFrame({"x": edges}))).mark_rule(color=PALE).encode(across)
    leads = named.mark_rule(color=RULE, strokeWidth=0.75)
    leads = leads.encode(alt.X("begin:Q"), upwards, alt.X2("stop:Q"), alt.Y2("at:Q"))
    paint: tuple[Any, ...]
    if dots:
        paint = alt.Fill("fill:N", **plain), alt.Stroke("colour:N", **plain), alt.Size("size:Q", **plain)
        drawn = base.mark_circle(opacity=1, strokeWidth=1.5).encode(alt.X("x:Q"), upwards, *paint, tooltip=tips)
    else:
        paint = alt.Color("colour:N", **plain), alt.StrokeWidth("thick:Q", **plain), alt.X2("end:Q")
        drawn = base.mark_rule().encode(alt.X("start:Q"), upwards, *paint, tooltip=tips)
    spots = alt.X("beside:Q"), alt.Y("at:Q"), alt.Text("words:N")
    halo = named.mark_text(align="left", fontSize=10, stroke="#ffffff", strokeWidth=3, strokeJoin="round")
    text = named.mark_text(align="left", fontSize=10).encode(*spots, alt.Color("ink:N", **plain), tooltip=tips)
    line = alt.Chart(alt.InlineData(values=[{"x": edges[-1], "y": 0, "words": zero}])).encode(alt.Y("y:Q"))
    dashes = line.mark_rule(color=ZERO, strokeDash=[6, 4], strokeWidth=1.5)
    words = line.mark_text(align="left", dx=6, fontSize=10, color=ZERO).encode(alt.X("x:Q"), alt.Text("words:N"))
    return alt.layer(rules, dashes, leads, drawn, halo.encode(*spots), text, words).properties(
        width=edges[-1], height=height
    )


def _placed(
    marks: pd.DataFrame, heads: Sequence[Sequence[str]], bounds: tuple[float, float], dots: bool
) -> tuple[pd.DataFrame, list[float], list[float], float]:
    """Where everything of ``_beside`` stands: the marks inside the bounds with their places and paint, the columns'
    edges and centres, and the height, in pixels but for ``at``, the label's place on the vertical axis."""
    low, high = bounds
    inside = marks[marks["value"].between(low, high)].sort_values(["value", "label"], ascending=[False, True])
    columns = [inside[inside["column"] == column] for column in range(len(heads))]
    height = max(HEIGHT, *(ROW * rows["named"].sum() + 4 for rows in columns))
    half, edges = 6.0 if dots else 22.0, [0.0]
    placed, centres = [], []
    for rows, lines in zip(columns, heads, strict=True):
        rows = rows.assign(words=rows["label"].map(shown_label))
        named = rows[rows["named"]]
        wanted = (high - named["value"]) / (high - low) * height
        places = spread([*wanted], ROW, ROW / 2, height - ROW / 2)
        left, words = edges[-1] + 8 + half, named["words"].str.len().max() if len(named) else 0
        wide = max(2 * half + 40 + 6.6 * words if len(rows) else 26, 0 if dots else 6.4 * max(map(len, lines)) + 16)
        at = pd.Series([high - place * (high - low) / height for place in places], named.index, float)
        placed.append(rows.assign(x=left, beside=left + half + 16, at=at))
        centres.append(edges[-1] + wide / 2)
        edges.append(edges[-1] + wide)
    table = pd.concat(placed)
    few = table["few"]
    table = table.assign(start=table["x"] - table["size"] / 2, end=table["x"] + table["size"] / 2)
    table = table.assign(fill=table["colour"].mask(few, "#ffffff"), ink=np.where(few, SOFT, INK))
    begin, thick = table["x"] + 6 if dots else table["end"] + 2, np.where(few, 1.25, 2.0)
    return table.assign(begin=begin, stop=table["beside"] - 3, thick=thick), edges, centres, height


def _heads(result: Result, panel: ProbePanel, title: str) -> pd.DataFrame:
    """A row a label and head: ``gain`` (mean over seeds that have the head), and ``best``: whether any chose it."""
    encoder = panel.rows.loc[panel.rows["title"] == title, "encoder"].iloc[0]
    rows = known(result, panel.mode, encoder)
    rows = rows[rows["task"] == panel.task]
    gain = rows["gain"].fillna(rows["test"])  # without any control the accuracy
    groups = rows.assign(gain=gain).groupby(["label", "layer", "head"])
    means = groups.agg(gain=("gain", "mean"), best=("best", "any"))
    sizes = [rows["label"].unique(), *(range(1, size + 1) for size in shape(result))]
    whole = means.reindex(pd.MultiIndex.from_product(sizes, names=["label", "layer", "head"])).reset_index()
    return whole.assign(best=whole["best"].fillna(False).astype(bool))


def _atlas(result: Result, panel: ProbePanel, title: str) -> Spec:
    """A small map for each label, the most frequent first; the root is last."""
    heads = _heads(result, panel, title)
    labels = [label for label in (*panel.labels, *panel.apart) if panel.values(title, label)]
    names = {label: f"{shown_label(label)}{FEW * (label in panel.few)}  {panel.items[label]:,}" for label in labels}
    named = pd.Categorical([names[label] for label in heads["label"]], list(names.values()), ordered=True)
    across = max(1, min(len(labels), 900 // (9 * shape(result)[1] + 30)))
    look: dict[str, Any] = {"limit": SPAN, "diverging": True, "ramp": DIVERGING[::-1], "across": across, "cell": 9}
    chart = head_map(heads.assign(name=named), "gain", framed="best", **look)
    many, few = panel.seeds[title] > 1, f" ({FEW}: few)" * bool(panel.few & set(labels))
    seeds, dash = f"; mean of {panel.seeds[title]} seeds" * many, " A dash: removed or closed."
    lines = [
        f"{setting(result)}; {panel.mode}{seeds}. Rows are layers, 1 at the top; columns are heads. Behind each label: "
        f"its test items{few}. Blue: better than the best control; red: worse. Framed: the head chosen."
        f"{dash * bool(heads['gain'].isna().any())}{' One frame a seed.' * many}"
    ]
    lines += [f"{label}, last, is found by attention to the first special token." for label in panel.apart]
    return figure(chart, f"{panel.task.upper()}, {title}: gain over the best control of every head", lines)
