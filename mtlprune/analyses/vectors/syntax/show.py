"""Tables, sentences and figures that show a Result of ``analyze syntax``."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from mtlprune.analyses.frames import TableRows
from mtlprune.figures.charts import DIVERGING, RULE, AnyChart, Drawing, data, head_map, panels
from mtlprune.figures.grid import Grid, number
from mtlprune.runs.results import Result


def about(result: Result) -> str:
    """Describe the sentences that were read, and define attention between words and the guess of a head."""
    facts = result.about
    return (
        f"{result.origin} The sentences have {facts['tokens']:,} words. A head predicts for each word the word to "
        "which it attends most, or the word that attends most to it (Chen et al. 2024). Attention between words is the "
        "mean "
        "over the sub-words that attend, and the sum over those attended to. The diagonal, [CLS] and [SEP] are left "
        "out without renormalisation, and among equal weights the first word counts. Only UAS beyond that of the best "
        "fixed offset, with a head chosen on other sentences, is evidence of syntax."
    )


def findings(result: Result) -> list[str]:
    """Return the main numbers as sentences: the best heads of each encoder and the best fixed offset, held out."""
    base = result.about["offset"]
    sentences = []
    for row in _encoders(result).to_dict("records"):
        single, best = _one_digit(row["uas_single_held_out"]), _one_digit(row["uas_best_held_out"])
        sentences.append(
            f"In {row['name']}, one head ({row['place']}) finds the gold head of {single} % of words. The best head of "
            f"each relation finds {best} % (heads are chosen on other sentences)."
        )
    single, best = _one_digit(base["uas_single_held_out"]), _one_digit(base["uas_best_held_out"])
    return [
        *sentences,
        f"The best offset ({base['offset_single']:+d}) finds {single} %, and the best offset of each relation {best} "
        "%.",
    ]


def _one_digit(value: float | None) -> str:
    return "–" if value is None else number(value, 1)


def _encoders(result: Result) -> pd.DataFrame:
    """Return one row for each encoder, with its measures and the name of its best head for all words."""
    encoders = result.with_names("encoders")
    single = encoders[encoders["measure"] == "uas_single"]
    wide = encoders.pivot(index="name", columns="measure", values="value")
    return wide.assign(place=_places(single).to_numpy()).reset_index()


def _places(rows: pd.DataFrame) -> pd.Series:
    """Format heads as layer.head with > if the dependent attends to its head, and < if the head attends to it."""
    return pd.Series(
        [
            "–" if pd.isna(layer) else f"{layer:.0f}.{head:.0f}{'>' if direction == 'dep->head' else '<'}"
            for layer, head, direction in zip(rows["layer"], rows["head"], rows["direction"], strict=True)
        ],
        rows.index,
    )


def _overview(result: Result) -> pd.DataFrame:
    """Return one row for each encoder, and a row for the best fixed offset."""
    base = {key: value for key, value in result.about["offset"].items() if value is not None}
    offsets = {**base, "name": "best offset", "place": f"{base['offset_single']:+d}"}
    return pd.concat([_encoders(result).astype({"name": str}), pd.DataFrame([offsets])])


def _relations(result: Result) -> Grid | None:
    if "offsets" not in result.frames:
        return None
    offsets, best = _offsets(result), _held_out(result)
    cells = [f"{number(value, 1)} ({place})" for value, place in zip(best["value"], best["place"], strict=True)]
    plain = best["name"].astype(str)  # pandas 2.2 under Python 3.12 cannot join categorical columns
    table = best.assign(cell=cells, name=plain).pivot(index="label", columns="name", values="cell")
    words = [
        f"{number(value, 1)} ({offset:+.0f})" for value, offset in zip(offsets["held"], offsets["offset"], strict=True)
    ]
    columns: dict[str, Any] = {"relation": "label", "words": ("n", 0), "offset": ("words", str)}
    return Grid.of(
        "The best head of each relation",
        offsets.assign(words=words).join(table, on="label"),
        columns | {name: (name, str) for name in result.names},
        f"Values are the held-out UAS of the best head of each relation with at least {result.about['least']} words, "
        "and of the best offset. Brackets hold the choice by all sentences, as layer.head with > if the dependent "
        "attends to its head and < if the head attends to its dependent.",
    )


def _offsets(result: Result) -> pd.DataFrame:
    """Return the best offset of each relation as columns label, n, offset and held; the most frequent come first."""
    wide = result.frames["offsets"].pivot(index=["label", "n"], columns="measure", values="value").reset_index()
    return wide.rename(columns={"uas_held_out": "held"}).sort_values(["n", "label"], ascending=[False, True])


def _held_out(result: Result) -> pd.DataFrame:
    """Return the held-out UAS of the best head of each relation and encoder, with the name of the head."""
    relations = result.with_names("relations")
    relations = relations[relations["measure"] == "uas_held_out"]
    return relations.assign(place=_places(relations))


def _gates(result: Result) -> TableRows:
    encoders = result.with_names("encoders")
    return TableRows(encoders[encoders["measure"] == "gates_by_uas"], {"first": result.names[0]})


def _phenomena(result: Result) -> Grid | None:
    if "blimp" not in result.frames:
        return None
    decided = result.with_names("blimp").query("measure != 'paradigm'").fillna({"label": ""})
    pairs, names = decided["n"].max(), decided["name"].astype(str)
    wide = decided.assign(name=names).pivot(index="label", columns="name", values="value").reset_index()
    return Grid.of(
        "Minimal pairs (BLiMP)",
        wide.replace({"label": {"": "overall"}}),
        {"phenomenon": "label", **{name: (name, 1) for name in dict.fromkeys(names)}},
        f"Values are the percentage of {pairs:,.0f} minimal pairs that are decided correctly, as means over paradigms. "
        "Chance is 50.",
    )


TABLES = {"overview": _overview, "relations": _relations, "gates": _gates, "phenomena": _phenomena}
"""Name of a declared table (``frames.yaml``) → function from a Result to the rows of the table."""


_ROW, _PANEL, _PANELS_ACROSS = 18, 118, 7
"""Height of a relation and width of a panel in pixels, and the largest number of panels in a row."""


def _best_heads(result: Result) -> AnyChart:
    """Draw the held-out UAS of the best head of each relation, next to that of the best offset."""
    offsets = _offsets(result)
    words = offsets["label"] + " (" + offsets["n"].astype(int).astype(str) + ")"
    frame = _held_out(result).merge(offsets.assign(relation=words)[["label", "relation", "held", "offset"]], on="label")
    frame["beyond"] = frame["value"] > frame["held"]
    columns_kept = frame[["name", "relation", "value", "held", "offset", "beyond", "place"]]
    across = alt.Scale(domain=[0, 100], nice=False)
    base = alt.Chart(data(columns_kept), width=_PANEL, height=_ROW * len(offsets)).encode(
        alt.Y("relation:N", sort=list(words), title=None, axis=alt.Axis(grid=False, domain=False))
    )
    x = alt.X("value:Q", scale=across, title=None, axis=alt.Axis(values=[0, 25, 50, 75, 100], labelOverlap=True))
    dots = base.mark_circle(size=60, opacity=1).encode(
        x, color=alt.condition("datum.beyond", alt.value(DIVERGING[0]), alt.value(RULE))
    )
    ways = base.mark_rule(color=RULE).encode(alt.X("held:Q", scale=across), alt.X2("value:Q"))
    ticks = base.mark_tick(color=DIVERGING[2], thickness=2, height=12, opacity=1).encode(alt.X("held:Q", scale=across))
    header = alt.Header(title=None, labelOrient="top", labelAnchor="middle")
    facet = alt.Facet("name:N", sort=result.names, header=header)
    return (ways + ticks + dots).facet(facet=facet, columns=min(_PANELS_ACROSS, len(result.names)), spacing=28)


def _maps(result: Result) -> Drawing:
    frame = result.wide("heads")
    largest_uas = max(10.0, np.nan_to_num(frame["uas"].max()))
    best = _encoders(result).set_index("name")
    maps = [
        head_map(
            rows,
            "uas",
            title=f"{name}: {best.loc[name, 'place']} {number(best.loc[name, 'uas_single'], 1)}",
            limit=largest_uas,
            words=False,
        )
        for name, rows in frame.groupby("name", observed=True)
    ]
    return Drawing(panels(maps, 4, spacing=30), {"offset": _one_digit(result.about["offset"]["uas_single"])})


FIGURES = {"relations": _best_heads, "heads": _maps}
"""Name of a declared figure (``frames.yaml``) → function from a Result to the chart."""
