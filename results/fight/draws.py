"""Puts the error of random draws into intervals of Results whose weights are gone, and says what that changes.

    python results/fight/draws.py FOLDER... > results/fight/draws.md     # Results of exchange, cross, alone and roles

Until 2026-11-28 these intervals held the draws fixed. The weights of the runs are gone, so the errors are put together
from what a Result has: its interval and p (or its former minimum detectable effect) give the parts of seeds and of
sentences or pairs; draws add a t of their own, as `StandardError.with_draws` has it.

- cross and alone have the score with each draw: what each draw adds is known.
- exchange has the mean of its draws only. Where each head's share is known, a set's share is taken to be the sum of its
  heads' shares, whose variance over random sets of the same layers is exact; where not (MPNet), the spread between the
  sets of other tasks stands for that between draws, which it is not below in expectation.

A Result is changed once; a note in it says so. Letters for shapes: T tasks, U sets, D draws, S seeds.
"""

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.heads.cross import ALL_TASKS
from mtlprune.analyses.heads.cross.measure import drawn_scores, own_of_draws
from mtlprune.analyses.heads.exchange import STEM
from mtlprune.evaluation.head_masks import Mask
from mtlprune.figures.grid import number, probability
from mtlprune.runs.claims import load_claims
from mtlprune.runs.results import Result, read_result, write_result
from mtlprune.runs.study import read_study
from mtlprune.statistics.significance import holm
from mtlprune.statistics.standard_errors import POWER, StandardError, upper_tail

NOTE = (
    "Intervals, p and detectable effects were computed anew from the tables of this Result on 2026-11-28, with the "
    "error of the random draws (results/fight/draws.py); before, they held the draws fixed."
)
LEAST = (
    "Detectable gains were computed anew from the intervals of this Result on 2026-11-28 (results/fight/draws.py); "
    "before, they took the error estimated from the seeds for known."
)
STABLE = Path("results/claims/records/stable")
MIXES = np.geomspace(1e-3, 1e3, 241)
"""Ratios of the error by sentences to that by seeds that are tried."""
MEAN = "mean of tasks"
Parts = Callable[[pd.Series], StandardError]


@functools.cache
def mixed(free: int) -> tuple[np.ndarray, np.ndarray]:
    """Of an error by seeds of 1 and each of MIXES by sentences the half width, and the quantile of POWER."""
    errors = [StandardError((1.0,), (free,), (0.0,), float(mix)) for mix in MIXES]
    return np.array([one.half_width() for one in errors]), np.array([one.quantile(1 - POWER) for one in errors])


def solved(row: pd.Series) -> StandardError:
    """The error without draws whose interval and p are those of a row; where p is large, whose interval and former
    detectable effect are."""
    half, free = (row["high"] - row["low"]) / 2, int(row["n"]) - 1
    if math.isnan(half):
        return StandardError((), (), (), math.nan, "no interval")
    halves, powers = mixed(free)
    scales = half / halves
    if row["p"] < 0.5 or "detectable" not in row:
        tails = 2 * upper_tail(np.full(len(MIXES), abs(row["estimate"])), [scales], [free], MIXES * scales)
        short = np.abs(np.log(tails / row["p"]))
    else:
        short = np.abs(powers * scales - (row["detectable"] - half))
    best = int(np.argmin(short))
    return StandardError((float(scales[best]),), (free,), (0.0,), float(MIXES[best] * scales[best]))


def mended(row: pd.Series, error: StandardError) -> dict[str, Any]:
    """The figures of a row by another error."""
    half, delta = error.half_width(), row["estimate"]
    new = {"low": delta - half, "high": delta + half, "p": error.two_sided(delta), "detectable": error.detectable()}
    return new | ({"p_margin": error.upper_tail(1.0 - abs(delta))} if "p_margin" in row else {})


def changed(frame: pd.DataFrame, error: Parts) -> pd.DataFrame:
    """A frame with the errors of its rows."""
    rows = [{**row, **mended(row, error(row))} for _, row in frame.iterrows()]
    return pd.DataFrame(rows)


# --- exchange --------------------------------------------------------------------------------------------------------


def known(variance: float, error: StandardError) -> StandardError:
    """With the error of draws whose variance is known."""
    return error if error.unknown else replace(error, sentences=math.hypot(error.sentences, math.sqrt(variance)))


def random_sum(shares: np.ndarray, heads: Mask) -> float:
    """The variance of the sum of shares (L, A) over random sets of as many heads of each layer."""
    size, counts = heads.shape[1], heads.sum(1)
    return float((counts * (1 - counts / size) * shares.var(1, ddof=1)).sum())


def exchange(result: Result) -> Result:
    cells, contrasts = result.frames["cells"], result.frames["contrasts"]
    draws = result.about["settings"]["draws"]
    tasks = list(dict.fromkeys(cells["task"]))
    others = [name for name in dict.fromkeys(cells["other"]) if name != STEM]
    weights: dict[str, dict[tuple[str, str], float]] = {
        "own": {(task, task.upper()): 1 / len(tasks) for task in tasks},
        "stem": {(task, STEM): 1 / len(tasks) for task in tasks},
    }
    apart = [(task, other) for task in tasks for other in others if other != task.upper()]
    weights["others"] = dict.fromkeys(apart, 1 / len(apart))
    weights["own minus others"] = weights["own"] | {key: -weight for key, weight in weights["others"].items()}

    if "heads" in result.frames:
        means = result.frames["heads"].groupby(["task", "layer", "head"])["value"].mean().unstack(["layer", "head"])
        shares = {task: means.loc[task].to_numpy().reshape(6, 12) for task in tasks}
        sets = {name: claims(name.lower()) for name in others}
        sets[STEM] = np.sum(list(sets.values()), axis=0) >= 3

        def variance(of: dict[tuple[str, str], float]) -> float:
            total = 0.0
            for name in {other for _, other in of}:
                summed = sum(weight * shares[task] for (task, other), weight in of.items() if other == name)
                total += random_sum(np.asarray(summed), sets[name])
            return total / draws

    else:
        random = cells[cells["other"] != STEM].pivot(index="task", columns="other", values="random")
        random = random.sub(random.mean(axis=1), axis=0)  # of 5 draws each
        stem = cells[cells["other"] == STEM].set_index("task")["random"].abs()

        def variance(of: dict[tuple[str, str], float]) -> float:
            total = 0.0
            for name in {other for _, other in of}:
                parts = [
                    weight * (stem[task] if name == STEM else random.loc[task, name])
                    for (task, other), weight in of.items()
                    if other == name
                ]
                if len(parts) > 1:
                    total += sum(parts) ** 2
                else:  # one task: the spread between all sets
                    [((task, _), weight)] = [item for item in of.items() if item[0][1] == name]
                    total += weight**2 * float((random.loc[task] ** 2).mean())
            return total * len(others) / (len(others) - 1)

    def of_cell(row: pd.Series) -> StandardError:
        return known(variance({(row["task"], row["other"]): 1.0}), solved(row))

    new = changed(cells, of_cell).assign(p_holm=lambda frame: holm(frame["p"]))
    rows = changed(contrasts, lambda row: known(variance(weights[row["term"]]), solved(row)))
    stems = cells[cells["other"] == STEM]
    parts = [solved(row) for _, row in stems.iterrows()]
    seeds = float(np.mean([one.seeds[0] for one in parts]))  # the most it can be: tasks that vary alike
    pairs = math.hypot(*(one.sentences for one in parts)) / len(parts)
    least = StandardError((seeds,), parts[0].free, (0.0,), pairs)
    stem_row = pd.Series({"estimate": stems["estimate"].mean()})
    row = {"encoder": contrasts["encoder"].iloc[0], "term": "stem", "n": int(stems["n"].iloc[0]), **stem_row}
    row |= mended(stem_row, known(variance(weights["stem"]), least)) | {"free": least.free[0]}
    return result.with_frames(cells=new, contrasts=pd.concat([rows, pd.DataFrame([row])], ignore_index=True))


def claims(task: str) -> Mask:
    """(L, A): the heads that most stable runs of a task claim on MiniLM."""
    runs = np.stack([claim.open for claim in load_claims(sorted(read_study(STABLE).paths(f"stable-{task}-*")))])
    return np.asarray(2 * runs.sum(0) > len(runs))


# --- cross and alone -------------------------------------------------------------------------------------------------


def cross(result: Result) -> Result:
    scores, own = result.frames["scores"], result.frames["own"]
    random = drawn_scores(scores)

    def of_cell(row: pd.Series) -> StandardError:
        key = tuple(row[["encoder", "task", "mode", "other"]])
        return solved(row).with_draws(-random.loc[[key]].to_numpy())

    cells = changed(result.frames["cells"], of_cell)
    apart = cells[cells["encoder"] != cells["other"]]
    cells["p_holm"] = apart.groupby("mode")["p"].transform(lambda p: holm(p.to_numpy()))
    labels = [name for name in dict.fromkeys(own["encoder"]) if name != ALL_TASKS]
    tasks = dict(scores[["encoder", "task"]].drop_duplicates().to_numpy().tolist())
    added = {}
    for mode in dict.fromkeys(own["mode"]):
        keys = [(label, tasks[label], mode, other) for label in labels for other in labels]
        shape = len(labels), len(labels), -1
        each = scores[(scores["mode"] == mode) & (scores["control"] == "")]
        closed = each.pivot(index=["encoder", "task", "mode", "other"], columns="seed", values="value").loc[keys]
        draws = random.loc[keys].to_numpy()
        by_seed = scores[(scores["mode"] == mode) & (scores["control"] == "random")]
        means = by_seed.groupby(["encoder", "task", "mode", "other", "seed"])["value"].mean().unstack("seed").loc[keys]
        delta = (closed.to_numpy() - means.to_numpy()).reshape(shape)
        added[mode] = own_of_draws(delta, draws.reshape(shape))

    def of_own(row: pd.Series) -> StandardError:
        place = [*labels, ALL_TASKS].index(row["encoder"])
        return solved(row).with_draws(added[row["mode"]][("units", "points").index(row["term"]), place])

    own = changed(own, of_own)
    each = own[own["encoder"] != ALL_TASKS].groupby(["mode", "term"])["p"]
    return result.with_frames(cells=cells, own=own.assign(p_holm=each.transform(lambda p: holm(p.to_numpy()))))


def alone(result: Result) -> Result:
    frame, scores = result.frames["contrasts"], result.frames["scores"]
    means = scores.groupby(["encoder", "seed", "mode"])["value"].mean().unstack("mode")
    whole = (means["all"] - means["none"]).rename("whole")
    random = scores[scores["mode"] == "random"].set_index(["encoder", "seed", "step"])["value"].unstack("step")
    shares = random.div(whole, axis=0).groupby("encoder", sort=False).mean()
    points = random.groupby("encoder", sort=False).mean()

    def error(row: pd.Series) -> StandardError:
        if "random" not in row["mode"]:
            return solved(row)
        drawn = shares if row["term"] == "share" else points
        mine = drawn if row["encoder"] == MEAN else drawn.loc[[row["encoder"]]]
        return solved(row).with_draws(mine.to_numpy() / len(mine))

    frame = changed(frame, error)
    each = frame[frame["encoder"] != MEAN].groupby(["mode", "term"])["p"]
    return result.with_frames(contrasts=frame.assign(p_holm=each.transform(lambda p: holm(p.to_numpy()))))


def roles(result: Result) -> Result:
    """Minimum detectable gains that count how little three seeds tell of the error; intervals stay, without draws."""
    gains = result.frames["gains"]
    seen = [row["detectable"] if row["n"] < 2 else solved(row).detectable() for _, row in gains.iterrows()]
    return result.with_frames(gains=gains.assign(detectable=seen))


MEND = {
    "exchange": (exchange, "contrasts", NOTE),
    "cross": (cross, "own", NOTE),
    "alone": (alone, "contrasts", NOTE),
    "roles": (roles, "gains", LEAST),
}
KEYS = dict.fromkeys(MEND, ("encoder", "mode", "term")) | {"roles": ("encoder", "task")}


def main(*folders: str) -> None:
    """Change Results, and print the rows of their figures over tasks before and after."""
    print("# What random draws add to intervals\n\nMeans over tasks, before (draws held fixed) and after.\n")
    print(
        "| Result | figure | difference | before | p | with draws | p | detectable |\n|:--|:--|--:|--:|--:|--:|--:|--:|"
    )
    for folder in map(Path, folders):
        [path] = [folder / f"{name}.json" for name in MEND if (folder / f"{name}.json").is_file()]
        result = read_result(path)
        mend, frame, note = MEND[path.stem]
        if note in result.about["notes"]:
            print(f"| {folder} | changed before | – | – | – | – | – | – |")
            continue
        new = mend(result)
        keys = [
            name
            for name in ("encoder", *["task"] * (path.stem == "roles"), "mode", "term")
            if name in new.frames[frame]
        ]
        old = result.frames[frame].set_index(keys)
        for row in new.frames[frame].to_dict("records"):
            key = tuple(row[name] for name in keys)
            if path.stem in ("cross", "alone") and row["encoder"] not in (ALL_TASKS, MEAN):
                continue
            if path.stem == "roles" and row["task"] != "mean":
                continue
            before = old.loc[key] if key in old.index else None
            shown = "–" if before is None else f"[{number(before['low'])}, {number(before['high'])}]"
            p = "–" if before is None else probability(before["p"])
            name = ", ".join(str(part) for part in key if part not in (ALL_TASKS, MEAN))
            print(
                f"| {folder} | {name} | {number(row['estimate'])} | {shown} | {p} | [{number(row['low'])}, "
                f"{number(row['high'])}] | {probability(row['p'])} | {number(row['detectable'])} |"
            )
        new.about["notes"].append(note)
        write_result(folder, new)


if __name__ == "__main__":
    main(*sys.argv[1:])
