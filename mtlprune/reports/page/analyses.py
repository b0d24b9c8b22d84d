"""Parts of the HTML report from folders of Results: sections of analyses, and the section of probes with its browser of
heads."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.analysis import find, results_in
from mtlprune.analyses.heads.claims import ANALYSIS as CLAIMS
from mtlprune.analyses.probes import show as probes
from mtlprune.analyses.probes.reading import PRETRAINED, ProbePanel, modes, panels, probe_table, read_probes, shape
from mtlprune.figures.grid import Grid
from mtlprune.figures.maps import diverging, hexes
from mtlprune.io.files import RunError, reading
from mtlprune.reports import analyses as shown
from mtlprune.reports.analyses import Figure
from mtlprune.reports.page.render import Part
from mtlprune.runs.results import Result

_EXPLAINING_ANALYSES = ("scarcity", "roles", "cross", "curve", "exchange", "gradients", "treatments")
_QUESTION_OF = dict.fromkeys(_EXPLAINING_ANALYSES, "why") | dict.fromkeys(("head", "heads"), "know")
"""Name of an analysis → the question that it answers; analyses that are not listed belong to "other"."""


_FolderResults = Sequence[tuple[Path, Mapping[str, Result]]]
"""Folders, each with a mapping from names of analyses to their Results."""


def results_of(folders: Sequence[Path]) -> _FolderResults:
    """Read the Results of folders.

    Raises:
        RunError: a folder has no Result, or a Result is damaged.
    """
    return [(folder, results_in(folder)) for folder in dict.fromkeys(folders)]


def parts(by_folder: _FolderResults, data: Collection[str] = ()) -> list[Part]:
    """Return a part for every Result except that of ``claims``, which has a separate section. Analyses that explain the
    costs of joint training come first, and the others follow in the order of ANALYSES.

    Args:
        by_folder: folders with their Results.
        data: fingerprints of the corpora of the report's runs. The part of an analysis of another corpus has a caveat.
    """
    every_part: list[Part] = []
    names = [name for name in dict.fromkeys([*_EXPLAINING_ANALYSES, *ANALYSES]) if name != CLAIMS.name]
    for name, folder, result in (
        (name, folder, results_by_name[name])
        for name in names
        for folder, results_by_name in by_folder
        if name in results_by_name
    ):
        analysis, record, caveats = find(name), result.about, []
        with reading(folder / f"{name}.json", RunError, "make it again"):
            blocks = shown.section(analysis, result)
        keys_used = {part.key for part in every_part}
        key = next(k for k in (analysis.key, *(f"{analysis.key}-{n}" for n in range(2, 1000))) if k not in keys_used)
        title = analysis.title if key == analysis.key else f"{analysis.title} ({folder})"
        if data and record.get("fingerprint") not in (None, *data):
            corpus_name = record.get("corpus", record["fingerprint"][:8])
            caveats.append(f"{title} read another corpus ({corpus_name}) than the one on which the runs were trained.")
        question = _QUESTION_OF.get(name, "other")
        folded = name == "heads" or question == "other"
        every_part.append(Part(key, title, {"blocks": blocks}, question, caveats, template="analysis", folded=folded))
    return every_part


# -- probes ------------------------------------------------------------------------------------------------------------


_BEST = 12
"""Number of labels that the browser of heads shows for a head."""
_SUBJECTS = 12
"""The largest number of encoders in the browser of heads, with one seed of each."""
_Heads = dict[tuple[int, int], list[dict[str, Any]]]
"""(layer, head) → rows of ``probe_table`` for the head, the best first. Every head has an entry."""


def probes_part(folders: Sequence[Path], data: Collection[str] = ()) -> Part | None:
    """Return the part of the report on probes, with charts, tables and the numbers for the browser of heads, or None
    without folders.

    Args:
        folders: folders that `mtlprune analyze probes` wrote.
        data: fingerprints of the corpora of the report's runs. Results of another corpus have a caveat.

    Raises:
        RunError: a folder has no results, a result is damaged, or the results cannot be compared.
    """
    if not folders:
        return None
    result = read_probes(folders)
    mode, size = modes(result)[0], shape(result)
    panels_shown = panels(result, mode)
    subjects = [
        (name, _by_head(probe_table(result, mode, encoder, seed), size))
        for name, encoder, seed in _subjects(result, mode)
    ]
    first, *task_tables = probes.tables(result)
    tasks = [
        (
            panel.task.upper(),
            _figures(result, panel),
            [table for table in task_tables if table.key.startswith(f"{panel.task}-")],
        )
        for panel in panels_shown
    ]
    subject_title, heads = subjects[0]
    holds = {
        "about": probes.about(result),
        "summary": first,
        "who": subject_title,
        "heads": _heads(heads, subject_title),
        "tasks": tasks,
    }
    caveats = [*result.about["notes"], *probes.missing_kinds(panels_shown)]
    if rare_labels := [
        f"{panel.task.upper()} {len(panel.rare_labels)} of {len(panel.items)}"
        for panel in panels_shown
        if panel.rare_labels
    ]:
        caveats.append(
            f"Labels with fewer than {result.about['few']} test items are hardly informative and are marked "
            f"({', '.join(rare_labels)})."
        )
    if data and result.about["fingerprint"] not in data:
        corpus = result.about["corpus"]
        caveats.insert(
            0, f"Heads were probed on another corpus ({corpus}) than the one on which the runs were trained."
        )
    content: dict[str, Any] = {"subjects": [_data(*subject) for subject in subjects], "shape": size}
    holds["cells"] = np.array(content["subjects"][0]["cells"]).reshape(size).tolist()
    findings = probes.beyond_controls(panels_shown)
    return Part("probes", "", holds, "know", caveats, findings, content, "heads-know")


def _figures(result: Result, panel: ProbePanel) -> list[Figure]:
    """Return the figures of a task: the best head of each label and, with single-task runs, differences from STL."""
    title = PRETRAINED if PRETRAINED in panel.titles else panel.titles[0]
    labels = [panel.of(title, label)[0] for label in panel.reliable_labels if panel.of(title, label)]
    best = sorted((row for row in labels if not math.isnan(row["gain"])), key=lambda row: -row["gain"])[:5]
    text = ", ".join(f"{row['label']} {row['gain']:+.1f} (layer {row['layer']}, head {row['head']})" for row in best)
    words = (
        f"{panel.task.upper()}, {title}: accuracy of the best head of each label, compared with its best control. "
        f"The largest gains are {text}."
    )
    figures = [Figure(probes.layers_figure(result, panel, title), words)]
    if panel.compared:
        spec = probes.differences_figure(result, panel)
        words = (
            f"{spec['title']['text']}, with one tick for each label and encoders side by side. The table below has "
            "the numbers."
        )
        figures.append(Figure(spec, words))
    return figures


# -- the browser of heads --------------------------------------------------------------------------------------------


def _subjects(result: Result, mode: str) -> list[tuple[str, str, int]]:
    """Return the name, the label and the first seed of each encoder in the browser of heads, the pretrained encoder
    first."""
    labels = result.frames["labels"]
    first = labels[labels["mode"] == mode].groupby("encoder", sort=False)["seed"].min()
    order = sorted(sorted(first.index), key=lambda name: (name != PRETRAINED, "MTL" in name, "+" in name))
    titled_subjects = [
        (name if name == PRETRAINED else f"{name}, seed {first[name]}", name, int(first[name])) for name in order
    ]
    return titled_subjects[:_SUBJECTS]


def _by_head(rows: pd.DataFrame, size: tuple[int, int]) -> _Heads:
    """Group the rows of ``probe_table`` by head. ``size``: number of layers, and of heads of a layer."""
    rows_of = {place: head_rows.to_dict("records") for place, head_rows in rows.groupby(["layer", "head"])}
    return {place: rows_of.get(place, []) for place in product(range(1, size[0] + 1), range(1, size[1] + 1))}


def _data(name: str, heads: _Heads) -> dict[str, Any]:
    """Return the data of an encoder for the browser of heads.

    Each label is listed only once, and the _BEST labels of a head are stored as indices into this list with their
    numbers, so that the report remains small.
    """
    best = [row for rows in heads.values() for row in rows[:_BEST]]
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
            for row in rows[:_BEST]
        ]
        for rows in heads.values()
    ]
    best_counts = [sum(row["best"] and not row["few"] for row in rows) for rows in heads.values()]
    cells = hexes(diverging(-np.array(best_counts) / max(1, *best_counts)))
    return {"name": name, "labels": list(labels.values()), "cards": cards, "chosen": best_counts, "cells": cells}


def _heads(heads: _Heads, name: str) -> Grid:
    """Return a table of the labels that every head identifies best, for readers without JavaScript."""
    rows = []
    for (layer, head), best in heads.items():
        names = [f"{row['task'].upper()} {row['label']}" for row in best if row["best"]]
        remaining = f" and {len(names) - 8} more" if len(names) > 8 else ""
        labels = ", ".join(names[:8]) + remaining
        rows.append(
            [f"{layer}-{head}", _labels_with_scores(best[:1]), _labels_with_scores(best[1:4]), labels, str(len(names))]
        )
    return Grid(
        ["head", "best label", "further labels", "best head for", "number of labels"], rows, 4, f"Heads of {name}"
    )


def _labels_with_scores(rows: Sequence[dict[str, Any]]) -> str:
    """Return labels with their gains over the best control, such as ``POS NN (+4.2)``."""
    return ", ".join(
        f"{row['task'].upper()} {row['label']}"
        + ("" if math.isnan(row["gain"]) else f" ({row['gain']:+.1f})".replace("-", "−"))
        for row in rows
    )
