"""Paired intervals of differences between encoders, where results say how each test sentence went.

`outcomes.parquet` beside `probes.parquet`, a row an encoder × seed × mode × task × label × test sentence that has the
label: encoder (str), seed (int), mode (str), task (str), label (str), sentence (int, its place in the test split),
items (int, of the label in the sentence), correct (int, of them right by the chosen head).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.reports.probe_columns import Column
from mtlprune.reports.probe_results import Key, ProbeError

FILE = "outcomes.parquet"
SAMPLES = 2000
_WORDS = ("encoder", "mode", "task", "label")
_NUMBERS = ("seed", "sentence", "items", "correct")

Counts = NDArray[np.float64]  # (sentences with the label, 3): sentence, items, correct


@dataclass(frozen=True)
class Interval:
    """Between these bounds lie 95 % of the differences when test sentences are drawn anew, in points."""

    low: float
    high: float

    @property
    def without_zero(self) -> bool:
        """Whether chance in the choice of sentences explains no such difference."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class Outcomes:
    """How the items of each sentence went."""

    counts: Mapping[tuple[Key, str], Counts]

    def interval(self, mine: Column, theirs: Column, mode: str, task: str, label: str) -> Interval | None:
        """Of mean accuracy over the seeds of one encoder minus that of another; None where outcomes are lacking.

        Bootstrap over sentences (items of one sentence are not independent), the same draws for both encoders and all
        their seeds; 2.5th and 97.5th percentile of 2,000 samples, fixed generator.
        """
        sides = []
        for column in (mine, theirs):
            keys = [(Key(column.encoder, seed, mode, task), label) for seed in column.seeds]
            found = [self.counts[key] for key in keys if key in self.counts]
            if not found or len(found) < len(keys):
                return None
            sides.append(found)
        first = sides[0][0]
        if any(not np.array_equal(counts[:, :2], first[:, :2]) for side in sides for counts in side):
            return None
        right = [np.mean([counts[:, 2] for counts in side], axis=0) for side in sides]
        wins, items = right[0] - right[1], first[:, 1]
        if len(items) < 2:
            return None
        draws = np.random.default_rng(0).multinomial(len(items), np.full(len(items), 1 / len(items)), SAMPLES)
        low, high = np.percentile(100 * (draws @ wins) / (draws @ items), (2.5, 97.5))
        return Interval(float(low), float(high))


def read_outcomes(folders: Iterable[str | Path]) -> Outcomes | None:
    """The outcomes of the folders that have them; None where none has.

    Raises:
        ProbeError: a file that is damaged; it is named.
    """
    counts: dict[tuple[Key, str], Counts] = {}
    paths = [Path(folder) / FILE for folder in folders]
    for path in paths:
        if path.is_file():
            counts |= _read(path)
    return Outcomes(counts) if counts else None


def _read(path: Path) -> dict[tuple[Key, str], Counts]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        there = pq.read_schema(path).names
        missing = [name for name in (*_WORDS, *_NUMBERS) if name not in there]
        if missing:
            raise ProbeError(f"{path}: expected the column {missing[0]}, found {', '.join(there)}; probe anew")
        table = pq.read_table(path, columns=[*_WORDS, *_NUMBERS])
        numbers: dict[str, NDArray[Any]] = {name: np.asarray(table[name].cast(pa.int64())) for name in _NUMBERS}
        coded = [table[name].cast(pa.string()).combine_chunks().dictionary_encode() for name in _WORDS]
    except pa.ArrowException as error:
        raise ProbeError(f"{path}: not readable as outcomes ({str(error).splitlines()[0]}); probe anew") from None
    codes = [np.asarray(column.indices, np.int64) for column in coded]
    names = [column.dictionary.to_pylist() for column in coded]
    if ((numbers["correct"] < 0) | (numbers["correct"] > numbers["items"])).any():
        raise ProbeError(f"{path}: a row has more correct items than items; probe anew")
    order = np.lexsort((numbers["sentence"], numbers["seed"], *codes))
    changes = np.zeros(len(order), bool)
    for part in (*codes, numbers["seed"]):
        changes[1:] |= part[order][1:] != part[order][:-1]
    found = {}
    for rows in np.split(order, np.flatnonzero(changes)) if len(order) else []:
        encoder, mode, task, label = (words[code[rows[0]]] for words, code in zip(names, codes, strict=True))
        key = Key(encoder, int(numbers["seed"][rows[0]]), mode, task)
        found[key, label] = np.stack([numbers[name][rows] for name in ("sentence", "items", "correct")], 1).astype(
            float
        )
    return found
