"""What heads know, on the page: the drawings and tables of probes, and the numbers behind the browser of heads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from mtlprune.analyses.probes.show.card import Known, known
from mtlprune.analyses.probes.show.columns import PRETRAINED, STL, ProbeColumn, ProbePanel, panels
from mtlprune.analyses.probes.show.differences import differences
from mtlprune.analyses.probes.show.intervals import read_intervals
from mtlprune.analyses.probes.show.reading import read_probes
from mtlprune.analyses.probes.show.results import MODES, Key, ProbeResults
from mtlprune.analyses.probes.show.scatter import scatter
from mtlprune.analyses.probes.show.tables import column_note, tables
from mtlprune.reports.page.render import Part, grid_rows
from mtlprune.reports.sections import Figure, Rows

BEST = 12
"""Labels that the browser names for a head."""
SUBJECTS = 12
"""Encoders whose heads the browser holds: one seed of each."""


def part(folders: Sequence[Path], data: Collection[str] = ()) -> Part | None:
    """The part of the page; None where no folder is given.

    Args:
        data: fingerprints of the corpora of the page's runs; results of another one are called so.

    Raises:
        RunError: no results, damaged ones, or ones that do not belong together.
    """
    if not folders:
        return None
    found = read_probes(folders)
    mode = next(mode for mode in MODES if any(key.mode == mode for key in found.labels))
    shown = list(panels(found, mode))
    other = [panel for name in MODES if name != mode for panel in panels(found, name)]
    subjects = _subjects(found, mode)
    setting = ", ".join(word for word in (found.encoder, Path(found.corpus).name) if word)
    made = tables(shown, found.few, read_intervals(found.folders), other)
    about = (
        f"How well each head, without any training, tells each label, beside what chance, shuffled labels, the best "
        f"offset and a random encoder reach. Corpus {found.corpus}, mode {mode}. {found.specials}"
    )
    titles = {key: key.encoder if key.encoder == PRETRAINED else f"{key.encoder}, seed {key.seed}" for key in subjects}
    first, *each = [(one.key, grid_rows(one, one.title), one.caption) for one in made]
    holds = {
        "about": about,
        "summary": first,
        "who": titles[subjects[0]],
        "heads": _heads(found, subjects[0], mode, titles[subjects[0]]),
        "tasks": [
            (panel.task.upper(), _figures(panel, setting), [one for one in each if one[0].startswith(f"{panel.task}-")])
            for panel in shown
        ],
    }
    content = {
        "subjects": [_data(found, key, mode, title) for key, title in titles.items()],
        "shape": list(found.shape),
    }
    caveats = [*found.notes, *column_note(shown), *_few(shown, found.few)]
    if data and found.fingerprint not in data:
        caveats.insert(0, f"Heads were probed on another corpus than the runs were trained on ({found.corpus}).")
    return Part("heads-know", "What heads know", holds, caveats, _found(shown), content)


def _few(shown: Sequence[ProbePanel], few: int) -> list[str]:
    marked = [f"{panel.task.upper()} {len(panel.few)} of {len(panel.items)}" for panel in shown if panel.few]
    return (
        [f"Labels with fewer than {few} test items say little and are marked: {', '.join(marked)}."] if marked else []
    )


def _found(shown: Sequence[ProbePanel]) -> list[str]:
    """How many labels the untouched encoder's heads tell beyond every control."""
    parts = []
    for panel in shown:
        column = panel.column(PRETRAINED)
        if column is None:
            continue
        gains = [
            result.gain for labels in column.seeds.values() for label, result in labels.items() if label in panel.sure()
        ]
        defined = [gain for gain in gains if not math.isnan(gain)]
        if defined:
            parts.append(f"{panel.task.upper()} {sum(gain > 0 for gain in defined)} of {len(defined)}")
    if not parts:
        return []
    return [f"Labels that a head of the pretrained encoder tells beyond every control: {', '.join(parts)}."]


def _figures(panel: ProbePanel, setting: str) -> list[Figure]:
    column = panel.column(PRETRAINED) or panel.columns[0]
    made = [Figure(scatter(panel, column, raw=False, setting=setting), _scatter_words(panel, column))]
    if panel.column(STL) is not None and panel.compared:
        drawing = differences(panel, setting)
        words = f"{drawing.title}, a tick a label, encoders side by side; the table below has the numbers."
        made.append(Figure(drawing, words))
    return made


def _scatter_words(panel: ProbePanel, column: ProbeColumn) -> str:
    labels = next(iter(column.seeds.values()))
    sure = ((label, r) for label, r in labels.items() if not math.isnan(r.gain) and not r.few)
    best = sorted(sure, key=lambda one: -one[1].gain)[:5]
    told = ", ".join(f"{label} {r.gain:+.1f} (layer {r.layer}, head {r.head})" for label, r in best)
    return f"{panel.task.upper()}, {column.title}: gain over the best control by layer of the best head. Most: {told}."


# -- the browser of heads --------------------------------------------------------------------------------------------


def _subjects(found: ProbeResults, mode: str) -> list[Key]:
    """The first seed of each encoder: the pretrained one first."""
    first: dict[str, int] = {}
    for key in found.labels:
        if key.mode == mode:
            first[key.encoder] = min(first.get(key.encoder, key.seed), key.seed)
    names = sorted(first, key=lambda name: (name != PRETRAINED, "MTL" in name, "+" in name))
    return [Key(name, first[name], mode, "") for name in names][:SUBJECTS]


def _data(found: ProbeResults, key: Key, mode: str, name: str) -> dict[str, Any]:
    layers, heads = found.shape
    labels: dict[tuple[str, str], int] = {}
    table_: list[list[Any]] = []
    cards = []
    for layer in range(1, layers + 1):
        for head in range(1, heads + 1):
            rows = []
            for row in known(found, key.encoder, key.seed, mode, layer, head)[:BEST]:
                if (row.task, row.label) not in labels:
                    labels[row.task, row.label] = len(table_)
                    table_.append([row.task.upper(), row.label, row.items, row.few])
                gain = None if math.isnan(row.gain) else round(row.gain, 1)
                rows.append(
                    [labels[row.task, row.label], round(row.accuracy, 1), gain, row.rank, row.heads, row.chosen]
                )
            cards.append(rows)
    chosen = [0] * (layers * heads)
    for other, results in found.labels.items():
        if (other.encoder, other.seed, other.mode) == (key.encoder, key.seed, mode):
            for result in results.values():
                chosen[(result.layer - 1) * heads + result.head - 1] += not result.few
    return {"name": name, "encoder": key.encoder, "labels": table_, "cards": cards, "chosen": chosen}


def _heads(found: ProbeResults, key: Key, mode: str, name: str) -> Rows:
    """What every head knows best, for readers without a script."""
    rows = []
    for layer, head in itertools.product(*(range(1, size + 1) for size in found.shape)):
        best = known(found, key.encoder, key.seed, mode, layer, head)
        chosen = [row for row in best if row.chosen]
        rows.append([f"{layer}-{head}", _said(best[:1]), _said(best[1:4]), str(len(chosen)), _names(chosen)])
    return Rows(["head", "knows best", "then", "chosen for", "labels"], rows, f"Heads of {name}", ["chosen for"])


def _said(rows: Sequence[Known]) -> str:
    return ", ".join(
        f"{row.task.upper()} {row.label}" + ("" if math.isnan(row.gain) else f" ({row.gain:+.1f})".replace("-", "−"))
        for row in rows
    )


def _names(rows: Sequence[Known]) -> str:
    names = [f"{row.task.upper()} {row.label}" for row in rows]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
