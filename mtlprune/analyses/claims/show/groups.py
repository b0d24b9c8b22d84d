"""Heads by claims, as every analysis that compares them shows it: a sentence and a table of the frame ``tests``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mtlprune.reports.grid import Grid, probability
from mtlprune.results import Result

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


def tests_table(result: Result, measures: Mapping[str, str], signs: str) -> Grid:
    """The surest comparisons; no rows where there is none.

    Args:
        measures: measure → what it is called.
        signs: what a value below or above 0 means.
    """
    known = _known(result)
    terms = known["term"].str.replace("-", "−").replace("tasks", "Spearman with number of tasks")
    shown = known.assign(measure=known["measure"].map(measures), term=terms).sort_values("p", kind="stable")[:SHOWN]
    columns: dict[str, Any] = {"encoder": "name", "measure": "measure", "comparison": "term", "heads": ("n", 0)}
    return Grid.of(
        "Heads by claims",
        shown,
        {**columns, "value": ("value", 4), "p": ("p", probability), "q": ("q", probability)},
        f"The {len(shown)} smallest p of {len(known)} comparisons, all within layers (heads are permuted within "
        f"layers); two-sided; q over all of them. {signs} All are in the frame tests.",
        texts=3,
    )


def _known(result: Result) -> pd.DataFrame:
    if "tests" not in result.frames:
        return pd.DataFrame(columns=["name", "measure", "term", "value", "n", "p", "q"], dtype=object)
    return result.named("tests").dropna(subset=["p"])
