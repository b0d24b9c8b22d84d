"""Pictures of degeneration: spectra, projections, isotropy by layer, label weights against frequency, F1 lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtlprune.analyses.degeneration.show.heads import head_maps
from mtlprune.analyses.degeneration.show.reading import decoder_name, names
from mtlprune.layers import in_order
from mtlprune.reports.drawing import Drawing
from mtlprune.reports.facets import HUES, Curve, Panel, facets
from mtlprune.reports.palettes import Colour

BY_LAYER = {
    "mean_cosine": ("mean cosine (R)", "R"),
    "isoscore": ("IsoScore", "IsoScore"),
    "rank_share": ("effective rank / possible", "share"),
    "top1": ("share of the top direction", "share"),
    "angle": ("median angle to the mean", "degrees"),
    "dimension": ("TwoNN, one word a sentence", "dimension"),
}


def drawings(content: Mapping[str, Any]) -> dict[str, tuple[Drawing, str]]:
    """File name without ending → drawing and what it shows in words; only those that there is something for."""
    about = f"{content['sentences']} sentences of {content['split']} of {content['corpus']}"
    made: dict[str, tuple[Drawing, str]] = {}
    for name, draw, alt in (
        ("spectrum", _spectrum, "Lines by rank: singular values of embeddings, of the last layer and of label weights"),
        ("projection", _projection, "Dots: rows on their two top directions, panels by encoder and by decoder"),
        ("isotropy", _isotropy, "Lines by layer, one an encoder: mean cosine, IsoScore, ranks, angles, dimension"),
        ("heads", head_maps, "Maps of layers by heads: mean cosine, IsoScore and dimension, a row an encoder"),
        ("labels", _labels, "Dots, one a label: norm and cosine to the mean row against frequency, panels by task"),
        ("lost", _lost, "Dots, one a label: F1 lost against the change of its cosine to the mean row"),
    ):
        drawing = draw(content, about)
        if drawing is not None:
            made[name] = drawing, alt
    return made


def _encoders(content: Mapping[str, Any]) -> Iterator[tuple[str, Colour, bool, Mapping[str, Any]]]:
    """Name, colour, whether heads are shut, entry."""
    for place, (name, encoder) in enumerate(zip(names(content), content["encoders"], strict=True)):
        shut = any(head["gate"] <= 1e-3 for head in encoder["heads"])
        yield name, HUES[place % len(HUES)], shut or place >= len(HUES), encoder


def _colours(content: Mapping[str, Any]) -> dict[str, Colour]:
    """Run → colour, the same as that of its encoder."""
    return {encoder["run"]: colour for _, colour, _, encoder in reversed(list(_encoders(content)))}


def _decoders(content: Mapping[str, Any], task: str) -> Iterator[tuple[str, Colour, Mapping[str, Any]]]:
    colours = _colours(content)
    for decoder in content["decoders"]:
        if decoder["task"] == task:
            yield decoder_name(content, decoder), colours[decoder["run"]], decoder


def _spectrum(content: Mapping[str, Any], about: str) -> Drawing:
    panels = []
    for key, title in (("embeddings", "token embeddings"), ("last", "words, last layer")):
        curves = [
            Curve(name, _logs(encoder["spectra"].get(key, ())), colour, dashed, radius=1.4)
            for name, colour, dashed, encoder in _encoders(content)
        ]
        panels.append(Panel(title, curves, "log10 of the rank", "singular value / largest", zero=True))
    for task in in_order(decoder["task"] for decoder in content["decoders"]):
        curves = [Curve(n, _logs(d["spectrum"]), colour, radius=1.4) for n, colour, d in _decoders(content, task)]
        if curves:
            panels.append(
                Panel(f"labels of {task.upper()}", curves, "log10 of the rank", "singular value / largest", zero=True)
            )
    shown = [panel for panel in panels if any(curve.points for curve in panel.curves)]
    lines = [f"Not centred. Words of {about}. A steep fall after the first value: one direction that all share."]
    return facets("Spectra", lines, shown, 3)


def _logs(spectrum: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    return [(math.log10(rank), value) for rank, value in spectrum]


def _projection(content: Mapping[str, Any], about: str) -> Drawing:
    panels = []
    shown = list(_encoders(content))
    for name, colour, _, encoder in shown[:1]:
        dots = Curve(name, _pairs(encoder["points"]["embeddings"]), colour, joined=False, radius=1.6)
        panels.append(Panel(f"token embeddings, {name}", [dots], "top direction", "second", (0.0,), zero=True))
    for name, colour, _, encoder in shown:
        if "last" in encoder["points"]:
            dots = Curve(name, _pairs(encoder["points"]["last"]), colour, joined=False, radius=1.6)
            panels.append(Panel(f"words, last layer, {name}", [dots], "top direction", "second", (0.0,), zero=True))
    for task in in_order(decoder["task"] for decoder in content["decoders"]):
        dots_of = [
            Curve(name, _pairs(decoder["points"]), colour, joined=False, radius=2.0)
            for name, colour, decoder in _decoders(content, task)
        ]
        if dots_of:
            title = f"labels of {task.upper()} (length 1)"
            panels.append(Panel(title, dots_of, "top direction", "second", (0.0,), zero=True))
    lines = [
        f"Samples of rows on the two top directions of their own matrix, not centred; lines cross at 0. {about}. A "
        "degenerate cloud is a cone off to one side of 0."
    ]
    return facets("Rows on their two top directions", lines, panels, 4)


def _pairs(points: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points]


def _isotropy(content: Mapping[str, Any], about: str) -> Drawing | None:
    panels = []
    for key, (title, y) in BY_LAYER.items():
        curves = [
            Curve(name, [(r["layer"], r[key]) for r in encoder["hidden"] if not math.isnan(r[key])], colour, dashed)
            for name, colour, dashed, encoder in _encoders(content)
        ]
        panels.append(Panel(title, curves, "layer", y, whole=True))
    if not any(curve.points for panel in panels for curve in panel.curves):
        return None
    lines = [
        f"Words of {about}; layer 0 are the embeddings. Dashed: some heads shut. A cone: high R and share of the top "
        "direction, small angle. Isotropic: IsoScore and effective rank near 1."
    ]
    return facets("Cones and isotropy, layer by layer", lines, panels, 3)


def _labels(content: Mapping[str, Any], about: str) -> Drawing | None:
    panels = []
    for key, y in (("cosine", "cosine to the mean row"), ("norm", "norm")):
        for task in in_order(decoder["task"] for decoder in content["decoders"]):
            curves = [
                Curve(
                    name,
                    [(math.log10(row["frequency"]), row[key]) for row in decoder["labels"] if row["frequency"] > 0],
                    colour,
                    joined=False,
                    radius=2.0,
                )
                for name, colour, decoder in _decoders(content, task)
            ]
            if any(curve.points for curve in curves):
                panels.append(
                    Panel(f"{task.upper()}: {y}", curves, "log10 of items in training", y, zero=key == "cosine")
                )
    if not panels:
        return None
    lines = ["A dot a label. Rare labels on the left; a fall to the right: rare labels lie in the cone."]
    return facets("Label weights against frequency", lines, panels, max(1, len(panels) // 2))


def _lost(content: Mapping[str, Any], about: str) -> Drawing | None:
    colours = _colours(content)
    by_run = {(decoder["run"], decoder["task"]): decoder for decoder in content["decoders"]}
    panels = []
    for task in in_order(decoder["task"] for decoder in content["decoders"]):
        curves = []
        for pair in content["pairs"]:
            if pair["task"] == task:
                joint, single = (by_run[pair[side], task]["labels"] for side in ("joint_run", "single_run"))
                points = [
                    (mine["cosine"] - own["cosine"], mine["f1"] - own["f1"])
                    for mine, own in zip(joint, single, strict=True)
                    if mine["gold"] >= 20 and not math.isnan(mine["f1"] - own["f1"])
                ]
                name = f"{pair['joint']} minus single, seed {pair['seed']}"
                curves.append(Curve(name, points, colours[pair["joint_run"]], joined=False, radius=2.4))
        if any(curve.points for curve in curves):
            panels.append(
                Panel(task.upper(), curves, "change of cosine to the mean row", "F1, joint minus single", (0.0,), True)
            )
    if not panels:
        return None
    lines = [f"A dot a label with 20 gold items or more in {about}. Right: fell into the cone. Below 0: lost F1."]
    return facets("F1 lost against how far labels fell", lines, panels, 3)
