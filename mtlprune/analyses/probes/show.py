"""Views of a Result of ``analyze probes``: sentences, tables, figures, and columns of the table of heads."""

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
from mtlprune.analyses.probes.reading import (
    PRETRAINED,
    STL,
    ProbePanel,
    joined_results,
    modes,
    panels,
    probe_table,
    shape,
)
from mtlprune.figures.charts import ABOVE, DIVERGING, RULE, SOFT, Chart, Spec, data, figure, head_map
from mtlprune.figures.grid import Grid, Strong, mean_sd, number, shown_label
from mtlprune.layers import in_order
from mtlprune.runs.results import Result

_RARE_MARK = "°"
MEAN = "mean over labels"
_MEANS = ("accuracy", "best control", "gain", "beyond every control")


def about(result: Result) -> str:
    """Describe the probes, their controls and the corpus."""
    return (
        "The probes measure how well each head identifies each label without any training. The controls are chance, "
        f"shuffled labels, the best offset and a random encoder. The corpus is {result.about['corpus']}, and the "
        f"mode {' and '.join(modes(result))}. {result.about['specials']}"
    )


def findings(result: Result) -> list[str]:
    """Return the main numbers in sentences: labels that the pretrained encoder identifies better than every control,
    means over labels for each encoder and seed, and what is left out."""
    sentences = beyond_controls(panels(result, modes(result)[0]))
    min_items = result.about["few"]
    labels = result.frames["labels"]
    counted_labels = labels[~labels["few"] & ~labels["apart"] & labels["gain"].notna()]
    for (mode, encoder, seed), rows in counted_labels.groupby(["mode", "encoder", "seed"], sort=False):
        task_figures = [
            f"{task.upper()} {here['test'].mean():.2f} ({(here['test'] - here['gain']).mean():.2f}, "
            f"{here['gain'].mean():+.2f}; {(here['gain'] > 0).sum()} of {len(here)})"
            for task, here in rows.groupby("task", sort=False)
        ]
        sentences.append(f"{mode}, {encoder}, seed {seed}: {', '.join(task_figures)}.")
    if len(counted_labels):
        sentences.append(
            f"The numbers are the accuracy of the best head in percent, as means over labels of at least {min_items} "
            "test items. Brackets hold the best control, the gain over it, and the number of labels with a gain."
        )
    for split, numbers in result.about.get("splits", {}).items():
        if isinstance(numbers, dict) and numbers.get("too_long"):
            sentences.append(
                f"{numbers['too_long']} sentences of {split} are left out, because they are too long for an encoder, "
                "and there is no attention between windows."
            )
    roots = labels.loc[labels["apart"], ["task", "label"]].drop_duplicates()
    return sentences + [
        f"{task} {label} is left out of means, because it is scored by attention to [CLS], to which heads often attend "
        "without a reason."
        for task, label in roots.itertuples(index=False)
    ]


def beyond_controls(panels_shown: Sequence[ProbePanel]) -> list[str]:
    """Return one sentence, with the number of each task's labels that a head of the pretrained encoder identifies
    better than every control. The list is empty if no pretrained encoder was probed."""
    parts = []
    for panel in panels_shown:
        gains = [gain for label in panel.reliable_labels for gain in panel.values(PRETRAINED, label, "gain")]
        parts += [f"{panel.task.upper()} {sum(gain > 0 for gain in gains)} of {len(gains)}"] if gains else []
    sentence = (
        "Some labels are identified better than every control by a head of the pretrained encoder "
        f"({', '.join(parts)})."
    )
    return [sentence] if parts else []


def setting(result: Result) -> str:
    """Return the names of the pretrained encoder, if it was probed, and of the corpus."""
    untouched = [Path(entry["run"]).name for entry in result.about["encoders"] if entry["encoder"] == PRETRAINED]
    return ", ".join(word for word in (*untouched[:1], Path(result.about["corpus"]).name) if word)


def missing_kinds(panels_shown: Sequence[ProbePanel]) -> list[str]:
    """Return sentences on views that are missing because no single-task run or no pretrained encoder was probed."""
    kinds_expected = (
        (STL, "single-task run", "are no differences from STL"),
        (PRETRAINED, "pretrained encoder", "is no scatter plot of best layers"),
    )
    without = [
        ([panel.task.upper() for panel in panels_shown if title not in panel.titles], kind_name, consequence)
        for title, kind_name, consequence in kinds_expected
    ]
    return [
        f"No {kind_name} was probed for {', '.join(tasks)}, so there {consequence}."
        for tasks, kind_name, consequence in without
        if tasks
    ]


_MAX_LABELS_LISTED = 3
"""Number of labels that the table of heads lists for a head."""


def head_columns(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """Return the columns of an encoder for the table of heads.

    For each task, a column has the largest gain of a head over the best control (in points) among the task's labels. A
    further column lists the labels with the largest gains. Labels with few items and roots are left out, and only the
    first seed is shown. Because the largest gain is chosen among many labels, it exceeds 0 more often than the gain of
    a fixed label.

    Args:
        result: a Result of ``analyze probes``.
        of: label of the encoder.

    Returns:
        the columns, and notes in sentences.
    """
    probed, size = joined_results([Path()], [result]), shape(result)
    labels = probed.frames["labels"]
    labels_of_encoder = labels[labels["encoder"] == of]
    mode = next(mode for mode in modes(probed) if mode in set(labels_of_encoder["mode"]))
    seeds = sorted(labels_of_encoder.loc[labels_of_encoder["mode"] == mode, "seed"].unique())
    seed_list = ", ".join(map(str, seeds))
    notes = [f"The probes of {of} are those of seed {seeds[0]} (of seeds {seed_list})."] if len(seeds) > 1 else []
    rows = probe_table(probed, mode, of, seeds[0])
    reliable_rows = rows[~rows["few"] & ~rows["apart"] & rows["gain"].notna()]
    if not len(reliable_rows):
        why = f"No label of {of} has a control and enough items, so the gain of probes is not known."
        return [], [*notes, why]
    columns = []
    meaning = "accuracy minus the best control, in points, of the task's label that the head identifies best"
    for task in in_order(reliable_rows["task"].unique()):
        grid = np.full(size, np.nan)
        best = reliable_rows[reliable_rows["task"] == task].groupby(["layer", "head"], as_index=False)["gain"].max()
        grid[best["layer"] - 1, best["head"] - 1] = best["gain"]
        columns.append(HeadColumn(f"probe gain {task.upper()}", "probes", grid, meaning=meaning))
    words = np.full(size, "", dtype=object)
    beyond = reliable_rows[reliable_rows["gain"] > 0].assign(
        name=reliable_rows["task"].str.upper() + " " + reliable_rows["label"]
    )
    for (layer, head), rows_of_head in beyond.sort_values(["gain", "name"], ascending=False).groupby(["layer", "head"]):
        first = rows_of_head[["name", "gain"]].head(_MAX_LABELS_LISTED).itertuples(index=False)
        words[layer - 1, head - 1] = ", ".join(f"{name} {gain:+.1f}" for name, gain in first)
    return [*columns, HeadColumn("best labels over control", "probes", words, tested=False)], notes


def tables(result: Result) -> list[Grid]:
    """Return all tables: a summary, and for each task the encoders compared with STL, each encoder compared with its
    controls, and published numbers."""
    first_mode, *further_modes = modes(result)
    panels_shown, min_items = panels(result, first_mode), result.about["few"]
    grids = [_summary(panels_shown, min_items, [panel for mode in further_modes for panel in panels(result, mode)])]
    for panel in panels_shown:
        grids += [_compared_with_stl(panel, result)] if panel.compared else []
        grids += [_controls(panel, title, min_items) for title in panel.titles]
        grids += _compared_with_paper(panel, result)
    return grids


TABLES = {"probes": tables}


def _summary(panels_shown: Sequence[ProbePanel], min_items: int, further_panels: Sequence[ProbePanel]) -> Grid:
    """Return a table with a row for each task and encoder: means over labels with enough items, and how many of these
    labels exceed every control. ``further_panels``: panels of the other mode, shown in further columns."""
    further_means = {
        (panel.task, title): _means(panel, title)[1:] for panel in further_panels for title in panel.titles
    }
    header = ["task", "encoder", "seeds", "labels", *_MEANS]
    header += [f"{further_panels[0].mode}: {name}" for name in _MEANS] if further_panels else []
    rows = [
        [panel.task.upper(), title, str(panel.seeds[title]), *_means(panel, title)]
        + (further_means.get((panel.task, title), ["–"] * 4) if further_panels else [])
        for panel in panels_shown
        for title in panel.titles
    ]
    caption = (
        f"Values are unweighted means over labels with {min_items} test items or more, without root. *Best control* is "
        "the mean over labels of each label's best control. *Beyond* counts labels whose mean over seeds exceeds every "
        "control." + (f" The last columns have the mode {further_panels[0].mode}." if further_panels else "")
    )
    return Grid(header, rows, 2, f"Summary, {panels_shown[0].mode}", caption, "summary")


def _means(panel: ProbePanel, title: str) -> list[str]:
    """Return the cells of a row of the summary: the number of labels, and the four numbers that _MEANS names."""
    labels = [label for label in panel.reliable_labels if panel.values(title, label)]
    gains = [gain for label in labels if not math.isnan(gain := panel.mean(title, label, "gain"))]
    reached = _mean([panel.mean(title, label) for label in labels])
    gained = _mean(gains) if len(gains) == len(labels) else math.nan
    beyond = f"{sum(gain > 0 for gain in gains)} of {len(gains)}" if gains else "–"
    return [str(len(labels)), number(reached), number(reached - gained), _signed(gained), beyond]


def _mean(values: Sequence[float]) -> float:
    defined_values = [value for value in values if not math.isnan(value)]
    return statistics.mean(defined_values) if defined_values else math.nan


def _intervals(panel: ProbePanel, result: Result) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the ends of the 95 % interval of each difference from STL, in points, by (title, label).

    Intervals of the frame ``differences`` that were computed for other numbers of seeds than the panel shows are left
    out.
    """
    gaps = result.frame("differences", "mode", "task")
    gaps = gaps[(gaps["mode"] == panel.mode) & (gaps["task"] == panel.task)]
    titles = dict(zip(panel.rows["encoder"], panel.rows["title"], strict=True))
    return {
        (title, row.label): (row.low, row.high)
        for row in gaps.itertuples()
        if (title := titles.get(row.encoder)) and (row.seeds, row.other_seeds) == (panel.seeds[title], panel.seeds[STL])
    }


def _compared_with_stl(panel: ProbePanel, result: Result) -> Grid:
    """Return a table with a row for each label: the accuracy of STL, and of every other encoder the accuracy and its
    difference from STL, with a paired interval where one was computed."""
    bounds = _intervals(panel, result)
    rows = []
    for label in (*panel.labels, MEAN, *panel.set_apart):
        if label == MEAN:
            means = [
                number(_mean([panel.mean(title, label) for label in panel.reliable_labels]))
                for title in (STL, *panel.compared)
            ]
            gaps = [
                _signed(_mean([panel.gap(title, label) for label in panel.reliable_labels])) for title in panel.compared
            ]
            cells = [MEAN, str(sum(panel.items[label] for label in panel.reliable_labels)), means[0]]
            rows.append([*cells, *(part for pair in zip(means[1:], gaps, strict=True) for part in pair)])
            continue
        cells = [*_label_cells(panel, label), mean_sd(panel.values(STL, label))]
        for title in panel.compared:
            low, high = bounds.get((title, label), (math.nan, math.nan))
            change = _signed(panel.gap(title, label)) + ("" if math.isnan(low) else f" [{number(low)}, {number(high)}]")
            cells += [mean_sd(panel.values(title, label)), Strong(change) if low > 0 or high < 0 else change]
        rows.append(cells)
    caption = (
        f"Values are accuracies in percent, {_spread_words(panel, panel.titles)}. Δ is the difference from STL in "
        "points, with its 95 % interval in brackets (paired bootstrap over sentences). It is bold if the interval lies "
        f"on one side of 0.{_marks(panel, result.about['few'])}"
    )
    header = ["label", "items", STL, *(part for title in panel.compared for part in (title, "Δ"))]
    return Grid(header, rows, 1, f"{panel.task.upper()}: encoders compared with STL", caption, f"{panel.task}-changes")


def _controls(panel: ProbePanel, title: str, min_items: int) -> Grid:
    """Return a table with a row for each label: the chosen head, its accuracy, every control, and the gain over the
    best control."""
    rows_of_title = panel.rows[panel.rows["title"] == title]
    present = [name for name in CONTROLS if rows_of_title[name].notna().any()]
    rows = []
    for label in (*panel.labels, *panel.set_apart):
        if values := panel.values(title, label):
            gain = panel.mean(title, label, "gain")
            heads = ", ".join(f"{row['layer']}-{row['head']}" for row in panel.of(title, label))
            controls = [number(panel.mean(title, label, name)) for name in present]
            gained = Strong(_signed(gain)) if gain > 0 else _signed(gain)
            rows.append([*_label_cells(panel, label), heads, mean_sd(values), *controls, gained])
    caption = (
        f"Values are accuracies in percent, {_spread_words(panel, [title])}; {_CHOICE[panel.mode]}. Heads are "
        f"named LAYER-HEAD, counted from 1{', one for each seed' if panel.seeds[title] > 1 else ''}. *Gain* is the "
        f"accuracy minus that of the best control, and is bold if it is above 0.{_marks(panel, min_items)}"
    )
    header = ["label", "items", "head", "accuracy", *(CONTROLS[name] for name in present), "gain"]
    key = f"{panel.task}-{title.replace('+', 'with-').replace(', ', '-').replace(' ', '-')}-controls"
    return Grid(header, rows, 1, f"{panel.task.upper()}, {title}: compared with the controls", caption, key)


def _label_cells(panel: ProbePanel, label: str) -> list[str]:
    """Return the first two cells of a label's row: the label with its marks, and its number of test items."""
    marks = _RARE_MARK * (label in panel.rare_labels) + " (apart)" * (label in panel.set_apart)
    return [label + marks, str(panel.items[label])]


_CHOICE = {
    SOUND: "heads are chosen on dev and reported on test",
    AS_RELEASED: "as released, heads are chosen on the test items on which they are reported, and centroids come from "
    "the same items",
}


def _marks(panel: ProbePanel, min_items: int) -> str:
    set_apart_note = (
        " root is found by attention to the first special token, where attention often rests, so it is "
        "left out of means."
    )
    mark = f" {_RARE_MARK} marks labels with fewer than {min_items} test items, which are left out of means."
    return mark * bool(panel.rare_labels) + set_apart_note * bool(panel.set_apart)


def _spread_words(panel: ProbePanel, titles: Collection[str]) -> str:
    titles_with_seeds = sum(panel.seeds[title] > 1 for title in titles)
    if not titles_with_seeds:
        return "one seed"
    return "mean ± sample standard deviation over seeds" + "; values without ± have one seed" * (
        titles_with_seeds < len(titles)
    )


def _signed(value: float) -> str:
    """Format a number with a sign and two decimals; 0 has no sign, and NaN is a dash."""
    if math.isnan(value):
        return "–"
    rounded = f"{value:+.2f}".replace("-", "−")
    return "0.00" if rounded in ("+0.00", "−0.00") else rounded


# -- published numbers -------------------------------------------------------------------------------------------------


def _compared_with_paper(panel: ProbePanel, result: Result) -> list[Grid]:
    """Return a table with pairs of columns, the published numbers and ours, or no table if they share no label or no
    column."""
    published = result.frame("published", "task")
    rows = published[published["task"] == panel.task].set_index("label").to_dict("index") if len(published) else {}
    labels_in_both = [label for label in (*panel.labels, *panel.set_apart) if label in rows]
    published_rows = [rows[label] for label in labels_in_both]
    titles = [title for title in panel.titles if any(row.get(title) for row in published_rows)]
    if not titles:
        return []
    pairs = [  # heading, published, ours
        (
            f"{title}, paper",
            [row[title] for row in published_rows],
            [mean_sd(panel.values(title, label)) for label in labels_in_both],
        )
        for title in titles
    ]
    if any(row.get("layer") for row in published_rows) and PRETRAINED in panel.titles:
        layers = [f"{panel.mean(PRETRAINED, label, 'layer'):g}".replace("nan", "–") for label in labels_in_both]
        pairs.append(("best layer, paper", [row["layer"] or "–" for row in published_rows], layers))
    header = ["label", "items", *(part for heading, *_ in pairs for part in (heading, "ours"))]
    marked_labels = [label + _RARE_MARK * (label in panel.rare_labels) for label in labels_in_both]
    cells = [
        marked_labels,
        [str(panel.items[label]) for label in labels_in_both],
        *(part for _, *pair in pairs for part in pair),
    ]
    only = {
        "Only ours": [label for label in panel.labels if label not in rows],
        "Only the paper's": [label for label in rows if label not in labels_in_both],
    }
    caption = [
        result.about["published"]["remarks"],
        "Corpora, label sets and encoders differ, so labels of the same name may differ in meaning. Compare the "
        "pattern, and numbers only of the mode as-released.",
        *(f"{source_name}: {', '.join(labels)}." for source_name, labels in only.items() if labels),
    ]
    title = f"{panel.task.upper()}: compared with the published numbers of {result.about['published']['encoder']}"
    return [Grid(header, [*zip(*cells, strict=True)], 1, title, " ".join(caption), f"{panel.task}-paper")]


_FAINT, _PALEST, _ZERO = "#96969c", "#c8c8cc", "#b2182b"
"""Colours of labels that do not exceed every control, of labels with few items, and of the reference (STL or the best
control)."""
_ROW, _WIDTH = 13, 220
"""Height of the row of a label and width of a panel, in pixels."""
_SPAN = 50.0
"""The gain in points from which cells have the full colour. Few heads exceed it, and smaller gains remain visible."""
_SET_APART = "is found by attention to the first special token and is left out of means"


def FIGURES(result: Result) -> dict[str, Chart]:
    """Return the figures of each task in the first mode: the best head of each label, the layers of the best heads,
    differences from STL, and maps of the pretrained encoder's heads."""
    figures: dict[str, Chart] = {}

    def add(name: str, panel: ProbePanel, make: Callable[[], Spec], caption: str) -> None:
        figures[f"{name}-{panel.task}"] = Chart(lambda _: make(), f"{panel.task.upper()}. {caption}", caption)

    for panel in panels(result, modes(result)[0]):
        if PRETRAINED in panel.titles:
            caption = "Dots are the accuracy of the best head of each label, and ticks that of its best control."
            add("labels", panel, partial(layers_figure, result, panel, PRETRAINED), caption)
            caption = (
                "Each tick is a label, with the layer of its best head across and its accuracy upwards, for the "
                "pretrained encoder and for STL."
            )
            add("layers", panel, partial(best_layers_figure, result, panel), caption)
        if panel.compared:
            caption = "Each tick is the accuracy of a label minus that of STL, with encoders side by side."
            add("differences", panel, partial(differences_figure, result, panel), caption)
        if PRETRAINED in panel.titles:
            caption = (
                "Each map of layers by heads shows the gain over the best control for one label, with a frame "
                "around the chosen head."
            )
            add("heads", panel, partial(_atlas, result, panel, PRETRAINED), caption)
    return figures


def layers_figure(result: Result, panel: ProbePanel, title: str) -> Spec:
    """Draw the accuracy of each label's chosen head and of its best control. Of several seeds, the first is shown."""
    rows_of_title = panel.rows[panel.rows["title"] == title]
    rows_of_title = rows_of_title[(rows_of_title["seed"] == rows_of_title["seed"].iloc[0]) & ~rows_of_title["apart"]]
    rows = rows_of_title.assign(reference=rows_of_title["test"] - rows_of_title["gain"], value=rows_of_title["test"])
    rows = rows.assign(beyond=rows["gain"] > 0)
    rows["words"] = rows["layer"].astype(str) + "-" + rows["head"].astype(str)
    reliable_rows = rows[~rows["few"] & rows["gain"].notna()]
    lines = [
        f"{setting(result)}; {panel.mode}: {_CHOICE[panel.mode]}. The head is named next to each dot as layer-head. "
        f"Red ticks are best controls. Blue dots are better than every control ({(reliable_rows['gain'] > 0).sum()} of "
        f"{len(reliable_rows)} labels with enough items)."
    ]
    chart = _by_label(panel, rows, "accuracy of the best head (%)", [0, 100])
    return figure(chart, f"{panel.task.upper()}, {title}: the best head of each label", [*lines, *_rings(panel)])


def best_layers_figure(result: Result, panel: ProbePanel) -> Spec:
    """Draw the layer and the accuracy of each label's best head, for the pretrained encoder and after single-task
    training (He and Choi 2021, Figure 3). Of several seeds, the first is shown, because heads cannot be averaged."""
    layers, charts = [str(layer) for layer in range(1, shape(result)[0] + 1)], []
    for title in (title for title in (PRETRAINED, STL) if title in panel.titles):
        rows_of_title = panel.rows[panel.rows["title"] == title]
        rows_of_title = rows_of_title[
            (rows_of_title["seed"] == rows_of_title["seed"].iloc[0]) & ~rows_of_title["apart"]
        ]
        marks = rows_of_title.assign(
            column=rows_of_title["layer"].astype(str), value=rows_of_title["test"], beyond=rows_of_title["gain"] > 0
        )
        y = f"{title}: accuracy of the best head (%)"
        charts.append(_in_columns(panel, marks, layers, y, [0, 100], below="layer of the best head"))
    lines = [
        f"{setting(result)}; {panel.mode}: {_CHOICE[panel.mode]}. Blue ticks are better than every control, and grey "
        f"ticks are not. {_LONGER}",
        *_rings(panel, "The palest ticks"),
    ]
    return figure(alt.vconcat(*charts), f"{panel.task.upper()}: layer and accuracy of the best head", lines)


def differences_figure(result: Result, panel: ProbePanel) -> Spec:
    """Draw the accuracy of every other encoder minus that of STL, as means over seeds, with a tick for each label (He
    and Choi 2021, Figure 4)."""
    bounds = _intervals(panel, result)
    rows, heads = [], {}
    for title in panel.compared:
        gaps = {label: gap for label in panel.labels if not math.isnan(gap := panel.gap(title, label))}
        ends = {label: bounds.get((title, label), (math.nan, math.nan)) for label in gaps}
        rows += [(title, label, gap, ends[label][0] > 0 or ends[label][1] < 0) for label, gap in gaps.items()]
        reliable_gaps = [gaps[label] for label in panel.reliable_labels if label in gaps]
        heads[title] = (
            f"{title}: {_signed(_mean(reliable_gaps))}; {sum(gap < 0 for gap in reliable_gaps)} of "
            f"{len(reliable_gaps)} below"
        )
    frame = pd.DataFrame(rows, columns=["column", "label", "value", "beyond"])
    frame = frame.assign(few=frame["label"].isin(panel.rare_labels), column=frame["column"].map(heads))
    reliable_gaps = frame[~frame["few"]] if not frame["few"].all() else frame
    span = [
        5 * math.floor(min(0, reliable_gaps["value"].min()) / 5 - 0.2),
        5 * math.ceil(max(0, reliable_gaps["value"].max()) / 5 + 0.2),
    ]
    seeds = ", ".join(f"{title} {panel.seeds[title]}" for title in (STL, *panel.compared))
    lines = [
        f"{setting(result)}; {panel.mode}: {_CHOICE[panel.mode]}. Values are means over seeds ({seeds}), and the mean "
        "over labels is above each column. The 95 % interval over sentences of blue ticks leaves out 0. The dashed "
        f"line is STL. {_LONGER}",
        *_rings(panel, "The palest ticks"),
    ]
    chart = _in_columns(panel, frame, list(heads.values()), "accuracy minus STL (points)", span)
    return figure(chart, f"{panel.task.upper()}: accuracy minus STL", lines)


_MAX_NAMED, _COLUMN, _TALL, _LONGEST = 20, 118, 420, 34
"""Number of labels that are named (the most frequent), and in pixels the width of a column, the height of a panel, and
the length of the longest tick."""
_LONGER = (
    "A longer tick is a more frequent label (by the square root of its number of test items), and the "
    f"{_MAX_NAMED} most frequent labels are named."
)


def _in_columns(
    panel: ProbePanel, marks: pd.DataFrame, columns: Sequence[str], y: str, ends: Sequence[float], below: str = ""
) -> Any:
    """Draw columns of ticks, one tick for each label, with the names of frequent labels next to their ticks.

    Names that would overlap are moved apart: an isotonic regression finds the positions with the least squared shifts
    that keep the order and the distance.

    Args:
        panel: the panel, which gives the frequencies and the order of labels.
        marks: the ticks, with the columns ``column``, ``label``, ``value``, ``beyond`` and ``few``.
        columns: titles of the columns.
        y: title of the vertical axis.
        ends: ends of the vertical axis. Ticks beyond them are not drawn.
        below: title of the horizontal axis. If given, the titles of columns are below the ticks, and there is no line
            at 0.
    """
    largest_count, named_labels = max(panel.items.values()), panel.labels[:_MAX_NAMED]
    marks_in_range = marks[marks["value"].between(*ends)].assign(
        x=lambda of: _COLUMN * of["column"].map(columns.index) + _LONGEST
    )
    half_length = _LONGEST * (0.15 + 0.85 * (marks_in_range["label"].map(panel.items) / largest_count) ** 0.5) / 2
    ink = marks_in_range["beyond"].map({True: ABOVE, False: _FAINT}).mask(marks_in_range["few"], _PALEST)
    marks_in_range = marks_in_range.assign(
        start=marks_in_range["x"] - half_length,
        end=marks_in_range["x"] + half_length,
        ink=ink,
        at=marks_in_range["value"],
    )
    tags = marks_in_range[marks_in_range["label"].isin(named_labels)].assign(
        name=lambda of: of["label"].map(shown_label)
    )
    for _, tags_of_column in tags.groupby("column"):
        order, gaps = (
            np.argsort(tags_of_column["value"]),
            np.arange(len(tags_of_column)) * 12 * (ends[1] - ends[0]) / _TALL,
        )
        tags.loc[tags_of_column.index[order], "at"] = (
            isotonic_regression(tags_of_column["value"].to_numpy()[order] - gaps).x + gaps
        )
    labels = [_COLUMN * place + _LONGEST for place in range(len(columns))]
    words = [column.replace(": ", "\n").replace("; ", "\n").split("\n") for column in columns]
    axis = alt.Axis(
        values=labels,
        labelExpr=f"{json.dumps(words)}[indexof({json.dumps(labels)}, datum.value)]",
        orient="bottom" if below else "top",
        labelAlign="center" if below else "left",
        labelOffset=0 if below else -_LONGEST // 2,
        labelPadding=8 if below else 36,
        grid=False,
        domain=False,
    )
    size = alt.Scale(domain=[0, _COLUMN * len(columns)], nice=False)
    across = alt.X("start:Q", scale=size, axis=axis, title=below or None)
    upright = alt.Y("value:Q", scale=alt.Scale(domain=list(ends), nice=False), title=y)
    columns_kept = ["x", "end", "value", "label"]
    ticks = alt.Chart(
        data(marks_in_range[[*columns_kept, "start", "ink", "beyond"]]), width=_COLUMN * len(columns), height=_TALL
    ).mark_rule(strokeWidth=2)
    ticks = ticks.encode(across, upright, alt.X2("end:Q"), alt.Color("ink:N", scale=None))
    base = alt.Chart(data(tags.assign(beside=tags["x"] + _LONGEST - 4)[[*columns_kept, "at", "beside", "name"]]))
    leads = base.mark_rule(color=RULE, strokeWidth=0.6).encode(
        alt.X("end:Q"), upright, alt.X2("beside:Q"), alt.Y2("at:Q")
    )
    text = base.mark_text(align="left", dx=3, fontSize=9).encode(alt.X("beside:Q"), alt.Y("at:Q"), text="name:N")
    zero = alt.Chart(alt.InlineData(values=[{"value": 0}])).mark_rule(color=_ZERO, strokeDash=[6, 4]).encode(upright)
    return alt.layer(*([] if below else [zero]), leads, ticks, text)


def _rings(panel: ProbePanel, marks: str = "Rings") -> list[str]:
    """Return remarks on labels that are drawn differently or left out. ``marks``: the name of the marks of rare
    labels."""
    rare_note = (
        [f"{marks} have few test items, and are not drawn beyond the axis."]
        if panel.rare_labels & set(panel.labels)
        else []
    )
    return [*rare_note, *(f"{label} {_SET_APART}." for label in panel.set_apart)]


def _by_label(panel: ProbePanel, rows: pd.DataFrame, x: str, ends: Sequence[float]) -> Any:
    """Draw a row for each label, with a dot at its value and a tick at its reference.

    Args:
        panel: the panel, which gives the order and the number of items of labels.
        rows: columns ``label``, ``value``, ``reference``, ``beyond`` (colour of the dot), ``few`` (the dot is a ring)
            and ``words`` (text next to the dot).
        x, ends: title and ends of the horizontal axis.
    """
    names = {label: f"{shown_label(label)}  {panel.items[label]:,}" for label in panel.labels}
    ink = rows["beyond"].map({True: ABOVE, False: _FAINT})
    labelled_rows = rows.assign(name=rows["label"].map(names), ink=ink, fill=ink.mask(rows["few"], "#ffffff"))
    columns_kept = ["name", "value", "reference", "words", "ink", "fill", "label", "few"]
    labelled_rows = labelled_rows[labelled_rows["value"].between(*ends)]
    scale = alt.Scale(domain=list(ends), nice=False, padding=22)  # room for the text next to the last dot
    base = alt.Chart(data(labelled_rows[columns_kept]), width=_WIDTH, height=_ROW * max(1, len(names))).encode(
        alt.Y("name:N", sort=list(names.values()), title=None, axis=alt.Axis(domain=False, ticks=False)),
    )
    value = alt.X("value:Q", scale=scale, title=x)
    bars = base.mark_rule(color=RULE, clip=True).encode(alt.X("reference:Q", scale=scale), alt.X2("value:Q"))
    ticks = base.mark_tick(color=_ZERO, thickness=2, height=9, clip=True).encode(alt.X("reference:Q", scale=scale))
    dots = base.mark_point(filled=True, size=40, opacity=1, strokeWidth=1.5, clip=True)
    dots = dots.encode(value, alt.Fill("fill:N", scale=None), alt.Stroke("ink:N", scale=None))
    style: dict[str, Any] = {"align": "left", "dx": 7, "fontSize": 8}
    words = base.mark_text(**style, color=SOFT).encode(value, text="words:N")
    halo = base.mark_text(**style, stroke="#ffffff", strokeWidth=3).encode(value, text="words:N")
    return alt.layer(bars, ticks, halo, dots, words)


def _heads(result: Result, panel: ProbePanel, title: str) -> pd.DataFrame:
    """Return a table with a row for each label and head: ``gain`` (mean over the seeds that have the head) and ``best``
    (whether the head is chosen in any seed)."""
    encoder = panel.rows.loc[panel.rows["title"] == title, "encoder"].iloc[0]
    rows = probe_table(result, panel.mode, encoder)
    rows = rows[rows["task"] == panel.task]
    gain = rows["gain"].fillna(rows["test"])  # labels without a control show the accuracy
    groups = rows.assign(gain=gain).groupby(["label", "layer", "head"])
    means = groups.agg(gain=("gain", "mean"), best=("best", "any"))
    sizes = [rows["label"].unique(), *(range(1, size + 1) for size in shape(result))]
    all_heads = means.reindex(pd.MultiIndex.from_product(sizes, names=["label", "layer", "head"])).reset_index()
    return all_heads.assign(best=all_heads["best"].fillna(False).astype(bool))


def _atlas(result: Result, panel: ProbePanel, title: str) -> Spec:
    """Draw a small map of heads for each label, with the most frequent label first and roots last."""
    heads = _heads(result, panel, title)
    labels = [label for label in (*panel.labels, *panel.set_apart) if panel.values(title, label)]
    names = {
        label: f"{shown_label(label)}{_RARE_MARK * (label in panel.rare_labels)}  {panel.items[label]:,}"
        for label in labels
    }
    label_names = pd.Categorical([names[label] for label in heads["label"]], list(names.values()), ordered=True)
    across = max(1, min(len(labels), 900 // (9 * shape(result)[1] + 30)))
    look: dict[str, Any] = {"limit": _SPAN, "diverging": True, "ramp": DIVERGING[::-1], "columns": across, "cell": 9}
    chart = head_map(heads.assign(name=label_names), "gain", framed="best", **look)
    has_seeds, rare_note = panel.seeds[title] > 1, f" ({_RARE_MARK} if few)" * bool(panel.rare_labels & set(labels))
    seeds, dash = (
        f"; mean of {panel.seeds[title]} seeds" * has_seeds,
        " A dash means that the head is removed or closed.",
    )
    lines = [
        f"{setting(result)}; {panel.mode}{seeds}. Rows are layers, with layer 1 at the top, and columns are heads. "
        f"Next to each label is its number of test items{rare_note}. Blue heads are better than the best control, and "
        "red heads are worse. The chosen head is framed."
        f"{dash * bool(heads['gain'].isna().any())}{' There is one frame for each seed.' * has_seeds}"
    ]
    lines += [f"{label}, last, is found by attention to the first special token." for label in panel.set_apart]
    return figure(chart, f"{panel.task.upper()}, {title}: gain over the best control of every head", lines)
