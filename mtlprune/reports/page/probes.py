"""What heads know, on the page: the charts and tables of probes, and the numbers behind the browser of heads."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mtlprune.analyses.probes import ANALYSIS
from mtlprune.analyses.probes import show as probes
from mtlprune.analyses.probes.show.reading import PRETRAINED, ProbePanel, known, modes, panels, read_probes, shape
from mtlprune.reports.page.render import Part, grid_rows
from mtlprune.reports.sections import Figure, Rows
from mtlprune.results import Result

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
    mode = modes(found)[0]
    shown = panels(found, mode)
    subjects = [(name, seed, known(found, mode, encoder, seed)) for name, encoder, seed in _subjects(found, mode)]
    first, *each = [(one.key, grid_rows(one, one.title), one.caption) for one in probes.tables(found)]
    figures = {panel.task: _figures(found, panel) for panel in shown}
    holds = {
        "blocks": [one for some in figures.values() for one in some],  # for the script of charts
        "about": probes.about(found),
        "summary": first,
        "who": subjects[0][0],
        "heads": _heads(subjects[0][2], shape(found), subjects[0][0]),
        "tasks": [
            (task.upper(), drawn, [one for one in each if one[0].startswith(f"{task}-")])
            for task, drawn in figures.items()
        ],
    }
    content = {"subjects": [_data(name, rows, shape(found)) for name, _, rows in subjects], "shape": shape(found)}
    few = [f"{panel.task.upper()} {len(panel.few)} of {len(panel.items)}" for panel in shown if panel.few]
    caveats = [*found.about["notes"], *probes.lacking(shown)]
    if few:
        caveats.append(
            f"Labels with fewer than {found.about['few']} test items say little and are marked: {', '.join(few)}."
        )
    if data and found.about["fingerprint"] not in data:
        corpus = found.about["corpus"]
        caveats.insert(0, f"Heads were probed on another corpus than the runs were trained on ({corpus}).")
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


def _by_head(rows: pd.DataFrame, size: tuple[int, int]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Layer and head → what it knows, the best first; every head is there."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {
        (layer, head): [] for layer in range(1, size[0] + 1) for head in range(1, size[1] + 1)
    }
    for row in rows.to_dict("records"):
        found[row["layer"], row["head"]].append(row)  # type: ignore[index]
    return found


def _data(name: str, rows: pd.DataFrame, size: tuple[int, int]) -> dict[str, Any]:
    labels: dict[tuple[str, str], int] = {}
    table: list[list[Any]] = []
    cards, chosen = [], []
    for held in _by_head(rows, size).values():
        card = []
        for row in held[:BEST]:
            key = row["task"], row["label"]
            if key not in labels:
                labels[key] = len(table)
                table.append([row["task"].upper(), row["label"], row["items"], row["few"]])
            gain = None if math.isnan(row["gain"]) else round(row["gain"], 1)
            card.append([labels[key], round(row["test"], 1), gain, row["rank"], row["there"], row["best"]])
        cards.append(card)
        chosen.append(sum(row["best"] and not row["few"] for row in held))
    return {"name": name, "encoder": rows["encoder"].iloc[0], "labels": table, "cards": cards, "chosen": chosen}


def _heads(known: pd.DataFrame, size: tuple[int, int], name: str) -> Rows:
    """What every head knows best, for readers without a script."""
    rows = []
    for (layer, head), best in _by_head(known, size).items():
        names = [f"{row['task'].upper()} {row['label']}" for row in best if row["best"]]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        told = ", ".join(names[:8]) + more
        rows.append([f"{layer}-{head}", _said(best[:1]), _said(best[1:4]), str(len(names)), told])
    return Rows(["head", "knows best", "then", "chosen for", "labels"], rows, f"Heads of {name}", ["chosen for"])


def _said(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(
        f"{row['task'].upper()} {row['label']}"
        + ("" if math.isnan(row["gain"]) else f" ({row['gain']:+.1f})".replace("-", "−"))
        for row in rows
    )
