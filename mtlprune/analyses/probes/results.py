"""From findings to files: ``probes.parquet`` (one row a head and label) and ``probes.json`` (one entry a label).

Letters for shapes: K labels, L layers, A heads a layer, U items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.probes.controls import chance, offset_hits
from mtlprune.analyses.probes.differences import differences
from mtlprune.analyses.probes.items import ATTENTION, Items
from mtlprune.analyses.probes.survey import SHUFFLED, SOUND, TRUE, Grid, Probed, chosen
from mtlprune.files import plain, replacing, write_json

TABLE, SUMMARY = "probes.parquet", "probes.json"
RANDOM, OFFSET, CHANCE = "random_encoder", "offset", "chance"
ROOT = ("dep", "root")
TEXT, WHOLE = ("encoder", "run", "mode", "control", "task", "label"), ("seed", "items", "layer", "head")

SPECIALS = (
    "[CLS] and [SEP] stand around every sentence and are attended to as usual. dep: [CLS] and the words can be chosen, "
    "[CLS] stands for the root, [SEP] is dropped. srl: words only. pos, ner, con: vectors of words only."
)


@dataclass(eq=False)
class ControlColumn:
    """What one control (or none) reached, by label: with a grid over heads, or one number where no head is meant."""

    control: str
    dev: Grid
    test: Grid
    offset: NDArray[np.int64] | None = None


@dataclass(eq=False)
class Results:
    """Everything that was probed on one corpus.

    Attributes:
        items: split → tasks.
        modes: sound, as-released.
        few: labels with fewer test items are marked.
        longest: words of the longest sentence.
        head: further entries of probes.json, such as corpus and fingerprint.
        probed: one entry an encoder.
    """

    items: Mapping[str, Sequence[Items]]
    modes: Sequence[str]
    few: int
    longest: int
    head: Mapping[str, Any]
    probed: list[Probed] = field(default_factory=list)

    def columns(self, probed: Probed, mode: str, items: Items) -> Iterator[ControlColumn]:
        """The probe and its controls for one task; the probe comes first."""
        sources = [(probed.found, TRUE, TRUE), (probed.untrained, TRUE, RANDOM), (probed.found, SHUFFLED, SHUFFLED)]
        for found, labelling, name in sources:
            if found is not None:
                key = mode, labelling, items.task
                yield ControlColumn(name, found.dev[key], found.test[key])
        choosing = self._choosing(mode, items)
        if items.kind in ATTENTION:
            yield self._offset(choosing, items)
        # the label's own counts are enough: nothing is chosen by chance
        dev, test = (100 * chance(part)[:, None, None] for part in (choosing, items))
        yield ControlColumn(CHANCE, dev, test)

    def _choosing(self, mode: str, items: Items) -> Items:
        split = "dev" if mode == SOUND else "test"
        return next(part for part in self.items[split] if part.task == items.task)

    def _offset(self, choosing: Items, items: Items) -> ControlColumn:
        with np.errstate(invalid="ignore"):
            dev, test = (
                100 * offset_hits(part, self.longest) / part.counts()[:, None] for part in (choosing, items)
            )  # (K, D)
        best = np.where(np.isnan(dev).all(1), 0, np.nan_to_num(dev, nan=-1).argmax(1))[:, None]
        dev, test = (np.take_along_axis(part, best, 1)[..., None] for part in (dev, test))
        return ControlColumn(OFFSET, dev, test, best[:, 0] + 1)

    def write(self, folder: Path) -> None:
        """Write both files, each whole or not at all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = [
            _table(probed, mode, items, column)
            for probed, mode, items in self._each()
            for column in self.columns(probed, mode, items)
        ]
        with replacing(folder / TABLE) as beside:
            pq.write_table(pa.concat_tables(tables).combine_chunks(), beside, compression="zstd")
        tree = {
            **self.head,
            "specials": SPECIALS,
            "few": self.few,
            "summary": self.summary,
            "differences": list(differences(self.probed, self.modes, self.items["test"])),
        }
        write_json(folder / SUMMARY, tree)

    def _each(self) -> Iterator[tuple[Probed, str, Items]]:
        return ((p, mode, items) for p in self.probed for mode in self.modes for items in self.items["test"])

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """One entry an encoder, mode, task and label: the chosen head, its accuracy, and each control's."""
        return [
            entry
            for probed, mode, items in self._each()
            for entry in self._summary(probed, mode, items, list(self.columns(probed, mode, items)))
        ]

    def means(self) -> list[dict[str, Any]]:
        """Over the labels of an encoder, mode and task that have enough items and are not reported apart."""
        groups: dict[tuple, list[dict[str, Any]]] = {}
        for entry in self.summary:
            if not entry["few"] and not entry["apart"] and entry["gain"] is not None:
                groups.setdefault(tuple(entry[key] for key in ("mode", "encoder", "seed", "task")), []).append(entry)
        return [
            {
                **dict(zip(("mode", "encoder", "seed", "task"), key, strict=True)),
                "labels": len(group),
                "test": float(np.mean([entry["test"] for entry in group])),
                "control": float(np.mean([entry["test"] - entry["gain"] for entry in group])),
                "gain": float(np.mean([entry["gain"] for entry in group])),
                "gained": sum(entry["gain"] > 0 for entry in group),
            }
            for key, group in groups.items()
        ]

    def _summary(
        self, probed: Probed, mode: str, items: Items, columns: Sequence[ControlColumn]
    ) -> Iterator[dict[str, Any]]:
        counts = items.counts()
        best = [chosen(column.dev) for column in columns]  # (K,) each
        reached = [
            np.where(place < 0, np.nan, np.take_along_axis(_flat(column.test), place.clip(0)[:, None], 1)[:, 0])
            for column, place in zip(columns, best, strict=True)
        ]
        for k in np.flatnonzero(counts):
            place = divmod(int(best[0][k]), columns[0].test.shape[2]) if best[0][k] >= 0 else None
            controls = {column.control: _number(r[k]) for column, r in zip(columns[1:], reached[1:], strict=True)}
            known = [value for value in controls.values() if value is not None]
            accuracy = _number(reached[0][k])
            offset = next((int(column.offset[k]) for column in columns if column.offset is not None), None)
            yield {
                "encoder": probed.label,
                "run": probed.run,
                "seed": probed.seed,
                "mode": mode,
                "task": items.task,
                "label": items.labels[k],
                "layer": place and place[0] + 1,
                "head": place and place[1] + 1,
                "test": accuracy,
                "items": int(counts[k]),
                "controls": controls,
                "offset": offset,
                "gain": None if accuracy is None or not known else round(accuracy - max(known), 4),
                "few": bool(counts[k] < self.few),
                "apart": (items.task, items.labels[k]) == ROOT,
            }


def _flat(grid: Grid) -> NDArray[np.float64]:
    return grid.reshape(len(grid), -1)


def _number(value: float) -> float | None:
    return plain(round(float(value), 4))


def _table(probed: Probed, mode: str, items: Items, column: ControlColumn) -> Any:
    """One row a label (that has test items) and head."""
    import pyarrow as pa

    labels = np.flatnonzero(items.counts())
    layers, heads = column.test.shape[1:]
    of_heads = column.control not in (OFFSET, CHANCE)
    each = layers * heads
    place = np.tile(np.arange(each), len(labels))
    best = place == np.repeat(chosen(column.dev)[labels], each)
    words = {
        "encoder": probed.label, "run": probed.run, "mode": mode, "control": column.control, "task": items.task
    }  # fmt: skip
    size = len(labels) * each
    names = pa.DictionaryArray.from_arrays(np.repeat(labels, each).astype(np.int32), list(items.labels))
    values = {name: pa.array([word]).take(pa.array(np.zeros(size, np.int64))) for name, word in words.items()}
    values["label"] = names.cast(pa.string())
    numbers: dict[str, NDArray[Any]] = {
        "seed": np.full(size, probed.seed),
        "items": np.repeat(items.counts()[labels], each),
        "layer": place // heads + 1 if of_heads else np.zeros_like(place),
        "head": place % heads + 1 if of_heads else np.zeros_like(place),
        "dev": _flat(column.dev)[labels].ravel(),
        "test": _flat(column.test)[labels].ravel(),
        "best": best,
    }
    return pa.table(values | {name: pa.array(value) for name, value in numbers.items()})
