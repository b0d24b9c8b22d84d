"""Drawings within the page: as canvas_svg makes them, but in the page's own ink, so that they are legible in the dark.

Inks of drawings (text, axes, grid lines) become variables of the style sheet; colours that carry data stay as they are.
"""

from __future__ import annotations

import re

from mtlprune.reports import charts
from mtlprune.reports.canvas_svg import svg
from mtlprune.reports.drawing import Box, Drawing
from mtlprune.reports.page.html import Html, element, escaped, island

_INKS = {
    "1c1c1e": "ink",  # legends.DARK
    "626268": "soft",  # legends.SOFT
    "a8a8ac": "rule",  # legends.LINE
    "dedee2": "pale",  # legends.PALE
    "96969c": "faint",  # probe_axes.FAINT
    "c4c4c8": "pale",  # leads of probe_differences
    "2166ac": "below",  # palettes.NEGATIVE
    "b2182b": "above",  # palettes.POSITIVE
    "783c14": "brown",  # facets.HUES; this and the next are too dark for the page's dark ground
    "96143c": "wine",
}
_INK = re.compile(r'(fill|stroke)="#(' + "|".join(_INKS) + ')"')
_PAPER = re.compile(r'<rect ([^>]*)fill="#ffffff"/>')
_TITLE = re.compile(r"<title>.*?</title>\n?", re.DOTALL)
_HEAD = re.compile(r'<svg [^>]*viewBox="([^"]*)"[^>]*>')
LEAST = 0.72
"""To what share of its width a drawing may shrink and stay legible; where there is less room, it scrolls."""


def figure(drawing: Drawing, alt: str, caption: str = "") -> Html:
    """A drawing with its caption; ``alt`` says what it shows to those who do not see it."""
    text = svg(drawing)
    text = _TITLE.sub("", text, count=1)  # the whole drawing's; those of marks stay
    text = _INK.sub(lambda found: f'{found[1]}="var(--{_INKS[found[2]]})"', text)
    text = _PAPER.sub(r'<rect \1fill="var(--paper)"/>', text)
    least = round(LEAST * drawing.width)
    role = f'role="img" aria-label="{escaped(alt)}"'
    size = f'width="{drawing.width}" style="--least:{least}px"'
    text = _HEAD.sub(rf'<svg viewBox="\1" {size} {_safe(role)} class="drawing">', text, count=1)
    room = element(
        "div",
        Html(text),
        class_="scroll plate" if _has_shades(drawing) else "scroll",
        **({"tabindex": "0", "role": "region", "aria-label": f"{drawing.title}, scrolls"}),
    )
    return element("figure", room, element("figcaption", caption) if caption else None)


def chart(spec: charts.Spec, alt: str, caption: str = "") -> Html:
    """A chart with its caption: an SVG that stands without a script, and the specification for chart.js beside it.

    Its ground stays white in the dark, since white and grey are data in some charts.
    """
    text = charts.svg(spec)
    width = re.search(r'width="([\d.]+)"', text)
    assert width is not None
    least = f"--least:{round(LEAST * float(width[1]))}px"
    head = f'<svg role="img" aria-label="{escaped(alt)}" class="drawing" style="{least}" '
    room = element("div", Html(text.replace("<svg ", head, 1)), class_="scroll plate", tabindex="0", role="region")
    words = element("figcaption", caption) if caption else None
    return element("figure", room, words, island(None, charts.styled(spec)), class_="chart")


def _safe(words: str) -> str:
    return words.replace("\\", "\\\\")


def _has_shades(drawing: Drawing) -> bool:
    """Whether white and grey are data here (a map of heads): then the drawing keeps its white ground in the dark."""
    cells = (shape for shape in drawing.shapes if isinstance(shape, Box) and shape.tooltip)
    return any(len(set(map(int, cell.fill))) == 1 for cell in cells)
