"""Boxes, lines, dots and texts at fixed places: what both canvases (PNG, SVG) draw, with one geometry.

Lengths are in units of 1/96 inch; x grows to the right, y downwards. Text is measured in Aileron, the typeface that
Pillow carries, so that no font of the system matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from PIL import ImageFont

from mtlprune.reports.palettes import WHITE, Colour

Anchor = Literal["start", "middle", "end"]
RING = 1.5
"""Width of the ring that a hollow dot is."""
CAPITALS = 0.7
"""Height of digits and capitals by the size of the letters."""


@dataclass(frozen=True)
class Box:
    """A filled rectangle; ``tooltip`` is shown by SVG viewers."""

    x: int
    y: int
    width: int
    height: int
    fill: Colour
    tooltip: str = ""


@dataclass(frozen=True)
class Text:
    """One line of text, (x, y) on its baseline; ``upright`` text runs from bottom to top."""

    x: float
    y: float
    words: str
    size: int
    fill: Colour
    anchor: Anchor = "start"
    upright: bool = False


@dataclass(frozen=True)
class Line:
    """A straight line, dashed where ``dashes`` gives the lengths of a dash and of the space after it."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    fill: Colour
    dashes: tuple[float, float] | None = None
    tooltip: str = ""


@dataclass(frozen=True)
class Dot:
    """A disc around (x, y), or a ring where it is ``hollow``."""

    x: float
    y: float
    radius: float
    fill: Colour
    hollow: bool = False
    tooltip: str = ""


Shape = Box | Text | Line | Dot


@dataclass(frozen=True)
class Drawing:
    """Shapes in the order in which they are drawn, on white."""

    width: int
    height: int
    title: str
    shapes: tuple[Shape, ...]
    background: Colour = WHITE


@lru_cache(maxsize=64)
def typeface(size: int) -> ImageFont.FreeTypeFont:
    """Aileron in a size in pixels.

    Raises:
        ImportError: Pillow was built without FreeType.
    """
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise ImportError("maps need a Pillow with FreeType, as every wheel of it from PyPI has")
    return font


@lru_cache(maxsize=4096)
def text_width(words: str, size: int) -> float:
    """Width of a line at its widest: letters are a whole number of pixels apart, which tells at scales 1 and 2."""
    return max(typeface(size * scale).getlength(printable(words)) / scale for scale in (1, 2, 3, 8))


def natural_width(words: str, size: int) -> float:
    """Width of a line where nothing is rounded, as SVG viewers draw it."""
    return typeface(size * 16).getlength(printable(words)) / 16


@lru_cache(maxsize=1024)
def _has_glyph(character: str) -> bool:
    font = typeface(24)
    missing = font.getmask("\ue000")
    found = font.getmask(character)
    return found.size != missing.size or bytes(found) != bytes(missing)


def printable(words: str) -> str:
    """``words`` with a question mark where the typeface (Latin without accents) has no letter."""
    return "".join(c if c.isprintable() and (c == " " or _has_glyph(c)) else "?" for c in words)


def wrapped(words: str, size: int, width: float) -> list[str]:
    """Lines no wider than ``width``; broken between words, and within a word only where it is wider than a line."""
    lines: list[str] = []
    line = ""
    for word in words.split():
        for piece in _pieces(word, size, width):
            longer = f"{line} {piece}" if line else piece
            if line and text_width(longer, size) > width:
                lines.append(line)
                longer = piece
            line = longer
    return [*lines, line] if line else lines


def _pieces(word: str, size: int, width: float) -> Iterator[str]:
    piece = ""
    for character in word:
        if piece and text_width(piece + character, size) > width:
            yield piece
            piece = ""
        piece += character
    yield piece
