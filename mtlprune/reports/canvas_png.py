"""A drawing as PNG, and drawings as an animated GIF: through Pillow, the same bytes for the same drawing."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw

from mtlprune.reports.drawing import Box, Drawing, Text, printable, typeface

FRAME_MS = 450
LAST_FRAME_MS = 2500
_SHORTEST_MS, _WHOLE_MS = 80, 15_000


def paint(drawing: Drawing, scale: int) -> Image.Image:
    """The drawing in RGB, ``scale`` pixels a unit."""
    image = Image.new("RGB", (drawing.width * scale, drawing.height * scale), drawing.background)
    pen = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            x, y = shape.x * scale, shape.y * scale
            pen.rectangle((x, y, x + shape.width * scale - 1, y + shape.height * scale - 1), shape.fill)
        elif shape.upright:
            _write_upright(image, shape, scale)
        else:
            anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
            place = (shape.x * scale, shape.y * scale)
            pen.text(place, printable(shape.words), shape.fill, typeface(shape.size * scale), anchor)
    return image


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


def gif(drawings: Sequence[Drawing], scale: int) -> bytes:
    """Grey drawings of equal size as an endless GIF, a frame each; the last one stays longer.

    No two neighbours may be equal in every pixel: Pillow would make one frame of them.
    """
    # 256 greys are all that grey drawings hold, so nothing is approximated
    frames = [paint(drawing, scale).convert("L") for drawing in drawings]
    each = min(FRAME_MS, max(_SHORTEST_MS, _WHOLE_MS // len(frames))) // 10 * 10
    durations = [each] * (len(frames) - 1) + [LAST_FRAME_MS]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=False, disposal=1
    )
    return buffer.getvalue()
