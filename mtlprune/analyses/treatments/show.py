"""Gains of treatments as they are shown: sentences, tables and a figure of a Result."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from mtlprune.figures.charts import HEIGHT, INK, RULE, WIDTH, Chart, Spec, data, figure, spread
from mtlprune.figures.grid import Grid, number, percent, probability
from mtlprune.runs.results import Result
from mtlprune.statistics.significance import LEVEL


def about(result: Result) -> str:
    """Where the numbers come from, and how to read them."""
    info, settings = result.about, result.about["settings"]
    free = ", ".join(f"{number:.0f}" for number in sorted(_settings(result)["free"].dropna().unique())) or "–"
    return (
        f"{info['encoder']}; {info['sentences']} sentences of {info['split']}; seed {settings['seed']}. Means of the "
        f"main scores of {', '.join(map(str.upper, info['tasks']))}, in points; intervals and p are over seeds (t with "
        f"ν = seeds − 1: {free}) and sentences ({settings['resamples']:,} resamples), Holm over treatments and over "
        f"other settings, margin ±{settings['margin']:g}."
    )


def _settings(result: Result, *kinds: str) -> pd.DataFrame:
    frame = result.frames["settings"]
    return frame[frame["mode"].isin(kinds)] if kinds else frame


def findings(result: Result) -> list[str]:
    """The gap, what gains and reaches single tasks, and whether it matters which heads are treated."""
    margin = result.about["settings"]["margin"]
    joint = _settings(result, "joint").iloc[0]
    sentences = [
        f"Joint training without treatment is {number(joint['gap'])} points [{number(joint['gap_low'])}, "
        f"{number(joint['gap_high'])}] below single tasks"
        + ("." if joint["gap_low"] > 0 else "; it is not shown to be above 0, so no share of the gap is given.")
    ]
    for kind, name in (("treated", "treatments"), ("other", "other settings")):
        some = _settings(result, kind)
        if not len(some):
            continue
        better = some.loc[(some["q"] < LEVEL) & (some["gain"] > 0), "term"]
        worse = some.loc[(some["q"] < LEVEL) & (some["gain"] < 0), "term"]
        reach = some.loc[some["reach_holm"] < LEVEL, "term"]
        sentences.append(
            f"Of {len(some)} {name} {len(better)} {'is' if len(better) == 1 else 'are'} better than joint training"
            f"{_listed(better)}, {len(worse)} worse{_listed(worse)}; shown to be at most {margin:g} points below "
            f"single tasks: {len(reach)}{_listed(reach)}."
        )
    pairs = result.frames.get("pairs", pd.DataFrame({"mode": [], "other": []}))
    tuned = pairs[pairs["mode"] == "tuned"]
    for name, rows in tuned.groupby("other"):
        better = rows.loc[(rows["holm"] < LEVEL) & (rows["delta"] > 0), "term"]
        sentences.append(
            f"Of the untreated joint settings with no more updates {name} is the best on dev; {len(better)} of "
            f"{len(rows)} treatments {'is' if len(better) == 1 else 'are'} better than it{_listed(better)}."
        )
    for row in pairs.drop(tuned.index).to_dict("records"):
        p = f"p {probability(row['p'])}" + (f", Holm {probability(row['holm'])}" if row["mode"] == "primary" else "")
        sentences.append(
            f"{row['term']} minus {row['other']} ({row['mode']}): {number(row['delta'])} points "
            f"[{number(row['low'])}, {number(row['high'])}], {p}; smaller than {margin:g} points: p "
            f"{probability(row['equal'])}."
        )
    return sentences


def _listed(names: pd.Series) -> str:
    return f" ({', '.join(names)})" if len(names) else ""


def _table(result: Result) -> Grid:
    rows = _settings(result).set_index("term")
    scores = result.frames["scores"].pivot(index="term", columns="task", values="value")
    shown = rows.join(scores).reset_index()
    clock = {
        "processor": "processor time of training with evaluations on dev",
        "wall": "time of training with evaluations on dev",
        "update": "time of an update",
    }[result.about["clock"]]
    columns: dict[str, Any] = {"setting": "term", "what": "label"}
    columns |= {task.upper(): (task, 2) for task in result.about["tasks"]} | {"mean": ("mean", 2), "gap": ("gap", 2)}
    columns |= {"low": ("gap_low", 2), "high": ("gap_high", 2), "share closed": ("share", percent)}
    columns |= {"from": ("share_low", percent), "to": ("share_high", percent)}
    columns |= {"added weights (M)": ("millions", 2), "cost": ("cost", 2), "in all": ("total", 2)}
    return Grid.of(
        "Treatments and their controls",
        shown.assign(millions=shown["parameters"] / 1e6),
        columns,
        "Means over seeds. Gap: single tasks minus this, with 95 % interval; share closed: of joint training's gap, "
        f"with 95 % interval. Cost: {clock}, as a multiple of joint training's; in all: of all updates, with the "
        "finished runs that it makes use of.",
        texts=2,
    )


def _gains(result: Result) -> Grid:
    columns: dict[str, Any] = {"setting": "term", "gain": ("gain", 2), "low": ("gain_low", 2), "high": ("gain_high", 2)}
    columns |= {"p": ("p", probability), "Holm": ("q", probability)}
    columns |= {"reaches single tasks: p": ("reach", probability), "reach, Holm": ("reach_holm", probability)}
    return Grid.of(
        "Beside joint training and single tasks",
        _settings(result, "treated", "other"),
        columns,
        "Gain: this minus joint training. Reaches: p that it is worse than single tasks by the margin or more.",
    )


def _pairs(result: Result) -> Grid | None:
    if "pairs" not in result.frames:
        return None
    columns: dict[str, Any] = {"setting": "term", "against": "other", "comparison": "mode", "difference": ("delta", 2)}
    columns |= {"low": ("low", 2), "high": ("high", 2), "p": ("p", probability), "Holm": ("holm", probability)}
    columns |= {"below margin: p": ("equal", probability), "these runs: p": ("swapped", probability)}
    return Grid.of(
        "Chosen heads against random ones, equal budgets, the best joint training",
        result.frames["pairs"],
        columns,
        "Tuned: the untreated joint training of no more updates that is the best on dev. Holm: within primary, within "
        "tuned. These runs: over sentences alone, swapped at random between the runs of each seed.",
        texts=3,
    )


TABLES = (_table, _gains, _pairs)


def _costs(result: Result) -> Spec | None:
    """Share of the gap closed (or points gained) by cost in all, with 95 % intervals; a dot a treatment."""
    rows = _settings(result, "treated", "other")
    shared = rows["share"].notna().any()
    known = rows["share" if shared else "gain_low"].notna()
    unknown = rows.loc[known & rows["total"].isna(), "term"]
    rows = rows[known & rows["total"].notna()]
    if not len(rows):
        return None
    names = ("share", "share_low", "share_high") if shared else ("gain", "gain_low", "gain_high")
    title = "share of the gap closed" if shared else "points above joint training"
    table = pd.DataFrame({"name": rows["term"], "cost": rows["total"], "treated": rows["mode"] == "treated"}).assign(
        **dict(zip(("value", "low", "high"), (rows[name] for name in names), strict=True))
    )
    table = table.dropna().sort_values("value")
    unit = 0.2 if shared else 1.0  # up to which the axis is nearly linear; beyond, nearly a logarithm
    at = _symlog(table["value"], unit)
    low, high = _symlog(np.array([min(0.0, table["low"].min()), max(0.0, table["high"].max())]), unit)
    near = np.log(table["cost"]).div(0.5).round()  # whose words would meet
    for _, place in table.groupby(near).groups.items():
        words = np.array(spread(at[place].tolist(), (high - low) / max(34, len(table)), low, high))
        table.loc[place, "at"] = np.sign(words) * np.expm1(np.abs(words)) * unit
        table.loc[place, "beside"] = 1.07 * table.loc[place, "cost"].max()
    steps = [sign * unit * step for sign in (-1, 1) for step in (2.5, 5, 10, 20, 50) if shared or step > 2.5]
    base = alt.Chart(data(table), width=2 * WIDTH, height=3 * HEIGHT).encode(
        alt.X(
            "cost:Q",
            title="cost in all (joint training: 1)",
            scale=alt.Scale(type="log", nice=False, domain=[table["cost"].min() / 1.1, table["cost"].max() * 1.8]),
            axis=alt.Axis(format="~g", values=[0.5, 1, 1.5, 2, 3, 4, 5, 7, 10, 20, 50]),
        ),
        tooltip=["name:N", "cost:Q", "value:Q", "low:Q", "high:Q"],
    )
    axis = alt.Axis(format=".0%" if shared else "~g", values=[0, *steps])
    y = alt.Y("value:Q", title=title, axis=axis, scale=alt.Scale(type="symlog", constant=unit, nice=False))
    zero = alt.Chart(alt.InlineData(values=[{"value": 0.0}])).mark_rule(color=RULE).encode(alt.Y("value:Q"))
    bars = base.mark_rule(color=RULE).encode(alt.Y("low:Q"), alt.Y2("high:Q"))
    fill = alt.condition("datum.treated", alt.value(INK), alt.value("#ffffff"))
    dots = base.mark_point(size=45, filled=True, opacity=1, stroke=INK).encode(y, fill=fill)
    ways = base.mark_rule(color=INK, strokeWidth=0.5).encode(y, alt.X2("beside:Q"), alt.Y2("at:Q"))
    words = base.mark_text(align="left", dx=2, color=INK).encode(alt.X("beside:Q"), alt.Y("at:Q"), text="name:N")
    return figure(
        alt.layer(zero, bars, ways, dots, words),
        "What treatments close of the gap, and what they cost",
        [
            "Full: treatments; empty: other settings of joint training. 95 % intervals over seeds and sentences.",
            *([f"Cost unknown: {', '.join(unknown)}."] if len(unknown) else []),
        ],
    )


def _symlog(values: Any, unit: float) -> Any:
    """Where a symlog axis of this constant has them."""
    return np.sign(values) * np.log1p(np.abs(values) / unit)


FIGURES = {"costs": Chart.of(_costs)}
