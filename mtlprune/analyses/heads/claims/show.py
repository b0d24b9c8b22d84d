"""The overlap of claims as it is shown: sentences, tables and figures of a Result (see docs/methods/claims.md)."""

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import HeadColumn
from mtlprune.analyses.frames import TableRows, declaration
from mtlprune.analyses.heads.claims.maths import claim_columns
from mtlprune.analyses.heads.claims.stability import COMMON, MODES, OVER_TASKS, RELIABILITIES
from mtlprune.figures.charts import INK, SOFT, AnyChart, Drawing, cells, data, head_map
from mtlprune.figures.grid import Grid, number, probability, seen_from
from mtlprune.runs.claims import Claim
from mtlprune.runs.results import Result
from mtlprune.statistics.standard_errors import LEVEL, detectable

_MAX_TESTS_SHOWN = 24
"""Comparisons of heads by claims that are listed."""
PARTS = {
    "layers": "between layers",
    "heads": "heads within layers, common to all tasks",
    "tasks": "tasks: how many heads are open",
    "tasks_by_layers": "tasks by layers",
    "tasks_by_heads": "tasks by heads within layers",
    "seeds": "seeds (residual)",
}
SHARING: dict[str, Any] = {"shared": ("shared", 1), "expected": ("expected", 1), "z": ("z", 2), "p": ("p", probability)}


def about(result: Result) -> str:
    """Describe the runs, and define an open head."""
    info, settings = result.about, result.about["settings"]
    runs = len({entry["run"] for entry in info["encoders"]})  # one with a gate set a task has a claim for each
    return (
        f"Encoder {info['encoder']}: {info['layers']} layers × {info['heads']} heads = "
        f"{info['layers'] * info['heads']}. Runs: {runs}. A head is open where its gate exceeds "
        f"{settings['open_above']:g}. {settings['permutations']:,} permutations, seed {settings['seed']}. Heads are "
        "named LAYER-HEAD, both counted from 1."
    )


def findings(result: Result) -> list[str]:
    """The answer, how stable claims are, and how many stem heads there are beside chance."""
    sentences = [answer(result), *stable(result), *selected(result)]
    stem = _group(result, "stem")
    if len(stem):
        sentences.append(
            f"{_claimed_by_several(result)} Claimed by so many, as layer-head: {', '.join(_places(stem))}."
        )
    return sentences


def _claimed_by_several(result: Result) -> str:
    """A sentence: how many heads are claimed by as many tasks as make a stem head, and by all, beside the numbers that
    layer depth alone explains; "" where the Result has no such numbers."""
    numbers = result.frame("numbers")
    if not len(numbers):
        return ""
    least, task_count = result.about["settings"]["stem_tasks"], numbers["tasks"].max()
    parts = []
    for row in numbers[numbers["tasks"].isin({least, task_count})].itertuples():
        run_groups = f"all {row.tasks} tasks" if row.tasks == task_count else f"{row.tasks} tasks or more"
        more = "" if math.isnan(row.layers_more) else f", p {probability(row.layers_more)}"
        parts.append(
            f"{row.heads} by {run_groups} ({number(row.layers_expected, 1)} expected from layer depth alone{more})"
        )
    return f"Heads claimed: {'; '.join(parts)}."


def answer(result: Result) -> str:
    """Say with numbers whether tasks claim the same heads beyond what the depth of layers explains."""
    tests = result.frames["tests"].set_index("mode")
    all_pairs, equal, unequal = (tests.loc[mode] for mode in ("all", "equal seeds", "unequal seeds"))
    if math.isnan(all_pairs.shared):
        return "Whether tasks claim the same heads is open: two single tasks or more are needed."
    first = (
        f"Two runs of different single tasks share {number(all_pairs.shared, 1)} open heads on average; layer depth "
        f"alone explains {number(all_pairs.expected, 1)}"
    )
    if math.isnan(all_pairs.z):
        return f"{first}, and permuting heads within layers cannot change that."
    if math.isnan(all_pairs.p):
        return f"{first} (z = {number(all_pairs.z)}; no permutations, so no p)."
    seeds_note = ""
    if not math.isnan(equal.shared) and not math.isnan(unequal.shared):
        seeds_note = (
            f" Runs of equal seeds share {number(equal.shared, 1)}, of unequal seeds {number(unequal.shared, 1)} "
            f"(expected {number(unequal.expected, 1)}, p {probability(unequal.p)})."
        )
    verdict = "they share more than depth explains"
    if all_pairs.p > LEVEL:
        error = (
            (all_pairs.shared - all_pairs.expected) / all_pairs.z if all_pairs.z else math.nan
        )  # of the null: permuted heads
        verdict = f"no more than depth explains is shown{seen_from(float(detectable(error)), unit='heads')}"
    return (
        f"{first} (z = {number(all_pairs.z)}, p {probability(all_pairs.p)}): {verdict}.{seeds_note}{_by_label(result)}"
    )


def _by_label(result: Result) -> str:
    """A sentence on how much more alike runs of one task are than runs of two, with p; "" where that is not known."""
    tests = {(test.pairs, test.counted): test for test in result.frame("labellings").itertuples()}
    plain, deep = (tests.get(("all", measure)) for measure in ("shared heads", "beyond depth"))
    if plain is None or deep is None or math.isnan(plain.p):
        return ""
    more = f"{number(deep.within, 1)} against {number(deep.between, 1)} beyond depth, p {probability(deep.p)}"
    if ranked := tests.get(("all", "beyond depth and ranking")):
        ranking_gap = number(ranked.within - ranked.between, 1)
        more += f"; {ranking_gap} more in one task where what all runs rank alike is taken out too"
        more += f", p {probability(ranked.p)}"
    if unequal_test := tests.get(("unequal seeds", "shared heads")):
        more += f"; of unequal seeds only, p {probability(unequal_test.p)}, {probability(unequal_test.least)} at least"
    return (
        f" Two runs of one task share {number(plain.within, 1)}, of two tasks {number(plain.between, 1)} "
        f"(p {probability(plain.p)}, tasks of runs permuted, {probability(plain.least)} at least; {more})."
    )


def stable(result: Result) -> list[str]:
    """Φ, how many seeds a claim needs, the nearest run, and the variance by seeds, of single tasks; as far as known."""
    sentences, rows_by_key = [], {}
    for row in result.frame("stability").itertuples():
        if row.encoder in (OVER_TASKS, *result.about["single"]) and row.other in (OVER_TASKS, row.encoder):
            # of unequal seeds, which stand last, where it can be
            rows_by_key[row.encoder, row.term, row.mode, row.measure] = row
    terms = {"within": "two runs of one task", "between": "two runs of two tasks", "within - between": "difference"}
    words = [
        f"{term_title} {', layer-centred '.join(_interval(rows_by_key[key]) for key in keys if key in rows_by_key)}"
        for term, term_title in terms.items()
        if (keys := [(OVER_TASKS, term, mode, "phi") for mode in MODES])[0] in rows_by_key
    ]
    keys = [(task, "within", MODES[0], "phi") for task in result.about["single"]]
    words += [f"{key[0]} {_interval(rows_by_key[key])}" for key in keys if key in rows_by_key]
    if words:
        intro = "Stability Φ (1: the same heads, 0: independent draws; intervals of 95 %)"
        sentences.append(f"{intro}: {'; '.join(words)}.")
        encoders = result.about["encoders"]
        if chance_count := sum(row.get("by_chance", 0) for row in encoders):
            share = chance_count / sum(entry["open"] for entry in encoders)
            sentences.append(
                f"{share:.0%} of open heads were taken from others with the same gate: there Φ and the maps show how "
                "ties were broken, not what tasks want (see the notes)."
            )
    for reliability in RELIABILITIES:
        row = rows_by_key.get((OVER_TASKS, "within", MODES[0], f"runs for {reliability}"))
        if row and math.isfinite(row.value):
            interval = "" if math.isnan(row.low) else f"{_needed(row.low)} to {_needed(row.high)}; "
            sentences.append(
                f"With Φ the reliability of one run, a reliability of {reliability} takes the mean of "
                f"{_needed(row.value)} seeds ({interval}Spearman-Brown)."
            )
    tests = result.frame("labellings")
    if len(tests) and not tests["nearest_p"].isna().all():
        nearest_shares = [
            f"by {test.counted} for {test.nearest:.0%} of them (chance {test.nearest_chance:.0%}, p "
            f"{probability(test.nearest_p)})".replace("by beyond", "beyond")
            for test in tests[tests["pairs"] == tests["pairs"].iloc[-1]].itertuples()
        ]
        among = "" if tests["pairs"].nunique() == 1 else ", of those with other seeds,"
        sentences.append(f"The nearest run{among} is of a run's own task {', '.join(nearest_shares)}.")
    split = [row for row in result.frame("split").itertuples() if row.encoder == OVER_TASKS]
    if split:
        parts = ", ".join(f"{_interval(row)} {_term(row.term)}" for row in split)
        sentences.append(f"Shares of the variance of a task's gates between heads: {parts}.")
    return sentences


def selected(result: Result) -> list[str]:
    """A sentence for all labels with one rule of stability: what their claims rest on, and how many may be false."""
    runs = pd.DataFrame([{**entry, **entry["stable"]} for entry in result.about["encoders"] if entry.get("stable")])
    rules = runs.groupby(["threshold", "halves", "expected_false"], sort=False) if len(runs) else ()
    heads = result.about["layers"] * result.about["heads"]
    return [
        f"Stable claims of {', '.join(of['encoder'].unique())}: heads with π ≥ {threshold:g} in {halves} halves of the "
        f"data, {number(of['open'].mean(), 1)} of {heads} in a run on average, of which at most {number(false, 1)} are "
        "expected to be false."
        for (threshold, halves, false), of in rules
    ]


def _interval(row: Any) -> str:
    interval = "" if math.isnan(row.low) else f" [{number(row.low)}, {number(row.high)}]"
    return f"{number(row.value)}{interval}"


def _term(term: str) -> str:
    return "in heads that all its runs share" if term == COMMON else f"with {term}"


def _needed(runs: float) -> str:
    """A number of runs in words, rounded up; "–" of NaN."""
    return "–" if math.isnan(runs) else "∞" if math.isinf(runs) else f"{math.ceil(runs - 1e-9):,}"


def head_columns(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """Columns of the runs of all labels, whatever ``of`` is; no notes."""
    return claim_columns(claims_in(result)), []


def claims_in(result: Result) -> list[Claim]:
    """The claims that a Result was made of, as far as it knows them."""
    return [
        Claim(e["run"], e["encoder"], e["seed"], e["kind"], grids["gate"], [], start=e["training"], half=e["half"])
        for e, grids in ((e, result.grids(e)) for e in result.about["encoders"])
    ]


def _group(result: Result, group: str) -> pd.DataFrame:
    heads = result.frame("groups")
    return heads[heads["group"] == group].sort_values("tasks", ascending=False, kind="stable") if len(heads) else heads


def _places(heads: pd.DataFrame) -> list[str]:
    """LAYER-HEAD."""
    return [f"{head.layer}-{head.head}" for head in heads.itertuples()]


def _mean_and_sd(frame: pd.DataFrame, name: str) -> list[str]:
    """Mean ± sample standard deviation."""
    pairs_of_values = zip(frame[f"{name}_mean"], frame[f"{name}_sd"], strict=True)
    return [number(mean) + ("" if math.isnan(sd) else f" ± {number(sd)}") for mean, sd in pairs_of_values]


def _spreads(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    return frame.assign(**{name: _mean_and_sd(frame, name) for name in names}) if len(frame) else frame


def _runs(result: Result) -> pd.DataFrame:
    runs = pd.DataFrame(result.about["encoders"]).astype(str).groupby("encoder", sort=False)
    layers = result.frames["layers"].astype(str).groupby("encoder", sort=False)["claimed"].agg(" ".join)
    frame = runs[["seed", "open"]].agg(", ".join).join(layers).reset_index()
    total = result.frames["labels"].set_index("encoder")["claimed"]
    return frame.assign(total=frame["encoder"].map(total))


def _within(result: Result) -> pd.DataFrame:
    seeds = pd.Series([entry["encoder"] for entry in result.about["encoders"]]).value_counts()
    labels = result.frames["labels"]
    labels_with_seeds = labels[labels["encoder"].map(seeds) > 1]
    return _spreads(labels_with_seeds, "pearson", "jaccard", "overlap_coefficient")


def _labellings(result: Result) -> pd.DataFrame:
    tests = result.frame("labellings")
    if len(tests):
        tests = tests.assign(value=tests["within"] - tests["between"])
        labellings_done = zip(tests["labellings"], tests["exact"], strict=True)
        tests = tests.assign(
            difference=[_interval(row) for row in tests.itertuples()],
            labellings=[f"{count:,}{' (all)' if exact else ''}" for count, exact in labellings_done],
        )
    return tests


def _stability(result: Result) -> Grid:
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in result.frame("stability").itertuples():
        if row.encoder == row.other:
            of = f"{row.encoder}, {row.term}" if row.encoder == OVER_TASKS else row.encoder
            cells = rows.setdefault((of, row.control, row.term), [of, row.control, str(row.n), *"––––"])
            if row.measure == "phi":
                cells[3 + MODES.index(row.mode)] = _interval(row)
            elif row.mode == MODES[0]:
                cells[5 + RELIABILITIES.index(float(row.measure.rpartition(" ")[2]))] = _needed(row.value)
    return Grid(
        [
            "label",
            "runs",
            "pairs",
            "Φ",
            "layer-centred Φ",
            *(f"seeds for {reliability}" for reliability in RELIABILITIES),
        ],
        list(rows.values()),
        2,
        "Stability of claims",
        "Φ of Nogueira, Sechidis and Brown (2018): 1 for the same heads, 0 for independent draws; layer-centred: for "
        "draws within layers. Jack-knife intervals of 95 % over runs; none where leaving out a run changes nothing, "
        "which is no certainty, or cannot be done. Seeds for a reliability: Spearman-Brown from Φ.",
    )


def _split(result: Result) -> Grid:
    rows = [[row.encoder, _term(row.term), _interval(row), str(row.n)] for row in result.frame("split").itertuples()]
    return Grid(
        ["label", "part", "share", "pairs"],
        rows,
        2,
        "Variance of gates within a setting",
        "Between heads of a run: what all runs of the setting have in common, and what goes with seeds and halves of "
        "the data, as far as these runs tell. Intervals of 95 %: bootstrap of heads.",
    )


_CORRELATION = "Pearson over heads between settings' mean gates; on the diagonal the multiple R within the setting."


def _matrix(result: Result) -> pd.DataFrame:
    """Labels by labels."""
    labels = result.frames["labels"]
    names = list(labels["encoder"])
    matrix = pd.DataFrame(np.diag(labels["multiple_last"]), names, names)
    for pair in result.frame("pairs").itertuples():
        matrix.loc[pair.encoder, pair.other] = matrix.loc[pair.other, pair.encoder] = pair.pearson
    return matrix


def _correlation(result: Result) -> Grid:
    matrix = _matrix(result)
    columns: dict[str, Any] = {"": "index", **{name: (name, 2) for name in matrix}}
    return Grid.of("Correlation of gates", matrix.reset_index(), columns, _CORRELATION)


def _named_pairs(result: Result) -> pd.DataFrame:
    pairs = result.frame("pairs")
    return pairs.assign(pair=pairs["encoder"] + " – " + pairs["other"]) if len(pairs) else pairs


def _variance(result: Result) -> pd.DataFrame:
    parts = result.frames["variance"].query("part in @PARTS")
    return parts.assign(part=parts["part"].map(PARTS), share=100 * parts["share"])


def _stem(result: Result) -> TableRows:
    heads = _group(result, "stem")
    return TableRows(heads.assign(place=_places(heads)), {"least": result.about["settings"]["stem_tasks"]})


def _exclusive(result: Result) -> Grid:
    rows = []
    for label in (*result.about["single"], ""):
        heads = _group(result, "exclusive" if label else "free")
        heads_of_label = heads[heads["claimed_by"] == label] if len(heads) else heads
        confidences = [f" ({head.confidence:.2f})".replace(" (nan)", "") for head in heads_of_label.itertuples()]
        names = ", ".join(map(str.__add__, _places(heads_of_label), confidences)) or "none"
        rows.append([f"{label} only" if label else "no single task", names, str(len(heads_of_label))])
    caption = "With the confidence of each, as of stem heads."
    return Grid(["claimed by", "heads", "number"], rows, 2, "Exclusive and free heads", caption)


TABLES = {
    "runs": _runs,
    "within": _within,
    "stability": _stability,
    "labellings": _labellings,
    "split": _split,
    "correlation": _correlation,
    "pairs": lambda result: _spreads(_named_pairs(result), "jaccard", "overlap_coefficient"),
    "claimed_by_both": _named_pairs,
    "claimed_by": lambda result: result.frame("numbers"),
    "variance": _variance,
    "stem": _stem,
    "exclusive": _exclusive,
}


def _correlations(result: Result) -> Drawing | None:
    names = list(result.frames["labels"]["encoder"])
    if len(names) < 2:
        return None
    table = _matrix(result).rename_axis("one").reset_index().melt("one", var_name="other", value_name="value")
    table = table.assign(words=table["value"].map(number))
    return Drawing(cells(table, "other", "one", (-1.0, 1.0), size=(46, 30)), {"correlation": _CORRELATION})


def _shared(result: Result) -> AnyChart | None:
    pairs = _named_pairs(result)
    if not len(pairs):
        return None
    kinds = ["shared", "expected from depth"]
    rows = pairs.rename(columns={"expected": kinds[1]}).melt("pair", kinds, var_name="kind")
    place = alt.Y("pair:N", sort=list(pairs["pair"]), title=None, axis=alt.Axis(grid=True, domain=False))
    colour = alt.Color("kind:N", sort=kinds, scale=alt.Scale(domain=kinds, range=[INK, "#ffffff"]), legend=None)
    base = alt.Chart(data(rows)).encode(place, alt.X("value:Q", title="open heads", scale=alt.Scale(zero=False)))
    legend = alt.Legend(orient="bottom", title=None, symbolStrokeColor=INK)
    dots = base.mark_circle(size=60, stroke=INK, strokeWidth=1.2, opacity=1).encode(colour.legend(legend))
    lines = base.mark_line(color=SOFT, strokeWidth=1.2).encode(detail="pair:N")
    return (lines + dots).properties(width=420, height=alt.Step(18))


def _map(result: Result) -> AnyChart | None:
    heads = result.frame("groups")
    if not len(heads):
        return None
    named_heads = heads.assign(name=pd.Categorical([", ".join(result.about["single"])] * len(heads)))
    return head_map(named_heads, "tasks", limit=float(len(result.about["single"])), words=False)


FIGURES = {"correlation": _correlations, "shared": _shared, "heads": _map}

# -- heads by claims in other analyses ---------------------------------------------------------------------------------


def by_claims(result: Result) -> list[str]:
    """A sentence on what the comparisons come to."""
    claims = result.about["claims"]
    if claims is None:
        return ["No runs with gates were named (--claims), so heads are not compared by how many tasks claim them."]
    tests = _tested_rows(result)
    sizes = ", ".join(f"{size} {name}" for name, size in claims["groups"].items())
    return [
        f"Heads by claims of {', '.join(claims['tasks'])}: {sizes}. Of {len(tests)} comparisons within layers "
        f"{(tests['q'] < LEVEL).sum()} have q < {LEVEL} (Benjamini-Hochberg over all of them; "
        f"{LEVEL * len(tests):.0f} would have p < {LEVEL} by chance, {(tests['p'] < LEVEL).sum()} have)."
    ]


def tests_table(result: Result, measures: Mapping[str, str], signs: str, digits: int = 4) -> Grid:
    """The surest comparisons; no rows where there is none.

    Args:
        measures: measure → what it is called.
        signs: what a value below or above 0 means.
        digits: of values.
    """
    tested_rows = _tested_rows(result)
    spearman = {"tasks": "Spearman with number of tasks", "gates": "Spearman with mean gate"}
    terms = tested_rows["term"].str.replace("-", "−").replace(spearman)
    shown_rows = tested_rows.assign(measure=tested_rows["measure"].map(measures), term=terms).sort_values(
        "p", kind="stable"
    )[:_MAX_TESTS_SHOWN]
    shown_rows["value"] = [number(value, digits) for value in shown_rows["value"]]
    numbers = {"shown": len(shown_rows), "known": len(tested_rows), "signs": signs}
    return Grid.declared(declaration(__package__).tables["tests"], shown_rows, **numbers)


def _tested_rows(result: Result) -> pd.DataFrame:
    if "tests" not in result.frames:
        return pd.DataFrame(columns=["name", "measure", "term", "value", "n", "p", "q"], dtype=object)
    return result.with_names("tests").dropna(subset=["p"])
