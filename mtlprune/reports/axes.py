"""What drawings share: a title with lines below it, and colours."""

from __future__ import annotations

from collections.abc import Sequence

from mtlprune.reports.drawing import Shape, Text, wrapped
from mtlprune.reports.legends import DARK, SOFT, Placed
from mtlprune.reports.maps import MARGIN, SUBTITLE, TITLE
from mtlprune.reports.palettes import NEGATIVE, POSITIVE, Colour

ABOVE: Colour = NEGATIVE
"""Better than the controls (blue)."""
ZERO: Colour = POSITIVE
"""The line that all is compared with."""
FAINT: Colour = (150, 150, 156)
LABEL = 10


def titles(title: str, subtitle: Sequence[str], width: float) -> Placed:
    """A heading and the lines below it, wrapped at ``width``."""
    shapes: list[Shape] = []
    y = MARGIN - 4
    for line in wrapped(title, TITLE, width):
        shapes.append(Text(MARGIN, y + TITLE, line, TITLE, DARK))
        y += 24
    y += 3
    for paragraph in subtitle:
        for line in wrapped(paragraph, SUBTITLE, width):
            shapes.append(Text(MARGIN, y + SUBTITLE, line, SUBTITLE, SOFT))
            y += 17
    return Placed(shapes, int(MARGIN + width), y)
