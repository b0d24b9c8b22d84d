"""Paired intervals of differences to STL, as `mtlprune probe` left them in probes.json ("differences")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mtlprune.analyses.probes.show.columns import ProbeColumn, ProbePanel
from mtlprune.analyses.probes.show.reading import SUMMARY, read_summary
from mtlprune.files import RunError, reading


class DifferenceInterval(NamedTuple):
    """Between these bounds lie 95 % of the differences when test sentences are drawn anew, in points."""

    low: float
    high: float

    @property
    def without_zero(self) -> bool:
        """Whether chance in the choice of sentences explains no such difference."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class Intervals:
    """Mode, task, encoder, label → interval, and how many seeds of the encoder and of STL it is of."""

    found: Mapping[tuple[str, str, str, str], tuple[DifferenceInterval, tuple[int, int]]]

    def of(self, panel: ProbePanel, column: ProbeColumn, alone: ProbeColumn, label: str) -> DifferenceInterval | None:
        """Of a column minus STL; None where the results have none, or one of fewer seeds than are compared."""
        interval, seeds = self.found.get((panel.mode, panel.task, column.encoder, label), (None, (0, 0)))
        return interval if seeds == (len(column.seeds), len(alone.seeds)) else None


def read_intervals(folders: Iterable[str | Path]) -> Intervals | None:
    """The intervals of all folders, of the most seeds where several have one; None where there are none.

    Raises:
        RunError: an entry that is damaged.
    """
    found: dict[tuple[str, str, str, str], tuple[DifferenceInterval, tuple[int, int]]] = {}
    for folder in folders:
        entries = read_summary(Path(folder)).get("differences", [])
        for place, entry in enumerate(entries if isinstance(entries, list) else [entries], 1):
            key, interval, seeds = _entry(entry, f"{Path(folder) / SUMMARY}, difference {place}")
            if key not in found or seeds > found[key][1]:
                found[key] = interval, seeds
    return Intervals(found) if found else None


def _entry(entry: Any, where: str) -> tuple[tuple[str, str, str, str], DifferenceInterval, tuple[int, int]]:
    with reading(where, RunError, "expected mode, task, encoder, label, low, high and seeds; probe anew"):
        key = tuple(str(entry[name]) for name in ("mode", "task", "encoder", "label"))
        interval = DifferenceInterval(float(entry["low"]), float(entry["high"]))
        mine, theirs = (int(number) for number in entry["seeds"])
    return (key[0], key[1], key[2], key[3]), interval, (mine, theirs)
