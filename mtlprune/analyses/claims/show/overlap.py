"""How claims overlap, as Markdown, LaTeX and JSON; what the figures mean stands in docs/overlap.md.

overlap = measure(load_claims(["runs/pos-1", "runs/dep-1"]))
markdown(overlap), latex(overlap), to_json(overlap)
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mtlprune.analyses.claims.overlap import Overlap
from mtlprune.analyses.claims.stem import Head
from mtlprune.files import json_text
from mtlprune.reports.grid import Grid, escape, latex_document, markdown_document, number, probability
from mtlprune.statistics.agreement import Spread

PARTS = {
    "layers": "between layers",
    "heads": "heads within layers, common to all tasks",
    "tasks": "tasks: how many heads are open",
    "tasks_by_layers": "tasks by layers",
    "tasks_by_heads": "tasks by heads within layers",
    "seeds": "seeds (residual)",
}
LEVEL = 0.05


@markdown_document
def markdown(overlap: Overlap) -> str:
    """The whole report."""
    parts = ["# Overlap of claimed heads\n", f"{_setting(overlap)}\n", f"**{answer(overlap)}**\n"]
    if overlap.notes:  # before the tables: they say how far these can be believed
        parts += ["".join(f"- {line}\n" for line in overlap.notes)]
    parts += [table.part() for table in sections(overlap)]
    parts += ["## Exclusive and free heads\n", *(f"{line}\n" for line in listed(overlap))]
    if overlap.undefined:
        parts += ["## Not defined (–)\n", "".join(f"- {line}\n" for line in overlap.undefined)]
    runs = "".join(f"- {label.label}: {', '.join(run.run for run in label.runs)}\n" for label in overlap.labels)
    return "\n".join([*parts, "## Runs\n", runs])


def latex(overlap: Overlap) -> str:
    """The tables, for \\input into a document that loads booktabs."""
    remarks = [_setting(overlap), answer(overlap), *overlap.notes, *overlap.undefined]
    parts = [table.latex(f"tab:overlap-{table.key}") for table in sections(overlap)]
    parts += [f"\\paragraph{{Exclusive and free heads.}} {escape(' '.join(listed(overlap)))}", ""]
    return latex_document(remarks, parts)


def to_json(overlap: Overlap) -> str:
    """Every field of Overlap under its name; null stands for what is not defined."""
    return json_text({"numbering": "layers and heads are counted from 1", **dataclasses.asdict(overlap)})


def answer(overlap: Overlap) -> str:
    """Do tasks claim the same heads beyond what the depth of layers explains? In words, with the numbers."""
    found = overlap.tasks
    if math.isnan(found.heads):
        return "Whether tasks claim the same heads is open: two single-task labels or more are needed."
    first = (
        f"Two runs of different single tasks share {number(found.heads, 1)} open heads on average; layer depth alone "
        f"explains {number(found.expected, 1)}"
    )
    if math.isnan(found.z):
        return f"{first}, and permuting heads within layers cannot change that."
    if math.isnan(found.p):
        return f"{first} (z = {number(found.z)}; no permutations, so no p)."
    seeds = overlap.by_seed
    apart = ""
    if not math.isnan(seeds.equal) and not math.isnan(seeds.unequal):
        apart = (
            f" Runs of equal seeds share {number(seeds.equal, 1)}, of unequal seeds {number(seeds.unequal, 1)} "
            f"(expected {number(seeds.unequal_expected, 1)}, p = {probability(seeds.unequal_p)})."
        )
    verdict = "they share more than depth explains" if found.p <= LEVEL else "no more than depth explains is shown"
    return f"{first} (z = {number(found.z)}, p = {probability(found.p)}): {verdict}.{apart}{_by_label(overlap)}"


def _by_label(overlap: Overlap) -> str:
    """Whether runs of one task are more alike than runs of two, with size and p; "" where that is not known."""
    tests = {(test.pairs, test.measure): test for test in overlap.by_label}
    plain, deep = (tests.get(("all", measure)) for measure in ("shared heads", "beyond depth"))
    if plain is None or deep is None or math.isnan(plain.p):
        return ""
    more = f"{number(deep.within, 1)} against {number(deep.between, 1)} beyond depth, p = {probability(deep.p)}"
    if apart := tests.get(("unequal seeds", "shared heads")):
        more += f"; of unequal seeds only, p = {probability(apart.p)}, {probability(apart.least)} at least"
    return (
        f" Two runs of one task share {number(plain.within, 1)}, of two tasks {number(plain.between, 1)} "
        f"(p = {probability(plain.p)}, labels of runs permuted, {probability(plain.least)} at least; {more})."
    )


def _setting(overlap: Overlap) -> str:
    runs = sum(len(label.runs) for label in overlap.labels)
    return (
        f"Encoder {overlap.encoder}: {overlap.layers} layers × {overlap.heads} heads = "
        f"{overlap.layers * overlap.heads}. Runs: {runs}. A head is open where its gate exceeds "
        f"{overlap.open_above:g}. {overlap.permutations:,} permutations, seed {overlap.seed}. Heads are named "
        "LAYER-HEAD, both counted from 1."
    )


def sections(overlap: Overlap) -> list[Grid]:
    """The tables of the report, in its order; those without a row are left out."""
    made = [_runs(overlap), _within(overlap), _labels(overlap), _correlation(overlap), _pairs(overlap)]
    made += [_claimed_by_both(overlap), _claimed_by(overlap), _variance(overlap), _stem(overlap)]
    return [table for table in made if table.rows]


def _runs(overlap: Overlap) -> Grid:
    rows = [
        [
            label.label,
            ", ".join(str(run.seed) for run in label.runs),
            ", ".join(str(run.open) for run in label.runs),
            " ".join(map(str, label.claimed_by_layer)),
            str(label.claimed),
        ]
        for label in overlap.labels
    ]
    header = ["label", "seeds", "open heads", "claimed, by layer", "claimed"]
    legend = "Claimed: open in more than half of a label's seeds."
    return Grid(header, rows, 4, "Open heads", legend, "labels")


def _within(overlap: Overlap) -> Grid:
    rows = []
    for label in overlap.labels:
        found = label.within
        multiple = [number(found.multiple_last), number(found.multiple_mean)]
        spreads = [_spread(found.pearson), _spread(found.jaccard), _spread(found.overlap_coefficient)]
        if len(label.runs) > 1:
            rows.append([label.label, *multiple, *spreads, *_sharing(label.sharing)])
    header = ["label", "multiple R", "mean over last", "Pearson", "Jaccard", "overlap coefficient", *_SHARING]
    legend = (
        "Multiple R: square root of the adjusted R² of the last seed regressed on all others (the original's "
        "diagonal). Mean over last: each seed in turn as the last. Others: mean ± sample standard deviation over pairs "
        "of seeds. p: every seed permuted by itself within layers."
    )
    return Grid(header, rows, 1, "Agreement of the seeds of a label", legend, "within")


def _labels(overlap: Overlap) -> Grid:
    rows = [
        [
            test.pairs,
            test.measure,
            number(test.within),
            number(test.between),
            f"{test.within - test.between:+.2f}",
            probability(test.p),
            probability(test.least),
            f"{test.labellings:,}{' (all)' if test.exact else ''}",
        ]
        for test in overlap.by_label
    ]
    header = ["pairs of runs", "measure", "one task", "two tasks", "difference", "p", "least p", "labellings"]
    legend = (
        "Means over pairs of runs of single tasks. Beyond depth: shared heads minus those that the numbers of open "
        "heads in each layer explain. p, one-sided: how often the difference is as large when the tasks of runs are "
        "permuted; of unequal seeds, permuted among the runs of one seed, pairs of equal seeds left out. "
        "Least p: the smallest that is possible with these runs."
    )
    return Grid(header, rows, 2, "Runs of one task and of two", legend, "labels-permuted")


def _correlation(overlap: Overlap) -> Grid:
    names = [label.label for label in overlap.labels]
    rows = [[name, *map(number, row)] for name, row in zip(names, overlap.correlation, strict=True)]
    legend = "Pearson over heads between labels' mean gates; on the diagonal the multiple R within the label."
    return Grid(["", *names], rows, 1, "Correlation of gates", legend, "correlation")


_SHARING = ("shared", "expected", "z", "p")


def _sharing(found: Any) -> list[str]:
    return [number(found.heads, 1), number(found.expected, 1), number(found.z), probability(found.p)]


def _spread(found: Spread) -> str:
    return number(found.mean) + ("" if math.isnan(found.sd) else f" ± {number(found.sd)}")


def _pairs(overlap: Overlap) -> Grid:
    rows = [
        [
            f"{pair.first} – {pair.second}",
            _spread(pair.jaccard),
            _spread(pair.overlap_coefficient),
            *_sharing(pair.sharing),
            probability(pair.q),
        ]
        for pair in overlap.pairs
    ]
    header = ["pair", "Jaccard", "overlap coefficient", *_SHARING, "q"]
    legend = (
        "Open heads of a seed of one and a seed of the other label, mean ± sample standard deviation over such pairs. "
        "Expected, z and p: heads permuted within layers, all seeds of a label together. q: p after Benjamini-Hochberg "
        "over the pairs."
    )
    return Grid(header, rows, 1, "Heads shared by two labels", legend, "pairs")


def _claimed_by_both(overlap: Overlap) -> Grid:
    rows = [
        [
            f"{pair.first} – {pair.second}",
            str(pair.claimed.heads),
            number(pair.claimed.expected_layers, 1),
            probability(pair.claimed.p_layers),
            number(pair.claimed.expected_uniform, 1),
            probability(pair.claimed.p_hypergeometric),
            probability(pair.claimed.q_hypergeometric),
        ]
        for pair in overlap.pairs
    ]
    header = ["pair", "claimed by both", "in layers", "p", "anywhere", "hypergeometric p", "q"]
    legend = (
        "Heads that the majority of seeds of both labels have open. In layers: expected if heads fell anywhere within "
        "their layers, with exact p. Anywhere: expected if they fell anywhere, with the plain hypergeometric p and q "
        "(Benjamini-Hochberg over the pairs); it takes a common preference for layers for overlap."
    )
    return Grid(header, rows, 1, "Heads claimed by two labels", legend, "claimed-by-both")


def _claimed_by(overlap: Overlap) -> Grid:
    rows = []
    for row in overlap.claimed_by:
        chances = [
            [number(c.expected, 1), probability(c.p_more), probability(c.p_fewer)] for c in (row.layers, row.uniform)
        ]
        rows.append([f"≥ {row.tasks}", str(row.heads), *itertools.chain(*chances)])
    header = ["tasks", "heads", "in layers", "p more", "p fewer", "anywhere", "p more", "p fewer"]
    legend = (
        "Heads claimed by so many single-task labels or more, beside what is expected if every label's heads fell "
        "anywhere within their layers, or anywhere; p: of so many or more, and of so many or fewer."
    )
    return Grid(header, rows, 1, "Heads by the number of tasks that claim them", legend, "claimed-by")


def _variance(overlap: Overlap) -> Grid:
    found = overlap.variance
    rows = [
        [title, f"{number(found.components[part], 5)}", f"{number(100 * found.shares[part], 1)}"]
        for part, title in PARTS.items()
    ]
    legend = (
        "Single-task labels only. Components by the method of moments (analysis of variance of unweighted task means); "
        "estimates below 0 count as 0 in the shares."
    )
    return Grid(["part", "component", "%"], rows, 1, "Variance of gates", legend, "variance")


def _stem(overlap: Overlap) -> Grid:
    rows = [
        [head.name, ", ".join(head.labels), str(len(head.labels)), number(head.confidence)] for head in overlap.stem
    ]
    chance = next((row for row in overlap.claimed_by if row.tasks == overlap.stem_tasks), None)
    beside = f"; {number(chance.layers.expected, 1)} are expected from layer depth alone" if chance else ""
    legend = (
        f"Claimed by {overlap.stem_tasks} single-task labels or more: {len(overlap.stem)} heads{beside}. Confidence: "
        "share of bootstrap samples (seeds drawn anew within every task) in which the head is a stem head."
    )
    return Grid(["head", "claimed by", "tasks", "confidence"], rows, 2, "Stem heads", legend, "stem")


def listed(overlap: Overlap) -> Iterator[str]:
    """Exclusive heads by task, and free ones, in a sentence each."""
    if not overlap.stem:
        yield "Stem heads: none."
    for label in (label.label for label in overlap.labels if not label.joint):
        yield f"Claimed by {label} only: {_names(head for head in overlap.exclusive if head.labels == (label,))}."
    yield f"Claimed by no single-task label: {_names(overlap.free)}."


def _names(heads: Iterable[Head]) -> str:
    found: Sequence[Head] = list(heads)
    confident = [head.name if math.isnan(head.confidence) else f"{head.name} ({head.confidence:.2f})" for head in found]
    return f"{', '.join(confident)} ({len(found)} heads)" if found else "none"
