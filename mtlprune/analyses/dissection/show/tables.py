"""A dissection in words and tables: Markdown and the rows of the report page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtlprune.analyses.dissection.show.reading import WHAT, about, scores_by_task, short
from mtlprune.analyses.dissection.terms import LONG, TERMS, named
from mtlprune.reports.grid import Grid, markdown_document, number, probability

SINGLES = ("i", "h", "f", "c", "ihfc")


def setting(found: Mapping[str, Any]) -> str:
    """What was taken apart, in a sentence."""
    encoders = found["encoders"]
    worst = max(encoder["error"] for encoder in encoders)
    return (
        f"{len(encoders)} encoder{'s' * (len(encoders) > 1)} on {about(found)} ({encoders[0]['pieces']} sub-words; "
        "special tokens left out of every number). i + h + f + c meet every hidden state within "
        f"{worst:.0e} (float32)."
    )


def answers(found: Mapping[str, Any]) -> list[str]:
    """What the numbers say, a line each; comparisons only where there is something to compare."""
    lines = []
    for row in found["losses"]:
        single = {term: _at(found, row, term) for term in "hf"}
        whole = _at(found, row, "ihfc")
        words = ", ".join(f"{term} {_points(single[term])}" for term in "hf")
        lines.append(
            f"{row['task'].upper()}: {short(row['single'], found)} minus {short(row['joint'], found)} is "
            f"{_points(whole)} points on the whole vector; on one term alone: {words}."
        )
    for row in found["gates"]:
        lines.append(
            f"Gates of {short(row['gates_of'], found)} against shares in {short(row['shares_in'], found)}: rank "
            f"correlation within layers {number(_n(row['rho']))} (p {probability(_n(row['rho_p']))}); {row['shared']} "
            f"of {row['open']} open heads are among those of largest share, {number(row['expected'], 1)} by chance "
            f"(p {probability(_n(row['shared_p']))})."
        )
    return lines


def _at(found: Mapping[str, Any], row: Mapping[str, Any], subset: str) -> tuple[float, float, float]:
    place = found["subsets"].index(subset)
    return row["difference"][place], row["low"][place], row["high"][place]


def _points(values: tuple[float, float, float]) -> str:
    middle, low, high = (f"{round(100 * value, 1) + 0.0:+.1f}".replace("-", "−") for value in values)
    return f"{middle} [{low}, {high}]"


def _n(value: float | None) -> float:
    return float("nan") if value is None else value


def tables(found: Mapping[str, Any]) -> list[Grid]:
    """All tables that there is something for."""
    made = [_importance(found), _linearity(found), *_scores(found)]
    if found["losses"]:
        made.append(_losses(found))
    if found["across"]:
        made.append(_across(found))
    if found["gates"]:
        made.append(_gates(found))
    if found["lost_shares"]:
        made.append(_lost_shares(found))
    if found["compositions"]:
        made.append(_compositions(found))
    return made


def _importance(found: Mapping[str, Any]) -> Grid:
    rows = []
    for encoder in found["encoders"]:
        for layer, (means, sds) in enumerate(zip(encoder["mu"], encoder["mu_sd"], strict=True)):
            cells = [f"{number(m, 3)} ± {number(s, 3)}" for m, s in zip(means, sds, strict=True)]
            rows.append([short(encoder["key"], found), str(layer), *cells])
    caption = "Mean ± standard deviation over sub-words of μ = e·v/‖e‖². The four sum to 1; layer 0 are the embeddings."
    return Grid(["encoder", "layer", *(LONG[t] for t in TERMS)], rows, 2, "Importance by layer", caption)


def _linearity(found: Mapping[str, Any]) -> Grid:
    rows = []
    for encoder in found["encoders"]:
        for layer, line in enumerate(encoder["linearity"], 1):
            numbers = number(_n(line["in_sample"]), 3), number(_n(line["held_out"]), 3)
            rows.append([short(encoder["key"], found), str(layer), *numbers])
    tokens = found["encoders"][0]["linearity"][0]["tokens"]
    caption = (
        f"r² of the best linear map from what the feed-forward part reads to what it adds, {tokens} sub-words: on the "
        "sub-words that were fitted (as published), and on the half of the sentences that was not. The first is too "
        "high and the second too low where sub-words are few against features."
    )
    return Grid(["encoder", "layer", "in-sample", "held out"], rows, 2, "How linear feed-forward parts are", caption)


def _scores(found: Mapping[str, Any]) -> list[Grid]:
    made = []
    for task, listed in scores_by_task(found).items():
        rows = [
            [named(subset), *(number(100 * _n(scores["score"][place]), 1) for _, scores in listed)]
            for place, subset in enumerate(found["subsets"])
        ]
        base = [number(100 * _n(scores["baseline"]), 1) for _, scores in listed]
        rows.append(["most frequent sense" if task.startswith("wsd") else "majority label", *base])
        first = listed[0][1]
        caption = f"Percent; {first['train']} items to learn from, {first['test']} asked"
        if first["unseen"]:
            caption += f", of which {first['unseen']} have a label that was never seen"
        header = ["terms", *(short(key, found) for key, _ in listed)]
        made.append(Grid(header, rows, 1, f"Subsets of terms: {WHAT[task]}", caption + "."))
    return made


def _losses(found: Mapping[str, Any]) -> Grid:
    header = ["terms", *(f"{row['task'].upper()} ({short(row['joint'], found)})" for row in found["losses"])]
    rows = [[named(s), *(_points(_at(found, row, s)) for row in found["losses"])] for s in found["subsets"]]
    caption = (
        "Score of the task's own encoder minus that of the joint one in points, and 95% of resamplings of sentences. "
        "Decoders begin alike and see the same batches; seeds of encoders and decoders are not resampled."
    )
    return Grid(header, rows, 1, "Which term carries the loss", caption)


def _across(found: Mapping[str, Any]) -> Grid:
    rows = []
    for pair in found["across"]:
        names = short(pair["first"], found), short(pair["second"], found)
        for kind in ("spearman", "pearson"):
            last = [number(_n(value)) for value in pair[kind][-1]]
            rows.append([*names, kind.capitalize(), *last, number(_mean_of_heads(pair[kind]))])
    header = ["encoder", "encoder", "", *(f"{LONG[t]}, last layer" for t in TERMS), "heads, mean of layers"]
    caption = "Over the same words: μ in one encoder against μ in another. All layers are in dissection.json."
    return Grid(header, rows, 3, "Correlation of importance between encoders", caption)


def _mean_of_heads(layers: list[list[float | None]]) -> float:
    kept = [row[1] for row in layers if row[1] is not None]
    return sum(kept) / len(kept) if kept else float("nan")


def _gates(found: Mapping[str, Any]) -> Grid:
    header = ["gates of", "shares in", "ρ within layers", "p", "open", "shared", "by chance", "p (shared)"]
    rows = [
        [
            short(row["gates_of"], found),
            short(row["shares_in"], found),
            number(_n(row["rho"])),
            probability(_n(row["rho_p"])),
            str(row["open"]),
            str(row["shared"]),
            number(row["expected"], 1),
            probability(_n(row["shared_p"])),
        ]
        for row in found["gates"]
    ]
    caption = (
        "Rank correlation of gates with heads' μ in the last layer of an encoder whose heads are all open, layers "
        "taken out; open heads that are among as many of largest μ in their layer. p: heads permuted within layers."
    )
    return Grid(header, rows, 2, "Do gates keep the heads with the largest shares?", caption)


def _lost_shares(found: Mapping[str, Any]) -> Grid:
    header = ["task", "joint", "exclusive heads", "their change of μ", "change of all others"]
    rows = [
        [
            row["task"].upper(),
            short(row["joint"], found),
            str(row["heads"]),
            *(f"{1000 * _n(row[key]):+.2f}".replace("-", "−").replace("+nan", "–") for key in ("exclusive", "others")),
        ]
        for row in found["lost_shares"]
    ]
    caption = (
        "Mean μ of a head in the joint encoder minus its own task's, in thousandths; exclusive: no other task keeps it."
    )
    return Grid(header, rows, 2, "Do heads that one task alone keeps lose their share?", caption)


def _compositions(found: Mapping[str, Any]) -> Grid:
    names = list(found["compositions"][0]["weights"])
    rows = [
        [
            short(row["joint"], found),
            str(row["layer"]),
            LONG[row["term"]],
            *(number(_n(row["weights"].get(name))) for name in names),
            *(number(_n(row[kind]), 3) for kind in ("unexplained", "centred_unexplained", "rotated_unexplained")),
        ]
        for row in found["compositions"]
    ]
    header = ["joint", "layer", "term", *(short(name, found) for name in names), "unexplained", "centred", "rotated"]
    caption = (
        f"Weights of non-negative least squares over {found['head']['sample']} words: a term of the joint encoder from "
        "the same term of the others, and the part of its squares that stays unexplained; so with means over words "
        "taken out, and with the others first turned by the best orthogonal map."
    )
    return Grid(header, rows, 3, "Is the joint encoder a compromise?", caption)


@markdown_document
def markdown(found: Mapping[str, Any]) -> str:
    """Everything as one page."""
    parts = ["# Exact decomposition: i + h + f + c", setting(found)]
    parts += ["\n".join(f"- {line}" for line in answers(found)) or "One encoder: nothing to compare."]
    parts += [f"Not taken apart: {line}." for line in found["refused"]]
    for table in tables(found):
        parts.append(f"## {table.title}\n\n{table.caption}\n\n{table.markdown().rstrip()}")
    return "\n\n".join(parts) + "\n"
