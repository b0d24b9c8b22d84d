"""Roles of heads: tables, sentences and figures of a Result."""

from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import HeadColumn
from mtlprune.analyses.roles import MEAN, ROLES, STL
from mtlprune.evaluation.ablations import SENTENCES
from mtlprune.figures.charts import Chart, Spec, figure, head_map
from mtlprune.figures.grid import DETECTABLE, Grid, difference, number, probability, seen_from
from mtlprune.runs.results import Result
from mtlprune.statistics.significance import LEVEL, only_not_shown


def about(result: Result) -> str:
    """Where the numbers come from, and how to read them."""
    settings = result.about["settings"]
    return (
        f"{result.origin} One soft gate a head on the finished run, fitted to a task's loss on "
        f"{settings['train_sentences']:,} training sentences in {settings['updates']} updates, then pushed open and "
        f"closed (λ = {settings['strength']:g}; Nam et al. 2025). Facilitating: open even when pushed closed; "
        "interfering: closed even when pushed open; irrelevant: goes where it is pushed. A head has a role where its "
        f"score is above 0.5 in each of {settings['selections']} selections. A conflict head facilitates one task and "
        f"interferes with another.{SENTENCES[settings.get('closed', 'zero')]}"
    )


def findings(result: Result) -> list[str]:
    """Sentences: are there conflict heads beyond chance, and does closing them gain a task anything?"""
    sentences = []
    if "conflicts" in result.frames:
        for label, rows in result.frames["conflicts"].groupby("encoder", sort=False):
            counts = ", ".join(map(str, rows["conflict"]))
            where = "In single-task runs of one seed" if label == STL else f"In {label}"
            sentences.append(
                f"{where} {counts} heads facilitate one task and interfere with another, where permuting heads within "
                f"layers gives {number(rows['expected'].mean(), 1)} (p {', '.join(map(probability, rows['p']))})."
            )
    for row in _known_gains(result).itertuples():
        mean, shown = row.task == MEAN, "gains" if row.delta > 0 else "costs"
        whose, name = ("the tasks of each run", "p") if mean else (row.task.upper(), "Holm p")
        sure = "" if row.holm < LEVEL else f"; not shown{' after correction' * (not mean)}{seen_from(row.detectable)}"
        sentences.append(
            f"Closing the conflict heads that interfere with {whose} for it alone, instead of random heads "
            f"of the same layers, {shown} {row.encoder} {number(abs(row.delta))} points, 95 % [{number(row.low)}, "
            f"{number(row.high)}] ({name} {probability(row.holm)}{sure})."
        )
    return sentences


def _known_gains(result: Result) -> pd.DataFrame:
    """Gains, of whose mean p needs no correction; ``detectable`` only where p shows nothing."""
    gains = result.frames.get("gains", pd.DataFrame(columns=["holm", "p", "task"]))
    return only_not_shown(gains.assign(holm=gains["holm"].fillna(gains["p"])))


MEANINGS = {"facilitating": "open even when pushed closed", "interfering": "closed even when pushed open"}


def head_columns(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """Which tasks each head facilitates, and which it interferes with, in the first seed of every encoder."""
    columns, rows = [], _agreed(result).query("agreed")
    for one in pd.DataFrame(result.about["encoders"]).drop_duplicates("encoder").to_dict("records"):
        for role, meaning in MEANINGS.items():
            words = np.full((one["layers"], one["heads"]), "", dtype=object)
            mine = rows[(rows[["encoder", "seed", "measure"]] == [one["encoder"], one["seed"], role]).all(axis=1)]
            for (layer, head), tasks in mine.groupby(["layer", "head"], sort=False)["task"]:
                words[layer - 1, head - 1] = " ".join(tasks.str.upper())
            columns.append(
                HeadColumn(f"{role} {one['encoder']}", "roles", words.astype(str), False, f"tasks, {meaning}")
            )
    return columns, []


def _agreed(result: Result) -> pd.DataFrame:
    """Scores of roles with the least over selections, and whether the head has the role in all of them."""
    keys = ["encoder", "run", "seed", "layer", "head", "task", "measure"]
    least = result.frames["heads"].groupby(keys, sort=False, observed=True)["value"].min().reset_index()
    return least.assign(agreed=least["value"] > 0.5)


# -- tables ------------------------------------------------------------------------------------------------------------


def _counts(result: Result) -> Grid:
    rows = _agreed(result).assign(task=lambda frame: frame["task"].str.upper())
    wide = rows.pivot_table("agreed", ["encoder", "seed", "task"], "measure", aggfunc="sum", sort=False, observed=True)
    return Grid.of(
        "How many heads have each role",
        wide.reset_index(),
        {"run": "encoder", "task": "task", "seed": ("seed", 0), **{role: (role, 0) for role in ROLES}},
        "Heads with the role in every selection.",
        texts=2,
    )


def _conflicts(result: Result) -> Grid | None:
    if "conflicts" not in result.frames:
        return None
    columns: dict[str, Any] = {"run": "encoder", "seed": ("seed", 0), "tasks": ("n", 0)}
    columns |= {"conflict heads": ("conflict", 0), "by chance": ("expected", 1), "p": ("p", probability)}
    return Grid.of(
        "Heads that facilitate one task and interfere with another",
        result.frames["conflicts"],
        columns,
        "By chance: mean with the heads of each task permuted within layers; p of so many or more. Single tasks: the "
        "runs of one seed together.",
    )


def _gains(result: Result) -> Grid | None:
    if not len(gains := _known_gains(result)):
        return None
    scores: dict[str, Any] = {"all open": ("open", 2), "closed": ("closed", 2), "random closed": ("random", 2)}
    return Grid.of(
        "What closing conflict heads gains the task they interfere with",
        gains.assign(task=[task if task == MEAN else task.upper() for task in gains["task"]]),
        {"run": "encoder", "task": "task", "runs": ("n", 0), **scores, **difference("gain", "Holm", "detectable")},
        "Main score with the conflict heads closed that interfere with the task, for this task alone; gain: beyond as "
        f"many random heads of the same layers, with 95 % interval over seeds and sentences. {DETECTABLE} A fight "
        "predicts gains.",
        texts=2,
    )


TABLES = (_conflicts, _gains, _counts)


# -- figures -----------------------------------------------------------------------------------------------------------


def _maps(result: Result) -> Spec:
    """Facilitating minus interfering score of every head for each task, mean of selections."""
    heads = result.named("heads")
    wide = heads[heads["measure"] != "irrelevant"].assign(
        value=lambda frame: frame["value"].where(frame["measure"] == "facilitating", -frame["value"])
    )
    keys = ["name", "task", "layer", "head"]
    role = wide.groupby(keys, sort=False, observed=True)["value"].sum().reset_index()
    role["value"] /= max(1, result.about["settings"]["selections"])
    names = [f"{name}: {task.upper()}" for name, task in zip(role["name"], role["task"], strict=True)]
    role = role.assign(name=pd.Categorical(names, list(dict.fromkeys(names)), ordered=True))
    return figure(
        head_map(role.rename(columns={"value": "role"}), "role", diverging=True, across=3, axes=True, heading="role"),
        "Which heads help a task, and which get in its way",
        ["+1: open even when pushed closed; −1: closed even when pushed open; near 0: goes where it is pushed."],
    )


FIGURES = {"maps": Chart.of(_maps)}
