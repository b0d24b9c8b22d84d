"""Degeneration in tables: of Markdown and of the report page alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mtlprune.analyses.degeneration.show.reading import decoder_name, names
from mtlprune.layers import in_order
from mtlprune.reports.grid import Grid, number, probability

MEASURES = {
    "cosine": "mean cosine",
    "isoscore": "IsoScore",
    "rank_share": "effective rank / possible",
    "top1": "share of the top direction",
    "angle": "median angle to the mean (°)",
    "dimension": "TwoNN dimension",
    "margin": "margin of the negative direction",
}
AGAINST = {
    "cosine": "cosine to the mean row (joint)",
    "cosine_change": "its change, joint − single",
    "rival_change": "change of the cosine to the nearest rival",
    "norm_change": "change of ln norm",
    "frequency": "ln frequency in training",
    "cosine_change_given_frequency": "change of the cosine, frequency held",
}
SHOWN = 24
DEEPEST, FURTHEST = 4, 2


def tables(content: Mapping[str, Any]) -> list[Grid]:
    """All that there is something to say in."""
    makers = (_clouds, _terms, _planes, _decoders, _labels, _pairs, _groups, _tests)
    return [table for table in (make(content) for make in makers) if table.rows]


def percent(value: float, digits: int = 1) -> str:
    """As a number of hundredths."""
    return number(100 * value, digits)


def _clouds(content: Mapping[str, Any]) -> Grid:
    rows = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        clouds = [("token embeddings", encoder["embeddings"])]
        clouds += [(f"layer {row['layer']}", row) for row in encoder["hidden"]]
        for where, row in clouds:
            cells = [number(row["mean_cosine"], 3), percent(row["positive"])]
            cells += [number(row[key], 1) for key in ("angle", "angle_q95", "angle_max")]
            cells += [percent(row["top1"]), percent(row["top10"]), number(row["rank_share"], 2)]
            cells += [number(row["partition"], 3), number(row["isoscore"], 3), percent(row["common"])]
            cells += [number(row.get("dimension", math.nan), 1), number(row["margin"], 3)]
            rows.append([name, where, *cells])
    header = ["encoder", "rows", "R", "pairs at acute angles (%)", "angle to the mean (°)", "95 %", "largest"]
    header += ["top direction (%)", "top 10 (%)", "effective rank / possible", "partition isotropy", "IsoScore"]
    header += ["mean's share of the square (%)", "TwoNN", "negative margin"]
    return Grid(
        header,
        rows,
        2,
        "Cones and isotropy",
        "R: mean cosine of all pairs, a row with itself counted 0 (the penalty CosReg). Top: share of squared singular "
        "values, not centred. Effective rank: exp of the entropy of singular values, after the mean was taken away, by "
        "min(N − 1, D). Partition isotropy and IsoScore: 1 is isotropic. TwoNN: one word a sentence, biased low from "
        "about 10 on. Negative margin: the largest m for which some direction v has ⟨v, h⟩ < −m ‖h‖ for every row of "
        "the sample; 0: there is none; –: random rows would have one too. Layer 0: the embeddings' output.",
    )


def _terms(content: Mapping[str, Any]) -> Grid:
    rows = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        for term, row in zip((encoder["cone"] or {"terms": []})["terms"], encoder["hidden"], strict=False):
            cells = [number(term[key], 3) for key in "ihfc"]
            rows.append([name, str(term["layer"]), *cells, percent(row["common"]), number(row["cosine"], 3)])
    return Grid(
        [
            "encoder",
            "layer",
            "input",
            "heads",
            "feed-forward",
            "correction",
            "mean's share of the square (%)",
            "cosine",
        ],
        rows,
        1,
        "Where the mean vector comes from",
        "Of the mean m of a layer's word vectors: m · part / ‖m‖² for the means of the four terms whose sum every "
        "vector is (Mickus et al. 2022); shares sum to 1 and may be negative. Correction: biases, and means that "
        "LayerNorms take away.",
    )


def _planes(content: Mapping[str, Any]) -> Grid:
    rows = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        cone = encoder["cone"] or {"planes": []}
        for plane in cone["planes"][-1:]:
            told = cone.get("to_untuned", {})
            cells = [f"{plane['distance']:.2g}", number(plane["angle"], 2), number(plane["largest"], 3)]
            cells += [f"{plane['spread']:.1g}"]
            cells += [number(told.get(key, math.nan), 1) for key in ("direction", "mean")]
            rows.append([name, str(plane["layer"]), *cells])
    header = ["encoder", "layer", "distance from 0", "angle of v (°)", "largest feature of v", "off the plane"]
    return Grid(
        [*header, "v from untuned v (°)", "mean from untuned mean (°)"],
        rows,
        1,
        "The hyperplane of the last LayerNorm",
        "LayerNorm puts every vector on ⟨1/g, h⟩ = Σ b/g =: c, so v = −sign(c)/g is negative for all of them, whatever "
        "the data. Distance |c| / ‖1/g‖; angle: median between v and the vectors, 90° means that v hardly matters; "
        "largest feature: its share of v's squared length (near 1: one feature with a tiny gain). Off the plane: "
        "largest relative miss, rounding only. Untuned: the encoder that the run began with, where it is measured too.",
    )


def _decoders(content: Mapping[str, Any]) -> Grid:
    rows = []
    for task in in_order(decoder["task"] for decoder in content["decoders"]):
        for decoder in content["decoders"]:
            if decoder["task"] != task:
                continue
            matrix, slope = decoder["matrix"], decoder["slope"]
            cells = [str(int(matrix["rows"])), str(int(matrix["features"])), number(matrix["mean_cosine"], 3)]
            cells += [percent(matrix["positive"]), number(matrix["angle"], 1), percent(matrix["top1"])]
            cells += [number(matrix["rank_share"], 2), number(slope["slope"], 3), number(slope["spearman"])]
            rows.append([task.upper(), decoder_name(content, decoder), *cells, probability(slope["p"])])
    header = ["task", "run", "labels", "features", "R", "pairs at acute angles (%)", "angle to the mean (°)"]
    return Grid(
        [*header, "top direction (%)", "effective rank / possible", "slope on ln frequency", "Spearman", "p"],
        rows,
        2,
        "Label weights of the decoders",
        "Rows of the last linear layer (without its bias), or whole biaffine forms. Slope and Spearman: cosine of a "
        "row to the mean row against its label's frequency in training; below 0, rare labels lie in the cone. p: "
        "labels permuted, two-sided.",
    )


def _labels(content: Mapping[str, Any]) -> Grid:
    rows = []
    for task in in_order(decoder["task"] for decoder in content["decoders"]):
        for decoder in content["decoders"]:
            known = [row for row in decoder["labels"] if not math.isnan(row["frequency"])]
            if decoder["task"] != task or not known:
                continue
            known.sort(key=lambda row: -row["cosine"])
            shown = known if len(known) <= DEEPEST + FURTHEST else [*known[:DEEPEST], *known[-FURTHEST:]]
            for row in shown:
                cells = [number(row["cosine"], 3), str(int(row["frequency"])), number(row["norm"], 2)]
                cells += [number(row["rival_cosine"], 3), str(int(row["gold"])), number(row["f1"], 1)]
                rows.append([task.upper(), decoder_name(content, decoder), row["name"], row["rival"], *cells])
    header = ["task", "run", "label", "nearest rival", "cosine to the mean", "in training", "norm"]
    return Grid(
        [*header, "cosine to the rival", "gold items", "F1"],
        rows,
        4,
        "Labels deepest in the cone, and furthest from it",
        f"The {DEEPEST} labels nearest to the mean row of their decoder and the {FURTHEST} furthest from it; all are "
        "in labels.parquet. F1: on the sentences read.",
    )


def _pairs(content: Mapping[str, Any]) -> Grid:
    rows = []
    for pair in content["pairs"]:
        for test in pair["tests"]:
            if not math.isnan(test["p"]):
                what = [pair["task"].upper(), f"{pair['joint']} − {pair['single']}", AGAINST[test["against"]]]
                cells = [str(pair["labels"]), number(pair["mean_difference"], 2), number(test["value"])]
                rows.append([*what, *cells, probability(test["p"]), probability(test["q"])])
    return Grid(
        ["task", "F1 of", "against", "labels", "mean difference of F1", "Spearman", "p", "q"],
        rows,
        3,
        "F1 lost against how far labels fell",
        "Over labels with 20 gold items or more in the sentences read. Below 0 for a change of the cosine: labels that "
        "fell further into the cone lost more. p: labels permuted, two-sided; q: Benjamini-Hochberg over all of them.",
    )


def _groups(content: Mapping[str, Any]) -> Grid:
    rows = []
    for entry in (content["claims"] or {"encoders": []})["encoders"]:
        name = _named(content, entry)
        for measure, title in MEASURES.items():
            found = entry["means"][measure]
            rows.append([name, title, *[number(found[group], 3) for group in ("stem", "exclusive", "free")]])
        if entry["cone"] is not None:
            shares = [number(entry["cone"][group], 3) for group in ("stem", "exclusive", "free")]
            rows.append([name, "share of the last layer's mean (sum)", *shares])
    return Grid(
        ["encoder", "measure", "stem", "exclusive", "free"],
        rows,
        2,
        "Head outputs by claims",
        "Means over heads that are open in the encoder measured, whatever their layer; the tests below compare within "
        "layers. Shares of the mean vector are sums over the heads of a group: large groups have large ones.",
    )


def _tests(content: Mapping[str, Any]) -> Grid:
    shown = [test for test in (content["claims"] or {"tests": []})["tests"] if not math.isnan(test["p"])]
    kinds = {"tasks": "Spearman with number of tasks", "gates": "Spearman with mean gate"}
    rows = [
        [
            _named(content, test),
            MEASURES[test["measure"]],
            kinds.get(test["test"], test["test"].replace("-", "−")),
            str(test["heads"]),
            number(test["value"], 3),
            probability(test["p"]),
            probability(test["q"]),
        ]
        for test in sorted(shown, key=lambda test: test["p"])[:SHOWN]
    ]
    return Grid(
        ["encoder", "measure", "comparison", "heads", "value", "p", "q"],
        rows,
        3,
        "Isotropy of heads by claims",
        f"The {len(rows)} smallest p of {len(shown)} comparisons, all within layers (heads are permuted within "
        "layers); two-sided; q over all of them. All are in degeneration.json.",
    )


def _named(content: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    return next(
        name
        for name, encoder in zip(names(content), content["encoders"], strict=True)
        if (encoder["label"], encoder["seed"]) == (entry["encoder"], entry["seed"])
    )
