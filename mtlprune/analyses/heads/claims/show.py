"""Sentences, tables and figures that show the overlap of claims (see docs/methods/claims.md).

The last section serves other analyses, which show comparisons of heads by claims.
"""

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
from mtlprune.errors import plural
from mtlprune.figures.charts import INK, SOFT, AnyChart, Drawing, cells, data, head_map
from mtlprune.figures.grid import Grid, number, power_clause, probability
from mtlprune.runs.claims import Claim
from mtlprune.runs.results import Result
from mtlprune.statistics.standard_errors import LEVEL, detectable

_MAX_TESTS_SHOWN = 24
"""The largest number of comparisons of heads by claims that a table lists."""
PARTS = {
    "layers": "between layers",
    "heads": "heads within layers, common to all tasks",
    "tasks": "tasks: how many heads are open",
    "tasks_by_layers": "tasks by layers",
    "tasks_by_heads": "tasks by heads within layers",
    "seeds": "seeds (residual)",
}


def about(result: Result) -> str:
    """Describe the runs, and define an open head."""
    info, settings = result.about, result.about["settings"]
    runs = len({entry["run"] for entry in info["encoders"]})  # a run with a gate set per task has several entries
    return (
        f"The encoder {info['encoder']} has {info['layers']} layers of {info['heads']} heads, which makes "
        f"{plural(info['layers'] * info['heads'], 'head')}. The comparison is of {plural(runs, 'run')}. A head is open "
        f"if its gate exceeds {settings['open_above']:g}. Tests use {settings['permutations']:,} permutations and "
        f"seed {settings['seed']}. Heads are named LAYER-HEAD, both counted from 1."
    )


def findings(result: Result) -> list[str]:
    """Answer the question of the analysis; report the stability of claims, and the stem heads compared with chance."""
    sentences = [_answer(result), *_stability_sentences(result), *_stable_rules(result)]
    stem = _group(result, "stem")
    if len(stem):
        least = result.about["settings"]["stem_tasks"]
        stem_names = f"The heads that {least} tasks or more claim are {', '.join(_head_names(stem))}."
        sentences.append(f"{_claimed_by_several(result)} {stem_names}".strip())
    return sentences


def _claimed_by_several(result: Result) -> str:
    """Report how many heads at least STEM_TASKS tasks claim, and how many all tasks claim.

    The sentence compares these numbers with those expected from layer depth alone. It is "" if the Result has no frame
    of numbers.
    """
    numbers = result.frame("numbers")
    if not len(numbers):
        return ""
    least, task_count = result.about["settings"]["stem_tasks"], numbers["tasks"].max()
    parts = []
    for row in numbers[numbers["tasks"].isin({least, task_count})].itertuples():
        run_groups = f"All {row.tasks} tasks" if row.tasks == task_count else f"{row.tasks} tasks or more"
        more = "" if math.isnan(row.layers_more) else f", p {probability(row.layers_more)}"
        parts.append(
            f"{run_groups} claim {plural(row.heads, 'head')} ({number(row.layers_expected, 1)} expected from layer "
            f"depth alone{more})."
        )
    return " ".join(parts)


def _answer(result: Result) -> str:
    """Report with numbers whether tasks claim the same heads beyond what layer depth explains."""
    tests = result.frames["tests"].set_index("mode")
    all_pairs, equal, unequal = (tests.loc[mode] for mode in ("all", "equal seeds", "unequal seeds"))
    if math.isnan(all_pairs.shared):
        return "These runs cannot show whether tasks claim the same heads, because two or more single tasks are needed."
    first = (
        f"Two runs of different single tasks share {number(all_pairs.shared, 1)} open heads on average, and layer "
        f"depth alone explains {number(all_pairs.expected, 1)}"
    )
    if math.isnan(all_pairs.z):
        return f"{first}. Permuting heads within layers cannot change this number."
    if math.isnan(all_pairs.p):
        return f"{first} (z = {number(all_pairs.z)}). Without permutations there is no p."
    seeds_note = ""
    if not math.isnan(equal.shared) and not math.isnan(unequal.shared):
        seeds_note = (
            f" Runs of equal seeds share {number(equal.shared, 1)} heads, and runs of unequal seeds share "
            f"{number(unequal.shared, 1)} (expected {number(unequal.expected, 1)}, p {probability(unequal.p)})."
        )
    test = f"(z = {number(all_pairs.z)}, p {probability(all_pairs.p)})"
    verdict = f"They share more heads than depth explains {test}."
    if all_pairs.p > LEVEL:
        # z is shared − expected in standard deviations of the null hypothesis, so their ratio is this deviation.
        error = (all_pairs.shared - all_pairs.expected) / all_pairs.z if all_pairs.z else math.nan
        power_note = power_clause(float(detectable(error)), unit="heads")
        verdict = f"We found no evidence that they share more heads than depth explains {test}{power_note}."
    return f"{first}. {verdict}{seeds_note}{_by_label(result)}"


def _by_label(result: Result) -> str:
    """Compare runs of one task with runs of two tasks by the heads they share; return "" if there is no such test."""
    tests = {(test.pairs, test.counted): test for test in result.frame("labellings").itertuples()}
    plain, beyond_depth = (tests.get(("all", measure)) for measure in ("shared heads", "beyond depth"))
    if plain is None or beyond_depth is None or math.isnan(plain.p):
        return ""
    more = (
        f" Beyond depth they share {number(beyond_depth.within, 1)} and {number(beyond_depth.between, 1)} (p "
        f"{probability(beyond_depth.p)})."
    )
    if ranked := tests.get(("all", "beyond depth and ranking")):
        ranking_gap = number(ranked.within - ranked.between, 1)
        more += (
            f" Without the preferences that all runs have in common, the difference is {ranking_gap} (p "
            f"{probability(ranked.p)})."
        )
    if unequal_test := tests.get(("unequal seeds", "shared heads")):
        more += (
            f" Among unequal seeds only, p for shared heads is {probability(unequal_test.p)} (at least "
            f"{probability(unequal_test.least)})."
        )
    return (
        f" Two runs of one task share {number(plain.within, 1)} heads, and two runs of two tasks share "
        f"{number(plain.between, 1)} (p {probability(plain.p)} by permuting the tasks of runs, at least "
        f"{probability(plain.least)}).{more}"
    )


def _stability_sentences(result: Result) -> list[str]:
    """Report the stability of single tasks, as far as it is known.

    The sentences are about Φ, the number of seeds that a claim needs, the nearest run, and the variance by seeds.
    """
    sentences, rows_by_key = [], {}
    for row in result.frame("stability").itertuples():
        if row.encoder in (OVER_TASKS, *result.about["single"]) and row.other in (OVER_TASKS, row.encoder):
            # Rows of unequal seeds come last in the frame, so they replace those of all pairs, where there are some.
            rows_by_key[row.encoder, row.term, row.mode, row.measure] = row
    terms = {
        "within": "Φ of two runs of one task",
        "between": "Φ of two runs of two tasks",
        "within - between": "The difference",
    }
    words = [
        f"{term_title} is "
        f"{', and layer-centred it is '.join(_interval(rows_by_key[key]) for key in keys if key in rows_by_key)}."
        for term, term_title in terms.items()
        if (keys := [(OVER_TASKS, term, mode, "phi") for mode in MODES])[0] in rows_by_key
    ]
    keys = [(task, "within", MODES[0], "phi") for task in result.about["single"]]
    words += [f"Φ of two runs of {key[0]} is {_interval(rows_by_key[key])}." for key in keys if key in rows_by_key]
    if words:
        intro = "The stability Φ is 1 for the same heads and 0 for independent draws, and brackets hold 95 % intervals."
        sentences.append(f"{intro} {' '.join(words)}")
        encoders = result.about["encoders"]
        if chance_count := sum(row.get("by_chance", 0) for row in encoders):
            share = chance_count / sum(entry["open"] for entry in encoders)
            sentences.append(
                f"{share:.0%} of open heads were taken from others with the same gate. For these heads Φ and the maps "
                "show how ties were broken instead of what tasks need (see the notes)."
            )
    for reliability in RELIABILITIES:
        row = rows_by_key.get((OVER_TASKS, "within", MODES[0], f"runs for {reliability}"))
        if row and math.isfinite(row.value):
            interval = "" if math.isnan(row.low) else f"{_needed(row.low)} to {_needed(row.high)}; "
            sentences.append(
                f"If Φ is the reliability of one run, the mean of {_needed(row.value)} seeds "
                f"({interval}Spearman-Brown) has a reliability of {reliability}."
            )
    tests = result.frame("labellings")
    if len(tests) and not tests["nearest_p"].isna().all():
        among = "" if tests["pairs"].nunique() == 1 else ", among those with other seeds,"
        sentences += [
            f"If runs are compared {_measure_in_words(test.counted)}, the nearest run{among} is of the same "
            "task for "
            f"{test.nearest:.0%} of the runs ({test.nearest_chance:.0%} at random, p {probability(test.nearest_p)})."
            for test in tests[tests["pairs"] == tests["pairs"].iloc[-1]].itertuples()
        ]
    return sentences + [
        f"The share of the variance of a task's gates that {'lies' if row.term == COMMON else 'goes'} "
        f"{_term(row.term)} is {_interval(row)}."
        for row in result.frame("split").itertuples()
        if row.encoder == OVER_TASKS
    ]


def _stable_rules(result: Result) -> list[str]:
    """Report the rules by which stable heads were selected, with the expected number of false claims.

    There is one sentence for each rule, about all labels that were selected by this rule.
    """
    runs = pd.DataFrame([{**entry, **entry["stable"]} for entry in result.about["encoders"] if entry.get("stable")])
    rules = runs.groupby(["threshold", "halves", "expected_false"], sort=False) if len(runs) else ()
    heads = result.about["layers"] * result.about["heads"]
    return [
        f"The stable claims of {', '.join(entries['encoder'].unique())} are heads with π ≥ {threshold:g} in {halves} "
        f"halves of the data. A run claims {number(entries['open'].mean(), 1)} of {heads} heads on average, of which "
        f"at most {number(false, 1)} are expected to be false."
        for (threshold, halves, false), entries in rules
    ]


def _interval(row: Any) -> str:
    interval = "" if math.isnan(row.low) else f" [{number(row.low)}, {number(row.high)}]"
    return f"{number(row.value)}{interval}"


def _term(term: str) -> str:
    return "in heads that all its runs share" if term == COMMON else f"with {term}"


def _measure_in_words(measure: str) -> str:
    return measure if measure.startswith("beyond") else f"by {measure}"


def _needed(runs: float) -> str:
    """Format a number of runs, rounded up; "–" for NaN."""
    return "–" if math.isnan(runs) else "∞" if math.isinf(runs) else f"{math.ceil(runs - 1e-9):,}"


def head_columns(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """Return the columns of claims in the table of heads, and no notes. They are the same for every label ``of``."""
    return claim_columns(claims_in(result)), []


def claims_in(result: Result) -> list[Claim]:
    """Rebuild the claims from which a Result was computed, without the data that a Result does not store."""
    return [
        Claim(e["run"], e["encoder"], e["seed"], e["kind"], grids["gate"], [], start=e["training"], half=e["half"])
        for e, grids in ((e, result.grids(e)) for e in result.about["encoders"])
    ]


def _group(result: Result, group: str) -> pd.DataFrame:
    heads = result.frame("groups")
    return heads[heads["group"] == group].sort_values("tasks", ascending=False, kind="stable") if len(heads) else heads


def _head_names(heads: pd.DataFrame) -> list[str]:
    """Return the name LAYER-HEAD of each head."""
    return [f"{head.layer}-{head.head}" for head in heads.itertuples()]


def _mean_and_sd(frame: pd.DataFrame, name: str) -> list[str]:
    """Format each row as mean ± sample standard deviation."""
    pairs_of_values = zip(frame[f"{name}_mean"], frame[f"{name}_sd"], strict=True)
    return [number(mean) + ("" if math.isnan(sd) else f" ± {number(sd)}") for mean, sd in pairs_of_values]


def _with_means(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
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
    return _with_means(labels_with_seeds, "pearson", "jaccard", "overlap_coefficient")


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
        "Φ (Nogueira, Sechidis and Brown 2018) is 1 for the same heads and 0 for independent draws. Layer-centred Φ is "
        "0 for draws within layers. Intervals are jack-knife intervals of 95 % over runs. There is no interval if "
        "leaving out a run is not possible, or changes nothing, which does not mean certainty. The numbers of seeds "
        "for a reliability "
        "follow from Φ by the formula of Spearman and Brown.",
    )


def _split(result: Result) -> Grid:
    rows = [[row.encoder, _term(row.term), _interval(row), str(row.n)] for row in result.frame("split").itertuples()]
    return Grid(
        ["label", "part", "share", "pairs"],
        rows,
        2,
        "Variance of gates within a setting",
        "The variance between heads of a run is split into the part that all runs of the setting have in common, and "
        "the parts that vary with seeds and halves of the data, as far as these runs can separate the parts. Intervals "
        "of 95 % are bootstraps "
        "of heads.",
    )


_CORRELATION = (
    "Values are Pearson's correlation over heads between the mean gates of settings. The diagonal has the multiple R "
    "within the setting."
)


def _matrix(result: Result) -> pd.DataFrame:
    """Return the matrix of labels by labels with correlations of gates, and multiple R on its diagonal."""
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
    return TableRows(heads.assign(place=_head_names(heads)), {"least": result.about["settings"]["stem_tasks"]})


def _exclusive(result: Result) -> Grid:
    rows = []
    for label in (*result.about["single"], ""):
        heads = _group(result, "exclusive" if label else "free")
        heads_of_label = heads[heads["claimed_by"] == label] if len(heads) else heads
        confidences = [f" ({head.confidence:.2f})".replace(" (nan)", "") for head in heads_of_label.itertuples()]
        names = ", ".join(map(str.__add__, _head_names(heads_of_label), confidences)) or "none"
        rows.append([f"{label} only" if label else "no single task", names, str(len(heads_of_label))])
    caption = "Brackets hold the confidence of each head, which is defined as for stem heads."
    return Grid(["claimed by", "heads", "number"], rows, 2, "Exclusive and free heads", caption)


TABLES = {
    "runs": _runs,
    "within": _within,
    "stability": _stability,
    "labellings": _labellings,
    "split": _split,
    "correlation": _correlation,
    "pairs": lambda result: _with_means(_named_pairs(result), "jaccard", "overlap_coefficient"),
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
    """Report how many comparisons of heads by claims are significant, in a list of one sentence."""
    claims = result.about["claims"]
    if claims is None:
        return [
            "No runs with gates were named (--claims), so heads are not compared by the number of tasks that claim "
            "them."
        ]
    tests = _tested_rows(result)
    sizes = ", ".join(f"{size} {name}" for name, size in claims["groups"].items())
    return [
        f"The claims of {', '.join(claims['tasks'])} make groups of heads ({sizes}). {(tests['q'] < LEVEL).sum()} of "
        f"{len(tests)} comparisons within layers have q < {LEVEL} (Benjamini-Hochberg over all of them). "
        f"{(tests['p'] < LEVEL).sum()} have p < {LEVEL}, and {LEVEL * len(tests):.0f} would if nothing differed."
    ]


def tests_table(result: Result, measures: Mapping[str, str], signs: str, digits: int = 4) -> Grid:
    """Return a table of the comparisons with the smallest p-values, at most _MAX_TESTS_SHOWN.

    Args:
        measures: the title of each measure.
        signs: a sentence that explains values below and above 0.
        digits: number of decimal places of values.
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
