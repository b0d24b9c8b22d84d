"""Drawings within the page: as canvas_svg makes them, but in the page's own ink, so that they are legible in the dark.

Inks of drawings (text, axes, grid lines) become variables of the style sheet; colours that carry data stay as they are.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from mtlprune.reports import charts
from mtlprune.reports.canvas_svg import svg
from mtlprune.reports.drawing import Box, Drawing

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
_HEAD = re.compile(r'<svg [^>]*viewBox="([^"]*)"[^>]*>\s*<title>.*?</title>', re.DOTALL)
LEAST = 0.72
"""To what share of its width a drawing may shrink and stay legible; where there is less room, it scrolls."""


def inked(drawing: Drawing, alt: str) -> Markup:
    """A drawing as an element; ``alt`` says what it shows to those who do not see it."""
    text = _INK.sub(lambda found: f'{found[1]}="var(--{_INKS[found[2]]})"', svg(drawing))
    text = _PAPER.sub(r'<rect \1fill="var(--paper)"/>', text)
    size = f'width="{drawing.width}" style="--least:{round(LEAST * drawing.width)}px" class="drawing"'
    head = f'{size} role="img" aria-label="{escape(alt)}">'
    return Markup(_HEAD.sub(lambda found: f'<svg viewBox="{found[1]}" {head}', text, count=1))


def is_map(drawing: Drawing | charts.Spec) -> bool:
    """Whether shades of cells are data here (a map of heads): then the drawing keeps its white ground in the dark."""
    return isinstance(drawing, dict) or any(isinstance(shape, Box) and shape.tooltip for shape in drawing.shapes)
