"""What is written of a dissection: plain JSON, and a tidy table of scores.

Comparisons between encoders are made here, once, so that whoever reads the files computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from mtlprune.analyses.dissection.comparison import (
    composition,
    gates_against_shares,
    losses,
    lost_share,
    mu_correlations,
)
from mtlprune.analyses.dissection.run import Dissected, Dissection, open_heads, single_and_joint
from mtlprune.analyses.dissection.subset_scores import SubsetScores, f1
from mtlprune.analyses.dissection.terms import SUBSETS, TERMS
from mtlprune.files import plain, replacing, write_json

JSON, PARQUET = "dissection.json", "dissection.parquet"
DIGITS = 6


def tree(found: Dissection) -> dict[str, Any]:
    """Everything, as what JSON can hold; numbers that are not defined are null."""
    encoders, seed = found.encoders, int(found.head["seed"])
    return plain(
        {
            "head": found.head,
            "terms": list(TERMS),
            "subsets": list(SUBSETS),
            "refused": found.refused,
            "encoders": [_encoder(encoder) for encoder in encoders],
            "across": [_across(one, other) for one, other in combinations(encoders, 2) if _alike(one, other)],
            "gates": [row for encoder in encoders for row in _gates(encoder, encoders, seed)],
            "lost_shares": _lost_shares(encoders),
            "losses": [row for pair in single_and_joint(encoders) for row in _losses(*pair, seed)],
            "compositions": [row for encoder in encoders for row in _compositions(encoder, encoders)],
        },
        DIGITS,
    )


def write(found: dict[str, Any], folder: Path) -> None:
    """``dissection.json`` and ``dissection.parquet`` (one row a number: encoder, what, layer, head, term, value)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_json(folder / JSON, found, DIGITS)
    with replacing(folder / PARQUET) as beside:
        pq.write_table(pa.Table.from_pylist(tidy(found), schema=_schema(pa)), beside)


def tidy(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a number."""
    rows: list[dict[str, Any]] = []

    def add(own: dict[str, Any], names: Sequence[Any], axis: str, values: Sequence[Any]) -> None:
        rows.extend(own | {axis: name, "value": value} for name, value in zip(names, values, strict=True))

    for encoder in found["encoders"]:
        own = {"encoder": encoder["label"], "seed": encoder["seed"]}
        for layer, values in enumerate(encoder["mu"]):
            add(own | {"what": "mu", "layer": layer}, TERMS, "term", values)
        for layer, values in enumerate(encoder["heads"], 1):
            add(own | {"what": "head share", "layer": layer}, range(1, len(values) + 1), "head", values)
        for kind in ("in_sample", "held_out"):
            lines = [line[kind] for line in encoder["linearity"]]
            add(own | {"what": f"r2 {kind}"}, range(1, len(lines) + 1), "layer", lines)
        for task in encoder["scores"]:
            for what in ("score", "macro_f1"):
                add(own | {"what": what, "task": task["task"]}, SUBSETS, "term", task[what])
    return rows


def _schema(pa: Any) -> Any:
    texts, numbers = ("encoder", "what", "task", "term"), ("seed", "layer", "head")
    return pa.schema([*((t, pa.string()) for t in texts), *((n, pa.int64()) for n in numbers), ("value", pa.float64())])


def _encoder(encoder: Dissected) -> dict[str, Any]:
    found = encoder.found
    return {
        "key": encoder.key,
        "label": encoder.label,
        "name": encoder.name,
        "seed": encoder.seed,
        "tasks": encoder.tasks,
        "pieces": found.pieces,
        "error": float(f"{found.error:.2e}"),
        "largest": found.largest,
        "gates": None if encoder.gates is None else encoder.gates,
        "kept": encoder.kept,
        "mu": found.mu,
        "mu_sd": found.mu_sd,
        "heads": found.heads,
        "linearity": encoder.lines,
        "scores": [_task(scores) for scores in encoder.scores] + _masked(encoder),
    }


def _task(scores: SubsetScores) -> dict[str, Any]:
    return {
        "task": scores.task,
        "train": scores.train,
        "test": scores.test,
        "unseen": scores.unseen,
        "baseline": float(f1(scores.baseline.sum(0))),
        "score": scores.scores(),
        "macro_f1": scores.macro,
        "micro_agreement": scores.micro_agreement,
        "macro_agreement": scores.macro_agreement,
    }


def _masked(encoder: Dissected) -> list[dict[str, Any]]:
    if encoder.masked is None:
        return []
    found, none = encoder.masked, [math.nan] * len(SUBSETS)
    shown = {"train": 0, "test": found.items, "unseen": 0, "baseline": math.nan, "score": found.accuracy}
    alike = {"micro_agreement": found.agreement, "macro_agreement": [none] * len(SUBSETS)}
    return [{"task": "mlm", **shown, "macro_f1": none, **alike}]


def _alike(one: Dissected, other: Dissected) -> bool:
    return one.found.word_mu.shape == other.found.word_mu.shape


def _across(one: Dissected, other: Dissected) -> dict[str, Any]:
    spearman, pearson = mu_correlations(one.found.word_mu, other.found.word_mu)
    return {"first": one.key, "second": other.key, "spearman": spearman, "pearson": pearson}


def _gates(encoder: Dissected, encoders: list[Dissected], seed: int) -> list[dict[str, Any]]:
    """Of a run with gates: against shares in every encoder that has all its heads open."""
    opened = open_heads(encoder)
    if opened is None:
        return []
    gates = opened.astype(float) if encoder.gates is None else encoder.gates
    rows = []
    for other in encoders:
        if open_heads(other) is None and other.found.heads.shape == gates.shape:
            found = gates_against_shares(gates, other.found.heads, seed)
            rows.append({"gates_of": encoder.key, "shares_in": other.key, **asdict(found)})
    return rows


def _lost_shares(encoders: list[Dissected]) -> list[dict[str, Any]]:
    """Do heads that one task alone keeps lose their share in the joint encoder of the same seed and kind?"""
    rows = []
    for task, single, joint in single_and_joint(encoders):
        mine = open_heads(single)
        rest = [
            open_heads(e) for e in encoders if len(e.tasks) == 1 and e.tasks != single.tasks and e.seed == single.seed
        ]
        others = [opened for opened in rest if opened is not None and mine is not None and opened.shape == mine.shape]
        if mine is not None and others:
            only = mine & ~np.any(others, axis=0)
            rows.append(
                {"task": task, "single": single.key, "joint": joint.key, "against": len(others)}
                | lost_share(single.found.heads, joint.found.heads, only)
            )
    return rows


def _losses(task: str, single: Dissected, joint: Dissected, seed: int) -> list[dict[str, Any]]:
    rows = []
    for mine in single.scores:
        theirs = next((scores for scores in joint.scores if scores.task == mine.task), None)
        if mine.task == task and theirs is not None:
            found = losses(mine.counts, theirs.counts, seed)
            rows.append({"task": task, "single": single.key, "joint": joint.key, **found})
    return rows


def _compositions(encoder: Dissected, encoders: list[Dissected]) -> list[dict[str, Any]]:
    """h and f of each layer of a joint encoder from those of single-task and pretrained ones."""
    added = encoder.found.added
    others = [e for e in encoders if len(e.tasks) < 2 and e.found.added.shape == added.shape]
    if len(encoder.tasks) < 2 or len(others) < 2:
        return []
    rows = []
    for layer in range(len(added)):
        for place, term in enumerate("hf"):
            given = {other.key: other.found.added[layer, place].numpy() for other in others}
            found = composition(added[layer, place].numpy(), given)
            rows.append({"joint": encoder.key, "layer": layer + 1, "term": term, **asdict(found)})
    return rows
