"""Encoders side by side for one task: the pretrained one, STL, pairs, MTL; means over seeds, differences to STL."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mtlprune.analyses.probes.show.results import ROOT, LabelResult, ProbeResults
from mtlprune.layers import LAYERS

PRETRAINED, STL = "pretrained", "STL"
_TASKS = tuple(task.upper() for task in LAYERS)
Reading = Callable[[LabelResult], float]


@dataclass(frozen=True, eq=False)
class ProbeColumn:
    """One encoder label with all its seeds, for one task and mode."""

    encoder: str
    title: str
    """pretrained, STL, +NER (a pair with NER), MTL-5, or STL-DEP (alone on another task)."""
    seeds: dict[int, dict[str, LabelResult]]
    """Seed → label → result."""

    def values(self, label: str, reading: Reading) -> list[float]:
        """A number a seed that has the label."""
        return [reading(labels[label]) for labels in self.seeds.values() if label in labels]

    def mean(self, label: str, reading: Reading) -> float:
        """Over seeds; NaN where no seed has the label."""
        values = self.values(label, reading)
        return statistics.mean(values) if values else float("nan")


def accuracy(result: LabelResult) -> float:
    """Of the chosen head."""
    return result.accuracy


def gain(result: LabelResult) -> float:
    """Of the chosen head above the best control."""
    return result.gain


@dataclass(frozen=True, eq=False)
class ProbePanel:
    """All that was found for one task in one mode."""

    task: str
    mode: str
    columns: tuple[ProbeColumn, ...]
    """Pretrained, STL, pairs, joint runs, others."""
    labels: tuple[str, ...]
    """By falling number of test items; root, where it is reported apart, is not among them."""
    items: dict[str, int]
    few: frozenset[str]
    root: str | None
    """The label reported apart, where there is one."""

    def column(self, title: str) -> ProbeColumn | None:
        """The column of that title, if it is there."""
        return next((column for column in self.columns if column.title == title), None)

    @property
    def compared(self) -> tuple[ProbeColumn, ...]:
        """The columns that are compared with STL."""
        return tuple(column for column in self.columns if column.title != STL)

    def sure(self) -> tuple[str, ...]:
        """Labels with enough items."""
        return tuple(label for label in self.labels if label not in self.few)


def panels(found: ProbeResults, mode: str, others: bool = False) -> Iterator[ProbePanel]:
    """A panel a task. ``others``: also encoders trained for other tasks only."""
    for task in found.tasks(mode):
        seeds: dict[str, dict[int, dict[str, LabelResult]]] = {}
        for key, labels in sorted(found.labels.items()):
            if (key.mode, key.task) == (mode, task):
                seeds.setdefault(key.encoder, {})[key.seed] = labels
        kinds = [(kind(encoder, task), encoder) for encoder in seeds]
        wanted = [(place, title, encoder) for (place, title), encoder in kinds if others or place < _OTHERS]
        chosen = sorted(wanted, key=lambda found: (found[0], _order(found[1]), found[1]))
        columns = tuple(ProbeColumn(encoder, title, seeds[encoder]) for _, title, encoder in chosen)
        items, few = _items(columns)
        apart = ROOT[1] if task == ROOT[0] and ROOT[1] in items else None
        ordered = sorted(items, key=lambda name: (-items[name], name))
        if columns:
            yield ProbePanel(
                task, mode, columns, tuple(label for label in ordered if label != apart), items, few, apart
            )


_OTHERS = 5


def _order(title: str) -> int:
    """Pairs, and encoders of other tasks, stand in the order of the tasks."""
    name = title.removeprefix("+").removeprefix("STL-")
    return _TASKS.index(name) if name in _TASKS else len(_TASKS)


def kind(encoder: str, task: str) -> tuple[int, str]:
    """Where an encoder stands among the columns of a task, and what it is called there."""
    name = task.upper()
    if encoder == PRETRAINED:
        return 0, PRETRAINED
    if encoder == name:
        return 1, STL
    plain, _, variant = encoder.partition(" (")
    parts = plain.split("+")
    if len(parts) == 2 and name in parts:
        return 2, "+" + next(part for part in parts if part != name) + (f" ({variant}" if variant else "")
    joint, _, own = encoder.partition(":")
    if own and own != name:
        return _OTHERS + 1, encoder
    if joint.startswith("MTL-") or (len(parts) > 2 and name in parts):
        return 3, joint if not own else f"{joint}, own gates"
    if encoder in _TASKS:
        return _OTHERS, f"STL-{encoder}"
    return (_OTHERS + 1 if len(parts) > 1 and set(parts) <= set(_TASKS) else 4), encoder


def _items(columns: Sequence[ProbeColumn]) -> tuple[dict[str, int], frozenset[str]]:
    items: dict[str, int] = {}
    few = set()
    for column in columns:
        for labels in column.seeds.values():
            for label, result in labels.items():
                items[label] = max(items.get(label, 0), result.items)
                few |= {label} if result.few else set()
    return items, frozenset(few)
