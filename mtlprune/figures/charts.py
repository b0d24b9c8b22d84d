"""Charts: one declarative specification (Altair, Vega-Lite) for PNG, SVG and PDF, without a browser, and for the page.

    chart = panels([lines(frame, "layer", "cosine", title="CosSim"), ...], columns=3)
    spec = figure(chart, "How alike tokens are", ["Means over 1,000 sentences."])
    render(spec, "pdf", Style(width=16.0, font_size=8, title=False))

Frames are data frames with a column ``name``, an ordered categorical: what each line or map is of.
"""

import functools
import hashlib
import io
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd
from altair.utils import schemapi
from PIL import Image, ImageColor

from mtlprune.errors import printable_lines
from mtlprune.figures.grid import number
from mtlprune.figures.painter import paint
from mtlprune.io.files import RunError, plain

TASK_HUES = {"pos": "#0072b2", "ner": "#d55e00", "dep": "#009e73", "con": "#cc79a7", "srl": "#962dff"}
"""Colours of tasks wherever they are drawn. The first four are those of Okabe and Ito (2008)."""
OTHER_HUES = ("#ff004b", "#5a783c", "#9678ff", "#d200b4", "#a54b87", "#78787e")
"""Colours of further tasks, and of what is no task. With three of them eight tasks differ for colour-blind readers. All
hues have a contrast of 3 on white and on the dark page, so that a mark has one colour in both."""
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
"""Points of names that share a colour, such as the seeds of a task."""
INK, SOFT, RULE, PALE = "#1c1c1e", "#626268", "#a8a8ac", "#dedee2"
FRAME = "#d55e00"
"""Frame of cells that stand out: vermilion (Okabe and Ito 2008), seen on black, white, blue and red."""
ABOVE = "#2166ac"
"""Colour of what stands out for good: blue, of DIVERGING."""
SEQUENTIAL = WHITE, BLACK = "#ffffff", "#000000"
_BLUES = ["#ffffff", "#084594"]
DIVERGING = ("#2166ac", "#ffffff", "#b2182b")
"""Blue and red of ColorBrewer's RdBu, equally dark: below and above 0."""
WIDTH, HEIGHT, CELL, ROOM = 232, 168, 15, 8
"""Inside a panel, of a cell in a map of heads, and between data and the ends of an axis."""
MAX_FOREST_ROWS = 12
"""Rows of a forest plot at the most: tables have all."""
PAGE, MIN_FONT_SIZE, AXIS = 900, 8, 72
"""Pixels: of the narrowest page that figures are made for, of the smallest words there, and of a panel's axis."""
FORMATS = ("png", "svg", "pdf")
SCALE = 2
"""Pixels of a PNG for each of a chart."""
MIN_ZOOM, MIN_COLUMN = 0.4, 0.2
"""Least size of panels, as a share of their own, before fewer stand side by side, and at all."""
_SUBTITLE = 80
"""Letters in a line below a title, where no width is asked for."""
POINT = 72 / 2.54
"""Points a centimetre."""
Spec = dict[str, Any]


class ChartError(RunError):
    """A figure that cannot be drawn as asked; the message says why and what to do."""


AnyChart = alt.TopLevelMixin
"""Any of Altair's charts: single, layered, of facets, or several side by side."""


class Chart(NamedTuple):
    """A figure of an analysis: a function from a Result to its specification (None: there is nothing to show), what it
    shows in words for those who do not see it, and its caption."""

    make: Callable[[Any], Spec | None]
    alt: str
    caption: str


class Drawing(NamedTuple):
    """A chart of a figure that an analysis declares, and what stands in the braces of its declared words."""

    chart: AnyChart
    words: Mapping[str, Any]


@dataclass(frozen=True)
class Style:
    """The look of a figure.

    Attributes:
        width: of the whole figure, in centimetres; None: as it comes.
        font_size: of all words but titles, in points.
        title: whether title and explanation stand above; a paper has its own captions.
    """

    width: float | None = None
    font_size: float = 11
    title: bool = True


PLAIN = Style()

# -- parts -------------------------------------------------------------------------------------------------------------


class _Rows(alt.InlineData):
    """Rows that all copies of a chart share: every method of a chart copies it, and nothing changes its rows."""

    def __deepcopy__(self, _memo: Any) -> "_Rows":
        return self


def data(frame: pd.DataFrame) -> alt.InlineData:
    """Rows as JSON has them, five digits, null for NaN; as many as there are: inline data know no limit of rows."""
    # Checking every row against the schema of Vega-Lite takes longer than making the chart.
    with schemapi.debug_mode(False):
        return _Rows(values=plain(frame.to_dict("records"), 5))


def task_colours(names: Sequence[str]) -> dict[str, str]:
    """Name → colour: a task's own where a name begins with a task's (of any case), else the next of those that no task
    has. Seeds of one label share its colour, because colours tell tasks apart."""
    free, of_label = itertools.cycle(OTHER_HUES), dict[str, str]()
    for label in (_SEED.sub("", name) for name in names):
        task = re.split(r"[ ,:(]", label.lower(), maxsplit=1)[0]
        of_label[label] = of_label.get(label) or TASK_HUES.get(task) or next(free)
    return {name: of_label[_SEED.sub("", name)] for name in names}


_SEED = re.compile(r", seed [^ ,(]+")


def colours(
    frame: pd.DataFrame, dashed: str | None = None, symbol: str = "stroke", kinds: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Encodings that tell ``name`` by colour, with one legend below; ``dashed`` is a column of truths.

    Hues are those of ``task_colours``; names of one hue and dash have points of other shapes. The legend has the names
    that are there, as lines or as another ``symbol``.
    ``kinds``: names of one number share its hue.
    """
    names = list(frame["name"].cat.categories)
    names_present = [name for name in names if frame["name"].eq(name).any()]
    marked = set(frame.loc[frame[dashed], "name"]) if dashed else set()
    free = OTHER_HUES if kinds else ()
    hues = [free[kinds[name] % len(free)] for name in names] if kinds else list(task_colours(names).values())
    looks = [(hue, name in marked) for name, hue in zip(names, hues, strict=True)]
    shapes = [_SHAPES[looks[:place].count(look) % len(_SHAPES)] for place, look in enumerate(looks)]
    columns = max(1, min(6, 700 // (6 * max(map(len, names_present), default=1) + 44)))
    strokes = symbol == "stroke" and len(set(shapes)) == 1
    legend = alt.Legend(
        orient="bottom", columns=columns, title=None, symbolType=symbol, symbolSize=300 if strokes else 60
    )
    if names_present != names:
        legend.values = names_present
    dashes = [[5, 3] if dash else [1, 0] for _, dash in looks]
    channels: dict[str, Any] = {"color": (alt.Color, hues), "strokeDash": (alt.StrokeDash, dashes)}
    channels |= {"shape": (alt.Shape, shapes)} if len(set(shapes)) > 1 else {}
    return {
        key: channel("name:N", sort=names, legend=legend, scale=alt.Scale(domain=names, range=values))
        for key, (channel, values) in channels.items()
    }


def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    title: str = "",
    x_title: str | None = None,
    y_title: str | None = None,
    zero: bool = False,
    integer_axis: bool = True,
    dashed: str | None = None,
    look: Mapping[str, Any] | None = None,
) -> alt.Chart:
    """One panel with a line a ``name``.

    Args:
        zero: whether 0 is on the vertical axis.
        integer_axis: whether x counts (layers): ticks at whole numbers.
        dashed: a column of truths: which lines are dashed.
        look: ``colours`` of the rows of all panels, where panels have different names.
    """
    points = frame.dropna(subset=[y])
    size = 22 if points["name"].value_counts().max() < 20 else 8  # where they stand close
    x_axis = alt.Axis(grid=False, tickMinStep=1, tickCount=6, format="d") if integer_axis else alt.Axis(grid=False)
    return (
        alt.Chart(data(points[["name", x, y]]), title=title, width=WIDTH, height=HEIGHT)
        .mark_line(point=alt.OverlayMarkDef(size=size, filled=True, strokeDash=[1, 0]))
        .encode(
            alt.X(f"{_field(x)}:Q", title=x_title or x, axis=x_axis, scale=alt.Scale(nice=False, zero=False)),
            alt.Y(f"{_field(y)}:Q", title=y_title or y, scale=alt.Scale(zero=zero, nice=False, padding=ROOM)),
            **(look or colours(frame, dashed)),
        )
    )


def seeds_behind(frame: pd.DataFrame, x: str, y: str, colour: alt.Color) -> alt.Chart:
    """Small dots, to be laid over a panel of lines: what the lines are means of."""
    seed_points = alt.Chart(data(frame[["name", x, y]])).mark_circle(size=7, opacity=0.9)
    return seed_points.encode(alt.X(f"{_field(x)}:Q"), alt.Y(f"{_field(y)}:Q"), colour)


def band(frame: pd.DataFrame, x: str, low: str, high: str, y_title: str) -> alt.Chart:
    """A pale area between two columns, to be laid under a panel of lines whose axis has the title ``y_title``."""
    area = alt.Chart(data(frame[[x, low, high]])).mark_area(color=PALE)
    return area.encode(alt.X(f"{_field(x)}:Q"), alt.Y(f"{_field(low)}:Q", title=y_title), alt.Y2(f"{_field(high)}:Q"))


def dots(
    frame: pd.DataFrame, x: str, y: str, look: Spec, *, title: str = "", x_title: str = "", y_title: str = ""
) -> alt.Chart:
    """One panel with a dot a row. ``look``: its colour and, where there is need, its shape, as of ``colours``."""
    return (
        alt.Chart(data(frame), title=title, width=WIDTH, height=HEIGHT)
        .mark_point(size=12 if len(frame) > 60 else 24, opacity=0.8, filled=True, strokeWidth=0)
        .encode(
            alt.X(
                f"{_field(x)}:Q",
                title=x_title,
                axis=alt.Axis(grid=False, tickCount=5),
                scale=alt.Scale(zero=False, nice=False, padding=ROOM),
            ),
            alt.Y(f"{_field(y)}:Q", title=y_title, scale=alt.Scale(zero=False, nice=False, padding=ROOM)),
            **{key: encoding for key, encoding in look.items() if key != "strokeDash"},
        )
    )


def mark(x: float | None = None, y: float | None = None) -> alt.Chart:
    """A dashed line at a value of x, or a plain one at a value of y, to be laid over a panel."""
    if y is not None:
        rule = alt.Chart(alt.InlineData(values=[{"y": y}])).mark_rule(color=RULE, strokeWidth=1.2)
        return rule.encode(alt.Y("y:Q"))
    rule = alt.Chart(alt.InlineData(values=[{"x": x}])).mark_rule(strokeDash=[5, 3], color=SOFT, strokeWidth=1.2)
    return rule.encode(alt.X("x:Q"))


class Interval(NamedTuple):
    """A row of a forest plot: between which bounds a value may lie (NaN: not known)."""

    name: str
    value: float
    low: float
    high: float
    is_significant: bool
    words: str
    """All that is known, in words."""


def forest(intervals: Sequence[Interval], *, title: str = "", x_title: str = "", width: int = WIDTH) -> Any:
    """Differences below each other, the first dozen, each with its name: a dot (full: significant) with its interval.

    Room is for all values, and for intervals unless much wider than most: those are cut off at the edge.
    """
    rows = pd.DataFrame(intervals[:MAX_FOREST_ROWS])
    with_interval = rows.dropna(subset=["low", "high"])
    wide = with_interval["high"] - with_interval["low"]
    usual_rows = (
        with_interval[wide <= 4 * wide.sort_values().iloc[len(wide) // 2]] if len(with_interval) else with_interval
    )
    ends = [0.0, *rows["value"], *usual_rows["low"], *usual_rows["high"]]
    scale = alt.Scale(domain=[min(ends), max(ends)] if max(ends) > min(ends) else [-1, 1], nice=5, padding=ROOM)
    signed = f"datum.value ? format(datum.value, '{'+' * (min(ends) < 0)}~f') : '0'"
    axis = alt.Axis(grid=False, tickCount=5 if width >= WIDTH else 4, labelExpr=signed)
    base = alt.Chart(data(rows), title=title, width=width, height=18 * len(rows)).encode(
        alt.Y("name:N", title=None, sort=list(rows["name"]), axis=alt.Axis(domain=False))
    )
    x = alt.X("value:Q", title=x_title, axis=axis, scale=scale)
    zero = alt.Chart(alt.InlineData(values=[{"value": 0}])).mark_rule(color=RULE).encode(alt.X("value:Q"))
    bars = base.mark_rule(strokeWidth=1.5, color=INK, clip=True).encode(alt.X("low:Q", scale=scale), alt.X2("high:Q"))
    fill = alt.condition("datum.is_significant", alt.value(INK), alt.value("#ffffff"))
    dot = base.mark_point(size=55, filled=True, opacity=1, stroke=INK, strokeWidth=1.5)
    return alt.layer(zero, bars.transform_filter("isValid(datum.low)"), dot.encode(x, fill=fill))


def by_task(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame whose ``name`` is that of both encoder and task, in their order."""
    names = [f"{name}: {task.upper()}" for name, task in zip(frame["name"], frame["task"], strict=True)]
    return frame.assign(name=pd.Categorical(names, list(dict.fromkeys(names)), ordered=True))


def head_map(
    frame: pd.DataFrame,
    value: str,
    *,
    title: str = "",
    limit: float | None = None,
    diverging: bool = False,
    words: bool = True,
    ramp: Sequence[str] = (),
    framed: str | None = None,
    columns: int = 0,
    cell: int = CELL,
    axes: bool = False,
    heading: str | None = None,
    subsets: Mapping[str, str] | None = None,
) -> alt.FacetChart:
    """Maps of heads, one below the other for each ``name``: rows are layers (1 above), columns heads; – where NaN.

    Args:
        limit: the size at which the colour is darkest; None for the 98th percentile, so that one head does not pale all
            others.
        diverging: blue below 0, red above; else white at 0, black at the limit.
        ramp: colours from least to most, else DIVERGING or SEQUENTIAL.
        framed: a column of truths: which heads have a frame.
        columns: how many maps stand side by side, with their names above; 0: names stand to the left.
        axes: whether every layer and head has its number, with the words *layer* and *head*.
        subsets: what colours mean, words → colour, where the colours of cells stand in a column ``colour``.
    """
    closed, high = f"!isValid({alt.datum[value]})", int(frame["layer"].max())
    rows = frame[[c for c in ("name", "layer", "head", value, "colour", framed) if c in frame]]
    bare: dict[str, Any] = {"ticks": False, "domain": False, "labelAngle": 0}
    upright = alt.Axis(**bare) if axes else alt.Axis(**bare, values=sorted({1, high}))
    base = alt.Chart(data(rows)).encode(
        alt.X("head:O", title="head" if axes else None, axis=alt.Axis(orient="top", **bare) if axes else None),
        alt.Y("layer:O", title="layer" if axes else None, axis=upright),
    )
    above: dict[str, Any] = {"orient": "bottom", "title": heading.split("\n") if heading else None}
    if subsets is None:
        magnitudes = frame[value].abs().dropna()
        limit_value = limit or (float(magnitudes.quantile(0.98)) if len(magnitudes) else 0.0) or 1.0
        layers = [_by_value(base, value, limit_value, diverging, ramp, above)]
    else:
        layers = _by_subset(base, subsets, {**above, "columns": 4 if columns else 2})
    if framed:
        layers.append(base.transform_filter(alt.datum[framed]).mark_rect(filled=False, stroke=FRAME, strokeWidth=2))
    layers.append(base.transform_filter(closed).mark_rect(fill="#ffffff", **BOX))
    dashes = base.transform_filter(closed).mark_rule(strokeWidth=1, color=RULE)
    layers.append(dashes.encode(alt.X("head:O", bandPosition=0.25), alt.X2("head:O", bandPosition=0.75)))
    layered = alt.layer(*layers).properties(width=int(frame["head"].max()) * cell, height=high * cell)
    return _by_name(layered, list(frame["name"].cat.categories), title, words, columns, axes)


BOX: dict[str, Any] = {"stroke": RULE, "strokeWidth": 1}
"""The edge of a cell."""


def _by_value(
    base: alt.Chart, value: str, limit_value: float, diverging: bool, ramp: Sequence[str], above: Mapping[str, Any]
) -> alt.Chart:
    """Cells in colours from 0, or from −most, to ``limit_value``; ``above``: of the legend."""
    colours = list(ramp or (DIVERGING if diverging else SEQUENTIAL))
    scale = alt.Scale(
        domain=[-limit_value, 0, limit_value] if diverging else [0, limit_value],
        range=colours,
        clamp=True,
        interpolate="rgb",
    )
    legend = alt.Legend(**above, format=".2~g", gradientStrokeColor=RULE, gradientStrokeWidth=1)
    return base.mark_rect(**BOX).encode(alt.Color(f"{_field(value)}:Q", scale=scale, legend=legend))


def _by_subset(base: alt.Chart, subsets: Mapping[str, str], above: Mapping[str, Any]) -> list[alt.Chart]:
    """Cells in colours of their own, and below them an invisible layer whose legend says what colours mean."""
    keys = alt.Legend(**above, symbolType="square", symbolOpacity=1, symbolSize=160)
    keys.symbolStrokeColor, keys.symbolStrokeWidth = RULE, 1
    scale = alt.Scale(domain=list(subsets), range=list(subsets.values()))
    key = base.mark_rect(opacity=0).encode(alt.Fill("subset:N", scale=scale, legend=keys))
    return [key, base.mark_rect(**BOX).encode(alt.Color("colour:N", scale=None))]


def _by_name(layered: Any, names: list[str], title: str, words: bool, columns: int, axes: bool) -> Any:
    """A map for each name: below each other with their names to the left, or so many ``columns`` with names above."""
    if not columns:
        place: dict[str, Any] = {"labelAngle": 0, "labelAlign": "left", "labelOrient": "left", "labelAnchor": "middle"}
        header = alt.Header(title=None, labels=words, **place)
        return layered.facet(row=alt.Row("name:N", sort=names, header=header), spacing=14, title=title)
    header = alt.Header(title=None, labels=words, labelAnchor="start", labelOrient="top")
    header.labelExpr = r"split(datum.label, '\n')"
    spacing = alt.RowColnumber(row=14, column=28)
    facet = alt.Facet("name:N", sort=names, header=header)
    maps = layered.facet(facet=facet, columns=columns, title=title, spacing=spacing)
    return maps.resolve_axis(x="independent", y="independent") if axes else maps


def cells(
    frame: pd.DataFrame,
    x: str,
    y: str,
    domain: tuple[float, float],
    *,
    title: str = "",
    size: tuple[int, int] = (34, 18),
) -> alt.LayerChart | alt.FacetChart:
    """A table in colours: a rectangle for each row of the frame, grey where its ``value`` is NaN, with its ``words``.

    Args:
        x, y: columns: the names above and at the left, in the order in which they come.
        domain: values at which the colour is palest and darkest; blue below 0, red above, where it begins below 0.
    """
    low, high = domain
    high = high if high > low else low + 1
    above, rows_of_cells = (list(dict.fromkeys(frame[name].tolist())) for name in (x, y))
    upright = 6 * max(len(str(name)) for name in above) > size[0]
    top = alt.Axis(title=None, orient="top", labelAngle=-90 if upright else 0, domain=False)
    ends = [low, 0.0, high] if low < 0 else [low, high]
    ramp = DIVERGING if low < 0 else _BLUES
    frame = frame.assign(ink=[_ink(value, ends, ramp) for value in frame["value"]])
    base = alt.Chart(data(frame[[x, y, "value", "words", "ink"]]), title=title).encode(
        alt.X(f"{_field(x)}:O", scale=alt.Scale(domain=above), axis=top),
        alt.Y(f"{_field(y)}:O", scale=alt.Scale(domain=rows_of_cells), axis=alt.Axis(title=None, domain=False)),
    )
    stops = alt.Scale(domain=ends, range=list(ramp), clamp=True, interpolate="rgb")
    colour = alt.Color("value:Q", scale=stops, legend=None)
    filled = base.mark_rect(stroke=RULE, strokeWidth=1).encode(color=colour)
    unknown = f"!isValid({alt.datum['value']})"
    empty = base.transform_filter(unknown).mark_rect(stroke=RULE, strokeWidth=1, fill=PALE)
    light = alt.condition(alt.datum["ink"] == WHITE, alt.value(WHITE), alt.value(BLACK))
    written = base.mark_text().encode(text="words:N", color=light)
    return alt.layer(filled, empty, written).properties(width=size[0] * len(above), height=size[1] * len(rows_of_cells))


def _ink(value: float, ends: Sequence[float], ramp: Sequence[str]) -> str:
    """Black or white, whichever stands out from the colour of a cell: one of them has a contrast of 4.5 or more."""
    channels = np.array([ImageColor.getrgb(colour)[:3] for colour in ramp]) / 255
    # A cell without a value (NaN) is pale, so its text is black.
    mixed = np.array([np.interp(value, ends, channel) for channel in channels.T])
    linear = np.where(mixed <= 0.04045, mixed / 12.92, ((mixed + 0.055) / 1.055) ** 2.4)
    return WHITE if linear @ (0.2126, 0.7152, 0.0722) < 0.179 else BLACK


def matrix(
    frame: pd.DataFrame, x: str, y: str, starred: pd.Series, outlined: pd.Series, unit: str, bound: float = 0.0
) -> alt.LayerChart | alt.FacetChart:
    """`cells` of differences from 0, with their numbers, a star where ``starred``, pale elsewhere, and a colour bar.

    Args:
        bound: the least value of the darkest colour, so that small differences do not look large.
    """
    digits, bound = (1 if bound > 1 else 2), max(bound, float(frame["value"].abs().max()))
    marks = zip(frame["value"], starred, strict=True)
    words = [number(value, digits) + "*" * bool(star) for value, star in marks]
    faint = frame["value"].where(starred, 0.2 * frame["value"])
    chart = cells(frame.assign(words=words, value=faint), x, y, (-bound, bound), size=(60, 30))
    filled = chart.layer[0].encoding
    filled.color.legend = alt.Legend(title=unit, orient="bottom", direction="horizontal", gradientLength=160)
    frames = alt.Chart(data(frame.loc[outlined, [x, y]])).mark_rect(filled=False, stroke=INK, strokeWidth=2.5)
    chart.layer.append(frames.encode(filled.x, filled.y))
    return chart


def panels(charts: Sequence[Any], columns: int, spacing: int = 18) -> alt.ConcatChart:
    """Panels with axes of their own, side by side and one below the other, with one legend. At most ``columns`` stand
    side by side: fewer where words would be smaller than MIN_FONT_SIZE on a PAGE."""
    widths = [getattr(chart, "spec", chart)._get("width", alt.Undefined) for chart in charts]
    widest = max((width for width in widths if isinstance(width, int)), default=0) + AXIS
    fitting = max(1, int(PAGE * PLAIN.font_size / MIN_FONT_SIZE // widest))
    return alt.concat(*charts, columns=min(columns, len(charts), fitting), spacing=spacing)


def _field(name: str) -> str:
    """A column as Vega names it: what would be a path or a shorthand is escaped."""
    return re.sub(r"([.\[\]:])", r"\\\1", name)


# -- whole figures -----------------------------------------------------------------------------------------------------


def figure(chart: Any, title: str = "", explained: Sequence[str] = ()) -> Spec:
    """The specification of a figure, with its title and what it shows in a line or two above."""
    spec: Spec = _readable(chart.to_dict(validate=False))  # checking against the schema takes longer than making it
    if title:
        spec["title"] = {"text": title, "subtitle": list(explained)}
    return spec


def _readable(part: Any) -> Any:
    """Words without signs that are not seen or that no file can hold."""
    if isinstance(part, Mapping):
        return {key: _readable(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_readable(value) for value in part]
    return printable_lines(part) if isinstance(part, str) else part


def series_in_words(spec: Spec) -> str:
    """Sentences on a figure for those who do not see it: its panels, axes, series, rows and columns by name, and which
    of its values it marks (a full dot, a star, the colour of what stands out, an interval that leaves out 0)."""
    titles = re.findall(r'"title": "([^"]+)"', json.dumps(spec, ensure_ascii=False))
    titles_by_key: dict[str, list[str]] = {"title": titles}
    marks: dict[str, bool] = {}
    for row in itertools.chain(*spec.get("datasets", {}).values()):
        words = {key: value for key, value in row.items() if isinstance(value, str) and key not in NAMELESS}
        for key, value in words.items():
            titles_by_key.setdefault(key, []).append(value)
        if (significance := _marked(row)) is not None:
            marks[" ".join([*words.values(), row.get("words") or number(row["value"])])] = significance
    shown_text, significant = (
        map(_list_names, titles_by_key.values()),
        _list_names([words for words, is_significant in marks.items() if is_significant]),
    )
    return f" Shown: {'; '.join(filter(None, shown_text))}." + f" Significant: {significant or 'none'}." * bool(marks)


NAMELESS, MAX_NAMES_LISTED = ("words", "ink", "fill", "colour", "mode", "place", "at"), 24
"""Columns of words that name nothing; how many names a text alternative lists."""


def _list_names(names: Iterable[str]) -> str:
    unique_names = list(dict.fromkeys(filter(None, names)))
    return "; ".join(unique_names[:MAX_NAMES_LISTED]) + f" and {len(unique_names) - MAX_NAMES_LISTED} more" * (
        len(unique_names) > MAX_NAMES_LISTED
    )


def _marked(row: Mapping[str, Any]) -> bool | None:
    """Whether a figure marks a value as significant; None where nothing in it is tested."""
    if keys := {"is_significant", "beyond"} & row.keys():
        return bool(row[keys.pop()])
    low, high = row.get("low"), row.get("high")
    if low is not None and high is not None and "value" in row:
        return bool(low > 0 or high < 0)
    return True if str(row.get("words", "")).endswith("*") else None


def config(font_size: float) -> Spec:
    """Vega-Lite's ``config``: ink, rules and sizes of words."""
    small = {"labelFontSize": font_size, "titleFontSize": font_size, "labelColor": INK, "titleColor": SOFT}
    thin = {"labelFontWeight": "normal", "titleFontWeight": "normal", "labelLimit": 0, "titleLimit": 0}
    return {
        "aria": False,  # the picture as a whole says what it shows
        "font": "sans-serif",
        "background": "#ffffff",
        "view": {"stroke": None},
        "concat": {"spacing": 24},
        "padding": 16,
        "axis": {
            **small,
            **thin,
            "gridColor": PALE,
            "domainColor": RULE,
            "ticks": False,
            "labelPadding": 6,
            "titlePadding": 0.6 * font_size,
            "labelFlush": False,
        },
        "legend": {**small, **thin, "columnPadding": 16, "offset": 16, "gradientLength": max(120, 7.5 * font_size)},
        "header": {**small, **thin, "labelPadding": 14},
        "text": {"fontSize": font_size},
        "line": {"strokeWidth": 1.6},
        "title": {
            "anchor": "start",
            "frame": "group",
            "fontSize": font_size + 1,
            "fontWeight": "normal",
            "color": INK,
            "subtitleColor": SOFT,
            "subtitleFontSize": font_size,
            "subtitleLineHeight": font_size * 1.45,
            "subtitlePadding": 6,
        },
    }


def render(spec: Spec, kind: str, style: Style = PLAIN) -> bytes:
    """A figure as a file: one of FORMATS. Same specification, same bytes. Raises ChartError: ``style.width`` leaves too
    little for its panels."""
    text = svg(spec, style)
    if kind == "svg":
        return text.encode()
    return paint("svg_to_pdf", text) if kind == "pdf" else png(text, SCALE)


def png(text: str, scale: float, colours: int = 0) -> bytes:
    """An SVG as a PNG, packed to a third of Vega's bytes; with at most so many ``colours`` to a third of that."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(paint("svg_to_png", text, scale=scale))) as picture:
        plain = picture.convert("RGB")
        plain = plain.quantize(colours, dither=Image.Dither.NONE) if colours else plain
        plain.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def svg(spec: Spec, style: Style = PLAIN) -> str:
    """A figure as SVG. For a width it is drawn with larger words and shown smaller, so that they come out at about the
    size that was asked for: exactly would take a search, because words take room of their own."""
    natural = _draw_svg(json.dumps(_styled(spec, style)))
    if style.width is None:
        return natural
    target_width = style.width * POINT
    zoom = target_width / drawn_size(natural)[0]
    columns, rows_are_whole = spec.get("columns", 1), any("facet" in part for part in spec.get("concat", ()))
    if zoom < MIN_ZOOM and columns > 1 and not rows_are_whole:  # maps beside each other belong together
        return svg({**spec, "columns": columns - 1}, style)
    if zoom < MIN_COLUMN:
        raise ChartError(
            f"--width {style.width:g}: with words of {style.font_size:g} points this figure does not fit into this "
            "width; give a larger width"
        )
    text = _draw_svg(json.dumps(_styled(spec, style, style.font_size / zoom)))
    width, height = drawn_size(text)
    size = f'width="{target_width:.2f}" height="{height * target_width / width:.2f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}">{text}</svg>'


def notebook(spec: Spec) -> str:
    """A figure as HTML for a notebook, on white in a dark one too; what scrolls there is the figure alone."""
    return f'<div style="background: #fff; overflow-x: auto">{svg(spec)}</div>'


def _styled(spec: Spec, style: Style = PLAIN, font_size: float | None = None) -> Spec:
    """The specification with the look of a style, or of its words in another size."""
    size = font_size or style.font_size
    parts = {key: value for key, value in spec.items() if key != "title" or style.title}
    if isinstance(parts.get("title"), dict):
        letters = int(style.width * POINT / (0.6 * style.font_size)) if style.width else _SUBTITLE
        subtitle = [part for line in parts["title"]["subtitle"] for part in textwrap.wrap(line, letters)]
        look = {"subtitle": subtitle, "frame": "bounds", "fontSize": size + 6, "offset": 14}
        parts["title"] = parts["title"] | look
    return {**_with_broken_titles(parts, size), "config": config(size)}


def _with_broken_titles(part: Any, font_size: float) -> Any:
    """A part of a specification, the titles of its panels in lines no wider than the panel."""
    if isinstance(part, list):
        return [_with_broken_titles(child, font_size) for child in part]
    if not isinstance(part, Mapping):
        return part
    unchanged_keys = ("data", "datasets", "encoding")
    wrapped = {
        key: value if key in unchanged_keys else _with_broken_titles(value, font_size) for key, value in part.items()
    }
    width = part.get("width") or part.get("spec", {}).get("width")
    if width and isinstance(part.get("title"), str):
        wrapped["title"] = textwrap.wrap(part["title"], max(8, int(width / (0.5 * font_size))))
    return wrapped


_SIZE = re.compile(r'<svg [^>]*?\bwidth="([\d.]+)" height="([\d.]+)"')
_ID = re.compile(r'(?<=["#])(?:clip|gradient_)\d+(?=[")])')


@functools.lru_cache(4)  # PNG and PDF are made from it, too
def _draw_svg(spec: str) -> str:
    """Vega's SVG of a specification as JSON, with ids that depend on it alone: Vega counts all that a process drew."""
    prefix = hashlib.sha256(spec.encode()).hexdigest()[:8]
    names: dict[str, str] = {}
    svg = paint("vegalite_to_svg", spec).decode()
    return _ID.sub(lambda name: names.setdefault(name[0], f"c{prefix}{len(names)}"), svg)


def drawn_size(text: str) -> tuple[float, float]:
    """Width and height of an SVG of ``svg``."""
    size = _SIZE.search(text)
    assert size is not None
    return float(size[1]), float(size[2])
