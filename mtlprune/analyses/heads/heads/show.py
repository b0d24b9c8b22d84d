"""Sentences and tables of a Result of ``analyze heads``."""

from typing import Any

import pandas as pd

from mtlprune.analyses.frames import TableRows
from mtlprune.figures.grid import Grid
from mtlprune.runs.results import Result
from mtlprune.statistics.standard_errors import LEVEL

_MAX_ROWS_SHOWN = 40
"""Largest number of correlations that a table lists; the frame has all of them."""


def about(result: Result) -> str:
    """Name the encoder to which the columns of probes and other analyses belong."""
    of = result.about["settings"]["of"]
    return (
        "The table has one row per head. Claims and gradients are those of the runs; probes and other analyses are "
        f"those of {of}."
    )


def findings(result: Result) -> list[str]:
    """Report how many pairs of columns from different sources are correlated."""
    across = _pairs(result, one_source=False)
    if not len(across):
        return ["No two sources have numbers that vary within layers, so sources are not compared."]
    return [
        f"{(across['q'] < LEVEL).sum()} of {len(across)} pairs of columns from different sources are correlated within "
        f"layers at q < {LEVEL:g} (Spearman, {result.about['settings']['permutations']} permutations of heads within "
        "layers, Benjamini and Hochberg)."
    ]


def _pairs(result: Result, one_source: bool) -> pd.DataFrame:
    all_rows = result.frame("correlations", "one_source", "p", "q")
    return all_rows[(all_rows["one_source"] == one_source) & all_rows["p"].notna()]


def _correlations(result: Result, one_source: bool) -> TableRows:
    """Return the correlations with q below LEVEL, or the ten with the smallest p if there are none."""
    all_rows = _pairs(result, one_source)
    clear = all_rows[all_rows["q"] < LEVEL]
    shown_rows = (clear if len(clear) else all_rows[:10])[:_MAX_ROWS_SHOWN]
    source_words = "one source (which may be correlated by construction)" if one_source else "different sources"
    count_words = f"{len(clear)} of {len(all_rows)} pairs have" if len(clear) else f"None of {len(all_rows)} has"
    return TableRows(shown_rows, {"what": source_words, "many": count_words, "shown": len(shown_rows)})


def _heads(result: Result) -> Grid:
    """Return the table of heads, with one row for each head; columns of numbers come before those of words."""
    keys, names = ["layer", "head"], list(result.frames["columns"]["term"])
    table = result.frames["heads"].pivot(index=keys, columns="measure", values="value")
    if "words" in result.frames:
        table = table.join(result.frames["words"].pivot(index=keys, columns="term", values="words").replace("", "–"))
    numbers = [name for name in names if name in set(result.frames["heads"]["measure"])]
    words = [name for name in names if name not in numbers]
    columns: dict[str, Any] = {"layer": ("layer", 0), "head": ("head", 0)}
    columns |= {name: (name, "{:.3g}".format) for name in numbers} | {name: name for name in words}
    grid = Grid.of("All heads", table.reset_index(), columns, "Layers and heads are counted from 1.", texts=0)
    return Grid(grid.header, grid.rows, 0, grid.title, grid.caption, texts_last=len(words))


TABLES = {
    "correlations": lambda result: [_correlations(result, one_source) for one_source in (False, True)],
    "meanings": lambda result: result.frames["columns"].query("meaning != ''"),
    "heads": _heads,
}
FIGURES: dict[str, Any] = {}
