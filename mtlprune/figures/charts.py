"""Charts as declarative specifications (Altair, Vega-Lite), which are drawn as PNG, SVG and PDF without a browser.

    chart = panels([lines(frame, "layer", "cosine", title="CosSim"), ...], columns=3)
    spec = figure(chart, "How alike tokens are", ["Means over 1,000 sentences."])
    render(spec, "pdf", Style(width=16.0, font_size=8, title=False))

The views of analyses use the functions of this file, and the HTML report shows the same specifications. Data frames
have a column ``name``, an ordered categorical that names the line or the map to which a row belongs.
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
"""Colour of each task in all figures. The first four are those of Okabe and Ito (2008)."""
OTHER_HUES = ("#ff004b", "#5a783c", "#9678ff", "#d200b4", "#a54b87", "#78787e")
"""Colours of further tasks, and of lines that belong to no task. Colour-blind readers can distinguish the five tasks
and three of these colours. All hues have a contrast of at least 3 on the white and on the dark page, so that a mark has
the same colour on both."""
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
"""Shapes of the points of names that share a colour, such as the seeds of a task."""
INK, SOFT, RULE, PALE = "#1c1c1e", "#626268", "#a8a8ac", "#dedee2"
"""Colours of text, of less important text, of lines, and of grids and empty cells."""
_FRAME = "#d55e00"
"""Colour of frames around highlighted cells: vermilion (Okabe and Ito 2008), visible on black, white, blue and red."""
ABOVE = "#2166ac"
"""Colour of marks that exceed a reference: the blue of DIVERGING."""
SEQUENTIAL = WHITE, BLACK = "#ffffff", "#000000"
_BLUES = ["#ffffff", "#084594"]
DIVERGING = ("#2166ac", "#ffffff", "#b2182b")
"""Colours of values below 0, at 0 and above 0: the blue and the red of ColorBrewer's RdBu, which are equally dark."""
WIDTH, HEIGHT, CELL, _ROOM = 232, 168, 15, 8
"""Pixels: inner width and height of a panel, side of a cell in a map of heads, and the space between data and the ends
of an axis."""
MAX_FOREST_ROWS = 12
"""The largest number of rows of a forest plot. Tables show all rows."""
PAGE, MIN_FONT_SIZE, _AXIS = 900, 8, 72
"""Pixels: the width of the narrowest page for which figures are made, the size of the smallest text on this page, and
the width of a panel's axis."""
FORMATS = ("png", "svg", "pdf")
_SCALE = 2
"""Pixels of a PNG for each pixel of the chart, in each direction."""
_MIN_ZOOM, _MIN_COLUMN = 0.4, 0.2
"""The zoom below which a figure gets fewer columns of panels, and the zoom below which it is refused."""
_SUBTITLE = 80
"""The number of characters in a line below a title, for figures without a requested width."""
POINT = 72 / 2.54
"""Typographic points in a centimetre."""
Spec = dict[str, Any]
"""A specification of Vega-Lite as nested dictionaries."""


class ChartError(RunError):
    """A figure cannot be drawn as requested; the message says why and what to do."""


AnyChart = alt.TopLevelMixin
"""The base class of all of Altair's charts: single, layered, faceted and concatenated."""


class Chart(NamedTuple):
    """A figure of an analysis.

    Attributes:
        make: function from a Result to the specification of the figure, or to None if there is nothing to show.
        alt: text alternative for readers who do not see the figure.
        caption: the caption.
    """

    make: Callable[[Any], Spec | None]
    alt: str
    caption: str


class Drawing(NamedTuple):
    """The chart of a declared figure, and the values for the braces in its title and explanation."""

    chart: AnyChart
    words: Mapping[str, Any]


@dataclass(frozen=True)
class Style:
    """The style of a figure.

    Attributes:
        width: width of the whole figure in centimetres; None for the natural width.
        font_size: size of all text except titles, in points.
        title: whether title and explanation are above the figure. Figures of a paper have captions instead.
    """

    width: float | None = None
    font_size: float = 11
    title: bool = True


PLAIN = Style()

# -- parts -------------------------------------------------------------------------------------------------------------


class _Rows(alt.InlineData):
    """Data of a chart that are not copied with the chart. Every method of a chart copies the chart, but no method
    changes the rows, so that all copies can share them."""

    def __deepcopy__(self, _memo: Any) -> "_Rows":
        return self


def data(frame: pd.DataFrame) -> alt.InlineData:
    """Return a frame as inline data of a chart, with decimals rounded to five significant digits and NaN as null.

    Inline data have no limit of rows, unlike data frames in Altair.
    """
    # Validation of every row against the schema of Vega-Lite would take longer than making the chart.
    with schemapi.debug_mode(False):
        return _Rows(values=plain(frame.to_dict("records"), 5))


def task_colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name. A name that begins with the name of a task, in any case, has the colour of this
    task, and other names have the colours in OTHER_HUES in turn. The seeds of a label share a colour."""
    free, of_label = itertools.cycle(OTHER_HUES), dict[str, str]()
    for label in (_SEED.sub("", name) for name in names):
        task = re.split(r"[ ,:(]", label.lower(), maxsplit=1)[0]
        of_label[label] = of_label.get(label) or TASK_HUES.get(task) or next(free)
    return {name: of_label[_SEED.sub("", name)] for name in names}


_SEED = re.compile(r", seed [^ ,(]+")


def colours(
    frame: pd.DataFrame, dashed: str | None = None, symbol: str = "stroke", kinds: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return encodings that show the column ``name`` by colour, dash and shape of points, with one legend below.

    Hues are those of ``task_colours``. Names with the same hue and dash have different shapes. The legend lists only
    names that occur in the frame.

    Args:
        frame: the rows, with the categorical column ``name``.
        dashed: a boolean column, which is true in the rows of names with dashed lines.
        symbol: symbol of the legend: ``stroke`` for lines, or a shape.
        kinds: name → number. Names with the same number share a hue of OTHER_HUES, instead of the hue of their task.
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
    # A legend would take over the opacity of a pale band, whose colour could not be told from others.
    legend = alt.Legend(orient="bottom", columns=columns, title=None, symbolType=symbol, symbolOpacity=1)
    legend.symbolSize = 300 if strokes else 60
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
    log_axis: bool = False,
    dashed: str | None = None,
    look: Mapping[str, Any] | None = None,
) -> alt.Chart:
    """Return a panel with a line for each ``name``.

    Args:
        frame: the rows, with the categorical column ``name``.
        x, y: columns of the horizontal and the vertical axis.
        title: title of the panel.
        x_title, y_title: titles of the axes; the names of the columns if not given.
        zero: whether the vertical axis includes 0.
        integer_axis: whether x holds whole numbers, such as layers, so that only whole numbers have ticks.
        log_axis: whether the horizontal axis is logarithmic.
        dashed: a boolean column, which is true in the rows of names with dashed lines.
        look: encodings from ``colours`` for the rows of all panels, if the panels have different names.
    """
    points = frame.dropna(subset=[y])
    size = 22 if points["name"].value_counts().max() < 20 else 8  # small points if a line has many
    x_axis = alt.Axis(grid=False, tickMinStep=1, tickCount=6, format="d") if integer_axis else alt.Axis(grid=False)
    x_scale = alt.Scale(type="log", nice=False) if log_axis else alt.Scale(nice=False, zero=False)
    return (
        alt.Chart(data(points[["name", x, y]]), title=title, width=WIDTH, height=HEIGHT)
        .mark_line(point=alt.OverlayMarkDef(size=size, filled=True, strokeDash=[1, 0]))
        .encode(
            alt.X(f"{_field(x)}:Q", title=x_title or x, axis=x_axis, scale=x_scale),
            alt.Y(f"{_field(y)}:Q", title=y_title or y, scale=alt.Scale(zero=zero, nice=False, padding=_ROOM)),
            **(look or colours(frame, dashed)),
        )
    )


def seeds_behind(frame: pd.DataFrame, x: str, y: str, colour: alt.Color) -> alt.Chart:
    """Return a layer of small dots for a panel of lines, which show the seeds whose means the lines are."""
    seed_points = alt.Chart(data(frame[["name", x, y]])).mark_circle(size=7, opacity=0.9)
    return seed_points.encode(alt.X(f"{_field(x)}:Q"), alt.Y(f"{_field(y)}:Q"), colour)


def band(
    frame: pd.DataFrame, x: str, low: str, high: str, y_title: str, look: Mapping[str, Any] | None = None
) -> alt.Chart:
    """Return a pale area between two columns, as the bottom layer of a panel of lines whose vertical axis has the title
    ``y_title``.

    Args:
        frame: the rows.
        x, low, high: columns of the horizontal axis and of the lower and upper edge.
        y_title: title of the vertical axis.
        look: encodings from ``colours``; with them there is a transparent area for each ``name`` in its colour.
    """
    colour = {} if look is None else {"color": look["color"]}
    area = alt.Chart(data(frame[[x, low, high, *(["name"] if colour else [])]]))
    area = area.mark_area(opacity=0.2) if colour else area.mark_area(color=PALE)
    return area.encode(
        alt.X(f"{_field(x)}:Q"), alt.Y(f"{_field(low)}:Q", title=y_title), alt.Y2(f"{_field(high)}:Q"), **colour
    )


def dots(
    frame: pd.DataFrame, x: str, y: str, look: Spec, *, title: str = "", x_title: str = "", y_title: str = ""
) -> alt.Chart:
    """Return a panel with a dot for each row of the frame. ``look``: encodings from ``colours``."""
    return (
        alt.Chart(data(frame), title=title, width=WIDTH, height=HEIGHT)
        .mark_point(size=12 if len(frame) > 60 else 24, opacity=0.8, filled=True, strokeWidth=0)
        .encode(
            alt.X(
                f"{_field(x)}:Q",
                title=x_title,
                axis=alt.Axis(grid=False, tickCount=5),
                scale=alt.Scale(zero=False, nice=False, padding=_ROOM),
            ),
            alt.Y(f"{_field(y)}:Q", title=y_title, scale=alt.Scale(zero=False, nice=False, padding=_ROOM)),
            **{key: encoding for key, encoding in look.items() if key != "strokeDash"},
        )
    )


def mark(x: float | None = None, y: float | None = None) -> alt.Chart:
    """Return a layer with a dashed vertical line at ``x``, or with a solid horizontal line at ``y``."""
    if y is not None:
        rule = alt.Chart(alt.InlineData(values=[{"y": y}])).mark_rule(color=RULE, strokeWidth=1.2)
        return rule.encode(alt.Y("y:Q"))
    rule = alt.Chart(alt.InlineData(values=[{"x": x}])).mark_rule(strokeDash=[5, 3], color=SOFT, strokeWidth=1.2)
    return rule.encode(alt.X("x:Q"))


class Interval(NamedTuple):
    """A row of a forest plot: an estimate with its interval, whose ends are NaN if it was not computed."""

    name: str
    value: float
    low: float
    high: float
    is_significant: bool
    words: str
    """The estimate with all that is known of it in words, for text alternatives."""


def forest(
    intervals: Sequence[Interval], *, title: str = "", x_title: str = "", width: int = WIDTH, cut: bool = True
) -> Any:
    """Draw a forest plot of the first MAX_FOREST_ROWS differences, each as a dot with its interval and name.

    A dot is filled if the difference is significant. The horizontal axis includes 0, all values, and all intervals.
    With ``cut``, it includes only intervals up to four times as wide as the median interval, and others are cut off.
    """
    rows = pd.DataFrame(intervals[:MAX_FOREST_ROWS])
    with_interval = rows.dropna(subset=["low", "high"])
    wide = with_interval["high"] - with_interval["low"]
    usual_rows = (
        with_interval[wide <= 4 * wide.sort_values().iloc[len(wide) // 2]]
        if cut and len(with_interval)
        else with_interval
    )
    ends = [0.0, *rows["value"], *usual_rows["low"], *usual_rows["high"]]
    domain = [min(ends), max(ends)] if max(ends) > min(ends) else [-1, 1]
    scale = alt.Scale(domain=domain, nice=5, padding=_ROOM if min(domain) < 0 else 0)  # counts begin at 0, not below
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
    """Return a frame whose column ``name`` combines encoder and task, such as ``MTL-5: POS``, in the order of rows."""
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
    """Draw a map of heads for each ``name``: layers are rows, with layer 1 at the top, and heads are columns. Heads
    whose value is NaN have a dash.

    Args:
        frame: a row for each name, layer and head, with layers and heads counted from 1.
        value: column that the colours show.
        title: title above the maps.
        limit: absolute value at which the colour is darkest. If None, it is the 98th percentile of absolute values, so
            that a single extreme head does not make all others pale.
        diverging: whether values below 0 are blue and values above 0 red. Otherwise 0 is white, and the limit black.
        ramp: colours from the smallest to the largest value; DIVERGING or SEQUENTIAL if not given.
        words: whether the names of the maps are shown.
        framed: a boolean column of the heads that have a frame.
        columns: number of maps in a row, with names above the maps; 0 for maps below each other with names to the left.
        cell: side of a cell in pixels.
        axes: whether all layers and heads have numbers, and the axes the titles *layer* and *head*.
        heading: title of the legend, which may contain line breaks.
        subsets: meaning → colour, as the legend of maps whose cells have the colours in the column ``colour`` instead
            of colours for ``value``.
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
        layers.append(base.transform_filter(alt.datum[framed]).mark_rect(filled=False, stroke=_FRAME, strokeWidth=2))
    layers.append(base.transform_filter(closed).mark_rect(fill="#ffffff", **BOX))
    dashes = base.transform_filter(closed).mark_rule(strokeWidth=1, color=RULE)
    layers.append(dashes.encode(alt.X("head:O", bandPosition=0.25), alt.X2("head:O", bandPosition=0.75)))
    layered = alt.layer(*layers).properties(width=int(frame["head"].max()) * cell, height=high * cell)
    return _by_name(layered, list(frame["name"].cat.categories), title, words, columns, axes)


BOX: dict[str, Any] = {"stroke": RULE, "strokeWidth": 1}
"""Properties of the edge of a cell."""


def _by_value(
    base: alt.Chart, value: str, limit_value: float, diverging: bool, ramp: Sequence[str], above: Mapping[str, Any]
) -> alt.Chart:
    """Draw cells whose colours show a value from 0 (or, if diverging, from −limit) to the limit. ``above``: options of
    the legend."""
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
    """Draw cells with the colours in the column ``colour``, above an invisible layer that gives the chart a legend of
    the colours' meanings. ``above``: options of the legend."""
    keys = alt.Legend(**above, symbolType="square", symbolOpacity=1, symbolSize=160)
    keys.symbolStrokeColor, keys.symbolStrokeWidth = RULE, 1
    scale = alt.Scale(domain=list(subsets), range=list(subsets.values()))
    key = base.mark_rect(opacity=0).encode(alt.Fill("subset:N", scale=scale, legend=keys))
    return [key, base.mark_rect(**BOX).encode(alt.Color("colour:N", scale=None))]


def _by_name(layered: Any, names: list[str], title: str, words: bool, columns: int, axes: bool) -> Any:
    """Arrange a map for each name: below each other with names to the left, or in ``columns`` with names above."""
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
    """Draw a coloured table with a cell for each row of the frame. The colour shows the column ``value`` (grey for
    NaN), and the text is the column ``words``.

    Args:
        frame: the rows, with the columns ``value`` and ``words``.
        x, y: columns with the names at the top and at the left, which keep their order.
        domain: values at the ends of the colour scale. If the lower end is below 0, negative values are blue and
            positive values red; otherwise the scale goes from white to blue.
        title: title of the table.
        size: width and height of a cell in pixels.
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
    """Return black or white, whichever is easier to read on the colour of a cell. One of them always has a contrast of
    at least 4.5. The formula is the relative luminance of WCAG 2."""
    channels = np.array([ImageColor.getrgb(colour)[:3] for colour in ramp]) / 255
    # A cell without a value (NaN) is pale, so its text is black.
    mixed = np.array([np.interp(value, ends, channel) for channel in channels.T])
    linear = np.where(mixed <= 0.04045, mixed / 12.92, ((mixed + 0.055) / 1.055) ** 2.4)
    return WHITE if linear @ (0.2126, 0.7152, 0.0722) < 0.179 else BLACK


def matrix(
    frame: pd.DataFrame, x: str, y: str, starred: pd.Series, outlined: pd.Series, unit: str, bound: float = 0.0
) -> alt.LayerChart | alt.FacetChart:
    """Draw a table of differences by means of `cells`, with the numbers as text and a colour bar below.

    Args:
        frame: the rows, with the column ``value``.
        x, y: columns with the names at the top and at the left.
        starred: for each row, whether the number has a star. The cells of the other rows have a pale colour.
        outlined: for each row, whether the cell has a dark frame.
        unit: title of the colour bar.
        bound: lower bound of the value with the darkest colour, so that small differences do not look large.
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
    """Arrange panels with independent axes and one common legend in rows of ``columns`` panels. The rows are shorter if
    text would otherwise be smaller than MIN_FONT_SIZE on a page of the width PAGE."""
    widths = [getattr(chart, "spec", chart)._get("width", alt.Undefined) for chart in charts]
    widest = max((width for width in widths if isinstance(width, int)), default=0) + _AXIS
    fitting = max(1, int(PAGE * PLAIN.font_size / MIN_FONT_SIZE // widest))
    return alt.concat(*charts, columns=min(columns, len(charts), fitting), spacing=spacing)


def _field(name: str) -> str:
    """Escape the characters in the name of a column that Vega-Lite would read as a path or a type."""
    return re.sub(r"([.\[\]:])", r"\\\1", name)


# -- whole figures -----------------------------------------------------------------------------------------------------


def figure(chart: Any, title: str = "", explained: Sequence[str] = ()) -> Spec:
    """Return the specification of a figure, with its title and the sentences of ``explained`` above the chart."""
    spec: Spec = _readable(chart.to_dict(validate=False))  # validation would take longer than making the chart
    if title:
        spec["title"] = {"text": title, "subtitle": list(explained)}
    return spec


def _readable(part: Any) -> Any:
    """Remove characters that are invisible or cannot be written to a file from all text of a specification."""
    if isinstance(part, Mapping):
        return {key: _readable(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_readable(value) for value in part]
    return printable_lines(part) if isinstance(part, str) else part


def series_in_words(spec: Spec) -> str:
    """Describe a figure in sentences for readers who do not see it.

    The sentences list the names of panels, axes, series, rows and columns, and the values that the figure marks as
    significant (by a filled dot, a star, a colour, or an interval that excludes 0).
    """
    titles = re.findall(r'"title": "([^"]+)"', json.dumps(spec, ensure_ascii=False))
    titles_by_key: dict[str, list[str]] = {"title": titles}
    marks: dict[str, bool] = {}
    for row in itertools.chain(*spec.get("datasets", {}).values()):
        words = {key: value for key, value in row.items() if isinstance(value, str) and key not in _NAMELESS}
        for key, value in words.items():
            titles_by_key.setdefault(key, []).append(value)
        if (significance := _marked(row)) is not None:
            marks[" ".join([*words.values(), row.get("words") or number(row["value"])])] = significance
    shown_text, significant = (
        map(_list_names, titles_by_key.values()),
        _list_names([words for words, is_significant in marks.items() if is_significant]),
    )
    return f" Shown: {'; '.join(filter(None, shown_text))}." + f" Significant: {significant or 'none'}." * bool(marks)


_NAMELESS, _MAX_NAMES_LISTED = ("words", "ink", "fill", "colour", "mode", "place", "at"), 24
"""Text columns of a chart's data that hold no names, and the number of names that a text alternative lists."""


def _list_names(names: Iterable[str]) -> str:
    unique_names = list(dict.fromkeys(filter(None, names)))
    return "; ".join(unique_names[:_MAX_NAMES_LISTED]) + f" and {len(unique_names) - _MAX_NAMES_LISTED} more" * (
        len(unique_names) > _MAX_NAMES_LISTED
    )


def _marked(row: Mapping[str, Any]) -> bool | None:
    """Return whether a figure marks a row of its data as significant, or None if the row has no tested value."""
    if keys := {"is_significant", "beyond"} & row.keys():
        return bool(row[keys.pop()])
    low, high = row.get("low"), row.get("high")
    if low is not None and high is not None and "value" in row:
        return bool(low > 0 or high < 0)
    return True if str(row.get("words", "")).endswith("*") else None


def config(font_size: float) -> Spec:
    """Return the ``config`` of a specification for Vega-Lite: colours, lines and text sizes of all figures."""
    small = {"labelFontSize": font_size, "titleFontSize": font_size, "labelColor": INK, "titleColor": SOFT}
    thin = {"labelFontWeight": "normal", "titleFontWeight": "normal", "labelLimit": 0, "titleLimit": 0}
    return {
        "aria": False,  # the whole picture has one text alternative
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
    """Draw a figure as the content of a file. The same specification always gives the same bytes.

    Args:
        spec: specification from ``figure``.
        kind: one of FORMATS.
        style: style of the figure.

    Raises:
        ChartError: ``style.width`` is too small for the panels.
    """
    text = svg(spec, style)
    if kind == "svg":
        return text.encode()
    return paint("svg_to_pdf", text) if kind == "pdf" else png(text, _SCALE)


def png(text: str, scale: float, colours: int = 0) -> bytes:
    """Convert an SVG to a PNG.

    The PNG has a third of the bytes that Vega would write. A reduction to a palette of ``colours`` colours (0 for no
    reduction) makes it another three times as small. ``scale``: pixels of the PNG for each pixel of the SVG.
    """
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(paint("svg_to_png", text, scale=scale))) as picture:
        plain = picture.convert("RGB")
        plain = plain.quantize(colours, dither=Image.Dither.NONE) if colours else plain
        plain.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def svg(spec: Spec, style: Style = PLAIN) -> str:
    """Draw a figure as SVG.

    For a requested width, the figure is drawn with larger text and then scaled down, so that the text has about the
    requested size. An exact size would need a search, because the size of the text changes the size of the figure.

    Raises:
        ChartError: ``style.width`` is too small for the panels.
    """
    natural = _draw_svg(json.dumps(_styled(spec, style)))
    if style.width is None:
        return natural
    target_width = style.width * POINT
    zoom = target_width / drawn_size(natural)[0]
    columns, rows_are_whole = spec.get("columns", 1), any("facet" in part for part in spec.get("concat", ()))
    # A figure of maps keeps its columns, because the maps of a row belong together.
    if zoom < _MIN_ZOOM and columns > 1 and not rows_are_whole:
        return svg({**spec, "columns": columns - 1}, style)
    if zoom < _MIN_COLUMN:
        raise ChartError(
            f"--width {style.width:g}: with words of {style.font_size:g} points this figure does not fit into this "
            "width; give a larger width"
        )
    text = _draw_svg(json.dumps(_styled(spec, style, style.font_size / zoom)))
    width, height = drawn_size(text)
    size = f'width="{target_width:.2f}" height="{height * target_width / width:.2f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}">{text}</svg>'


def notebook(spec: Spec) -> str:
    """Return a figure as HTML for a notebook, on white also in dark mode. If the figure is too wide, only the figure
    scrolls."""
    return f'<div style="background: #fff; overflow-x: auto">{svg(spec)}</div>'


def _styled(spec: Spec, style: Style = PLAIN, font_size: float | None = None) -> Spec:
    """Return the specification with the properties of a style. ``font_size`` replaces that of the style."""
    size = font_size or style.font_size
    parts = {key: value for key, value in spec.items() if key != "title" or style.title}
    if isinstance(parts.get("title"), dict):
        letters = int(style.width * POINT / (0.6 * style.font_size)) if style.width else _SUBTITLE
        subtitle = [part for line in parts["title"]["subtitle"] for part in textwrap.wrap(line, letters)]
        look = {"subtitle": subtitle, "frame": "bounds", "fontSize": size + 6, "offset": 14}
        parts["title"] = parts["title"] | look
    return {**_with_broken_titles(parts, size), "config": config(size)}


def _with_broken_titles(part: Any, font_size: float) -> Any:
    """Return a part of a specification in which the titles of panels are wrapped to the width of their panels."""
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


@functools.lru_cache(4)  # PNG and PDF are made from the same SVG
def _draw_svg(spec: str) -> str:
    """Draw a specification, given as JSON, as SVG.

    Vega numbers the ids of clips and gradients over all figures that a process draws. They are replaced by ids that
    depend only on the specification, so that the same specification gives the same bytes.
    """
    prefix = hashlib.sha256(spec.encode()).hexdigest()[:8]
    names: dict[str, str] = {}
    svg = paint("vegalite_to_svg", spec).decode()
    return _ID.sub(lambda name: names.setdefault(name[0], f"c{prefix}{len(names)}"), svg)


def drawn_size(text: str) -> tuple[float, float]:
    """Return the width and height in pixels of an SVG that ``svg`` drew without a requested width."""
    size = _SIZE.search(text)
    assert size is not None
    return float(size[1]), float(size[2])
