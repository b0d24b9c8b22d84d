"""A drawing as SVG: plain text, the same places and colours as the PNG, and a tooltip a cell."""

from __future__ import annotations

from xml.sax.saxutils import escape

from mtlprune.reports.drawing import Box, Drawing, Shape, Text, natural_width
from mtlprune.reports.palettes import Colour

_FONT = "Aileron, Helvetica, Arial, 'Liberation Sans', sans-serif"


def svg(drawing: Drawing) -> str:
    """The drawing as an SVG document; the same text for the same drawing."""
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{_FONT}">',
        f"<title>{_text(drawing.title)}</title>",
        f'<rect width="{drawing.width}" height="{drawing.height}" fill="{_hex(drawing.background)}"/>',
        *map(_shape, drawing.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _shape(shape: Shape) -> str:
    return _box(shape) if isinstance(shape, Box) else _line(shape)


def _box(box: Box) -> str:
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" fill="{_hex(box.fill)}"'
    return f"<rect {place}><title>{_text(box.tooltip)}</title></rect>" if box.tooltip else f"<rect {place}/>"


def _line(text: Text) -> str:
    parts = [f'x="{text.x:g}" y="{text.y:g}" font-size="{text.size}" fill="{_hex(text.fill)}"']
    if text.anchor != "start":
        parts.append(f'text-anchor="{text.anchor}"')
    if text.upright:
        parts.append(f'transform="rotate(-90 {text.x:g} {text.y:g})"')
    if len(text.words) > 4:  # another typeface must not run out of the picture
        parts.append(f'textLength="{natural_width(text.words, text.size):.2f}" lengthAdjust="spacingAndGlyphs"')
    return f"<text {' '.join(parts)}>{_text(text.words)}</text>"


def _text(words: str) -> str:
    return escape("".join(c if c.isprintable() else "?" for c in words))


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
