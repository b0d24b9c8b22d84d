"""Is there a fight over heads? The table of results/fight/README.md, by the rules of PLAN.md.

    python results/fight/answer.py results/fight   # writes it between the marks in README.md there

E4 is made of the packed studies of corpora.py beside this file, all others of the Results in that folder.

Verdicts: *for* and *against* a fight by each experiment's rule (of E4: *replicated* or not), else *not shown*, as
planned; doubts stand behind them, dated; *not run* without a Result. p of the verdict: of E1 that the gap widens by a
point or more, of E4 that there is no difference. p of primaries are corrected by Holm over
all five; E5, which is not run, counts as 1, and so does E2 as long as its Result says that it is withdrawn.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from control import gaps
from corpora import measure
from joint import sides
from scipy import stats

from mtlprune.analyses.analysis import read
from mtlprune.analyses.heads.claims.stability import OVER_TASKS
from mtlprune.analyses.heads.roles import GAIN
from mtlprune.figures.grid import number, probability, with_interval
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import NOT_SUPPORTED, SUPPORTED, contrast_frame
from mtlprune.statistics.significance import holm
from mtlprune.statistics.standard_errors import detectable

IN_WORDS = {SUPPORTED: "for", NOT_SUPPORTED: "against"}
WIDENS, SEEDS, HEADS, TWICE, CARRIED, CARRIERS, ACROSS = -1.0, 5, 3.0, 2.0, 0.1, 3, 0.2
MASC = Path("results/fight/records/masc")
CONTROL = (
    "results/fight/records/scarcity:18-*",
    "results/fight/records/narrow results/fight/records/narrow-more",
)
RECORDS = "results/fight/records"
FURTHER = {
    "after four times the updates": (f"{RECORDS}/longer-18:18-*-1008", f"{RECORDS}/longer-72:72-own-*-1008"),
    "on the full training set": (
        f"{RECORDS}/longer-18:18-*-full {RECORDS}/longer-more",
        "results/treatments/full/records:none-*",
    ),
    "on MPNet (36 heads of 144)": (f"{RECORDS}/mpnet-heads:36-*-ewt5-*", f"{RECORDS}/mpnet-144:144-own-ewt5-*"),
}
"""E1 elsewhere: few heads and all, single tasks and joint runs of each."""
MPNET = ("results/fight/records/mpnet:stable-ewt5", "results/fight/records/mpnet-masc:stable-masc")


class Row(NamedTuple):
    """One row of the table; ``p`` of its primary against no effect, ``decides`` that on which its verdict rests."""

    name: str
    predicts: str
    seen: str
    verdict: str
    p: float = math.nan
    least: str = "–"
    decides: float = math.nan


def interval(low: float, high: float) -> str:
    return f"[{number(low)}, {number(high)}]"


def of_seeds(values: np.ndarray) -> tuple[float, float, float, float, float]:
    """Mean, 95 % interval, two-sided p and minimum detectable effect by t over seeds."""
    mean, error, free = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1
    half = float(stats.t.isf(0.025, free)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, free)) if error else math.nan
    return mean, mean - half, mean + half, p, float(detectable(error, free))


def least(row: pd.Series) -> float:
    """The minimum detectable effect of a row with an interval; by t over seeds where the Result has none."""
    if "detectable" in row:
        return float(row["detectable"])
    free = int(row["n"]) - 1
    return float(detectable((row["high"] - row["low"]) / 2 / stats.t.isf(0.025, free), free))


def scarcity(result: Result, _: Result | None = None) -> Row:
    changes = result.frames["changes"].query("task == 'mean'").set_index("term")
    row = changes.loc["18 heads"]
    verdict = IN_WORDS.get(row["verdict"], "not shown")
    if row["n"] < SEEDS:
        verdict = f"not finished, {int(row['n'])} of {SEEDS} seeds; by these: {verdict}"
    levels = result.frames["levels"].query("task == 'mean'").set_index("term")["estimate"]
    doubt, control = gaps([sides(CONTROL[0]), sides(CONTROL[1])], slice(None))
    beside = doubt | control.row()
    seen = (
        f"MTL-5 − STL is {number(levels['18 heads'])} with 18 heads, {number(levels['72 heads'])} with 72: a change of "
        f"{number(row['estimate'])} {interval(row['low'], row['high'])} points, {int(row['n'])} seeds (over "
        f"{row['draws']:.0f} draws of heads instead of seeds {number(row['draws_estimate'])} "
        f"{interval(row['draws_low'], row['draws_high'])}); 18 heads (fp32) minus all heads with a quarter of the "
        f"feed-forward width (bf16; control, {beside['n']} seeds): {number(beside['estimate'])} "
        f"{interval(beside['low'], beside['high'])} (over draws {number(beside['draws_estimate'])} "
        f"{interval(beside['draws_low'], beside['draws_high'])})"
    )
    if beside["low"] > WIDENS:
        verdict += ", also compared with the control"
    elif verdict == "against":
        verdict += "; compared with the control not decided"
    for name, of in {"that": row, "the control's": beside}.items():
        if not of["draws_low"] > WIDENS:
            verdict += f" (doubt of 28 November 2026: {name} is undecided over draws)"
    by_verdict: dict[str, list[str]] = {}
    for place, (few, all_) in FURTHER.items():
        [change] = contrast_frame([gaps([sides(few), sides(all_)], slice(None))], effect=WIDENS).to_dict("records")
        seen += (
            f"; {place} ({change['n']} seeds): {number(change['estimate'])} {interval(change['low'], change['high'])}"
        )
        found = IN_WORDS.get(change["verdict"], "not decided")
        by_verdict.setdefault(found, []).append(place)
    verdict += "".join(f"; {found} {' and '.join(places)}" for found, places in by_verdict.items())
    points = f"{number(least(row))} points"
    return Row("E1 scarcity", "−1 point or less", seen, verdict, row["p"], points, row["p_widening"])


def roles(result: Result, second: Result | None = None, *singles: Result) -> Row:
    """``second``: the same of MPNet; ``singles``: of single-task runs, one a seed."""
    conflicts = result.frames["conflicts"].query("encoder != 'single tasks'")
    more, low, high, p, _ = of_seeds((conflicts["conflict"] - conflicts["expected"]).to_numpy(float))
    possible = float((interfering(result).to_numpy() - conflicts["expected"]).mean())
    gains = result.frames["gains"]
    gain = gains[gains["task"] == "mean"].iloc[0]
    predicts = "3 conflict heads or more beyond chance, and 0.3 points or more gained by closing them"
    if result.withdrawn:
        closed = with_interval(gain)
        if second is not None:
            there = second.frames["gains"].query("task == 'mean'").iloc[0]
            closed += f", on MPNet {with_interval(there)}"
        seen = (
            "which heads interfere is not known, as the fit did not feel its push; closing the heads that it named "
            f"gained {closed} points beyond random heads, which is true of these heads alone"
        )
        return Row("E2 roles", predicts, seen, "undecided: withdrawn on 28 November 2026 (*against* before)", 1.0)
    verdict = "not shown"
    if low > 0 and more >= HEADS and gain["low"] > 0 and gain["estimate"] >= GAIN:
        verdict = "for"
    elif gain["high"] < GAIN:
        verdict = "against"
    seen = (
        f"{', '.join(f'{count:.0f}' for count in conflicts['conflict'])} conflict heads, {number(more)} "
        f"{interval(low, high)} beyond chance; closing them gains {number(gain['estimate'])} "
        f"{interval(gain['low'], gain['high'])} points beyond random heads of their layers"
    )
    if singles:
        apart = pd.concat([one.frames["conflicts"] for one in singles]).set_index("seed")["conflict"]
        fewer, low, high, _, _ = of_seeds((conflicts.set_index("seed")["conflict"] - apart).to_numpy(float))
        seen += (
            f"; single-task runs have {', '.join(map(str, apart))}, {number(fewer)} {interval(low, high)} fewer "
            "(secondary)"
        )
    if second is not None:
        there = second.frames["gains"].query("task == 'mean'").iloc[0]
        counts = ", ".join(f"{count:.0f}" for count in second.frames["conflicts"]["conflict"])
        seen += f"; on MPNet {counts} conflict heads, closing them gains {number(there['estimate'])} "
        seen += interval(there["low"], there["high"])
        verdict += "; on MPNet " + ("against" if there["high"] < GAIN else "not shown")
    both = max(p, float(gain["p"]))  # both must hold
    least_seen = f"heads: no more than {number(possible)} possible here; gain: {number(least(gain))} points"
    return Row("E2 roles", predicts, seen, verdict, both, least_seen)


def interfering(result: Result) -> pd.Series:
    """Seed → how many heads interfere with some task in all selections: no more can be conflict heads."""
    scores = result.frames["heads"].query("measure == 'interfering'")
    always = scores.groupby(["seed", "task", "layer", "head"])["value"].min() > 0.5
    return always.groupby(["seed", "layer", "head"]).any().groupby("seed").sum()


def carriers(result: Result) -> tuple[str, str]:
    """E3's rule: the verdict by the runs in which stem heads carry the change of several tasks, and these in words."""
    stems = result.frames["stems"]["carried"] >= CARRIERS
    verdict = "for" if stems.mean() > 0.5 else "not shown" if stems.any() else "against"
    return verdict, f"a tenth of three tasks or more in {int(stems.sum())} of {len(stems)} runs"


def exchange(result: Result, second: Result | None = None) -> Row:
    """``second``: the same of MPNet."""
    terms = result.frames["contrasts"].set_index("term")
    own, others, apart, stem = (terms.loc[name] for name in ("own", "others", "own minus others", "stem"))
    random = result.frames["cells"].query("other == 'three or more'")["random"]
    verdict, carried = carriers(result)
    verdict += " (precondition), as planned"
    if (random >= CARRIED).sum() >= CARRIERS:
        verdict += "; doubt of 26 November 2026: random heads of their layers meet the rule, too"
    seen = (
        f"beyond random heads, {number(own['estimate'])} of a task's change passes through its own claims, "
        f"{number(others['estimate'])} through other tasks': {number(apart['estimate'])} "
        f"{interval(apart['low'], apart['high'])} more; stem heads carry {carried}, random heads of "
        f"{int((random >= CARRIED).sum())} tasks in the mean; stem minus random heads, mean of tasks (not planned): "
        f"{with_interval(stem)}, p {probability(stem['p'])}"
    )
    if second is not None:
        there, (for_or_against, carried) = second.frames["contrasts"].set_index("term"), carriers(second)
        both = " and ".join(number(there.loc[term, "estimate"]) for term in ("own", "others"))
        seen += f"; on MPNet {both}: {with_interval(there.loc['own minus others'])} more, {carried}, stem minus random "
        seen += with_interval(there.loc["stem"])
        verdict += f"; on MPNet {for_or_against} (precondition)"
    predicts = (
        "(precondition) stem heads carry a tenth of three tasks in most runs; heads of their own would carry "
        f"{TWICE:g} times as much"
    )
    seeable = f"{number(least(apart))} of a change"
    if second is not None:
        seeable += f"; MPNet: {number(least(there.loc['own minus others']))}"
    return Row("E3 exchange", predicts, seen, verdict, apart["p"], seeable)


def replication(mpnet: Path) -> Row:
    """Plain Φ of claims across corpora, and between seeds on MPNet."""
    by_place, _ = measure("results/claims/records/stable:stable", f"{MASC}:stable")
    one, two, apart = by_place[0][-1]
    verdict = "not shown"
    if apart.low > 0 and apart.value >= ACROSS:
        verdict = "replicated"
    elif apart.high < ACROSS:
        verdict = "not replicated"
    seen = f"Φ {one.shown} of a task across corpora, {two.shown} of two tasks: {apart.shown} more"
    phis = read(mpnet, "claims").frames["stability"].query("mode == 'plain' and measure == 'phi'")
    phis = phis[phis["encoder"] == OVER_TASKS].rename(columns={"value": "estimate"})
    phis = phis.drop_duplicates("term", keep="last").set_index("term")  # of unequal seeds, where it can be
    same, other, more = (with_interval(phis.loc[term]) for term in ("within", "between", "within - between"))
    seen += f"; of two runs on MPNet {same} of a task, {other} of two: {more} more"
    verdict += " on MASC; on MPNet between seeds" + ("" if phis.loc["within - between", "low"] > 0 else " not shown")
    if Path(MPNET[1].partition(":")[0]).is_dir():
        one, two, apart_there = measure(*MPNET)[0][0][-1]
        seen += f"; across corpora on MPNet {one.shown} and {two.shown}: {apart_there.shown} more"
        verdict += " and across corpora" + ("" if apart_there.low > 0 else " not shown")
    return Row("E4 replication", REPEATS, seen, verdict, apart.p, f"Φ {number(apart.detectable)}", apart.p)


OF_RESULTS: dict[str, tuple[str, Callable[..., Row]]] = {
    "scarcity": ("E1 scarcity", scarcity),
    "roles": ("E2 roles", roles),
    "exchange": ("E3 exchange", exchange),
}
REPEATS = f"(of claims) Φ of a task across corpora {ACROSS} or more above that of two tasks"
HUB = Row("E5 pretraining seeds", "(of claims) Φ 0 by index, 0.3 or more matched", "–", "not run: needs a hub")


def main(folder: Path) -> None:
    """Write the table into the page."""
    rows = []
    for name, (title, make) in OF_RESULTS.items():
        there = (folder / name / f"{name}.json").is_file()
        second = folder / f"{name}-mpnet"
        results = [read(folder / name, name), read(second, name) if second.is_dir() else None] if there else []
        results += [read(place, name) for place in sorted(folder.glob(f"{name}-singles/*"))]
        rows.append(make(*results) if there else Row(title, "–", "–", "not run"))
    rows.append(replication(folder / "mpnet") if MASC.is_dir() else Row("E4 replication", REPEATS, "–", "not run"))
    # over five, as planned: one not run shows nothing, nor does a verdict by a count
    corrected, decides = (
        holm(np.array([*(1.0 if math.isnan(p) else p for p in column), 1.0]))
        for column in ([row.p for row in rows], [row.decides for row in rows])
    )
    columns = "experiment | a fight predicts | seen | p of no effect (Holm) | detectable | p of the verdict (Holm)"
    lines = [f"| {columns} | verdict |", "|:--|:--|:--|--:|:--|--:|:--|"]
    for row, p, verdict in zip((*rows, HUB), corrected, decides, strict=True):
        both = [
            "–" if math.isnan(one) else f"{probability(one)} ({probability(many)})"
            for one, many in ((row.p, p), (row.decides, verdict))
        ]
        lines.append(
            f"| {row.name} | {row.predicts} | {row.seen} | {both[0]} | {row.least} | {both[1]} | **{row.verdict}** |"
        )
    page = folder / "README.md"
    before, _, rest = page.read_text(encoding="utf-8").partition("<!-- answer -->\n")
    _, _, after = rest.partition("<!-- /answer -->")
    page.write_text("\n".join([f"{before}<!-- answer -->", *lines, f"<!-- /answer -->{after}"]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
