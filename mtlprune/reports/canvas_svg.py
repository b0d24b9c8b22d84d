"""A drawing as SVG: plain text, the same places and colours as the PNG, and a tooltip a cell."""

from __future__ import annotations

from xml.sax.saxutils import escape

from mtlprune.reports.drawing import RING, Box, Dot, Drawing, Line, Shape, Text, natural_width
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
    if isinstance(shape, Box):
        return _box(shape)
    if isinstance(shape, Text):
        return _words(shape)
    return _stroke(shape) if isinstance(shape, Line) else _dot(shape)


def _box(box: Box) -> str:
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" fill="{_hex(box.fill)}"'
    return _element("rect", place, box.tooltip)


def _stroke(line: Line) -> str:
    ends = f'x1="{line.x1:g}" y1="{line.y1:g}" x2="{line.x2:g}" y2="{line.y2:g}"'
    dashes = ' stroke-dasharray="{:g} {:g}"'.format(*line.dashes) if line.dashes else ""
    return _element("line", f'{ends} stroke="{_hex(line.fill)}" stroke-width="{line.width:g}"{dashes}', line.tooltip)


def _dot(dot: Dot) -> str:
    colour = _hex(dot.fill)
    paint = f'fill="none" stroke="{colour}" stroke-width="{RING:g}"' if dot.hollow else f'fill="{colour}"'
    radius = dot.radius - RING / 2 if dot.hollow else dot.radius  # the outer edge is what counts
    return _element("circle", f'cx="{dot.x:g}" cy="{dot.y:g}" r="{radius:g}" {paint}', dot.tooltip)


def _element(name: str, attributes: str, tooltip: str) -> str:
    if tooltip:
        return f"<{name} {attributes}><title>{_text(tooltip)}</title></{name}>"
    return f"<{name} {attributes}/>"


def _words(text: Text) -> str:
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
