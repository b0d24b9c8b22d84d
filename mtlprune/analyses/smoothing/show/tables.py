"""Over-smoothing in tables and sentences: of Markdown and of the report page alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtlprune.analyses.smoothing.show.reading import names
from mtlprune.layers import in_order
from mtlprune.reports.grid import Grid, markdown_document, number, probability

MEASURES = {
    "mixing": "λ",
    "amplification": "√λ ‖W_O W_V‖",
    "effect": "Δ log d_M after its layer",
    "effect_last": "Δ log d_M at the end",
    "cosine_effect": "Δ CosSim after its layer",
    "cosine_effect_last": "Δ CosSim at the end",
}
LEVEL = 0.05
STRONGEST = 12


@dataclass(frozen=True)
class Table:
    """A title, cells, and a sentence or two below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int
    caption: str

    def markdown(self) -> str:
        return f"## {self.title}\n\n{Grid(self.header, self.rows, self.texts).markdown()}\n{self.caption}\n"


def tables(content: Mapping[str, Any]) -> list[Table]:
    """All that there is something to say in."""
    makers = (_layers, _factors, _sigma, _labels, _tests, _heads, _fusion)
    return [table for table in (make(content) for make in makers) if table.rows]


@markdown_document
def markdown(content: Mapping[str, Any]) -> str:
    """The whole of ``smoothing.md``."""
    lines = ["# Over-smoothing\n", setting(content) + "\n", *(f"- {line}" for line in answers(content)), ""]
    parts = ["\n".join(lines), *(table.markdown() for table in tables(content))]
    if content["notes"]:
        parts.append("## Notes\n\n" + "".join(f"- {note}\n" for note in content["notes"]))
    runs = zip(names(content), content["encoders"], strict=True)
    parts.append("## Encoders\n\n" + "".join(f"- {name}: {encoder['run']}\n" for name, encoder in runs))
    return "\n".join(parts)


def setting(content: Mapping[str, Any]) -> str:
    """Where the numbers come from."""
    settings = content["settings"]
    return (
        f"{content['sentences']} sentences of {content['split']} of {content['corpus']} "
        f"({content['fingerprint'][:8]}), {content['too_long']} too long and left out; seed {content['seed']}. Tokens: "
        f"{content['tokens']}. Heads were closed one by one in {min(settings['closing'], content['sentences'])} of the "
        "sentences."
    )


def answers(content: Mapping[str, Any]) -> list[str]:
    """What the numbers say, in sentences."""
    found = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        first, last = encoder["layers"][0], encoder["layers"][-1]
        words = (
            f"{name}: CosSim {first['cosine']['mean']:.2f} (embeddings) → {last['cosine']['mean']:.2f} (last layer), "
            f"relative d_M {first['relative_distance']['mean']:.2f} → {last['relative_distance']['mean']:.2f}"
        )
        if "nearest" in encoder:
            worst, exceeded = encoder["nearest"]["bound"], encoder["exceeded"]["bound"]
            held = "holds everywhere" if not exceeded else f"is exceeded {exceeded} times"
            words += f"; the rigorous bound {held}, the nearest ratio is {worst:.1e} of it"
        found.append(f"{words}.")
    return [*found, *_claims_answer(content)]


def _claims_answer(content: Mapping[str, Any]) -> list[str]:
    if content["claims"] is None:
        return ["No runs with gates were named (--claims), so heads are not compared by how many tasks claim them."]
    tests = [test for test in content["claims"]["tests"] if not math.isnan(test["p"])]
    sure = [test for test in tests if test["q"] < LEVEL]
    sizes = ", ".join(f"{size} {name}" for name, size in content["claims"]["groups"].items())
    return [
        f"Heads by claims of {', '.join(content['claims']['tasks'])}: {sizes}. Of {len(tests)} comparisons within "
        f"layers {len(sure)} have q < {LEVEL} (Benjamini-Hochberg over all of them; {LEVEL * len(tests):.0f} would "
        f"have p < {LEVEL} by chance, {sum(test['p'] < LEVEL for test in tests)} have)."
    ]


def _mean(row: Mapping[str, Any], name: str, digits: int = 3, what: str = "mean") -> str:
    return number(row[name][what], digits) if name in row else "–"


def _layers(content: Mapping[str, Any]) -> Table:
    rows = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        for row in encoder["layers"]:
            shown = ("cosine", "cosine_centred", "cosine_without_outliers", "cosine_pieces", "relative_distance")
            cells = [_mean(row, key) for key in shown]
            rows.append([name, str(row["layer"]), *cells, _mean(row, "distance", 2), _mean(row, "ratio")])
    header = ["encoder", "layer", "CosSim", "minus corpus mean", "without outliers", "no [CLS], [SEP]"]
    return Table(
        "Similarity of tokens",
        [*header, "d_M / ‖H‖", "d_M", "ρ"],
        rows,
        1,
        "Means over sentences; layer 0 are the embeddings. Outliers: the three dimensions that give most to the "
        "expected cosine of the layer. ρ: d_M after the layer over d_M before it. CosSim near 0 does not exclude that "
        "tokens are close together: read d_M / ‖H‖ beside it.",
    )


def _factors(content: Mapping[str, Any]) -> Table:
    rows = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        for row, part in zip(encoder["layers"][1:], encoder["constants"] or (), strict=False):
            numbers = [_mean(row, "sigma1"), _mean(row, "sigma2"), number(part["s"], 1), _mean(row, "mixing", 2)]
            factors = [
                _mean(row, "bound_norm", 2, "median"),
                number(part["bound_feed_forward"], 1),
                _mean(row, "bound_attention", 1, "median"),
            ]
            bounds = [_mean(row, "bound", 0, "median"), _mean(row, "published", 0, "median"), _mean(row, "ratio")]
            rows.append([name, str(row["layer"]), str(part["open"]), *numbers, *factors, *bounds])
    header = ["encoder", "layer", "heads", "σ₁", "σ₂", "s", "λ", "LayerNorms", "feed-forward", "attention"]
    return Table(
        "The bound and its factors",
        [*header, "bound", "published v", "ρ"],
        rows,
        1,
        "Heads: those not shut. σ: least standard deviation of a LayerNorm's input in a sentence, mean over sentences. "
        "λ: of the most mixing head. Bound = LayerNorms × feed-forward × attention (medians over sentences). A bound "
        "above 1 does not mean that tokens do not grow alike.",
    )


def _sigma(content: Mapping[str, Any]) -> Table:
    rows = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        for row in encoder.get("sigma", ()):
            spearman = math.nan if row["spearman"] is None else row["spearman"]
            rows.append(
                [name, str(row["layer"]), number(row["least"], 3), number(100 * row["above_one"], 1), number(spearman)]
            )
    return Table(
        "σ₁σ₂ against CosSim over sentences",
        ["encoder", "layer", "least σ₁σ₂", "sentences above 1 (%)", "Spearman with CosSim"],
        rows,
        1,
        "σ₁σ₂ > 1 suffices for collapse only where weights vanish (s → 0).",
    )


def _labels(content: Mapping[str, Any]) -> Table:
    rows = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        for task in in_order(row["task"] for row in encoder["labels"]):
            here = [row for row in encoder["labels"] if row["task"] == task]
            best, last = max(here, key=lambda row: row["gain"]), here[-1]
            numbers = [number(here[0]["gain"], 3), number(best["gain"], 3), str(best["layer"]), number(last["gain"], 3)]
            spreads = [number(last["between"], 1), number(last["within"], 1)]
            middle = [number(last["share"], 3), number(last["chance"], 3)]
            words = [name, task.upper(), str(last["sentences"])]
            rows.append([*words, *numbers, *middle, probability(last["p"]), *spreads])
    header = ["encoder", "task", "sentences", "gain, embeddings", "best gain", "in layer", "gain, last layer"]
    return Table(
        "Spread between gold labels",
        [*header, "share, last", "chance", "p", "between", "within"],
        rows,
        2,
        "Share of d_M² of a sentence's words that lies between labels, minus what labels drawn blindly have (K − 1)/(n "
        "− 1); means over sentences. p: labels permuted within sentences. between, within: parts of d_M² after the "
        "last layer.",
    )


def _tests(content: Mapping[str, Any]) -> Table:
    shown = [test for test in (content["claims"] or {"tests": []})["tests"] if not math.isnan(test["p"])]
    rows = [
        [
            _named(content, test),
            MEASURES[test["measure"]],
            "Spearman with number of tasks" if test["test"] == "tasks" else test["test"].replace("-", "−"),
            str(test["heads"]),
            number(test["value"], 4),
            probability(test["p"]),
            probability(test["q"]),
        ]
        for test in sorted(shown, key=lambda test: test["p"])[: 2 * STRONGEST]
    ]
    return Table(
        "Heads by claims",
        ["encoder", "measure", "comparison", "heads", "value", "p", "q"],
        rows,
        3,
        f"The {len(rows)} smallest p of {len(shown)} comparisons, all within layers (heads are permuted within "
        "layers); two-sided; q over all of them. Effects are with the head open minus closed: below 0 in log d_M, or "
        "above 0 in CosSim, the head smooths. All are in smoothing.json.",
    )


def _named(content: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    return next(
        name
        for name, encoder in zip(names(content), content["encoders"], strict=True)
        if (encoder["label"], encoder["seed"]) == (test["encoder"], test["seed"])
    )


def _heads(content: Mapping[str, Any]) -> Table:
    rows = []
    counts = content["claims"] and content["claims"]["counts"]
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        known = [head for head in encoder["heads"] if not math.isnan(head["effect"])]
        known.sort(key=lambda head: head["effect"])
        for head in [*known[:3], *known[-2:]] if len(known) > 5 else known:
            claimed = str(counts[head["layer"] - 1][head["head"] - 1]) if counts else "–"
            effects = [number(head[key], 4) for key in ("effect", "effect_se", "effect_last", "cosine_effect")]
            measures = [number(head["mixing"]), number(head["amplification"])]
            rows.append([name, f"{head['layer']}-{head['head']}", claimed, *measures, *effects])
    return Table(
        "Heads that smooth most, and least",
        ["encoder", "head", "tasks", "λ", "√λ ‖W_O W_V‖", "Δ log d_M", "± s.e.", "at the end", "Δ CosSim"],
        rows,
        2,
        "Three heads with the lowest and two with the highest effect on d_M after their layer. All are in "
        "smoothing.json.",
    )


def _fusion(content: Mapping[str, Any]) -> Table:
    rows = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        fusion = encoder.get("fusion")
        if fusion:
            rows += [
                [name, fusion["kind"], str(layer), number(row["mean"], 3), number(row["sd"], 3)]
                for layer, row in enumerate(fusion["weights"], 1)
            ]
    return Table(
        "Weights of the fusion",
        ["encoder", "fusion", "layer", "weight", "sd over tokens"],
        rows,
        2,
        "gate: mean weight over tokens. scalar_mix: the weight. max: share of features that the layer wins. concat: "
        "share of the squared Frobenius norm of the projection.",
    )
