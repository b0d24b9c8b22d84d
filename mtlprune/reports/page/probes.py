"""What heads know, on the page: the charts and tables of probes, and the numbers behind the browser of heads."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from mtlprune.analyses.probes import ANALYSIS
from mtlprune.analyses.probes import show as probes
from mtlprune.analyses.probes.show.reading import PRETRAINED, ProbePanel, known, modes, panels, read_probes, shape
from mtlprune.reports.analyses import Figure
from mtlprune.reports.grid import Grid
from mtlprune.reports.page.render import Part
from mtlprune.results import Result

BEST = 12
"""Labels that the browser names for a head."""
SUBJECTS = 12
"""Encoders whose heads the browser holds: one seed of each."""
Heads = dict[tuple[int, int], list[dict[str, Any]]]
"""Layer and head → what it knows, the best first; every head is there."""


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
    mode, size = modes(found)[0], shape(found)
    shown = panels(found, mode)
    subjects = [
        (name, _by_head(known(found, mode, encoder, seed), size)) for name, encoder, seed in _subjects(found, mode)
    ]
    first, *each = probes.tables(found)
    tasks = [
        (panel.task.upper(), _figures(found, panel), [one for one in each if one.key.startswith(f"{panel.task}-")])
        for panel in shown
    ]
    who, heads = subjects[0]
    holds = {"about": probes.about(found), "summary": first, "who": who, "heads": _heads(heads, who), "tasks": tasks}
    caveats = [*found.about["notes"], *probes.lacking(shown)]
    if few := [f"{panel.task.upper()} {len(panel.few)} of {len(panel.items)}" for panel in shown if panel.few]:
        caveats.append(
            f"Labels with fewer than {found.about['few']} test items say little and are marked: {', '.join(few)}."
        )
    if data and found.about["fingerprint"] not in data:
        corpus = found.about["corpus"]
        caveats.insert(0, f"Heads were probed on another corpus than the runs were trained on ({corpus}).")
    content = {"subjects": [_data(*one) for one in subjects], "shape": size}
    return Part(ANALYSIS.key, ANALYSIS.title, holds, caveats, probes.beyond_controls(shown), content)


def _figures(found: Result, panel: ProbePanel) -> list[Figure]:
    title = PRETRAINED if PRETRAINED in panel.titles else panel.titles[0]
    labels = [panel.of(title, label)[0] for label in panel.sure if panel.of(title, label)]
    best = sorted((row for row in labels if not math.isnan(row["gain"])), key=lambda row: -row["gain"])[:5]
    told = ", ".join(f"{row['label']} {row['gain']:+.1f} (layer {row['layer']}, head {row['head']})" for row in best)
    words = f"{panel.task.upper()}, {title}: gain over the best control by layer of the best head. Most: {told}."
    made = [Figure(probes.layers_figure(found, panel, title, raw=False), words)]
    if panel.compared:
        spec = probes.differences_figure(found, panel)
        words = f"{spec['title']['text']}, a tick a label, encoders side by side; the table below has the numbers."
        made.append(Figure(spec, words))
    return made


# -- the browser of heads --------------------------------------------------------------------------------------------


def _subjects(found: Result, mode: str) -> list[tuple[str, str, int]]:
    """Name, encoder and first seed of each encoder: the pretrained one first."""
    labels = found.frames["labels"]
    first = labels[labels["mode"] == mode].groupby("encoder", sort=False)["seed"].min()
    order = sorted(sorted(first.index), key=lambda name: (name != PRETRAINED, "MTL" in name, "+" in name))
    named = [(name if name == PRETRAINED else f"{name}, seed {first[name]}", name, int(first[name])) for name in order]
    return named[:SUBJECTS]


def _by_head(rows: pd.DataFrame, size: tuple[int, int]) -> Heads:
    held = {place: some.to_dict("records") for place, some in rows.groupby(["layer", "head"])}
    return {place: held.get(place, []) for place in product(range(1, size[0] + 1), range(1, size[1] + 1))}


def _data(name: str, heads: Heads) -> dict[str, Any]:
    """What the browser shows of an encoder: labels, once each, and of each head the BEST by their numbers."""
    best = [row for rows in heads.values() for row in rows[:BEST]]
    labels = {
        (row["task"], row["label"]): (row["task"].upper(), row["label"], row["items"], row["few"]) for row in best
    }
    numbers = {key: number for number, key in enumerate(labels)}
    cards = [
        [
            [
                numbers[row["task"], row["label"]],
                round(row["test"], 1),
                None if math.isnan(row["gain"]) else round(row["gain"], 1),
                *(row[key] for key in ("rank", "there", "best")),
            ]
            for row in rows[:BEST]
        ]
        for rows in heads.values()
    ]
    chosen = [sum(row["best"] and not row["few"] for row in rows) for rows in heads.values()]
    return {"name": name, "labels": list(labels.values()), "cards": cards, "chosen": chosen}


def _heads(heads: Heads, name: str) -> Grid:
    """What every head knows best, for readers without a script."""
    rows = []
    for (layer, head), best in heads.items():
        names = [f"{row['task'].upper()} {row['label']}" for row in best if row["best"]]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        told = ", ".join(names[:8]) + more
        rows.append([f"{layer}-{head}", _said(best[:1]), _said(best[1:4]), told, str(len(names))])
    return Grid(["head", "knows best", "then", "labels", "chosen for"], rows, 4, f"Heads of {name}")


def _said(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(
        f"{row['task'].upper()} {row['label']}"
        + ("" if math.isnan(row["gain"]) else f" ({row['gain']:+.1f})".replace("-", "−"))
        for row in rows
    )
