"""Parts of the page, and the templates that make HTML of them: all words are escaped there, none of them earlier."""

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
from mtlprune.figures.grid import Strong
from mtlprune.io.files import plain
from mtlprune.reports.analyses import Figure

SCRIPTS = ("page.js", "tables.js", "gates.js", "heads.js")
LEAST = 0.72
"""To what share of its width a chart may shrink and stay legible; where there is less room, it scrolls."""
_SIGN = r"[^\s/<>\"'`&,;:|\\()\[\]{}]"
_PATH = re.compile(rf"(?<![\w.~/…<)\]-])/(?:{_SIGN}+/)+({_SIGN}*)")


@dataclass(frozen=True)
class Part:
    """One part of the page."""

    key: str
    """Its anchor: lower-case letters and dashes."""
    title: str
    holds: Mapping[str, Any]
    """Values that its template shows."""
    caveats: Sequence[str] = ()
    """Sentences that a reader must know before believing it."""
    found: Sequence[str] = ()
    """Its answer, in a sentence or two, for the top of the page."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For the script."""
    template: str = ""
    """Its name; else that of the key."""
    lead: Figure | None = None
    """Figure for the first screen, if no part before it has one."""

    @cached_property
    def body(self) -> Markup:
        name = self.template or self.key
        return Markup(_environment().get_template(f"{name}.html").render(self.holds))


def forest_figure(
    rows: Sequence[charts.Interval], what: str, x_title: str, caption: str, width: int = charts.WIDTH
) -> Figure:
    """A forest plot of the first dozen rows, beside a table of all."""
    if len(rows) > charts.DOZEN:
        caption += f" The first {charts.DOZEN} of {len(rows)}; the table has all."
    words = "; ".join(one.told for one in rows[: charts.DOZEN])
    return Figure(charts.figure(charts.forest(rows, x_title=x_title, width=width)), f"{what}. {words}", caption)


def rendered(
    title: str, parts: Sequence[Part], folders: Sequence[Path], following: Sequence[tuple[str, str]] = ()
) -> str:
    """The page.

    Args:
        following: what to do next: a sentence and a command each.
        folders: the runs; of absolute paths below the folder that holds them all, what follows it is shown, of others
            the last name.
    """
    script = "\n".join(map(_asset, SCRIPTS))
    if any('<figure class="chart' in part.body for part in parts):
        script += f"\n{_asset('chart.js')}\n{charts.script()}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = os.path.commonpath([str(folder.absolute().parent) for folder in folders])
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    return (
        _environment()
        .get_template("page.html")
        .render(
            policy=policy,
            title=title,
            style=Markup(_asset("page.css")),
            script=Markup(script),
            parts=parts,
            lead=next((part for part in parts if part.lead), None),
            following=following,
            first=("scores", "overlap"),
            data={part.key: plain(part.data) for part in parts if part.data},
            shared="" if shared == "/" else shared,
            version=__version__,
        )
    )


def _asset(name: str) -> str:
    return (files("mtlprune.reports.page") / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mtlprune.reports.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"without_paths": without_paths, "chart": chart}
    for kind in (Strong, Figure):
        environment.tests[kind.__name__.lower()] = lambda value, kind=kind: isinstance(value, kind)
    environment.globals["m"] = environment.get_template("macros.html").module
    return environment


def chart(spec: charts.Spec, alt: str) -> dict[str, Any]:
    """A chart for a template: an SVG that stands without a script, and the specification for chart.js."""
    text = charts.svg(spec)
    width, _ = charts.drawn_size(text)
    least = f"--least:{round(LEAST * width)}px"
    head = f'<svg role="img" aria-label="{escape(alt)}" class="drawing" style="{least}" '
    return {"width": width, "svg": Markup(text.replace("<svg ", head, 1)), "spec": charts.styled(spec)}


def _shown(value: Any) -> Any:
    """Words without signs that a file of UTF-8 cannot hold or that are not seen; nothing for None."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable_lines(value)
    return "" if value is None else value


def without_paths(markup: str, shared: str) -> Markup:
    """Markup in which no absolute path is left: nobody's page says where on a machine its sources lay."""
    if shared:
        markup = re.sub(rf"(?<![\w.~/…-]){re.escape(str(escape(shared)))}/", "", markup)
    return Markup(_PATH.sub(r"…/\1", markup))
