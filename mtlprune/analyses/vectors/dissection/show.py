"""Tables, sentences and figures that show a Result of ``analyze dissection``."""

import math
from itertools import product
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from mtlprune.analyses.frames import TableRows
from mtlprune.analyses.vectors.dissection import LEARNT_MLM, MLM, NEAREST, SENSES, SUBSETS, TERMS
from mtlprune.errors import plural
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.figures.charts import HEIGHT, AnyChart, Drawing, cells, colours, data, lines, panels, seeds_behind
from mtlprune.figures.grid import Grid, number, probability
from mtlprune.layers import LAYERS, kind_of
from mtlprune.runs.results import Result

_LONG = {"i": "input", "h": "heads", "f": "feed-forward", "c": "correction"}
"""Term → its name in figures and tables."""
_HUES = ("#78787e", "#56b4e9", "#e69f00", "#783c14")
"""Colours of the terms, which differ from the colours of tasks."""
_SCORES = {
    "tags": "accuracy",
    "spans": "entity F1",
    "tree": "relation accuracy",
    "brackets": "label accuracy",
    "frames": "role accuracy",
    "label": "accuracy",
}
"""Kind of a layer → name of the score of its light decoders."""
_TITLES = {SENSES: "rolesets, learned net", NEAREST: "rolesets, 5 neighbours"}
"""Task that is not a layer → its name in titles."""
_TITLES |= {MLM: "masked words, own head", LEARNT_MLM: "masked words, learnt projection"}
_READERS = {MLM: ", own head", LEARNT_MLM: ", learnt"}
"""Task of masked words → suffix of its column, because a table shows both ways of prediction."""
_BASELINES = {SENSES: "most frequent sense", NEAREST: "most frequent sense", MLM: "most frequent piece"}
"""Task that is not a layer → name of its baseline; tasks that are layers have the majority label."""
_DIFFERS_BELOW = 0.9
"""Correlation of the importance of a term in two encoders below which the term counts as different."""


def _kind(result: Result, task: str) -> str:
    """Return the kind of the layer of a task; "" if the task is not a layer."""
    return "" if task in _TITLES else kind_of({**LAYERS, **result.about["kinds"]}[task])


def _score(result: Result, task: str) -> str:
    """Return the name of a task with its score, such as NER entity F1."""
    return _TITLES.get(task) or f"{task.upper()} {_SCORES[_kind(result, task)]}"


def about(result: Result) -> str:
    """Describe the sentences that were read and the light decoders."""
    nets, train, seeds = result.about["nets"], result.about["train_sentences"], result.about["nets"]["seeds"]
    light = (
        f" Light decoders have {nets['hidden']} hidden units and make {nets['epochs']} passes over {train} sentences "
    )
    light = f"{light}of train, with {plural(seeds, 'seed')}." if train else ""
    return f"{result.origin}{light} Special tokens are left out of every number."


def findings(result: Result) -> list[str]:
    """Return the main numbers as sentences; comparisons only if the Result has encoders to compare."""
    facts, encoder_count = result.wide("encoders"), len(result.names)
    lines = [
        f"In {plural(encoder_count, 'encoder')} on {result.source} ({facts['pieces'].iloc[0]:.0f} sub-words), "
        f"i + h + f + c equal every hidden state within {facts['error'].max():.0e} (float32)."
    ]
    lines += _masked_words(result)
    losses = result.with_names("losses")
    for (single, joint, task), rows in _groups(losses, "name", "other", "task"):
        points = dict(zip(rows["term"], _points(rows), strict=True))
        lines.append(
            f"The {task.upper()} score of {single} minus that of {joint} is {points['ihfc']} points on the whole "
            f"vector. It is {points['h']} on h alone and {points['f']} on f alone."
        )
    for row in _gates(result).to_dict("records"):
        lines.append(
            f"Gates of {row['name']} and shares in {row['other']} have a rank correlation within layers of "
            f"{number(row['rho'])} (p {probability(row['rho_p'])}). {row['shared']:.0f} of {row['open']:.0f} open "
            f"heads are among those of the largest share ({number(row['expected'], 1)} at random, p "
            f"{probability(row['shared_p'])})."
        )
    return lines if len(lines) > 1 else [*lines, "No encoders were compared."]


def _masked_words(result: Result) -> list[str]:
    """Return sentences, two for each encoder, on what f alone and the whole vector predict."""
    if "scores" not in result.frames:
        return []
    frame, lines = result.with_names("scores"), []
    for (name,), rows in _groups(frame[(frame["measure"] == "score") & frame["task"].isin(_READERS)], "name"):
        percent = 100 * rows.pivot(index="term", columns="task", values="value")
        lines += [
            f"With {term} of {name}, the encoder's prediction head predicts {number(row[MLM], 2)} % of the masked "
            "words, "
            f"and a learnt projection {number(row[LEARNT_MLM], 2)} %."
            for term, row in percent.loc[["f", "ihfc"]].iterrows()
        ]
    return lines


def _groups(frame: pd.DataFrame, *columns: str) -> Any:
    """Group a frame by columns in the order of rows; an empty frame has no groups."""
    return frame.groupby(list(columns), observed=True, sort=False) if len(frame) else ()


def _points(rows: pd.DataFrame) -> list[str]:
    """Format differences with their intervals, in points."""
    points = rows[["value", "low", "high"]].map(_point).to_numpy()
    return [f"{value} [{low}, {high}]" for value, low, high in points]


def _point(value: float) -> str:
    """Format a difference of shares in points, with its sign."""
    return f"{round(100 * value, 1) + 0.0:+.1f}".replace("-", "−")


def _subset_name(subset: str) -> str:
    return subset or "∅"


def _importance(result: Result) -> pd.DataFrame:
    frame = result.wide("layers")
    pairs = zip(frame["importance"], frame["importance_sd"], strict=True)
    cell = [f"{number(mean, 3)} ± {number(sd, 3)}" for mean, sd in pairs]
    return frame.assign(cell=cell).pivot(index=["name", "layer"], columns="term", values="cell").reset_index()


def _linearity(result: Result) -> TableRows:
    return TableRows(result.wide("linearity"), {"tokens": result.with_names("linearity")["n"].iloc[0]})


def _by_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the columns ``table`` and ``column``; both ways of predicting masked words share a table."""
    columns = frame["name"].astype(str) + frame["task"].map(_READERS).fillna("")
    return frame.assign(table=frame["task"].replace(LEARNT_MLM, MLM), column=columns)


def _scores(result: Result) -> list[Grid]:
    grids: list[Grid] = []
    if "tasks" not in result.frames:
        return grids
    tasks, seeds = _by_table(result.wide("tasks")), result.about["nets"]["seeds"]
    for (table,), rows in _groups(_by_table(result.with_names("scores")), "table"):
        facts = tasks[tasks["table"] == table].set_index("column")
        largest_row = facts.loc[facts["train"].idxmax()]
        means, deviations = (
            100 * rows[rows["measure"] == measure].pivot(index="term", columns="column", values="value")
            for measure in ("score", "score_sd")
        )
        cell = pd.DataFrame(
            {
                column: [
                    number(means.at[subset, column], 1)
                    + (f" ± {number(deviations.at[subset, column], 1)}" if column in deviations else "")
                    for subset in SUBSETS
                ]
                for column in facts.index
            },
            index=[_subset_name(subset) for subset in SUBSETS],
        )
        cell.loc[_BASELINES.get(table, "majority label")] = [number(100 * value, 1) for value in facts["baseline"]]
        caption = "Values are percentages"
        if len(deviations.columns):
            caption += f", as mean ± standard deviation over {seeds} seeds of decoders"
        caption += (
            f". There are {largest_row['train']:.0f} items to learn from and {largest_row['test']:.0f} to predict"
        )
        if largest_row["unseen"]:
            caption += f", of which {largest_row['unseen']:.0f} have a label that was never seen"
        columns: dict[str, Any] = {"terms": "index", **{column: column for column in facts.index}}
        title = f"Subsets of terms: {_score(result, table) if table != MLM else 'masked words'}"
        grids.append(Grid.of(title, cell.reset_index(), columns, f"{caption}."))
    return grids


def _losses(result: Result) -> Grid | None:
    frame = _differences(result)
    if not len(frame):
        return None
    table = frame.pivot(index="term", columns="pair", values="points").reindex(SUBSETS).rename(index=_subset_name)
    return Grid.of(
        "Which term carries the loss",
        table.reset_index(),
        {"terms": "term", **{pair: pair for pair in frame["pair"].unique()}},
        "Values are the score of the single-task encoder minus that of the joint encoder, in points, with the range of "
        "95 % of resamplings of sentences. Decoders start from the same weights and see the same batches. Seeds of "
        "encoders and decoders are not resampled.",
    )


def _differences(result: Result) -> pd.DataFrame:
    """Return the frame ``losses`` with ``pair``, which names both encoders, and ``points``, the formatted value."""
    frame = result.with_names("losses")
    if not len(frame):
        return frame
    return frame.assign(pair=frame["name"].astype(str) + " − " + frame["other"], points=_points(frame))


def _correlations(result: Result) -> pd.DataFrame:
    """Return the frame ``across`` with both encoders' labels, ``encoder`` and ``partner``, in the order of display."""
    frame = result.with_names("across")
    if not len(frame):
        return frame.assign(encoder=[], partner=[])
    labels = dict(zip(result.names, [entry["encoder"] for entry in result.about["encoders"]], strict=True))
    order = list(dict.fromkeys(labels.values()))
    pairs = [
        sorted((encoder, labels[partner]), key=order.index)
        for encoder, partner in zip(frame["encoder"], frame["other"], strict=True)
    ]
    encoders, partners = zip(*pairs, strict=True)
    return frame.assign(encoder=encoders, partner=partners)


def _across(result: Result) -> pd.DataFrame:
    """Summarise the frame ``across``, with one row for each pair of encoders and kind of correlation.

    The column ``first`` is the layer from which on the correlation of h stays below ``_DIFFERS_BELOW``; NaN if the last
    layer's correlation is not below.
    """
    rows = []
    for (name, partner, kind), pairs in _groups(_correlations(result), "encoder", "partner", "measure"):
        by_layer = pairs.pivot_table(index="layer", columns="term", values="value")
        below = by_layer["h"].loc[1:] < _DIFFERS_BELOW
        first = below[::-1].cummin()[::-1].idxmax() if below.iloc[-1] else math.nan
        cells = {"pairs": len(pairs) // (len(by_layer) * len(TERMS)), "mean": by_layer["h"].mean(), "first": first}
        rows.append({"name": name, "other": partner, "kind": kind.capitalize(), **by_layer.iloc[-1], **cells})
    return pd.DataFrame(rows)


def _gates(result: Result) -> pd.DataFrame:
    """Return one row for each pair of a run with gates and an encoder without gates."""
    if "gates" not in result.frames:
        return pd.DataFrame()
    p = result.wide("gates", "p")
    return result.wide("gates").assign(rho_p=p["rho"], shared_p=p["shared"])


def _compositions(result: Result) -> Grid | None:
    frame, place = result.with_names("compositions"), ["name", "layer", "term"]
    if not len(frame):
        return None
    weights = frame.query("measure == 'weight' and mode == 'weights'")
    unexplained = frame.query("measure == 'unexplained'").pivot(index=place, columns="mode", values="value")
    frame = weights.pivot(index=place, columns="other", values="value").join(unexplained).reset_index()
    frame = frame.sort_values(place, ascending=[True, True, False]).replace({"term": _LONG})
    columns: dict[str, Any] = {"joint": "name", "layer": "layer", "term": "term"}
    columns |= {name: (name, 2) for name in result.names if name in frame}
    return Grid.of(
        "Is the joint encoder a compromise?",
        frame,
        {**columns, "unexplained": ("weights", 3), "centred": ("centred", 3), "rotated": ("rotated", 3)},
        f"Values are weights of non-negative least squares over {result.about['sample']} words, which compose a term "
        "of the joint encoder of the same term of the other encoders, and the share of its squares that is not "
        "explained. *Centred* first removes the means over words, and *rotated* first turns the other encoders by the "
        "best orthogonal map.",
        texts=3,
    )


TABLES = {
    "importance": _importance,
    "linearity": _linearity,
    "scores": _scores,
    "losses": _losses,
    "across": _across,
    "kept": _gates,
    "compositions": _compositions,
}
"""Name of a declared table (``frames.yaml``) → function from a Result to the rows of the table."""


def _bars(result: Result) -> AnyChart:
    frame = result.with_names("layers").query("measure == 'importance'")[["name", "layer", "term", "value"]]
    frame = frame.assign(
        place=frame["term"].map(TERMS.index), term=[f"{term}: {_LONG[term]}" for term in frame["term"]]
    )
    sums = frame.groupby(["name", "layer", np.sign(frame["value"])], observed=True)["value"].sum()
    limits = [min(0.0, sums.min()), max(1.0, sums.max())]
    colour = alt.Color(
        "term:N",
        scale=alt.Scale(domain=[f"{term}: {_LONG[term]}" for term in TERMS], range=list(_HUES)),
        legend=alt.Legend(orient="bottom", title=None, symbolType="square"),
    )
    charts = [
        alt.Chart(data(rows), title=str(name), width=23 * rows["layer"].nunique(), height=HEIGHT)
        .mark_bar(size=18)
        .encode(
            alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
            alt.Y("value:Q", title=None, stack="zero", scale=alt.Scale(domain=limits, nice=False)),
            colour,
            alt.Order("place:Q"),
        )
        for name, rows in frame.groupby("name", observed=True)
    ]
    return panels(charts, 4)


def _maps(result: Result) -> AnyChart:
    frame = result.wide("heads")
    limit = frame["importance"].abs().max() or 1.0
    values = frame["importance"].where(frame["gate"] > OPEN_ABOVE)
    frame = frame.assign(value=values, words=[number(100 * v, 0) if abs(v) >= 0.005 else "" for v in values])
    charts = [
        cells(rows, "head", "layer", (-limit, limit), title=str(name), size=(27, 20))
        for name, rows in frame.groupby("name", observed=True)
    ]
    return _panels(charts, 3)


def _panels(charts: list[Any], columns: int) -> Any:
    return panels(charts, columns, spacing=30).resolve_scale(color="independent")


def _percent(frame: pd.DataFrame, digits: int) -> pd.DataFrame:
    """Convert values to percentages, add them as ``words``, and call the empty subset "none"."""
    named_rows = frame.replace({key: {"": "none"} for key in ("term", "other") if key in frame})
    return named_rows.assign(
        value=100 * named_rows["value"], words=[number(100 * value, digits) for value in named_rows["value"]]
    )


def _subsets(result: Result) -> AnyChart:
    frame = result.with_names("scores").query("measure == 'score'")
    frame = _by_table(_percent(frame, 1).sort_values("name", kind="stable"))
    charts = []
    for table in _by_table(result.with_names("tasks"))["table"].unique():
        rows = frame[frame["table"] == table]
        limits = rows["value"].min(), rows["value"].max()
        title = "masked words" if table == MLM else _score(result, table)
        charts.append(cells(rows, "column", "term", limits, title=title, size=(40, 18)))
    return _panels(charts, len(charts))


def _loss_figure(result: Result) -> AnyChart:
    frame = _differences(result)
    marks = np.where((frame["low"] <= 0) & (frame["high"] >= 0), "", "*")
    words = [_point(value) + mark for value, mark in zip(frame["value"], marks, strict=True)]
    frame = _percent(frame, 1).assign(words=words)
    limit = frame["value"].abs().max() or 1.0
    return cells(frame, "pair", "term", (-limit, limit), size=(72, 20))


def _agreement_figure(result: Result) -> Drawing:
    """Draw the agreement of subsets; for spans, within and between the first and the single-task encoder."""
    all_rows, charts = result.with_names("agreement"), []
    first = all_rows["name"].iloc[0]
    for (task,), rows in _groups(all_rows, "task"):
        # For spans the micro F1 is always near 1, because most words are outside all spans.
        kind = "macro" if _kind(result, task) == "spans" else "micro"
        rows = _percent(_within_and_between(result, task) if kind == "macro" else rows[rows["name"] == first], 0)
        rows = rows[rows["measure"] == kind]
        if len(rows):
            charts.append(cells(rows, "other", "term", (0.0, 100.0), title=_score(result, task), size=(25, 17)))
    return Drawing(_panels(charts, 2), {"first": first})


def _within_and_between(result: Result, task: str) -> pd.DataFrame:
    """Return agreement within and between the first encoder and a task's single-task encoder, by encoder and subset.

    Without such a single-task encoder the frame has only the agreement within the first encoder.
    """
    within, between = result.with_names("agreement"), result.with_names("tuned_agreement")
    within, between = within[within["task"] == task], between[between["task"] == task] if len(between) else between
    singles = {
        name for name, entry in zip(result.names, result.about["encoders"], strict=True) if [*entry["tasks"]] == [task]
    }
    between = between[between["other"].isin(singles)] if len(between) else between
    if not len(between):
        return within[within["name"] == within["name"].iloc[0]]
    between = between[(between["name"] == between["name"].iloc[0]) & (between["other"] == between["other"].iloc[0])]
    pair = between["name"].iloc[0], between["other"].iloc[0]
    parts = [
        within[within["name"].isin(pair)].assign(row=lambda rows: rows["name"], column=lambda rows: rows["name"]),
        between.assign(row=pair[0], column=pair[1], other=between["label"]),
        between.assign(row=pair[1], column=pair[0], term=between["label"], other=between["term"]),
    ]
    frame = pd.concat(parts).query("term != '' and other != ''")
    frame = frame.sort_values("row", key=lambda names: names.map(pair.index), kind="stable")
    frame = frame.sort_values("column", key=lambda names: names.map(pair.index), kind="stable")
    return frame.assign(
        term=frame["row"].astype(str) + " " + frame["term"], other=frame["column"].astype(str) + " " + frame["other"]
    )


def _shifts(result: Result) -> Drawing | None:
    """Draw the correlation of importance between the first encoder and every other encoder, by layer."""
    frame = _correlations(result)
    frame = frame[(frame["encoder"] == result.about["encoders"][0]["encoder"]) & (frame["encoder"] != frame["partner"])]
    if not len(frame):
        return None
    labels = list(dict.fromkeys(entry["encoder"] for entry in result.about["encoders"][1:]))
    frame = frame.assign(name=pd.Categorical(frame["partner"], labels, ordered=True))
    look, charts = colours(frame), []
    for measure, term in product(("spearman", "pearson"), TERMS):
        rows = frame[(frame["measure"] == measure) & (frame["term"] == term)]
        means = rows.groupby(["name", "layer"], observed=True)["value"].mean().reset_index()
        title = f"{_LONG[term]}, {measure.capitalize()}"
        panel = lines(means, "layer", "value", title=title, y_title="correlation", look=look)
        charts.append(alt.layer(panel, seeds_behind(rows.dropna(subset="value"), "layer", "value", look["color"])))
    first = result.about["encoders"][0]["encoder"]
    return Drawing(panels(charts, 4), {"first": first})


FIGURES = {
    "importance": _bars,
    "heads": _maps,
    "across": _shifts,
    "subsets": _subsets,
    "agreement": _agreement_figure,
    "losses": _loss_figure,
}
"""Name of a declared figure (``frames.yaml``) → function from a Result to the chart."""
