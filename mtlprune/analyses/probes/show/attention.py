"""The attention of one head, drawn: lines from the words that attend to those attended to, thicker for more weight.

drawing = attention_drawing("Layer 3, head 7", ["..."], [Example(words, weights, {(1, 3)})])

Letters: S places of a sentence: [CLS], its words, [SEP].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtlprune.reports.axes import ABOVE, titles
from mtlprune.reports.drawing import Drawing, Line, Shape, Text, text_width
from mtlprune.reports.legends import DARK, LINE, PALE, SMALL, SOFT, middle
from mtlprune.reports.maps import MARGIN
from mtlprune.reports.palettes import Colour

LEAST = 0.05
"""Weights below this are not drawn."""
THICKEST = 5.0
_ROW = 18
_BETWEEN, _PAD, _GUTTER = 110, 6, 36
_ACROSS = 900


@dataclass(frozen=True, eq=False)
class Example:
    """A sentence and what one head does in it."""

    places: tuple[str, ...]
    """S: the words between the names of the special tokens."""
    weights: NDArray[np.float64]
    """(S, S): rows attend, columns are attended to; rows sum to 1."""
    sought: frozenset[tuple[int, int]] = frozenset()
    """Pairs of places that the task connects, in either direction: drawn in blue."""
    caption: str = ""

    def strongest(self) -> list[tuple[int, int, float]]:
        """For each word the word it attends to most, and how much."""
        found = []
        for place in range(1, len(self.places) - 1):
            target = 1 + int(np.argmax(self.weights[place, 1:-1]))
            found.append((place, target, float(self.weights[place, target])))
        return found

    def seeks(self, place: int, target: int) -> bool:
        """Whether the task connects the two."""
        return (place, target) in self.sought or (target, place) in self.sought


def attention_drawing(title: str, subtitle: Sequence[str], examples: Sequence[Example]) -> Drawing:
    """Sentences side by side as far as there is room; in each the attending words stand on the left."""
    sizes = [_size(example) for example in examples]
    rows: list[list[int]] = []
    for number, (width, _) in enumerate(sizes):
        if rows and sum(sizes[k][0] + _GUTTER for k in rows[-1]) + width <= _ACROSS:
            rows[-1].append(number)
        else:
            rows.append([number])
    inner = max([480, *(sum(sizes[k][0] + _GUTTER for k in row) - _GUTTER for row in rows)])
    head = titles(title, subtitle, inner)
    shapes = list(head.shapes)
    y = head.bottom + 14
    for row in rows:
        x = MARGIN
        for k in row:
            shapes += _panel(examples[k], x, y)
            x += sizes[k][0] + _GUTTER
        y += max(sizes[k][1] for k in row) + 26
    return Drawing(inner + 2 * MARGIN, y, title, tuple(shapes))


def _words_width(example: Example) -> int:
    return int(max(text_width(words, SMALL) for words in example.places)) + 1


def _size(example: Example) -> tuple[int, int]:
    return 2 * (_words_width(example) + _PAD) + _BETWEEN, _ROW * len(example.places) + 20


def _caption(example: Example) -> str:
    """As much of its end as there is room for: that is where names of sentences differ."""
    room, words = _size(example)[0], example.caption
    while text_width(words, SMALL) > room:
        words = "..." + words.removeprefix("...")[1:]
    return words


def _panel(example: Example, x: int, y: int) -> list[Shape]:
    column = _words_width(example)
    left, right = x + column + _PAD, x + column + _PAD + _BETWEEN
    top = y + 20
    lines = [
        (weight, place, target)
        for (place, target), weight in np.ndenumerate(example.weights)
        if weight >= LEAST and place not in (0, len(example.places) - 1)
    ]
    shapes: list[Shape] = [Text(x, y + SMALL, _caption(example), SMALL, SOFT)] if example.caption else []
    ends_of = {0, len(example.places) - 1}
    # strong lines lie above faint ones, and all above those to special tokens, where attention rests
    for weight, place, target in sorted(lines, key=lambda line: (line[2] not in ends_of, line)):
        full = ABOVE if example.seeks(place, target) else LINE if target in ends_of else DARK
        colour = _shade(weight, full)
        told = f"{example.places[place]} attends to {example.places[target]}: {weight:.2f}"
        ends = (left, top + (place + 0.5) * _ROW, right, top + (target + 0.5) * _ROW)
        shapes.append(Line(*ends, 0.5 + (THICKEST - 0.5) * weight, colour, None, told))
    for place, words in enumerate(example.places):
        base = middle(top + (place + 0.5) * _ROW, SMALL)
        special = place in (0, len(example.places) - 1)
        colour = SOFT if special else DARK
        shapes.append(Text(left - _PAD, base, words, SMALL, colour if not special else PALE, "end"))
        shapes.append(Text(right + _PAD, base, words, SMALL, colour))
    return shapes


def _shade(weight: float, full: Colour) -> Colour:
    """Paler for less weight, mixed with white."""
    share = 0.25 + 0.75 * min(weight / 0.6, 1.0)
    red, green, blue = (round(255 + share * (part - 255)) for part in full)
    return red, green, blue
