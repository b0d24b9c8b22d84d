"""A drawing as PNG: through Pillow, the same bytes for the same drawing."""

from __future__ import annotations

import io
import math

from PIL import Image, ImageDraw

from mtlprune.reports.drawing import RING, Box, Dot, Drawing, Line, Text, printable, typeface

_FINER = 4
"""Lines and dots are drawn so many times as large and averaged: Pillow knows hard edges only."""


def paint(drawing: Drawing, scale: int) -> Image.Image:
    """The drawing in RGB, ``scale`` pixels a unit."""
    image = Image.new("RGB", (drawing.width * scale, drawing.height * scale), drawing.background)
    pen = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            x, y = shape.x * scale, shape.y * scale
            pen.rectangle((x, y, x + shape.width * scale - 1, y + shape.height * scale - 1), shape.fill)
        elif isinstance(shape, Line | Dot):
            _draw_smooth(image, shape, scale)
        elif shape.upright:
            _write_upright(image, shape, scale)
        else:
            anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
            place = (shape.x * scale, shape.y * scale)
            pen.text(place, printable(shape.words), shape.fill, typeface(shape.size * scale), anchor)
    return image


def _draw_smooth(image: Image.Image, shape: Line | Dot, scale: int) -> None:
    """Draw into a mask around the shape, and let it decide where the colour goes."""
    around = shape.width / 2 if isinstance(shape, Line) else shape.radius
    xs = (shape.x1, shape.x2) if isinstance(shape, Line) else (shape.x,)
    ys = (shape.y1, shape.y2) if isinstance(shape, Line) else (shape.y,)
    left, top = (math.floor((min(ends) - around) * scale) - 1 for ends in (xs, ys))
    right, bottom = (math.ceil((max(ends) + around) * scale) + 1 for ends in (xs, ys))
    mask = Image.new("L", ((right - left) * _FINER, (bottom - top) * _FINER), 0)
    pen = ImageDraw.Draw(mask)

    def at(x: float, y: float) -> tuple[float, float]:
        return (x * scale - left) * _FINER, (y * scale - top) * _FINER

    if isinstance(shape, Dot):
        pen.ellipse((*at(shape.x - around, shape.y - around), *at(shape.x + around, shape.y + around)), 255)
        if shape.hollow:
            inner = around - RING
            pen.ellipse((*at(shape.x - inner, shape.y - inner), *at(shape.x + inner, shape.y + inner)), 0)
    else:
        for start, end in _dashes(shape):
            pen.polygon([at(x, y) for x, y in _outline(shape, start, end)], 255)
    image.paste(shape.fill, (left, top), mask.reduce(_FINER))


def _dashes(line: Line) -> list[tuple[float, float]]:
    """Start and end of each drawn part, as distances from the line's first end."""
    length = math.hypot(line.x2 - line.x1, line.y2 - line.y1)
    if not line.dashes:
        return [(0.0, length)]
    drawn, space = line.dashes
    parts = math.ceil(length / (drawn + space))
    return [(k * (drawn + space), min(k * (drawn + space) + drawn, length)) for k in range(parts)]


def _outline(line: Line, start: float, end: float) -> list[tuple[float, float]]:
    """The corners of a part of a line, which is a rectangle."""
    length = math.hypot(line.x2 - line.x1, line.y2 - line.y1) or 1.0
    dx, dy = (line.x2 - line.x1) / length, (line.y2 - line.y1) / length
    aside = ((-dy * line.width / 2, dx * line.width / 2), (dy * line.width / 2, -dx * line.width / 2))
    ends = [(line.x1 + dx * d, line.y1 + dy * d) for d in (start, end)]
    (a, b), (p, q) = ends, aside
    return [
        (a[0] + p[0], a[1] + p[1]),
        (b[0] + p[0], b[1] + p[1]),
        (b[0] + q[0], b[1] + q[1]),
        (a[0] + q[0], a[1] + q[1]),
    ]


def _write_upright(image: Image.Image, text: Text, scale: int) -> None:
    """Write into a strip of its own, turn it, and let it decide where the colour goes."""
    font, words = typeface(text.size * scale), printable(text.words)
    ascent, descent = font.getmetrics()
    length = round(font.getlength(words))
    strip = Image.new("L", (length, ascent + descent), 0)
    ImageDraw.Draw(strip).text((0, ascent), words, 255, font, "ls")
    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor] * length
    corner = (round(text.x * scale) - ascent, round(text.y * scale + before) - length)
    image.paste(text.fill, corner, strip.rotate(90, expand=True))


def png(drawing: Drawing, scale: int) -> bytes:
    """The drawing as a PNG file, ``scale`` pixels a unit; the file states its resolution and no time."""
    buffer = io.BytesIO()
    paint(drawing, scale).save(buffer, "PNG", optimize=True, dpi=(96 * scale, 96 * scale))
    return buffer.getvalue()
