"""Bitmap pictures drawn with Pillow: maps of heads in the style of He and Choi (2021), and the course of pruning as an
animated GIF.

Cells are squares with a thin border. Layers are numbered from the top, and heads from the left. The only other content
is one line of text.

Letters for shapes: L layers, A heads of a layer.
"""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.figures.charts import INK, RULE
from mtlprune.figures.maps import Colours, opacity
from mtlprune.runs.claims import Claim

SIDE, EDGE, _LETTER = 36, 30, 15
"""Pixels: the side of a cell, the margin with the numbers, and the font size."""
FRAME_MS, LAST_FRAME_MS = 350, 2500
"""Duration in milliseconds of a frame, and of the last frame."""


def bare(colours: Colours, words: str = "") -> Image.Image:
    """Draw a map with the colours (L, A, 3), and the line of text ``words`` below it, if given."""
    layers, heads, _ = colours.shape
    width, height = EDGE + heads * SIDE + 1, EDGE + layers * SIDE + 1
    picture = Image.new("RGB", (width, height + EDGE * bool(words)), "white")
    cells = Image.fromarray(np.ascontiguousarray(colours, np.uint8), "RGB")
    picture.paste(cells.resize((heads * SIDE, layers * SIDE), Image.Resampling.NEAREST), (EDGE, EDGE))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(_LETTER)
    for head in range(heads + 1):
        pen.line([(EDGE + head * SIDE, EDGE), (EDGE + head * SIDE, height - 1)], RULE)
    for layer in range(layers + 1):
        pen.line([(EDGE, EDGE + layer * SIDE), (width - 1, EDGE + layer * SIDE)], RULE)
    numbers = [((EDGE + SIDE * (head + 0.5), EDGE / 2), head) for head in range(heads)]
    numbers += [((EDGE / 2, EDGE + SIDE * (layer + 0.5)), layer) for layer in range(layers)]
    for place, number in numbers:
        pen.text(place, str(number + 1), INK, font, anchor="mm")
    pen.text((EDGE, height + EDGE / 2), words, INK, font, anchor="lm")
    return picture


def png(picture: Image.Image) -> bytes:
    """Return a picture as the content of a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def gif(claim: Claim) -> bytes:
    """Return an animated GIF with a frame for the gates of a run at each evaluation. The last frame lasts longer."""
    frames = []
    for step, gates in claim.history:
        words = f"{claim.label}, update {step:,}: {(gates > OPEN_ABOVE).sum()} of {gates.size} heads open"
        frames.append(bare(opacity(gates), words).quantize(64, dither=Image.Dither.NONE))
    return _animated(frames, [FRAME_MS] * (len(frames) - 1) + [LAST_FRAME_MS])


def _animated(frames: Sequence[Image.Image], milliseconds: Sequence[int]) -> bytes:
    buffer = io.BytesIO()
    first, *later_frames = frames
    first.save(
        buffer, "GIF", save_all=True, append_images=later_frames, duration=list(milliseconds), loop=0, disposal=1
    )
    return buffer.getvalue()
