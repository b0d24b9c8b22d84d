"""Sentences, tables and the figure of a Result of ``analyze curve``."""

from typing import Any

import altair as alt
import pandas as pd

from mtlprune.errors import plural
from mtlprune.figures.charts import Drawing, band, colours, lines, panels
from mtlprune.figures.grid import number, power_clause, probability, with_interval
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import only_not_shown

_ORDER_NAMES = {"": "{}", "reverse": "{}, reversed", "random": "random in the layers of {}"}
"""For each control, the name of an order; {} is the method that ranks heads."""


def about(result: Result) -> str:
    """Describe how heads are ranked and opened, and define the area and sufficient sets."""
    settings = result.about["settings"]
    return (
        f"{result.origin} Finished runs are scored with only some heads open and the others closed "
        f"(closed={settings['closed']}). "
        f"Heads are ranked on {settings['train_sentences']:,} training sentences by the loss of each task. The control "
        f"of a ranking is {plural(settings['draws'], 'random order')} within its layers. The area (CPR) is the mean "
        "share of the gap between no head and all heads that is closed, over all numbers of open heads. A set is "
        f"sufficient if its score is at most {settings['margin']:g} below that with all heads."
    )


def findings(result: Result) -> list[str]:
    """Report how few heads each task needs, how the ranking compares with random orders, and the sufficient sets."""
    selector, margin = result.frames["curve"]["mode"].iloc[0], result.about["settings"]["margin"]
    sentences = []
    for row in only_not_shown(result.frames["areas"]).query("mode == @selector and control == ''").itertuples():
        detectable_note = power_clause(row.detectable, unit="of the area", before="; ")
        sentences.append(
            f"{_label(row)} needs the first {row.enough:.0f} heads by {selector} for a score at most {margin:g} below "
            f"that with all heads. The area is {number(row.cpr)}. Its difference from the area of random heads of the "
            "same layers is "
            f"{with_interval(row)} (Holm p {probability(row.p_holm)}{detectable_note})."
        )
    keys = ["encoder", "seed", "task"]
    for (_, seed, _), rows in result.frame("sets", *keys).groupby(keys, sort=False):
        first = next(rows.itertuples())
        sentences.append(
            f"{_label(first)}, seed {seed}, has {plural(len(rows), 'sufficient set')} without a common head (of "
            f"{' and '.join(plural(heads, 'head') for heads in rows['heads'])}). Without the first set the score is "
            f"{number(first.without)}, and without random heads of the same layers it is "
            f"{number(first.random_without)} (p {probability(first.needed_p)}). {first.superfluous:.0f} members of the "
            "first set can be left out."
        )
    return sentences


def _label(row: Any) -> str:
    return f"{row.task.upper()} in {row.encoder}"


def _with_words(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the columns ``scored`` (the task and its runs) and ``order`` (the order of heads), both in words."""
    rows = list(frame.itertuples())
    return frame.assign(
        scored=list(map(_label, rows)), order=[_ORDER_NAMES[row.control].format(row.mode) for row in rows]
    )


def _sets(result: Result) -> pd.DataFrame:
    frame = result.frame("sets")
    return frame.assign(scored=[_label(row) for row in frame.itertuples()])


TABLES = {"areas": lambda result: _with_words(only_not_shown(result.frames["areas"])), "sets": _sets}


def _curves(result: Result) -> Drawing:
    curve = _with_words(result.frames["curve"])
    means = curve[curve["control"] != "random"].groupby(["scored", "order", "mode", "control", "heads"], sort=False)
    ranked = means["score"].mean().reset_index()
    modes, names = list(dict.fromkeys(curve["mode"])), list(dict.fromkeys(ranked["order"]))
    ranked["name"] = pd.Categorical(ranked["order"], names, ordered=True)
    ranked["dashed"] = ranked["control"] == "reverse"
    kinds = {row.order: modes.index(row.mode) for row in ranked.itertuples()}  # an order and its reverse share a hue
    look, charts = colours(ranked, "dashed", kinds=kinds), []
    for scored, rows_of_task in ranked.groupby("scored", sort=False):
        random = curve[(curve["scored"] == scored) & (curve["control"] == "random") & (curve["mode"] == modes[0])]
        ends = random.groupby("heads")["score"].agg(low="min", high="max").reset_index()
        chart = lines(rows_of_task, "heads", "score", title=str(scored), x_title="open heads", look=look)
        charts.append(alt.layer(band(ends, "heads", "low", "high", "score"), chart))
    return Drawing(panels(charts, 3), {"mode": modes[0]})


FIGURES = {"curves": _curves}
