"""Sentences, tables and the figure of a Result of ``analyze treatments``."""

from typing import Any

import altair as alt
import pandas as pd

from mtlprune.figures.charts import INK, RULE, WIDTH, AnyChart, data
from mtlprune.figures.grid import Grid, number, percent, power_clause, probability
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import decisive_p, only_not_shown
from mtlprune.statistics.standard_errors import LEVEL


def about(result: Result) -> str:
    """Describe the data, the scores and the tests."""
    info, settings = result.about, result.about["settings"]
    free = ", ".join(f"{number:.0f}" for number in sorted(_settings(result)["n"].dropna().unique() - 1)) or "–"
    return (
        f"The encoder is {info['encoder']}, scored on {info['sentences']} sentences of {info['split']} (seed "
        f"{settings['seed']}). Values are means of the main scores of {', '.join(map(str.upper, info['tasks']))}, in "
        f"points. Intervals and p are over seeds (t with ν = seeds − 1, here {free}) and sentences "
        f"({settings['resamples']:,} resamples). Holm's correction is over treatments and over other settings, and the "
        f"margin is ±{settings['margin']:g}."
    )


def _settings(result: Result, *kinds: str) -> pd.DataFrame:
    frame = result.frames["settings"]
    return frame[frame["mode"].isin(kinds)] if kinds else frame


def findings(result: Result) -> list[str]:
    """Report the gap, the settings that gain or reach single tasks, and whether it matters which heads are treated."""
    margin = result.about["settings"]["margin"]
    joint = _settings(result, "joint").iloc[0]
    gap, low, high = joint["gap"], joint["gap_low"], joint["gap_high"]
    where, note = "below single tasks", ""
    if high < 0:
        gap, low, high = -gap, -high, -low
        where = "above single tasks, so there is no gap to close"
    elif not low > 0:
        detectable_note = power_clause(*_settings(result, "single")["detectable"])
        note = f" The interval includes 0, so no share of the gap is given{detectable_note}."
    sentences = [
        f"Joint training without treatment is {number(gap)} points [{number(low)}, {number(high)}] {where}.{note}"
    ]
    for kind, name in (("treated", "treatments"), ("other", "other settings")):
        rows_of_kind = _settings(result, kind)
        if not len(rows_of_kind):
            continue
        better = rows_of_kind.loc[(rows_of_kind["p_holm"] < LEVEL) & (rows_of_kind["estimate"] > 0), "term"]
        worse = rows_of_kind.loc[(rows_of_kind["p_holm"] < LEVEL) & (rows_of_kind["estimate"] < 0), "term"]
        detectable_note = power_clause(*only_not_shown(rows_of_kind)["detectable"], before=". For the other ones ")
        reach = rows_of_kind.loc[rows_of_kind["p_reach_holm"] < LEVEL, "term"]
        sentences.append(
            f"{len(better)} of {len(rows_of_kind)} {name} {_are(better)} better than joint "
            f"training{_names_in_words(better)}, and {len(worse)} {_are(worse)} worse{_names_in_words(worse)}. "
            f"{len(reach)} {_are(reach)} at most {margin:g} points below single tasks{_names_in_words(reach)} (Holm, p "
            f"< {LEVEL}){detectable_note}."
        )
    pairs = pairs_not_shown(result)
    tuned = pairs[pairs["mode"] == "tuned"]
    for name, rows in tuned.groupby("other"):
        better = rows.loc[(rows["p_holm"] < LEVEL) & (rows["estimate"] > 0), "term"]
        sentences.append(
            f"{name} is the best on dev among the untreated joint settings with no more updates. {len(better)} of "
            f"{len(rows)} treatments {_are(better)} better than {name}{_names_in_words(better)}."
        )
    for row in pairs.drop(tuned.index).to_dict("records"):
        p = f"p {probability(row['p'])}" + (f", Holm {probability(row['p_holm'])}" if row["mode"] == "primary" else "")
        sentences.append(
            f"{row['term']} minus {row['other']} ({row['mode']}) is {number(row['estimate'])} points "
            f"[{number(row['low'])}, {number(row['high'])}] ({p}{power_clause(row['detectable'])}). The difference is "
            f"smaller than {margin:g} points with p {probability(row['p_margin'])}."
        )
    return sentences


def pairs_not_shown(result: Result) -> pd.DataFrame:
    """Return the frame ``pairs`` (empty if the Result has none) with the column ``p_decisive``.

    This is the corrected p where p is corrected, and otherwise the plain p. ``detectable`` is given only where
    ``p_decisive`` is not significant.
    """
    pairs = result.frame("pairs", "mode", "other", "p", "p_holm")
    return only_not_shown(pairs.assign(p_decisive=decisive_p(pairs)), "p_decisive")


def _are(names: pd.Series) -> str:
    return "is" if len(names) == 1 else "are"


def _names_in_words(names: pd.Series) -> str:
    return f" ({', '.join(names)})" if len(names) else ""


def _table(result: Result) -> Grid:
    rows = _settings(result).set_index("term")
    scores = result.frames["scores"].pivot(index="term", columns="task", values="value")
    table_rows = rows.join(scores).reset_index()
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
        table_rows.assign(millions=table_rows["parameters"] / 1e6),
        columns,
        "Values are means over seeds. *Gap* is the score of single tasks minus that of the setting, with a 95 % "
        "interval. *Share closed* is the closed share of the gap of joint training, with a 95 % interval. *Cost* is "
        f"the {clock}, as a multiple of that of joint training. *In all* is the cost of all updates and of the "
        "finished runs that the setting uses.",
        texts=2,
    )


TABLES = {
    "table": _table,
    "gains": lambda result: only_not_shown(_settings(result, "treated", "other")),
    "pairs": pairs_not_shown,
}


def _costs(result: Result) -> AnyChart | None:
    rows = _settings(result, "treated", "other")
    shared = rows["share"].notna().any()
    names = ("share", "share_low", "share_high") if shared else ("estimate", "low", "high")
    frame = rows[["term", "total", "mode", *names]].set_axis(["term", "total", "mode", "value", "low", "high"], axis=1)
    frame = frame.dropna(subset=["value", "low"]).sort_values("value", ascending=False)
    if not len(frame):
        return None
    frame["name"] = [f"{row.term} · cost {number(row.total)}" for row in frame.itertuples()]
    base = alt.Chart(data(frame), width=2 * WIDTH, height=alt.Step(16)).encode(
        alt.Y("name:N", sort=list(frame["name"]), title=None, axis=alt.Axis(domain=False, ticks=False)),
        tooltip=["term:N", "total:Q", "value:Q", "low:Q", "high:Q"],
    )
    title = "share of the gap closed" if shared else "points above joint training"
    wide = frame[frame["high"] - frame["low"] <= 4 * (frame["high"] - frame["low"]).median()]
    ends = alt.Scale(domain=[min(0.0, wide["low"].min()), max(0.0, wide["high"].max())], padding=8)
    x = alt.X("value:Q", title=title, scale=ends, axis=alt.Axis(format=".0%" if shared else "~g"))
    zero = alt.Chart(alt.InlineData(values=[{"value": 0.0}])).mark_rule(color=RULE).encode(alt.X("value:Q"))
    bars = base.mark_rule(color=INK, clip=True).encode(alt.X("low:Q", scale=ends), alt.X2("high:Q"))
    fill = alt.condition("datum.mode == 'treated'", alt.value(INK), alt.value("#ffffff"))
    dots = base.mark_point(size=45, filled=True, opacity=1, stroke=INK, clip=True).encode(x, fill=fill)
    return alt.layer(zero, bars, dots)


FIGURES = {"costs": _costs}
