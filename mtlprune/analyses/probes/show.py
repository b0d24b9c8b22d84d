"""Views of probes: sentences, tables and figures of a Result."""

import json
import math
import statistics
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from mtlprune.analyses.analysis import HeadColumn
from mtlprune.analyses.probes import AS_RELEASED, CONTROLS, SOUND
from mtlprune.analyses.probes.reading import PRETRAINED, STL, ProbePanel, known, modes, panels, shape, together
from mtlprune.figures.charts import ABOVE, DIVERGING, RULE, SOFT, Chart, Spec, data, figure, head_map
from mtlprune.figures.grid import Grid, Strong, mean_sd, number, shown_label
from mtlprune.layers import in_order
from mtlprune.runs.results import Result

FEW = "°"
MEAN = "mean over labels"
_MEANS = ("accuracy", "best control", "gain", "beyond every control")


def about(result: Result) -> str:
    """Describe the probes, their controls and the corpus."""
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
    """A sentence with the number of labels that heads of the pretrained encoder tell beyond every control, or none."""
    parts = []
    for panel in shown:
        gains = [gain for label in panel.sure for gain in panel.values(PRETRAINED, label, "gain")]
        parts += [f"{panel.task.upper()} {sum(gain > 0 for gain in gains)} of {len(gains)}"] if gains else []
    sentence = f"Labels that a head of the pretrained encoder tells beyond every control: {', '.join(parts)}."
    return [sentence] if parts else []


def setting(result: Result) -> str:
    """The pretrained encoder, where it was probed, and the corpus."""
    untouched = [Path(one["run"]).name for one in result.about["encoders"] if one["encoder"] == PRETRAINED]
    return ", ".join(word for word in (*untouched[:1], Path(result.about["corpus"]).name) if word)


def lacking(shown: Sequence[ProbePanel]) -> list[str]:
    """The parts that are missing for a comparison, in words."""
    wanted = (
        (STL, "single-task run", "no differences to STL"),
        (PRETRAINED, "pretrained encoder", "no scatter of best layers"),
    )
    without = [([panel.task.upper() for panel in shown if title not in panel.titles], *more) for title, *more in wanted]
    return [f"No {who} was probed for {', '.join(tasks)}: {lost}." for tasks, who, lost in without if tasks]


TOLD = 3
"""Labels named for a head in the table of heads."""


def head_columns(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """Columns by task: a head's best gain over the best control (percentage points), and the labels of its best gains.

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


def tables(result: Result) -> list[Grid]:
    """A summary; for each task encoders beside STL, each encoder beside its controls, and published numbers."""
    here, *more = modes(result)
    shown, few = panels(result, here), result.about["few"]
    grids = [_summary(shown, few, [panel for other in more for panel in panels(result, other)])]
    for panel in shown:
        grids += [_beside_stl(panel, result)] if panel.compared else []
        grids += [_controls(panel, title, few) for title in panel.titles]
        grids += _beside_paper(panel, result)
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
    gaps = result.frame("differences", "mode", "task")
    gaps = gaps[(gaps["mode"] == panel.mode) & (gaps["task"] == panel.task)]
    titles = dict(zip(panel.rows["encoder"], panel.rows["title"], strict=True))
    return {
        (title, row.label): (row.low, row.high)
        for row in gaps.itertuples()
        if (title := titles.get(row.encoder)) and (row.seeds, row.other_seeds) == (panel.seeds[title], panel.seeds[STL])
    }


def _beside_stl(panel: ProbePanel, result: Result) -> Grid:
    """STL, then every other encoder with its difference to STL and, where it is known, the paired interval of that."""
    bounds = _intervals(panel, result)
    rows = []
    for label in (*panel.labels, MEAN, *panel.apart):
        if label == MEAN:
            means = [number(_mean([panel.mean(title, one) for one in panel.sure])) for title in (STL, *panel.compared)]
            gaps = [signed(_mean([panel.gap(title, one) for one in panel.sure])) for title in panel.compared]
            cells = [MEAN, str(sum(panel.items[one] for one in panel.sure)), means[0]]
            rows.append([*cells, *(part for pair in zip(means[1:], gaps, strict=True) for part in pair)])
            continue
        cells = [*_named(panel, label), mean_sd(panel.values(STL, label))]
        for title in panel.compared:
            low, high = bounds.get((title, label), (math.nan, math.nan))
            change = signed(panel.gap(title, label)) + ("" if math.isnan(low) else f" [{number(low)}, {number(high)}]")
            cells += [mean_sd(panel.values(title, label)), Strong(change) if low > 0 or high < 0 else change]
        rows.append(cells)
    caption = (
        f"Accuracy in percent, {_spread(panel, panel.titles)}. Δ: minus STL, in points; in brackets its 95 % interval "
        "(paired bootstrap over sentences), bold where it lies on one side of 0."
        f"{_marks(panel, result.about['few'])}"
    )
    header = ["label", "items", STL, *(part for title in panel.compared for part in (title, "Δ"))]
    return Grid(header, rows, 1, f"{panel.task.upper()}: encoders beside STL", caption, f"{panel.task}-changes")


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


# -- published numbers -------------------------------------------------------------------------------------------------


def _beside_paper(panel: ProbePanel, result: Result) -> list[Grid]:
    """Published and own numbers in pairs of columns; none where labels or columns have nothing in common."""
    published = result.frame("published", "task")
    rows = published[published["task"] == panel.task].set_index("label").to_dict("index") if len(published) else {}
    every = [label for label in (*panel.labels, *panel.apart) if label in rows]
    theirs = [rows[label] for label in every]
    titles = [title for title in panel.titles if any(row.get(title) for row in theirs)]
    if not titles:
        return []
    pairs = [  # heading, published, ours
        (f"{title}, paper", [row[title] for row in theirs], [mean_sd(panel.values(title, one)) for one in every])
        for title in titles
    ]
    if any(row.get("layer") for row in theirs) and PRETRAINED in panel.titles:
        layers = [f"{panel.mean(PRETRAINED, label, 'layer'):g}".replace("nan", "–") for label in every]
        pairs.append(("best layer, paper", [row["layer"] or "–" for row in theirs], layers))
    header = ["label", "items", *(part for heading, *_ in pairs for part in (heading, "ours"))]
    named = [label + FEW * (label in panel.few) for label in every]
    cells = [named, [str(panel.items[label]) for label in every], *(part for _, *pair in pairs for part in pair)]
    only = {
        "Only ours": [label for label in panel.labels if label not in rows],
        "Only the paper's": [label for label in rows if label not in every],
    }
    caption = [
        result.about["published"]["remarks"],
        "Corpora, label sets and encoders differ: a label of the same name need not mean the same, so compare the "
        "pattern, and numbers of the mode as-released only.",
        *(f"{whose}: {', '.join(labels)}." for whose, labels in only.items() if labels),
    ]
    title = f"{panel.task.upper()}: beside the published numbers of {result.about['published']['encoder']}"
    return [Grid(header, [*zip(*cells, strict=True)], 1, title, " ".join(caption), f"{panel.task}-paper")]


FAINT, PALEST, ZERO = "#96969c", "#c8c8cc", "#b2182b"
"""Not beyond every control, of few items, and what all is compared with."""
ROW, WIDTH = 13, 220
"""From one label to the next, and of a panel."""
SPAN = 50.0
"""Gains of so many points and more have the full colour: few heads exceed it, and fainter ones can still be seen."""
_APART = "is found by attention to the first special token and stands apart"


def FIGURES(result: Result) -> dict[str, Chart]:
    """Charts by task of the first mode: the best head of each label, differences to STL, maps of pretrained heads."""
    figures: dict[str, Chart] = {}

    def add(name: str, panel: ProbePanel, make: Callable[[], Spec], caption: str) -> None:
        figures[f"{name}-{panel.task}"] = Chart(lambda _: make(), f"{panel.task.upper()}. {caption}", caption)

    for panel in panels(result, modes(result)[0]):
        if PRETRAINED in panel.titles:
            caption = "Dots, a row a label: accuracy of its best head, beside the tick of its best control."
            add("labels", panel, partial(layers_figure, result, panel, PRETRAINED), caption)
            caption = "Ticks, one a label: layer of its best head across, accuracy upwards, pretrained and STL."
            add("layers", panel, partial(best_layers_figure, result, panel), caption)
        if panel.compared:
            caption = "Ticks, one a label: accuracy minus STL, encoders side by side."
            add("differences", panel, partial(differences_figure, result, panel), caption)
        if PRETRAINED in panel.titles:
            caption = "Maps of layers by heads, one a label: gain over the best control; framed: the head chosen."
            add("heads", panel, partial(_atlas, result, panel, PRETRAINED), caption)
    return figures


def layers_figure(result: Result, panel: ProbePanel, title: str) -> Spec:
    """Each label with its chosen head beside its best control; of several seeds the first is shown."""
    own = panel.rows[panel.rows["title"] == title]
    own = own[(own["seed"] == own["seed"].iloc[0]) & ~own["apart"]]
    rows = own.assign(reference=own["test"] - own["gain"], value=own["test"])
    rows = rows.assign(beyond=rows["gain"] > 0)
    rows["words"] = rows["layer"].astype(str) + "-" + rows["head"].astype(str)
    sure = rows[~rows["few"] & rows["gain"].notna()]
    lines = [
        f"{setting(result)}; {panel.mode}: {_CHOICE[panel.mode]}. Beside each dot: layer-head; red tick: best control. "
        f"Blue: beyond every control ({(sure['gain'] > 0).sum()} of {len(sure)} labels with enough items)."
    ]
    chart = _by_label(panel, rows, "accuracy of the best head (%)", [0, 100])
    return figure(chart, f"{panel.task.upper()}, {title}: the best head of each label", [*lines, *_rings(panel)])


def best_layers_figure(result: Result, panel: ProbePanel) -> Spec:
    """Layer and accuracy of each label's best head, pretrained and after single-task training (He and Choi 2021, Figure
    3); of several seeds the first is shown, since a head cannot be averaged over seeds."""
    layers, charts = [str(layer) for layer in range(1, shape(result)[0] + 1)], []
    for title in (title for title in (PRETRAINED, STL) if title in panel.titles):
        own = panel.rows[panel.rows["title"] == title]
        own = own[(own["seed"] == own["seed"].iloc[0]) & ~own["apart"]]
        marks = own.assign(column=own["layer"].astype(str), value=own["test"], beyond=own["gain"] > 0)
        y = f"{title}: accuracy of the best head (%)"
        charts.append(_in_columns(panel, marks, layers, y, [0, 100], below="layer of the best head"))
    lines = [
        f"{setting(result)}; {panel.mode}: {_CHOICE[panel.mode]}. Blue: beyond every control; grey: not. {_LONGER}",
        *_rings(panel, "Palest"),
    ]
    return figure(alt.vconcat(*charts), f"{panel.task.upper()}: layer and accuracy of the best head", lines)


def differences_figure(result: Result, panel: ProbePanel) -> Spec:
    """Every encoder but STL: mean accuracy over its seeds minus that of STL, a tick a label (He and Choi 2021, Figure
    4)."""
    bounds = _intervals(panel, result)
    rows, heads = [], {}
    for title in panel.compared:
        gaps = {label: gap for label in panel.labels if not math.isnan(gap := panel.gap(title, label))}
        ends = {label: bounds.get((title, label), (math.nan, math.nan)) for label in gaps}
        rows += [(title, label, gap, ends[label][0] > 0 or ends[label][1] < 0) for label, gap in gaps.items()]
        sure = [gaps[label] for label in panel.sure if label in gaps]
        heads[title] = f"{title}: {signed(_mean(sure))}; {sum(gap < 0 for gap in sure)} of {len(sure)} below"
    frame = pd.DataFrame(rows, columns=["column", "label", "value", "beyond"])
    frame = frame.assign(few=frame["label"].isin(panel.few), column=frame["column"].map(heads))
    sure = frame[~frame["few"]] if not frame["few"].all() else frame
    span = [5 * math.floor(min(0, sure["value"].min()) / 5 - 0.2), 5 * math.ceil(max(0, sure["value"].max()) / 5 + 0.2)]
    seeds = ", ".join(f"{title} {panel.seeds[title]}" for title in (STL, *panel.compared))
    lines = [
        f"{setting(result)}; {panel.mode}: {_CHOICE[panel.mode]}. Means over seeds ({seeds}); above each column the "
        f"mean over labels. Blue: the 95 % interval over sentences lies beside 0; dashed: STL. {_LONGER}",
        *_rings(panel, "Palest"),
    ]
    chart = _in_columns(panel, frame, list(heads.values()), "accuracy minus STL (points)", span)
    return figure(chart, f"{panel.task.upper()}: accuracy minus STL", lines)


NAMED, COLUMN, TALL, LONGEST = 20, 118, 420, 34
"""Labels with names beside their ticks, the most frequent; pixels of a column, of a panel's height, and of a tick."""
_LONGER = (
    f"A longer tick is a more frequent label (by the root of its test items); the {NAMED} most frequent are named."
)


def _in_columns(
    panel: ProbePanel, marks: pd.DataFrame, columns: Sequence[str], y: str, ends: Sequence[float], below: str = ""
) -> Any:
    """A tick a label, in columns, with names beside them that are moved apart by the least squared shifts that keep
    their order. ``marks``: ``column``, ``label``, ``value``, ``beyond`` and ``few``; ``below``: the title of columns,
    which are narrow and below the ticks then."""
    most, named = max(panel.items.values()), panel.labels[:NAMED]
    shown = marks[marks["value"].between(*ends)].assign(x=lambda of: COLUMN * of["column"].map(columns.index) + LONGEST)
    half = LONGEST * (0.15 + 0.85 * (shown["label"].map(panel.items) / most) ** 0.5) / 2
    ink = shown["beyond"].map({True: ABOVE, False: FAINT}).mask(shown["few"], PALEST)
    shown = shown.assign(start=shown["x"] - half, end=shown["x"] + half, ink=ink, at=shown["value"])
    tags = shown[shown["label"].isin(named)].assign(name=lambda of: of["label"].map(shown_label))
    for _, some in tags.groupby("column"):
        order, gaps = np.argsort(some["value"]), np.arange(len(some)) * 12 * (ends[1] - ends[0]) / TALL
        tags.loc[some.index[order], "at"] = isotonic_regression(some["value"].to_numpy()[order] - gaps).x + gaps
    labels = [COLUMN * place + LONGEST for place in range(len(columns))]
    words = [column.replace(": ", "\n").replace("; ", "\n").split("\n") for column in columns]
    axis = alt.Axis(
        values=labels,
        labelExpr=f"{json.dumps(words)}[indexof({json.dumps(labels)}, datum.value)]",
        orient="bottom" if below else "top",
        labelAlign="center" if below else "left",
        labelOffset=0 if below else -LONGEST // 2,
        labelPadding=8 if below else 36,
        grid=False,
        domain=False,
    )
    size = alt.Scale(domain=[0, COLUMN * len(columns)], nice=False)
    across = alt.X("start:Q", scale=size, axis=axis, title=below or None)
    upright = alt.Y("value:Q", scale=alt.Scale(domain=list(ends), nice=False), title=y)
    kept = ["x", "end", "value", "label"]
    ticks = alt.Chart(
        data(shown[[*kept, "start", "ink", "beyond"]]), width=COLUMN * len(columns), height=TALL
    ).mark_rule(strokeWidth=2)
    ticks = ticks.encode(across, upright, alt.X2("end:Q"), alt.Color("ink:N", scale=None))
    base = alt.Chart(data(tags.assign(beside=tags["x"] + LONGEST - 4)[[*kept, "at", "beside", "name"]]))
    leads = base.mark_rule(color=RULE, strokeWidth=0.6).encode(
        alt.X("end:Q"), upright, alt.X2("beside:Q"), alt.Y2("at:Q")
    )
    text = base.mark_text(align="left", dx=3, fontSize=9).encode(alt.X("beside:Q"), alt.Y("at:Q"), text="name:N")
    zero = alt.Chart(alt.InlineData(values=[{"value": 0}])).mark_rule(color=ZERO, strokeDash=[6, 4]).encode(upright)
    return alt.layer(*([] if below else [zero]), leads, ticks, text)


def _rings(panel: ProbePanel, marks: str = "Rings") -> list[str]:
    """Remarks on labels that are drawn otherwise."""
    few = [f"{marks}: few test items; beyond the axis they are not drawn."] if panel.few & set(panel.labels) else []
    return [*few, *(f"{label} {_APART}." for label in panel.apart)]


def _by_label(panel: ProbePanel, rows: pd.DataFrame, x: str, ends: Sequence[float]) -> Any:
    """Dots beside a reference, a row a label. ``rows``: ``label``, ``value``, ``reference``, ``beyond`` and ``few``
    (colour and ring), ``words`` beside the dot; ``x``, ``ends``: title and ends of the horizontal axis."""
    names = {label: f"{shown_label(label)}  {panel.items[label]:,}" for label in panel.labels}
    ink = rows["beyond"].map({True: ABOVE, False: FAINT})
    shown = rows.assign(name=rows["label"].map(names), ink=ink, fill=ink.mask(rows["few"], "#ffffff"))
    kept = ["name", "value", "reference", "words", "ink", "fill", "label", "few"]
    shown = shown[shown["value"].between(*ends)]
    scale = alt.Scale(domain=list(ends), nice=False, padding=22)  # room for words beside the last dot
    base = alt.Chart(data(shown[kept]), width=WIDTH, height=ROW * max(1, len(names))).encode(
        alt.Y("name:N", sort=list(names.values()), title=None, axis=alt.Axis(domain=False, ticks=False)),
    )
    value = alt.X("value:Q", scale=scale, title=x)
    bars = base.mark_rule(color=RULE, clip=True).encode(alt.X("reference:Q", scale=scale), alt.X2("value:Q"))
    ticks = base.mark_tick(color=ZERO, thickness=2, height=9, clip=True).encode(alt.X("reference:Q", scale=scale))
    dots = base.mark_point(filled=True, size=40, opacity=1, strokeWidth=1.5, clip=True)
    dots = dots.encode(value, alt.Fill("fill:N", scale=None), alt.Stroke("ink:N", scale=None))
    style: dict[str, Any] = {"align": "left", "dx": 7, "fontSize": 8}
    words = base.mark_text(**style, color=SOFT).encode(value, text="words:N")
    halo = base.mark_text(**style, stroke="#ffffff", strokeWidth=3).encode(value, text="words:N")
    return alt.layer(bars, ticks, halo, dots, words)


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
