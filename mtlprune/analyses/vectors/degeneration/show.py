"""Tables, sentences and figures that show a Result of ``analyze degeneration``."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.heads.claims.show import by_claims, tests_table
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.figures.charts import AnyChart, Drawing, colours, dots, head_map, lines, mark, panels
from mtlprune.figures.grid import Grid
from mtlprune.layers import in_order
from mtlprune.runs.results import Result
from mtlprune.statistics.labels import FEW_ITEMS
from mtlprune.statistics.standard_errors import LEVEL

_ROWS = (
    "Rows are words, as means of their sub-words, without [CLS] and [SEP]. For token embeddings, rows are the "
    "whole vocabulary."
)
_MEASURES = {
    "cosine": "mean cosine",
    "isoscore": "IsoScore",
    "rank_share": "effective rank / possible",
    "top1": "share of the top direction",
    "angle": "median angle to the mean (°)",
    "dimension": "TwoNN dimension",
    "margin": "margin of the negative direction",
}
"""Measure of the frame ``heads`` → its name in tables."""
TERMS = {
    "input": "the input",
    "heads": "the heads",
    "feed_forward": "the feed-forward parts",
    "correction": "the correction",
}
"""Term of the mean vector → its name in a sentence."""
_AGAINST = {
    "cosine": "cosine to the mean row (joint)",
    "cosine_change": "its change, joint − single",
    "rival_change": "change of the cosine to the nearest rival",
    "norm_change": "change of ln norm",
    "frequency": "ln frequency in training",
    "cosine_change_given_frequency": "change of the cosine, frequency held",
}
"""``term`` of the frame ``pairs`` → its name in a table."""
_LARGEST_SHOWN, _SMALLEST_SHOWN = 4, 2
"""Numbers of labels with the largest and with the smallest cosine that the table of labels shows for each decoder."""


def about(result: Result) -> str:
    """Describe the sentences that were read, and which rows each measure uses."""
    return (
        f"{result.origin} {_ROWS} Angles, partitions and margins are of a sample of up to "
        f"{result.about['settings']['rows']} rows, with the same words for every encoder. All other values are of all "
        "rows."
    )


def findings(result: Result) -> list[str]:
    """Return the main numbers as sentences: R, IsoScore, the mean vector, rare pieces and labels, lost F1, claims."""
    layers = result.wide("layers")
    sentences = []
    for row in result.wide("embeddings").to_dict("records"):
        words = f"In {row['name']}, R of token embeddings is {row['mean_cosine']:.3f}"
        here = layers[layers["name"] == row["name"]]
        if len(here):
            first, last = here.iloc[0], here.iloc[-1]
            words += (
                f". R of words goes from {first['mean_cosine']:.3f} (embeddings) to {last['mean_cosine']:.3f} (last "
                f"layer). IsoScore goes from {first['isoscore']:.3f} to {last['isoscore']:.3f}"
            )
            shares = {term: last.get(f"share_{term}", math.nan) for term in TERMS}
            if not math.isnan(shares["input"]):
                largest_term = max(shares, key=lambda term: shares[term])
                share = f"{TERMS[largest_term]} (a share of {shares[largest_term]:.2f})"
                words += f". Most of the last layer's mean comes from {share}"
        sentences.append(f"{words}.")
    return [*sentences, *_rare_pieces(result), *_rare_labels(result), _lost_f1(result), *by_claims(result)]


def _rare_pieces(result: Result) -> Iterator[str]:
    for row in result.rows_with_measure("embeddings", "spearman").to_dict("records"):
        yield (
            f"In {row['name']}, the Spearman correlation of a piece's frequency in training with the cosine of its "
            f"embedding to the mean row is {row['spearman']:.2f} (below 0, rare pieces lie in the cone)."
        )


def _rare_labels(result: Result) -> Iterator[str]:
    """Yield a sentence on the number of decoders in which rare labels are in the cone."""
    tested_rows = result.rows_with_measure("decoders", "spearman_p")
    if len(tested_rows):
        significant_count = ((tested_rows["spearman_p"] < LEVEL) & (tested_rows["spearman"] < 0)).sum()
        yield (
            f"In {significant_count} of {len(tested_rows)} decoders the rows of rarer labels lie nearer to the mean "
            f"row (Spearman of cosine and frequency below 0, p < {LEVEL}). The median is "
            f"{tested_rows['spearman'].median():.2f}."
        )


def _lost_f1(result: Result) -> str:
    """Return a sentence on the correlations between lost F1 and movements of label rows."""
    tests = _pairs_known(result)
    if not len(tests):
        return "No joint run was named together with a single-task run of the same seed, so lost F1 is not analysed."
    return (
        f"{(tests['q'] < LEVEL).sum()} of {len(tests)} correlations between F1 lost in joint training and how labels' "
        f"rows moved have q < {LEVEL}. {(tests['p'] < LEVEL).sum()} have p < {LEVEL}, and {LEVEL * len(tests):.1f} "
        "would if nothing were correlated."
    )


def _by_task(result: Result, frame: str) -> pd.DataFrame:
    """Return rows of decoders, task by task, with the column ``title``, the name of the task in figures."""
    rows = result.wide(frame) if "measure" in result.frames.get(frame, ()) else result.with_names(frame)
    if not len(rows):
        return rows.assign(task=[], title=[])
    tasks = pd.Categorical(rows["task"], in_order(rows["task"]), ordered=True)
    rows = rows.assign(task=tasks, title=rows["task"].str.upper())
    return rows[rows["task"].notna()].sort_values("task", kind="stable", ignore_index=True)


def _pairs_known(result: Result) -> pd.DataFrame:
    """Return the frame ``pairs`` without correlations that could not be computed."""
    pairs = _by_task(result, "pairs")
    return pairs.dropna(subset=["p"]) if len(pairs) else pairs


def _clouds(result: Result) -> pd.DataFrame:
    layers = result.wide("layers")
    rows = [result.wide("embeddings").assign(where="token embeddings")]
    rows += [layers.assign(where="layer " + layers["layer"].astype(str))] if len(layers) else []
    return pd.concat(rows).sort_values("name", kind="stable")


def _planes(result: Result) -> pd.DataFrame:
    """Return the planes of the last layer's LayerNorm and of the LayerNorm before the softmax."""
    layers = result.rows_with_measure("layers", "plane_distance")
    rows = [layers.assign(where="layer " + layers["layer"].astype(str)).groupby("name", observed=True).tail(1)]
    rows.append(result.wide("softmax").assign(where="before the softmax"))
    return pd.concat(rows).sort_values("name", kind="stable")


def _labels(result: Result) -> pd.DataFrame:
    """Return the labels of known frequency with the largest and the smallest cosine to the mean row, by decoder."""
    labels = _by_task(result, "labels")
    shown_labels = labels
    if len(labels):
        labels = labels.dropna(subset="frequency")
        labels = labels.sort_values(["task", "name", "cosine"], ascending=[True, True, False])
        cosines = labels.groupby(["task", "name"], observed=True)["cosine"]
        place, size = cosines.cumcount(), cosines.transform("size")
        shown_labels = labels[(place < _LARGEST_SHOWN) | (place >= size - _SMALLEST_SHOWN)]
    return shown_labels


def _pairs(result: Result) -> pd.DataFrame:
    pairs = _pairs_known(result)
    if len(pairs):
        pairs = pairs.assign(of=pairs["encoder"] + " − " + pairs["other"], against=pairs["term"].map(_AGAINST))
    return pairs


def _groups(result: Result) -> pd.DataFrame:
    titles = {**_MEASURES, "cone": "share of the last layer's mean (sum)"}
    groups = result.with_names("groups")
    if len(groups):
        measures = pd.Categorical(groups["measure"].map(titles), list(titles.values()), ordered=True)
        groups = groups.assign(measure=measures)
        groups = groups.pivot(index=["name", "measure"], columns="term", values="value").sort_index().reset_index()
    return groups


def _tests(result: Result) -> Grid:
    return tests_table(
        result, _MEASURES, "Above 0, the first group, or heads of more tasks, have larger values.", digits=3
    )


TABLES = {
    "clouds": _clouds,
    "pieces": lambda result: result.wide("pieces"),
    "terms": lambda result: result.rows_with_measure("layers", "share_input"),
    "planes": _planes,
    "decoders": lambda result: _by_task(result, "decoders"),
    "labels": _labels,
    "pairs": _pairs,
    "groups": _groups,
    "tests": _tests,
}
"""Name of a declared table (``frames.yaml``) → function from a Result to the rows of the table."""


_CURVES = {
    "mean_cosine": ("mean cosine (R)", "R"),
    "isoscore": ("IsoScore", "IsoScore"),
    "rank_share": ("effective rank / possible", "share"),
    "top1": ("share of the top direction", "share"),
    "angle": ("median angle to the mean", "degrees"),
    "dimension": ("TwoNN, one word a sentence", "dimension"),
}
"""Measure of the frame ``layers`` that is drawn layer by layer → title of its panel and of its y-axis."""
_MAPS = {"cosine": "mean cosine", "isoscore": "IsoScore", "dimension": "TwoNN", "cone": "share of the mean"}
"""Measure of the frame ``heads`` that is drawn as a map → title of the map."""


def _clouds_drawn(result: Result, frame: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield title and rows of each panel: token embeddings, words of the last layer, and labels of each task."""
    points = result.with_names(frame)
    yield "embeddings", points[points["term"] == "embeddings"]
    yield "words, last layer", points[points["term"] == "last"]
    for task in in_order(points["task"].dropna()) if "task" in points else ():
        yield f"labels of {task.upper()}", points[points["task"] == task]


def _spectrum(result: Result) -> AnyChart:
    spectra = result.with_names("spectra")
    look = colours(result.dashed(spectra), "closed")
    words: dict[str, Any] = {"x_title": "log10 of the rank", "y_title": "singular value / largest"}
    ranked = spectra.assign(rank=np.log10(spectra["rank"]))
    charts = [
        lines(ranked.loc[rows.index], "rank", "value", title=title, zero=True, integer_axis=False, look=look, **words)
        for title, rows in _clouds_drawn(result, "spectra")
        if len(rows)
    ]
    return panels(charts, 3)


def _projection(result: Result) -> AnyChart:
    look = colours(result.with_names("points"), symbol="circle")
    charts = []
    for title, points in _clouds_drawn(result, "points"):
        labels = title.startswith("labels")
        for name, rows in [("", points)] if labels else points.groupby("name", observed=True):
            called = f"{title} (length 1)" if labels else f"{title}, {name}"
            words = {"x_title": "top direction", "y_title": "second"}
            charts.append(dots(rows[["name", "x", "y"]], "x", "y", look, title=called, **words) + mark(0) + mark(y=0))
    return panels(charts, 3)


def _against_pieces(result: Result) -> AnyChart | None:
    sample = result.with_names("sample")
    if not len(sample):
        return None
    sample = sample.assign(times=np.log10(sample["frequency"].where(sample["frequency"] > 0, 0.3)))
    look = colours(sample, symbol="circle")
    words = {"x_title": "log10 of times in training", "y_title": "cosine to the mean row"}
    charts = [
        dots(rows[["name", "label", "times", "cosine"]], "times", "cosine", look, title=str(name), **words) + mark(y=0)
        for name, rows in sample.groupby("name", observed=True)
    ]
    return panels(charts, 4)


def _isotropy(result: Result) -> AnyChart:
    frame = result.dashed(result.wide("layers"))
    charts = [
        lines(frame, "layer", key, title=title, y_title=y, dashed="closed") for key, (title, y) in _CURVES.items()
    ]
    return panels(charts, 3)


def _maps(result: Result) -> AnyChart | None:
    frame = result.wide("heads")
    maps_shown = {key: title for key, title in _MAPS.items() if key in frame and frame[key].abs().max() > 0}
    if not maps_shown:
        return None
    frame[[*maps_shown]] = frame[[*maps_shown]].where(frame["gate"] > OPEN_ABOVE)
    maps = [
        head_map(frame, key, title=title, diverging=key == "cone", words=key == next(iter(maps_shown)))
        for key, title in maps_shown.items()
    ]
    return panels(maps, 4, spacing=36).resolve_scale(color="independent")


def _against_frequency(result: Result) -> AnyChart | None:
    labels = _by_task(result, "labels")
    labels = labels[labels["frequency"] > 0] if len(labels) else labels
    if not len(labels):
        return None
    labels = labels.assign(items=np.log10(labels["frequency"]))
    look = colours(labels, symbol="circle")
    charts = []
    for task, rows in labels.groupby("title", sort=False):
        for key, y in (("cosine", "cosine to the mean row"), ("norm", "norm")):
            words = {"title": f"{task}: {y}", "x_title": "log10 of items in training", "y_title": y}
            chart = dots(rows[["name", "label", "items", key]], "items", key, look, **words)
            charts.append(chart + mark(y=0) if key == "cosine" else chart)
    return panels(charts, 2)


def _against_change(result: Result) -> Drawing | None:
    """Draw the change of F1 in joint training against the change of the cosine to the mean row, label by label."""
    labels, joined_rows = _by_task(result, "labels"), _by_task(result, "pairs")
    own_labels = labels[["run", "task", "label", "cosine", "f1"]].rename(columns={"run": "other_run"})
    joined_rows = labels.merge(joined_rows[["run", "task", "other_run"]].drop_duplicates(), on=["run", "task"])
    joined_rows = joined_rows.merge(own_labels, on=["other_run", "task", "label"], suffixes=("", "_alone"))
    joined_rows = joined_rows.assign(
        change=joined_rows["cosine"] - joined_rows["cosine_alone"], lost=joined_rows["f1"] - joined_rows["f1_alone"]
    )
    joined_rows = joined_rows[(joined_rows["gold"] >= FEW_ITEMS) & joined_rows["lost"].notna()]
    if not len(joined_rows):
        return None
    look = colours(joined_rows, symbol="circle")
    words = {"x_title": "change of cosine to the mean row", "y_title": "F1, joint minus single"}
    charts = [
        dots(rows[["name", "label", "change", "lost"]], "change", "lost", look, title=task, **words)
        + mark(0)
        + mark(y=0)
        for task, rows in joined_rows.groupby("title", sort=False)
    ]
    return Drawing(panels(charts, 3), {"few_items": FEW_ITEMS})


FIGURES = {
    "spectrum": _spectrum,
    "projection": _projection,
    "pieces": _against_pieces,
    "isotropy": _isotropy,
    "heads": _maps,
    "labels": _against_frequency,
    "lost": _against_change,
}
"""Name of a declared figure (``frames.yaml``) → function from a Result to the chart."""
