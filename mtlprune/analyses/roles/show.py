"""Roles of heads: tables, sentences and figures of a Result."""

from typing import Any

import pandas as pd

from mtlprune.analyses.roles import MEAN, ROLES, STL
from mtlprune.evaluation.ablations import SENTENCES
from mtlprune.figures.charts import Chart, Spec, by_task, figure, head_map
from mtlprune.figures.grid import DETECTABLE, Grid, difference, number, probability, seen_from, with_interval
from mtlprune.runs.results import Result
from mtlprune.statistics.significance import only_not_shown


def about(result: Result) -> str:
    """Describe the fit of gates; define roles and conflict heads."""
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
    for label, rows in result.frame("conflicts", "encoder").groupby("encoder", sort=False):
        where = "single-task runs of one seed" if label == STL else label
        sentences.append(
            f"Heads of {where} that facilitate one task and interfere with another: "
            f"{', '.join(map(str, rows['conflict']))}; permuting heads within layers gives "
            f"{number(rows['expected'].mean(), 1)} (p {', '.join(map(probability, rows['p']))})."
        )
    for row in _known_gains(result).itertuples():
        mean = row.task == MEAN
        whose, name = ("the tasks of each run", "p") if mean else (row.task.upper(), "Holm p")
        seen = seen_from(row.detectable, before="; not shown: ")
        sentences.append(
            f"Closing the conflict heads that interfere with {whose} for it alone, instead of random heads of the same "
            f"layers, gains {row.encoder} {with_interval(row)} points ({name} {probability(row.holm)}{seen})."
        )
    return sentences


def _known_gains(result: Result) -> pd.DataFrame:
    """Gains, of whose mean p needs no correction; ``detectable`` only where p shows nothing."""
    gains = result.frame("gains", "holm", "p", "task")
    return only_not_shown(gains.assign(holm=gains["holm"].fillna(gains["p"])).dropna(subset="holm"))


def _counts(result: Result) -> Grid:
    heads = result.frames["heads"].assign(task=lambda frame: frame["task"].str.upper())
    keys = ["encoder", "seed", "task"]
    agreed = heads.groupby([*keys, "layer", "head", "measure"], sort=False)["value"].min() > 0.5  # of selections
    return Grid.of(
        "How many heads have each role",
        agreed.groupby([*keys, "measure"], sort=False).sum().unstack().reset_index(),
        {"run": "encoder", "task": "task", "seed": ("seed", 0), **{role: (role, 0) for role in ROLES}},
        "Heads with the role in every selection.",
        texts=2,
    )


def _conflicts(result: Result) -> Grid:
    columns: dict[str, Any] = {"run": "encoder", "seed": ("seed", 0), "tasks": ("n", 0)}
    columns |= {"conflict heads": ("conflict", 0), "by chance": ("expected", 1), "p": ("p", probability)}
    return Grid.of(
        "Heads that facilitate one task and interfere with another",
        result.frame("conflicts"),
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


def _maps(result: Result) -> Spec:
    """Facilitating minus interfering score of every head for each task, mean of selections."""
    scores = result.named("heads").pivot_table(
        "value", ["name", "task", "layer", "head"], "measure", sort=False, observed=True
    )
    role = (scores["facilitating"] - scores["interfering"]).rename("role").reset_index()
    return figure(
        head_map(by_task(role), "role", diverging=True, across=3, axes=True, heading="role"),
        "Which heads help a task, and which get in its way",
        ["+1: open even when pushed closed; −1: closed even when pushed open; near 0: goes where it is pushed."],
    )


FIGURES = {"maps": Chart.of(_maps)}
