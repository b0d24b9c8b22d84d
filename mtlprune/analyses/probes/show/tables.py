"""Tables of probes in Markdown and LaTeX: each encoder beside its controls, and encoders beside STL.

text = markdown(tables, heading, notes); text = latex(tables, heading, notes)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from mtlprune.analyses.probes.show.columns import PRETRAINED, STL, ProbeColumn, ProbePanel, accuracy, gain
from mtlprune.analyses.probes.show.intervals import Intervals
from mtlprune.analyses.probes.show.results import CONTROLS, TITLES, LabelResult
from mtlprune.reports.grid import Grid, Strong, latex_document, markdown_document, number

FEW = "°"
SURE = "*"
MEAN = "mean over labels"


def tables(
    panels: Sequence[ProbePanel], few: int, intervals: Intervals | None, other: Sequence[ProbePanel] = ()
) -> list[Grid]:
    """All tables: a summary, then for each task its encoders beside STL and each encoder beside its controls.

    Args:
        other: the same results in the other mode, for the summary.
    """
    made = [summary(panels, few, other)]
    for panel in panels:
        if panel.column(STL) and panel.compared:
            made.append(changes(panel, few, intervals))
            made += [bounds(panel, few, intervals)] if intervals else []
        made += [controls(panel, column, few) for column in panel.columns]
    return made


def summary(panels: Sequence[ProbePanel], few: int, other: Sequence[ProbePanel] = ()) -> Grid:
    """A row a task and encoder: means over its labels with enough items, and how many exceed every control."""
    beside = {(panel.task, column.title): (panel, column) for panel in other for column in panel.columns}
    rows = []
    for panel in panels:
        for column in panel.columns:
            row = [panel.task.upper(), column.title, str(len(column.seeds)), *_means(panel, column)]
            twin = beside.get((panel.task, column.title))
            rows.append([*row, *(_means(*twin)[1:] if twin else ["–"] * 4)] if other else row)
    header = ["task", "encoder", "seeds", "labels", *_MEANS]
    header += [f"{other[0].mode}: {name}" for name in _MEANS] if other else []
    legend = (
        f"Unweighted means over labels with {few} test items or more, root left aside. Best control: a mean over "
        "labels of each label's best one. Beyond: labels whose mean over seeds exceeds every control."
        + (f" Last columns: the same in the mode {other[0].mode}." if other else "")
    )
    return Grid(header, rows, 2, f"Summary, {panels[0].mode}", legend, "summary")


_MEANS = ("accuracy", "best control", "gain", "beyond every control")


def _means(panel: ProbePanel, column: ProbeColumn) -> list[str]:
    """Number of labels, and _MEANS of them."""
    labels = [label for label in panel.sure() if column.values(label, accuracy)]
    gains = [column.mean(label, gain) for label in labels]
    known = [value for value in gains if not math.isnan(value)]
    reached = statistics.mean([column.mean(label, accuracy) for label in labels]) if labels else math.nan
    gained = statistics.mean(known) if known and len(known) == len(labels) else math.nan
    beyond = f"{sum(value > 0 for value in known)} of {len(known)}" if known else "–"
    return [str(len(labels)), number(reached), number(reached - gained), signed(gained), beyond]


def changes(panel: ProbePanel, few: int, intervals: Intervals | None) -> Grid:
    """STL, then every other encoder with its difference to STL; the best of a row is bold."""
    alone = panel.column(STL)
    assert alone is not None
    header = ["label", "items", STL]
    for column in panel.compared:
        header += [column.title, "Δ"]
    rows = [_change(panel, alone, label, intervals) for label in panel.labels]
    rows.append(_mean_row(panel, alone))
    if panel.root is not None:
        rows.append(_change(panel, alone, panel.root, intervals, " (apart)"))
    starred = f" {SURE}: its 95 % interval (paired bootstrap over sentences) is beside 0." if intervals else ""
    spread, marks = _spread(panel.columns), _marks(panel, few)
    legend = f"Accuracy in percent, {spread}. Δ: minus STL. Bold: best of the row.{starred}{marks}"
    return Grid(header, rows, 1, f"{panel.task.upper()}: encoders beside STL", legend, f"{panel.task}-changes")


def _change(
    panel: ProbePanel, alone: ProbeColumn, label: str, intervals: Intervals | None, mark: str = ""
) -> list[str]:
    columns = [alone, *panel.compared]
    means = [column.mean(label, accuracy) for column in columns]
    best = max((round(mean, 2) for mean in means if not math.isnan(mean)), default=math.nan)
    cells = []
    for column, mean in zip(columns, means, strict=True):
        text = mean_sd(column.values(label, accuracy))
        cells.append(Strong(text) if round(mean, 2) == best else text)
        if column is not alone:
            cells.append(signed(mean - means[0]) + _star(intervals, column, alone, panel, label))
    return [_named(panel, label) + mark, str(panel.items[label]), *cells]


def _star(intervals: Intervals | None, column: ProbeColumn, alone: ProbeColumn, panel: ProbePanel, label: str) -> str:
    found = intervals.of(panel, column, alone, label) if intervals else None
    return SURE if found is not None and found.without_zero else ""


def bounds(panel: ProbePanel, few: int, intervals: Intervals) -> Grid:
    """Each difference to STL with its paired interval."""
    alone = panel.column(STL)
    assert alone is not None
    rows = []
    for label in (*panel.labels, *([panel.root] if panel.root else [])):
        cells = []
        for column in panel.compared:
            found = intervals.of(panel, column, alone, label)
            change = signed(column.mean(label, accuracy) - alone.mean(label, accuracy))
            text = f"{change} [{number(found.low)}, {number(found.high)}]" if found else "–"
            cells.append(Strong(text) if found is not None and found.without_zero else text)
        mark = " (apart)" if label == panel.root else ""
        rows.append([_named(panel, label) + mark, str(panel.items[label]), *cells])
    legend = (
        "Difference of mean accuracies over seeds, in points, with its 95 % interval: bootstrap over test items, "
        f"paired. Bold: the interval lies on one side of 0.{_marks(panel, few)} –: not in the results for these seeds."
    )
    header = ["label", "items", *(column.title for column in panel.compared)]
    return Grid(header, rows, 1, f"{panel.task.upper()}: minus STL, with intervals", legend, f"{panel.task}-intervals")


def _mean_row(panel: ProbePanel, alone: ProbeColumn) -> list[str]:
    """Each difference is a mean over the labels that both encoders have."""
    cells = [number(_mean(panel, alone))]
    for column in panel.compared:
        cells += [number(_mean(panel, column)), signed(_mean(panel, column, alone))]
    return [MEAN, str(sum(panel.items[label] for label in panel.sure())), *cells]


def _mean(panel: ProbePanel, column: ProbeColumn, minus: ProbeColumn | None = None) -> float:
    """Over labels with enough items: of accuracies, or of their differences."""
    values = [column.mean(label, accuracy) for label in panel.sure()]
    if minus is not None:
        others = [minus.mean(label, accuracy) for label in panel.sure()]
        values = [mine - other for mine, other in zip(values, others, strict=True)]
    defined = [value for value in values if not math.isnan(value)]
    return statistics.mean(defined) if defined else math.nan


def controls(panel: ProbePanel, column: ProbeColumn, few: int) -> Grid:
    """Each label's chosen head, its accuracy, every control, and the gain over the best of them."""
    present = [name for name in CONTROLS if any(_has(column, label, name) for label in panel.items)]
    header = ["label", "items", "head", "accuracy", *(TITLES[name] for name in present), "gain"]
    rows = []
    for label in (*panel.labels, *([panel.root] if panel.root else [])):
        if not column.values(label, accuracy):
            continue
        rows.append(
            [
                _named(panel, label) + (" (apart)" if label == panel.root else ""),
                str(panel.items[label]),
                ", ".join(f"{result.layer}-{result.head}" for result in _results(column, label)),
                mean_sd(column.values(label, accuracy)),
                *(_control(column, label, name) for name in present),
                _gain_cell(column.mean(label, gain)),
            ]
        )
    legend = (
        f"Accuracy in percent, {_spread([column])}; {_choice(panel.mode)}. Head: LAYER-HEAD, counted from 1"
        f"{', one a seed' if len(column.seeds) > 1 else ''}. Gain: over the best control, bold where above 0."
        f"{_marks(panel, few)}"
    )
    title = f"{panel.task.upper()}, {column.title}: beside the controls"
    return Grid(header, rows, 1, title, legend, f"{panel.task}-{_slug(column.title)}-controls")


def _results(column: ProbeColumn, label: str) -> Iterator[LabelResult]:
    return (labels[label] for labels in column.seeds.values() if label in labels)


def _has(column: ProbeColumn, label: str, control: str) -> bool:
    return any(control in result.controls for result in _results(column, label))


def _control(column: ProbeColumn, label: str, control: str) -> str:
    values = [result.controls[control] for result in _results(column, label) if control in result.controls]
    return number(statistics.mean(values)) if values else "–"


def _gain_cell(value: float) -> str:
    return Strong(signed(value)) if value > 0 else signed(value)


def _named(panel: ProbePanel, label: str) -> str:
    return f"{label}{FEW}" if label in panel.few else label


def _choice(mode: str) -> str:
    if mode == "sound":
        return "head chosen on dev, reported on test"
    return "as released: head chosen on the test items it is reported on, centroids of the same items"


def _marks(panel: ProbePanel, few: int) -> str:
    parts = []
    if panel.few & set(panel.items):
        parts.append(f" {FEW}: fewer than {few} test items; not in means.")
    if panel.root is not None:
        parts.append(
            " root is found by attention to the first special token, a common resting place: apart, in no mean."
        )
    return "".join(parts)


def _spread(columns: Sequence[ProbeColumn]) -> str:
    many = [column for column in columns if len(column.seeds) > 1]
    if not many:
        return "one seed"
    single = "" if len(many) == len(columns) else "; one seed where none stands"
    return f"mean ± sample standard deviation over seeds{single}"


def mean_sd(values: Sequence[float]) -> str:
    """The mean; with two values or more ± the sample standard deviation."""
    if len(values) < 2:
        return number(values[0]) if values else "–"
    return f"{number(statistics.mean(values))} ± {number(statistics.stdev(values))}"


def signed(value: float) -> str:
    """Two decimals with a sign; 0 has none."""
    if math.isnan(value):
        return "–"
    rounded = f"{value:+.2f}".replace("-", "−")
    return "0.00" if rounded in ("+0.00", "−0.00") else rounded


def _slug(title: str) -> str:
    return title.replace("+", "with-").replace(", ", "-").replace(" ", "-")


def column_note(panels: Sequence[ProbePanel]) -> list[str]:
    """What is missing for a comparison, in words."""
    lacking = [panel.task.upper() for panel in panels if panel.column(STL) is None]
    untrained = [panel.task.upper() for panel in panels if panel.column(PRETRAINED) is None]
    notes = []
    if lacking:
        notes.append(f"No STL run is among the results of {', '.join(lacking)}: no differences to STL.")
    if untrained:
        notes.append(
            f"No pretrained encoder is among the results of {', '.join(untrained)}: no scatter of best layers."
        )
    return notes


@markdown_document
def markdown(made: Sequence[Grid], title: str, setting: Sequence[str], notes: Sequence[str]) -> str:
    """The whole report."""
    parts = [f"# {title}\n", *(f"{line}\n" for line in setting)]
    if notes:
        parts.append("".join(f"- {note}\n" for note in notes))
    return "\n".join([*parts, *(table.part() for table in made)])


def latex(made: Sequence[Grid], title: str, setting: Sequence[str], notes: Sequence[str]) -> str:
    """The tables, for \\input into a document that loads booktabs."""
    return latex_document([title, *setting, *notes], [table.latex(f"tab:probes-{table.key}") for table in made])
