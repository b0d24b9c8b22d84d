"""Sentences and tables of a Result of ``analyze head``."""

from typing import Any

import pandas as pd

from mtlprune.analyses.frames import TableRows
from mtlprune.errors import plural
from mtlprune.runs.results import Result

_MAX_ROWS_SHOWN = 10
"""Largest number of labels in the table of labels that the head identifies beyond every control or was chosen for."""


def about(result: Result) -> str:
    """Name the head and its run."""
    subject = result.about["of"]
    label = "" if subject["encoder"] == "pretrained" else f" ({subject['encoder']}, seed {subject['seed']})"
    return (
        f"This page describes head {result.about['head']} of layer {result.about['layer']} of {subject['run']}{label}."
    )


def findings(result: Result) -> list[str]:
    """Report the tasks that claim the head, and the label that it identifies best."""
    rows = result.frame("claimed", "encoder", "open")
    users = [
        f"{row.encoder} ({row.open} of {plural(row.seeds, 'seed')}, mean gate {row.mean:.2f})"
        for row in rows[rows["open"] > 0].itertuples()
    ]
    claimants = ", ".join(users) or f"none of {', '.join(rows['encoder'])}"
    lines = [f"The head is claimed by {claimants}."] if len(rows) else []
    known_rows = result.frame("known", "gain")
    for best in known_rows[known_rows["gain"] > 0][:1].itertuples():
        gain = f"{best.gain:.1f} points beyond every control"
        lines.append(
            f"The label that the head identifies best is {best.task.upper()} {best.label} (accuracy {best.test:.1f} %, "
            f"{gain})."
        )
    return lines or [
        "No label is known that the head identifies beyond every control, and no task that claims the head."
    ]


def _known_table(result: Result) -> pd.DataFrame | None:
    if "known" not in result.frames:
        return None
    known_rows = result.frames["known"]
    rows = known_rows[(known_rows["gain"] > 0) | known_rows["best"]][:_MAX_ROWS_SHOWN]
    marks = [
        ", ".join(
            words
            for words, holds in (
                ("chosen for it", row["best"]),
                ("few items", row["few"]),
                ("attention resting at [CLS]", row["apart"]),  # the relation root has no head word to attend to
            )
            if holds
        )
        for row in rows.to_dict("records")
    ]
    return rows.assign(marks=marks)


def _attention(result: Result) -> list[TableRows]:
    rows = result.frame("attention", "sentence", "sought")
    legend = " A star marks a pair that the label connects." * bool(rows["sought"].any())
    return [
        TableRows(here.assign(mark=here["sought"].map({True: "*", False: ""})), {"name": name, "sought": legend})
        for name, here in rows.groupby("sentence", sort=False)
    ]


def _closing(result: Result) -> TableRows:
    return TableRows(result.frame("closing"), {"closed": result.about["settings"]["closed"]})


TABLES = {"known": _known_table, "closing": _closing, "attention": _attention}
FIGURES: dict[str, Any] = {}
