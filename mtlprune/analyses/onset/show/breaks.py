"""Breaks of logged curves in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.onset.curves import HeadBreaks, Onsets
from mtlprune.files import plain
from mtlprune.reports.grid import Grid, markdown_document, number, probability


def tree(found: Onsets) -> dict[str, Any]:
    """What breaks.json holds; ``null`` where a curve has no break."""
    return {
        "curves": [
            {"curve": curve.name, "break": at.step, "bend": at.bend, "points": at.points, "falling": curve.falling}
            for curve, at in found.single
        ],
        "heads": [{"curve": one.name, "breaks": plain(one.steps)} for one in found.heads],
        "lags": [
            {"first": one.first, "second": one.second, "lags": one.lags.tolist(), "p": plain(one.p)}
            for one in found.lags
        ],
        "too_short": found.short,
    }


@markdown_document
def markdown(found: Onsets) -> str:
    """Tables: curves by their break, heads by theirs, lags."""
    lead = "The step of the largest acceleration; a curve that ends lower than it began is read as falling.\n"
    parts = ["# Breaks\n", lead]
    if found.single:
        rows = [
            [curve.name, "none" if at.step is None else f"{at.step:g}", str(at.points)] for curve, at in found.single
        ]
        parts.append(Grid(("curve", "break", "points"), rows).markdown())
    if found.heads:
        parts.append("Heads by the step of their break:\n")
        parts.append(_of_heads(found.heads))
    for one in found.lags:
        words = f"{one.second} after {one.first}: no head breaks in both."
        if len(one.lags):
            middle = np.quantile(one.lags, [0.25, 0.5, 0.75])
            words = (
                f"{one.second} after {one.first}: {len(one.lags)} heads break in both, lag {middle[1]:g} steps in the "
                f"median (quartiles {middle[0]:g} and {middle[2]:g}); p = {probability(one.p)} that heads of a layer "
                "changing places gives lags as small."
            )
        parts.append(words + "\n")
    if found.short:
        parts.append(f"Fewer than three points, left out: {', '.join(found.short)}.\n")
    return "\n".join(parts)


def _of_heads(heads: Sequence[HeadBreaks]) -> str:
    steps = sorted({float(step) for one in heads for step in one.steps[~np.isnan(one.steps)]})
    shown = steps if len(steps) <= 8 else []
    columns = ("curve", "heads", "without", "first", "median", "last", *(f"at {step:g}" for step in shown))
    rows = []
    for one in heads:
        there: NDArray[np.float64] = one.steps[~np.isnan(one.steps)]
        ends = (there.min(), np.median(there), there.max()) if len(there) else (math.nan,) * 3
        rows.append(
            [
                one.name,
                str(one.steps.size),
                str(one.steps.size - len(there)),
                *(number(float(end), 0) for end in ends),
                *(str(int((there == step).sum())) for step in shown),
            ]
        )
    return Grid(columns, rows).markdown()
