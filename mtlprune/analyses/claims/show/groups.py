"""Heads by claims, as every analysis that compares them shows it: a sentence and a table of the frame ``tests``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.reports.grid import Grid, probability
from mtlprune.results import CLOSED_GATE, Result, head_rows

LEVEL = 0.05
SHOWN = 24


def by_claims(result: Result) -> list[str]:
    """What the comparisons come to."""
    claims = result.about["claims"]
    if claims is None:
        return ["No runs with gates were named (--claims), so heads are not compared by how many tasks claim them."]
    tests = _known(result)
    sizes = ", ".join(f"{size} {name}" for name, size in claims["groups"].items())
    return [
        f"Heads by claims of {', '.join(claims['tasks'])}: {sizes}. Of {len(tests)} comparisons within layers "
        f"{(tests['q'] < LEVEL).sum()} have q < {LEVEL} (Benjamini-Hochberg over all of them; "
        f"{LEVEL * len(tests):.0f} would have p < {LEVEL} by chance, {(tests['p'] < LEVEL).sum()} have)."
    ]


def tests_table(result: Result, measures: Mapping[str, str], signs: str, digits: int = 4) -> Grid:
    """The surest comparisons; no rows where there is none.

    Args:
        measures: measure → what it is called.
        signs: what a value below or above 0 means.
        digits: of values.
    """
    known = _known(result)
    spearman = {"tasks": "Spearman with number of tasks", "gates": "Spearman with mean gate"}
    terms = known["term"].str.replace("-", "−").replace(spearman)
    shown = known.assign(measure=known["measure"].map(measures), term=terms).sort_values("p", kind="stable")[:SHOWN]
    columns: dict[str, Any] = {"encoder": "name", "measure": "measure", "comparison": "term", "heads": ("n", 0)}
    return Grid.of(
        "Heads by claims",
        shown,
        {**columns, "value": ("value", digits), "p": ("p", probability), "q": ("q", probability)},
        f"The {len(shown)} smallest p of {len(known)} comparisons, all within layers (heads are permuted within "
        f"layers); two-sided; q over all of them. {signs} All are in the frame tests.",
        texts=3,
    )


def before(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """``about`` of a Result, and the frames of ``compared``, from JSON of versions without frames."""
    encoders = []
    for old in content["encoders"]:
        keys = {"encoder": old["label"], "run": old.get("run", ""), "seed": old.get("seed", 0), "kind": old.get("kind")}
        heads = old["heads"]
        layers, a_layer = old.get("shape") or (max(h["layer"] for h in heads), max(h["head"] for h in heads))
        is_open = sum(head.get("gate", 1) > CLOSED_GATE for head in heads)
        encoders.append({**keys, "layers": layers, "heads": a_layer, "open": is_open})
    about = {**content, "encoders": encoders, "claims": content.get("claims"), "notes": content.get("notes", [])}
    if about["claims"] is None:
        return about, {}
    claims = about["claims"]
    about["claims"] = {key: claims[key] for key in ("encoder", "tasks", "groups")}
    grids = [head_rows({"gate": np.array(gate)}).assign(task=task) for task, gate in claims.get("gates", {}).items()]
    counted = head_rows({"tasks": np.array(claims["counts"], float)}).assign(task=None)
    tests = pd.DataFrame(claims["tests"]).rename(columns={"test": "term", "heads": "n"})
    tests = tests.astype(dict.fromkeys(("value", "p", "q", "pooled"), float))
    pooled = tests[tests["pooled"].notna()]
    pooled = pooled.assign(term=pooled["term"] + ", pooled", value=pooled["pooled"], p=math.nan, q=math.nan)
    return about, {
        "claims": pd.concat([*grids, counted], ignore_index=True),
        "tests": pd.concat([tests, pooled], ignore_index=True).drop(columns="pooled"),
    }


def _known(result: Result) -> pd.DataFrame:
    if "tests" not in result.frames:
        return pd.DataFrame(columns=["name", "measure", "term", "value", "n", "p", "q"], dtype=object)
    return result.named("tests").dropna(subset=["p"])
