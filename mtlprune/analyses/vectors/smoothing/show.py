"""Tables, sentences and figures that show a Result of ``analyze smoothing``."""

import math

import altair as alt
import pandas as pd

from mtlprune.analyses.heads.claims.show import by_claims, tests_table
from mtlprune.figures.charts import AnyChart, Drawing, dots, head_map, lines, mark, panels, task_colours
from mtlprune.figures.grid import Grid
from mtlprune.runs.results import Result

_TOKENS = (
    "Tokens are sub-words with [CLS] and [SEP] and without padding. The measure cosine_pieces leaves out [CLS] and "
    "[SEP]. Splits by label are over words (means of their sub-words), without [CLS] and [SEP]."
)
_MEASURES = {
    "mixing": "λ",
    "amplification": "√λ ‖W_O W_V‖",
    "effect": "Δ log d_M after its layer",
    "effect_last": "Δ log d_M at the end",
    "cosine_effect": "Δ CosSim after its layer",
    "cosine_effect_last": "Δ CosSim at the end",
}
"""Measure of the frame ``heads`` → its name in the table of tests."""


def about(result: Result) -> str:
    """Describe the sentences that were read, which tokens count, and on how many sentences heads were closed."""
    facts = result.about
    return (
        f"{result.origin} {_TOKENS} Heads were closed one by one in "
        f"{min(facts['settings']['closing'], facts['sentences'])} of the sentences."
    )


def findings(result: Result) -> list[str]:
    """Return the main numbers as sentences: change over layers, tightness of the bound, fused vectors, claims."""
    layers, facts = result.wide("layers"), result.wide("encoders").set_index("name")
    sentences = []
    for name, rows in layers.groupby("name", observed=True):
        first, last = rows.iloc[0], rows.iloc[-1]
        words = (
            f"In {name}, CosSim goes from {first['cosine']:.2f} (embeddings) to {last['cosine']:.2f} (last layer). "
            f"Relative d_M goes from {first['relative_distance']:.2f} to {last['relative_distance']:.2f}"
        )
        if "bound_nearest" in facts and not math.isnan(facts.loc[name, "bound_nearest"]):
            exceeded = int(facts.loc[name, "bound_exceeded"])
            verdict = f"is exceeded {exceeded} times" if exceeded else "holds everywhere"
            words += (
                f". The rigorous bound {verdict}, and the nearest ratio is {facts.loc[name, 'bound_nearest']:.1e} of it"
            )
        sentences.append(f"{words}.")
    for row in result.wide("fused").to_dict("records"):
        sentences.append(
            f"In the fused vectors of {row['name']}, CosSim is {row['cosine']:.2f} ({row['cosine_change']:+.2f} "
            f"compared with the last layer). Their relative d_M is {row['relative_distance']:.2f} "
            f"({row['relative_distance_change']:+.2f})."
        )
    return [*sentences, *by_claims(result)]


def _fused(result: Result) -> pd.DataFrame:
    """Return the frame ``fused`` with the measures of the last layer, for comparison."""
    last = result.wide("layers").groupby("name", observed=True).tail(1).set_index("name")
    rows = result.wide("fused")
    for measure in ("cosine", "relative_distance"):
        rows[f"last_{measure}"] = [last.loc[name, measure] for name in rows["name"]]
    return rows


def _corpora(result: Result) -> pd.DataFrame:
    rows = _by_corpus(result)
    return rows.assign(share=100 * rows["above_one"]) if len(rows) else rows


def _by_corpus(result: Result) -> pd.DataFrame:
    """Return the means of the last layer, with one row for each encoder and corpus.

    The columns ``corpus`` and ``of`` (the encoder) name the row. The frame is empty if the Result covers only one
    corpus, or if σ₁σ₂ is not defined for its encoders.
    """
    corpus_of = {
        name: entry["corpus"]
        for name, entry in zip(result.names, result.about["encoders"], strict=True)
        if "corpus" in entry
    }
    last = result.rows_with_measure("layers", "product").groupby("name", observed=True).tail(1)
    rows = last[last["name"].isin(list(corpus_of))]
    bounds = {f"product_{end}": result.wide("layers", end)["product"].loc[rows.index] for end in ("low", "high")}
    corpora = [corpus_of[name] for name in rows["name"]]
    encoders = [name.replace(f" on {corpus}", "") for name, corpus in zip(rows["name"], corpora, strict=True)]
    return rows.assign(**bounds, corpus=corpora, of=encoders).sort_values(["of", "corpus"], kind="stable")


def _sigma(result: Result) -> pd.DataFrame:
    rows = result.rows_with_measure("layers", "least")
    return rows.assign(share=100 * rows.get("above_one", math.nan))


def _labels(result: Result) -> pd.DataFrame:
    """Return one row for each encoder and task, with the gain in the first, the best and the last layer."""
    p, n = (result.wide("labels", column).get("share") for column in "pn")
    rows = []
    known_rows = result.rows_with_measure("labels", "share")
    for (_, task), here in known_rows.groupby(["name", "task"], observed=True, sort=False) if len(known_rows) else ():
        best, last = here.loc[here["gain"].idxmax()], here.iloc[-1]
        gains = {"first": here["gain"].iloc[0], "best": best["gain"], "where": best["layer"], "gain": last["gain"]}
        rows.append({**last, **gains, "task": task.upper(), "n": int(n[here.index[-1]]), "p": p[here.index[-1]]})
    return pd.DataFrame(rows)


def _tests(result: Result) -> Grid:
    signs = (
        "Effects are values with the head open minus values with the head closed. The head smooths if its effect "
        "is below 0 in log d_M or above 0 in CosSim."
    )
    return tests_table(result, _MEASURES, signs)


def _heads(result: Result) -> pd.DataFrame:
    """Return the heads with the lowest and the highest effects of each encoder."""
    heads = result.wide("heads").dropna(subset=["effect"]).sort_values(["name", "effect"], kind="stable")
    if "claims" in result.frames:
        claims = result.frames["claims"].query("measure == 'tasks'")[["layer", "head", "value"]]
        heads = heads.merge(claims.rename(columns={"value": "tasks"}), on=["layer", "head"], how="left")
    ranked = heads.groupby("name", observed=True).cumcount()
    size = heads.groupby("name", observed=True)["effect"].transform("size")
    shown_heads = heads[(size <= 5) | (ranked < 3) | (ranked >= size - 2)]
    return shown_heads.assign(place=shown_heads["layer"].astype(str) + "-" + shown_heads["head"].astype(str))


TABLES = {
    "layers": lambda result: result.wide("layers"),
    "fused": _fused,
    "weights": lambda result: result.rows_with_measure("layers", "fusion"),
    "factors": lambda result: result.rows_with_measure("layers", "bound"),
    "sigma": _sigma,
    "corpora": _corpora,
    "labels": _labels,
    "tests": _tests,
    "heads": _heads,
}
"""Name of a declared table (``frames.yaml``) → function from a Result to the rows of the table."""


_CURVES = {
    "cosine": ("CosSim", "CosSim"),
    "cosine_centred": ("CosSim, corpus mean removed", "CosSim"),
    "cosine_without_outliers": ("CosSim without outlier dimensions", "CosSim"),
    "relative_distance": ("relative d_M", "d_M / norm"),
    "distance": ("d_M", "d_M"),
    "ratio": ("ratio of d_M, after / before", "ratio"),
}
"""Measure of the frame ``layers`` that is drawn layer by layer → title of its panel and of its y-axis."""


def _curves(result: Result) -> AnyChart:
    frame = result.dashed(result.wide("layers"))
    charts = [
        lines(frame, "layer", key, title=title, y_title=y, dashed="closed")
        for key, (title, y) in _CURVES.items()
        if key in frame
    ]
    return panels(charts, 3)


def _deviations(result: Result) -> AnyChart:
    frame = result.with_names("points")
    greys = alt.Scale(scheme=alt.SchemeParams("greys", extent=[0.3, 1.0]))  # hues are the colours of tasks
    legend = alt.Legend(orient="bottom", symbolSize=90, symbolOpacity=1, title="layer")
    look = {"color": alt.Color("layer:O", scale=greys, legend=legend)}
    words = {"x_title": "least deviations: σ1 × σ2", "y_title": "CosSim after the layer"}
    charts = [
        dots(rows[["layer", "product", "cosine"]], "product", "cosine", look, title=str(name), **words) + mark(1)
        for name, rows in frame.groupby("name", observed=True)
    ]
    return panels(charts, 3)


def _across(result: Result) -> AnyChart | None:
    rows, points = _by_corpus(result), result.with_names("points")
    if not len(rows):
        return None
    names = list(dict.fromkeys(rows["corpus"]))
    legend = alt.Legend(orient="bottom", symbolSize=90, symbolOpacity=1, title=None)
    hues = alt.Scale(domain=names, range=list(task_colours(names).values()))
    look = {"color": alt.Color("corpus:N", sort=names, legend=legend, scale=hues)}
    points = points[points["layer"] == points["layer"].max()].merge(rows[["name", "corpus", "of"]], on="name")
    words = {"x_title": "least deviations: σ1 × σ2", "y_title": "CosSim after the last layer"}
    charts = []
    for encoder, means in rows.groupby("of", sort=False):
        corpus_points = points.loc[points["of"] == encoder, ["corpus", "product", "cosine"]]
        panel = dots(corpus_points, "product", "cosine", look, title=str(encoder), **words).mark_circle(
            size=10, opacity=0.35
        )
        large = dots(means[["corpus", "product", "cosine"]], "product", "cosine", look, **words)
        charts.append(panel + large.mark_point(size=140, filled=True, shape="diamond", opacity=1, stroke="white"))
    return panels(charts, 3)


def _layer_weights(result: Result) -> AnyChart:
    frame = result.rows_with_measure("layers", "fusion")
    return lines(frame, "layer", "fusion", y_title="weight", zero=True)


def _between(result: Result) -> AnyChart:
    frame = result.dashed(result.wide("labels"))
    charts = [
        lines(rows, "layer", "gain", title=task.upper(), y_title="share minus chance", zero=True, dashed="closed")
        for task, rows in frame.groupby("task", sort=False)
    ]
    return panels(charts, 3)


def _maps(result: Result) -> Drawing | None:
    """Draw maps of λ and of effects of heads; None if no head was measured."""
    frame = result.wide("heads")
    if not frame[["mixing", "effect", "effect_last"]].abs().max().max() > 0:
        return None
    maps = [
        head_map(frame, "mixing", title="λ"),
        head_map(frame, "effect", title="Δ log d_M after its layer", diverging=True, words=False),
        head_map(frame, "effect_last", title="Δ log d_M at the end", diverging=True, words=False),
    ]
    closed = result.frames["encoders"].query("measure == 'closed_on'")["value"].max()
    chart = panels(maps, 3, spacing=36).resolve_scale(color="independent")
    return Drawing(chart, {"closed": closed})


FIGURES = {
    "layers": _curves,
    "fusion": _layer_weights,
    "sigma": _deviations,
    "corpora": _across,
    "labels": _between,
    "heads": _maps,
}
"""Name of a declared figure (``frames.yaml``) → function from a Result to the chart."""
