"""The parts of the HTML report, and their conversion to HTML by templates.

All text is escaped by the templates, and none before.
"""

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mtlprune import __version__
from mtlprune.errors import printable_lines
from mtlprune.figures import charts
from mtlprune.figures.grid import Grid, Strong, emphasised
from mtlprune.io.files import plain
from mtlprune.reports.analyses import Figure

_SCRIPTS = ("page.js", "tables.js", "gates.js", "heads.js")
_QUESTIONS = {
    "scores": "Does joint training cost points?",
    "claims": "Do tasks claim the same heads?",
    "why": "Is it because they share heads?",
    "know": "Which labels do heads identify?",
    "other": "What else was measured?",
    "runs": "What was run?",
}
"""Anchor of each section of the report → its heading, in the order of the report."""
_TERMS = {
    "STL, MTL-5": "STL is single-task learning, with one task per run. MTL-5 is multi-task learning, with five tasks "
    "in one run.",
    "sampled": "Sampled training is joint training with one task per batch, which is drawn at random, so that it makes "
    "more updates.",
    "claim": "A claim of a run is a head that it keeps open. A claim of a task is a head that most of its runs (seeds) "
    "claim.",
    "π ≥ 0.9": "Heads are stable if at least nine of ten halves of the training data select them.",
    "Φ": "Φ is the agreement of runs on heads, which is 1 for the same heads and 0 at random.",
    "layer depth": "What layer depth explains is the overlap of heads that are drawn at random with the same number in "
    "each layer.",
    "Holm": "p is corrected by Holm's method for the number of differences that answer one question.",
    "filled, hollow": "Filled dots have p < 0.05 after this correction. Hollow dots are no evidence of a difference, "
    "which does not mean that there is no difference.",
    "detectable": "The detectable difference is the smallest one that four of five such studies would find.",
    "2-9": "2-9 is head 9 of layer 2, both counted from 1.",
}
"""Term → its meaning, listed at the end of the report."""
_MIN_SHRINK = 0.72
"""The smallest share of its width to which a chart shrinks and remains legible. On narrower screens, it scrolls."""
_MAX_SVG_BYTES, _PIXEL_RATIO = 60_000, 1.4
"""Size of an SVG above which a chart is embedded as a PNG if that is smaller, and pixels of the PNG for each pixel of
the chart."""
_NUMBERS, _LONG = re.compile(r'\b(?:d|transform|[xy]2?|width|height)="[^"]*"'), re.compile(r"-?\d*\.\d{2,}")
_SIGN = r"[^\s/<>\"'`&,;:|\\()\[\]{}]"
_PATH = re.compile(rf"(?<![\w.~/…<)\]+-])/(?:{_SIGN}+/)+({_SIGN}*)")


@dataclass(frozen=True)
class Part:
    """A part of the report.

    Attributes:
        key: anchor of the part, with lower-case letters and dashes.
        title: heading; "" if the heading of the section suffices.
        holds: values that the template shows.
        question: key of the section to which the part belongs, one of the keys of _QUESTIONS.
        caveats: sentences that a reader must know before relying on the numbers.
        findings: the result in a sentence or two, shown above the rest.
        data: data that the script of the page reads under ``key``.
        template: name of the template, without its ending; the key if not given.
        folded: whether the part is folded until the reader opens it.
    """

    key: str
    title: str
    holds: Mapping[str, Any]
    question: str
    caveats: Sequence[str] = ()
    findings: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""
    folded: bool = False

    @cached_property
    def body(self) -> Markup:
        """The HTML of the part, without its heading, caveats and findings."""
        name = self.template or self.key
        return Markup(_environment().get_template(f"{name}.html").render(self.holds))


def forest_figure(
    rows: Sequence[charts.Interval], title: str, x_title: str, caption: str, width: int = charts.WIDTH
) -> Figure:
    """Draw a forest plot of the first MAX_FOREST_ROWS rows, whose caption refers to the table of all rows if there are
    more. ``width``: inner width of the plot in pixels."""
    if len(rows) > charts.MAX_FOREST_ROWS:
        caption += f" The first {charts.MAX_FOREST_ROWS} of {len(rows)}; the table has all."
    words = "; ".join(interval.words for interval in rows[: charts.MAX_FOREST_ROWS])
    return Figure(charts.figure(charts.forest(rows, x_title=x_title, width=width)), f"{title}. {words}", caption)


def rendered(title: str, first: Any, parts: Sequence[Part], folders: Sequence[Path]) -> str:
    """Return the HTML of the report.

    Args:
        title: title of the report.
        first: values of the template of the first screen; None leaves the first screen out.
        parts: the parts of all sections.
        folders: folders of the runs. Absolute paths below their common parent folder are shown relative to it, and of
            other absolute paths only the last name is shown.
    """
    script = "\n".join(map(_asset, _SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = os.path.commonpath([str(folder.absolute().parent) for folder in folders])
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    sections = {key: [part for part in parts if part.question == key] for key in _QUESTIONS}
    return (
        _environment()
        .get_template("page.html")
        .render(
            policy=policy,
            title=title,
            style=Markup(_asset("page.css")),
            script=Markup(script),
            first=first,
            sections={key: parts_of_section for key, parts_of_section in sections.items() if parts_of_section},
            questions=_QUESTIONS,
            parts=parts,
            terms=list(_TERMS.items()),
            data={part.key: plain(part.data) for part in parts if part.data},
            shared="" if shared == "/" else shared,
            version=__version__,
        )
    )


def _asset(name: str) -> str:
    """Read a style sheet or a script of this package."""
    return (files("mtlprune.reports.page") / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Return the Jinja environment of the templates, with their filters and tests."""
    environment = Environment(
        loader=PackageLoader("mtlprune.reports.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_to_text,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {
        "without_paths": without_paths,
        "chart": chart,
        "emphasised": lambda words: Markup(emphasised(words)),
    }
    for kind in (Strong, Figure, Grid):
        environment.tests[kind.__name__.lower()] = lambda value, kind=kind: isinstance(value, kind)
    environment.globals["m"] = environment.get_template("macros.html").module
    return environment


def chart(spec: charts.Spec, alt: str) -> dict[str, Any]:
    """Draw a chart for a template. The title is not drawn, because the template shows it.

    Args:
        spec: specification of the figure.
        alt: text alternative.

    Returns:
        ``width`` and ``height`` in pixels, ``title`` and ``explained`` (the text above the chart), and ``drawn``: an
        SVG with coordinates rounded to a tenth of a pixel, or a PNG if the chart has so many marks that it is smaller.
    """
    text = charts.svg(spec, charts.Style(title=False))
    width, height = charts.drawn_size(text)
    look = f'role="img" aria-label="{escape(alt)}" class="drawing" style="--least:{round(_MIN_SHRINK * width)}px"'
    short = _NUMBERS.sub(
        lambda part: _LONG.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), part[0]), text
    )
    svg = short.replace("<svg ", f"<svg {look} ", 1)
    if len(svg) > _MAX_SVG_BYTES:
        png = base64.b64encode(charts.png(text, _PIXEL_RATIO, 64)).decode()
        picture = f'<img {look.replace("aria-label", "alt")} width="{width:g}" height="{height:g}" '
        svg = min(svg, f'{picture}src="data:image/png;base64,{png}">', key=len)
    words = spec.get("title") or {}
    explained = " ".join(words.get("subtitle", ()))
    title = words.get("text", "")
    return {"width": width, "height": height, "drawn": Markup(svg), "title": title, "explained": explained}


def _to_text(value: Any) -> Any:
    """Remove characters from text that are invisible or that UTF-8 cannot encode, and turn None into ""."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable_lines(value)
    return "" if value is None else value


def without_paths(markup: str, shared: str) -> Markup:
    """Shorten all absolute paths in HTML, so that the report reveals no folders of the machine. ``shared``: common
    parent folder of the runs, which is removed from paths."""
    if shared:
        markup = re.sub(rf"(?<![\w.~/…-]){re.escape(str(escape(shared)))}/", "", markup)
    return Markup(_PATH.sub(r"…/\1", markup))
