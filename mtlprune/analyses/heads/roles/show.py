"""Sentences, tables and the figure of a Result of ``analyze roles``."""

import math
from typing import Any

import pandas as pd

from mtlprune.analyses.frames import MEAN, TableRows, row_title
from mtlprune.analyses.heads.roles import STL
from mtlprune.errors import plural
from mtlprune.evaluation.ablations import SENTENCES
from mtlprune.figures.charts import Drawing, by_task, head_map
from mtlprune.figures.grid import Grid, number, power_clause, probability, with_interval
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import UNDECIDED, decisive_p, only_not_shown
from mtlprune.statistics.standard_errors import LEVEL


def about(result: Result) -> str:
    """Describe the fit of gates, or the closing of single heads, and define roles and conflict heads."""
    settings = result.about["settings"]
    if _single(result):
        return (
            f"{result.origin} Each head of the finished run is closed by itself. A head is chosen for a task if "
            "closing it raises the task's score on one half of the sentences (one-sided p < 0.05), and interferes with "
            "the task if closing it also raises the score on the other half (p < 0.05 after Holm's correction over all "
            "chosen heads of a run)."
            f"{f' At most {limit} heads are chosen for a task.' if (limit := settings.get('max_chosen')) else ''}"
            " The heads that interfere with a task are then closed together, on "
            f"{f'the split {scored}' if (scored := settings.get('scored')) else 'the half that confirms heads'}."
            f"{SENTENCES[settings['closed']]}"
        )
    return (
        f"{result.origin} The finished run gets one soft gate for each head. Gates are fitted to a task's loss on "
        f"{settings['train_sentences']:,} training sentences in {settings['updates']} updates, and then pushed open "
        f"and closed (λ = {settings['strength']:g}; Nam et al. 2025). A head is facilitating if it is open even when "
        "pushed closed, interfering if it is closed even when pushed open, and irrelevant if it follows both pushes. A "
        "head has a role if its score is above 0.5 in each of "
        f"{plural(settings['selections'], 'selection')}. A conflict head facilitates one task and interferes with "
        f"another.{SENTENCES[settings.get('closed', 'zero')]}"
    )


def _single(result: Result) -> bool:
    """Return whether each head was closed by itself, without gates."""
    return bool(result.about["settings"].get("closing") == "single")


def findings(result: Result) -> list[str]:
    """Report whether more heads interfere with tasks than by chance, and what tasks gain from closing them."""
    sentences = []
    if _single(result):
        numbers = _numbers(result)
        sentences.append(
            f"Closing a single head raises the task's score on one half of the sentences for {numbers['chosen'].sum()} "
            f"of {numbers['heads'].sum():,} heads, counted for each run and task. On the other half it also raises the "
            f"score for {numbers['confirmed'].sum()}."
        )
        if numbers["detectable"].notna().any():
            sentences[-1] += (
                f" Gains of {number(numbers['detectable'].min())} to {number(numbers['detectable'].max())} points, "
                "depending on the task, would be found in four of five cases."
            )
        if not numbers["confirmed"].any():
            sentences[-1] += " No head is confirmed, so no heads are closed together."
    for label, rows in result.frame("conflicts", "encoder").groupby("encoder", sort=False):
        where = "single tasks with one seed" if label == STL else label
        sentences.append(
            "The number of heads that facilitate one task and interfere with another is "
            f"{', '.join(map(str, rows['conflict']))} in the runs of {where}. Permuting heads within layers gives "
            f"{number(rows['expected'].mean(), 1)} (p {', '.join(map(probability, rows['p']))})."
        )
    for row in _known_gains(result).itertuples():
        mean = row.task == MEAN
        owner_words, name = ("the tasks of each run", "p") if mean else (row.task.upper(), "Holm p")
        alone_words = "these tasks" if mean else "this task"
        p_words = "one run, so there is no p" if math.isnan(row.p_holm) else f"{name} {probability(row.p_holm)}"
        detectable_note = power_clause(row.detectable)
        sentences.append(
            f"Closing the {'' if _single(result) else 'conflict '}heads that interfere with {owner_words} for "
            f"{alone_words} only, compared with random heads of the same layers, changes the score of {row.encoder} by "
            f"{with_interval(row)} points ({p_words}{detectable_note})."
            f"{' A task without such heads counts 0.' if mean and _single(result) else ''}"
        )
    return sentences


def verdict(result: Result) -> tuple[str, Any]:
    """Return the verdict on competition for heads, and the row of the mean gain from which it follows.

    Competition predicts a mean gain of at least GAIN points from closing heads that interfere in joint runs. If the
    Result is withdrawn or has no mean gain of joint runs, the verdict is UNDECIDED and the row is None.
    """
    gains = result.frame("gains", "task")
    mean = next((row for row in gains[gains["task"] == MEAN].itertuples() if is_joint(row.encoder)), None)
    if mean is None or result.withdrawn:
        return UNDECIDED, None
    return mean.verdict, mean


def is_of_single_tasks(result: Result) -> bool:
    """Return whether all gains of a Result are of single-task runs, on which no verdict can rest."""
    labels = result.frame("gains", "encoder")["encoder"]
    return len(labels) > 0 and not any(map(is_joint, labels))


def _known_gains(result: Result) -> pd.DataFrame:
    """Return the gains that have an interval, with ``p_holm`` of means replaced by their plain p, which needs no
    correction. Gains of a single run have no p.

    ``detectable`` is given only where nothing is significant.
    """
    gains = result.frame("gains", "p_holm", "p", "task", "low")
    return only_not_shown(gains.assign(p_holm=decisive_p(gains)).dropna(subset="low"))


def _numbers(result: Result) -> pd.DataFrame:
    """Return for each run and task the numbers of heads, of chosen and of confirmed ones, and the median detectable
    gain."""
    keys, heads = ["encoder", "seed", "task"], result.frames["heads"]
    second = heads[(heads["measure"] == "detectable") & (heads["step"] == 1)]
    numbers = second.groupby(keys, sort=False)["value"].agg(heads="size", detectable="median")
    chosen_rows = result.frame("chosen", *keys, "p_holm")
    for name, rows in (("chosen", chosen_rows), ("confirmed", chosen_rows[chosen_rows["p_holm"] < LEVEL])):
        numbers[name] = rows.groupby(keys).size().reindex(numbers.index, fill_value=0)
    return numbers.reset_index()


def _single_tables(result: Result) -> list[Grid]:
    if not _single(result):
        return []
    columns: dict[str, Any] = {"run": "encoder", "task": "task", "seed": ("seed", 0)}
    counts = {name: (name, 0) for name in ("heads", "chosen", "confirmed")} | {"detectable": ("detectable", 2)}
    points = {"first half": ("first", 2), "second half": ("second", 2), "p": ("p", probability)}
    points = {"layer": ("layer", 0), "head": ("head", 0), **points, "Holm": ("p_holm", probability)}
    how_many = (
        "Heads are chosen on one half of the sentences and confirmed on the other. *Detectable* is the gain that the "
        "second half would show in four of five cases (two-sided 5 %, not corrected), as the median over the heads "
        "that are closed there."
    )
    caption = (
        "Values are the points that the task gains if only this head is closed. The first half chooses heads, so "
        "the gain on this half is too high. p is one-sided and is that of the second half."
    )
    numbers, chosen_rows = _upper(_numbers(result)), _upper(result.frame("chosen", "task"))
    return [
        Grid.of("Heads whose closing raises a task's score", numbers, columns | counts, how_many, texts=2),
        Grid.of("The heads that are chosen", chosen_rows, columns | points, caption, texts=2),
    ]


def _upper(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(task=[row_title(task) for task in frame["task"]])


def _counts(result: Result) -> pd.DataFrame | None:
    if _single(result):
        return None
    heads = result.frames["heads"].assign(task=lambda frame: frame["task"].str.upper())
    keys = ["encoder", "seed", "task"]
    agreed = heads.groupby([*keys, "layer", "head", "measure"], sort=False)["value"].min() > 0.5  # of selections
    return agreed.groupby([*keys, "measure"], sort=False).sum().unstack().reset_index()


def _gains(result: Result) -> TableRows:
    return TableRows(_upper(_known_gains(result)), {"which": "" if _single(result) else "conflict "})


TABLES = {
    "single": _single_tables,
    "conflicts": lambda result: None if _single(result) else result.frame("conflicts"),
    "gains": _gains,
    "counts": _counts,
}


def _maps(result: Result) -> Drawing:
    rows = result.with_names("heads").pivot_table(
        "value", ["name", "task", "layer", "head"], "measure", sort=False, observed=True
    )
    if _single(result):
        frame, value, title = rows.reset_index(), "gain", "Gain of a task from closing a head"
        explained = (
            "Values are points, as means of the halves on which the head was closed. Above 0, closing it raises the "
            "task's score."
        )
    else:
        frame = (rows["facilitating"] - rows["interfering"]).rename("role").reset_index()
        value, title = "role", "Heads that help a task, and heads that hinder it"
        explained = (
            "At +1 a head is open even when pushed closed, at −1 it is closed even when pushed open, and near "
            "0 it follows both pushes."
        )
    tasks = frame["task"].nunique()  # a row of maps is a run, a column a task
    chart = head_map(by_task(frame), value, diverging=True, columns=tasks, axes=True, heading=value)
    return Drawing(chart, {"title": title, "explained": explained})


FIGURES = {"maps": _maps}
