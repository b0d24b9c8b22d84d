"""Differences with their intervals, a row each: places in percent of the room, which a template draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mtlprune.reports.facets import Axis, axis

DOZEN = 12
"""Rows of a plot at the most: tables have all."""


@dataclass(frozen=True)
class Interval:
    """One difference: where it lies, between which bounds it may (NaN: not known), and what is said of it."""

    name: str
    value: float
    low: float
    high: float
    sure: bool
    told: str

    @property
    def known(self) -> bool:
        return not math.isnan(self.low)


@dataclass(frozen=True)
class Forest:
    """Differences below each other, the first dozen: a dot with its interval, full where it is significant."""

    what: str
    """Is drawn, in words."""
    every: Sequence[Interval]
    signs: str = "+"
    """Of the ticks, as in formats."""
    unit: str = ""

    @property
    def rows(self) -> Sequence[Interval]:
        return self.every[:DOZEN]

    @property
    def alt(self) -> str:
        return f"{self.what}. {'; '.join(one.told for one in self.rows)}"

    @cached_property
    def scale(self) -> Axis:
        """Room for all values, and for intervals unless much wider than most: those are cut off at the edge."""
        known = [one for one in self.rows if one.known]
        widths = sorted(one.high - one.low for one in known)
        usual = [one for one in known if one.high - one.low <= 4 * widths[len(widths) // 2]]
        sides = [side for one in usual for side in (one.low, one.high)]
        return axis([0.0, *(one.value for one in self.rows), *sides], 100.0, 4)

    def at(self, value: float) -> float:
        """The place of a value, in percent from the left."""
        return round(self.scale.at(min(max(value, self.scale.low), self.scale.high)), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        values = self.scale.ticks
        return [(self.at(v), f"{v:{self.signs}g}{self.unit}".replace("-", "−") if v else "0") for v in values]
