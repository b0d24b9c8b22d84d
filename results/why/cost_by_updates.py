"""Draw scores, and the cost of joint training, against the number of updates (PLAN.md, 2).

    python results/why/cost_by_updates.py results/why/cost-by-updates.png

Runs with 63 to 1,008 updates see 2,000 sentences (results/why/all-updates, five seeds). The last point is the full
training set of 12,544 sentences (results/baselines/gaps, three seeds). All settings are tuned.
"""

import sys
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from mtlprune.figures.charts import HEIGHT, INK, PALE, WIDTH, figure, mark, render, task_colours
from mtlprune.runs.results import read_result

RESULTS = Path(__file__).parents[1]
TASKS = ["POS", "NER", "DEP", "CON", "SRL"]
NAMES = [*TASKS, "mean"]
TICKS = [63, 126, 252, 504, 1008, 1572]
TITLE = "Scores, and cost of joint training, by updates"
EXPLAINED = [
    "Lines are trained on 2,000 sentences, and diamonds on the full set (on the left, open for single tasks).",
    "The right axis is nearly logarithmic. The band is the 95 % interval of the mean over tasks.",
    "One of five joint runs with 63 updates did not learn.",
]


def rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return mean scores by task, kind of training and updates, and costs of joint training with their intervals."""
    study = read_result(RESULTS / "why/all-updates/equal_loss.json").frames
    full = read_result(RESULTS / "baselines/gaps/scarcity.json").frames["levels"]
    full = full[full["term"] == "full training set"].assign(data="full")
    scores = study["runs"].groupby(["task", "mode", "updates"])["score"].mean().reset_index().assign(data="2,000")
    long = full.melt(["task", "updates", "data"], ["single", "joint"], "mode", "score")
    costs = study["costs"].query("mode == 'equal updates'").assign(data="2,000")
    tables = [pd.concat(parts, ignore_index=True) for parts in ([scores, long], [costs, full])]
    named = [table.assign(name=table["task"].str.upper().replace("MEAN", "mean")) for table in tables]
    return named[0][named[0]["name"].isin(TASKS)], named[1][named[1]["name"].isin(NAMES)]


def panel(frame: pd.DataFrame, height: alt.Y, **channels: alt.StrokeDash) -> Any:
    """Return a panel with a line for each task, and with the full training set as diamonds at the right."""
    axis = alt.Axis(values=TICKS, grid=False, labelExpr="datum.value == 1572 ? 'full' : format(datum.value, ',')")
    hues = [INK if name == "mean" else hue for name, hue in task_colours(NAMES).items()]
    colour = alt.Color("name:N", title=None, sort=NAMES, scale=alt.Scale(domain=NAMES, range=hues))
    x = alt.X("updates:Q", title="updates", axis=axis, scale=alt.Scale(type="log", nice=False, domain=[58, 1750]))
    base = {data: alt.Chart(frame[frame["data"] == data]) for data in ("2,000", "full")}
    curves = base["2,000"].mark_line(point={"size": 18}).encode(x, height, colour, **channels)
    fill = alt.condition("datum.mode == 'single'", alt.value("white"), colour)
    diamonds = base["full"].mark_point(shape="diamond", size=45, opacity=1).encode(x, height, colour, fill=fill)
    return alt.layer(curves, diamonds).properties(width=1.3 * WIDTH, height=1.4 * HEIGHT)


def main(out: str) -> None:
    """Draw the two panels."""
    scores, costs = rows()
    legend = alt.Legend(symbolType="stroke", symbolSize=300)
    dashes = alt.Scale(range=[[1, 0], [5, 3]])
    dash = alt.StrokeDash("mode:N", title=None, sort=["single", "joint"], scale=dashes, legend=legend)
    mean = costs[(costs["name"] == "mean") & (costs["data"] == "2,000")][["updates", "low", "high"]]
    # The cost falls from tens of points to less than one, so the axis is logarithmic away from 0.
    height: dict[str, Any] = {
        "title": "joint minus single task, points",
        "scale": alt.Scale(type="symlog", domain=[-40, 20]),
    }
    height |= {"axis": alt.Axis(values=[-30, -10, -3, -1, 0, 1, 3, 10], grid=False, labelOverlap=False)}
    band = alt.Chart(mean).mark_area(color=PALE).encode(alt.X("updates:Q"), alt.Y("low:Q", **height), alt.Y2("high:Q"))
    cost = alt.layer(
        mark(y=0).encode(alt.Y("y:Q", **height)), band, panel(costs.assign(mode="joint"), alt.Y("estimate:Q", **height))
    )
    both = alt.hconcat(panel(scores, alt.Y("score:Q", title="score"), strokeDash=dash), cost)
    Path(out).write_bytes(render(figure(both, TITLE, EXPLAINED), "png"))


if __name__ == "__main__":
    main(sys.argv[1])
