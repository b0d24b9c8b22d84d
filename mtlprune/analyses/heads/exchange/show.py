"""Sentences, tables and figures of a Result of ``analyze exchange``."""

import pandas as pd

from mtlprune.analyses.heads.exchange import STEM
from mtlprune.errors import plural
from mtlprune.figures.charts import AnyChart, by_task, head_map, matrix
from mtlprune.figures.grid import number, power_clause, probability, with_interval
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import only_not_shown
from mtlprune.statistics.standard_errors import LEVEL


def about(result: Result) -> str:
    """Describe the pairs, the exchange and the random control, and define the share."""
    settings = result.about["settings"]
    natural = settings.get("natural")
    pairs = (
        f"of a sentence of {natural} and this sentence with one name or modifier swapped"
        if natural
        else "of generated sentences"
    )
    return (
        f"For each layer, up to {settings['pairs']} pairs {pairs} differ only in the gold of this layer. The seed is "
        f"{result.about['seed']}. Outputs of heads of the second sentence are put into the first. The share is the "
        "part of the change of the task's loss margin between the two gold annotations that passes through the heads. "
        "A share of 0 means that nothing passes through the heads, "
        "and a share of 1 that these heads alone make the run decide the first sentence as the second. The control is "
        f"{plural(settings['draws'], 'draw')} of as many random heads of the same layers. Intervals and p are over "
        "seeds, "
        "pairs and draws."
    )


def findings(result: Result) -> list[str]:
    """Report whether changes pass through the heads that the task itself claims rather than those of other tasks."""
    rows = result.frames["cells"]
    claimed_rows = rows[rows["other"] != STEM]
    is_own = claimed_rows["other"].str.upper() == claimed_rows["task"].str.upper()
    sentences = []
    if is_own.any() and (~is_own).any():
        (own_share, own_random), (others_share, others_random) = (
            (number(rows_of_kind["share"].mean()), number(rows_of_kind["random"].mean()))
            for rows_of_kind in (claimed_rows[is_own], claimed_rows[~is_own])
        )
        sentences.append(
            f"On average over cells, a share of {own_share} of the change of a task's decision passes through the "
            f"heads that the task itself claims ({own_random} through random heads of the same layers). A share of "
            f"{others_share} passes through the heads that another task claims ({others_random} through random heads)."
        )
    contrasts = result.frame("contrasts", "term")
    for row in contrasts.query("term == 'stem'").itertuples():
        sentences.append(
            f"In {row.encoder}, the heads that three tasks or more claim carry a share of {with_interval(row)} of a "
            f"change beyond random heads (mean of tasks, p {probability(row.p)}, {plural(row.n, 'run')})."
        )
    for row in contrasts.query("term == 'own minus others'").itertuples():
        sentences.append(
            f"In {row.encoder}, the heads that a task claims carry {with_interval(row)} more of its change than the "
            f"heads that other tasks claim, both beyond random heads (p {probability(row.p)}, {plural(row.n, 'run')})."
        )
    shown_count = int(((rows["p_holm"] < LEVEL) & (rows["estimate"] > 0)).sum())
    detectable_note = power_clause(
        *only_not_shown(rows)["detectable"], unit="of the change", before="; in the other cells "
    )
    sentences.append(
        f"In {shown_count} of {len(rows)} cells claimed heads carry a larger share than random heads (Holm, p < "
        f"{LEVEL}){detectable_note}."
    )
    if len(stem := rows[rows["other"] == STEM]):
        words = ", ".join(
            f"{number(row.share)} ({number(row.random)}) for {row.task.upper()}" for row in stem.itertuples()
        )
        carriers = result.frames["stems"].query("of > 2")
        carrier_count = f"{int((carriers['carried'] > 2).sum())} of {len(carriers)} runs"
        also = (
            f" They carry at least a tenth of the change of three tasks or more in {carrier_count}."
            if len(carriers)
            else ""
        )
        sentences.append(
            "The share of the change that the heads of three tasks or more carry (in brackets that of random heads of "
            f"the same layers) is {words}.{also}"
        )
    return sentences


def _table(result: Result) -> pd.DataFrame:
    return only_not_shown(result.frames["cells"]).assign(task=lambda frame: frame["task"].str.upper())


TABLES = {"table": _table}


def _matrix(result: Result) -> AnyChart:
    rows = result.frames["cells"]
    has_encoders = rows["encoder"].nunique() > 1
    names = [
        f"{row.encoder}: {row.task.upper()}" if has_encoders and row.task.upper() != row.encoder else row.task.upper()
        for row in rows.itertuples()
    ]
    return matrix(
        rows.assign(changed=names, value=rows["share"]),
        "changed",
        "other",
        (rows["p_holm"] < LEVEL) & (rows["estimate"] > 0),
        rows["task"].str.upper() == rows["other"].str.upper(),
        "share of the change",
    )


def _heads(result: Result) -> AnyChart:
    heads = by_task(result.with_names("heads")).rename(columns={"value": "share"})
    return head_map(heads, "share", diverging=True, columns=3, axes=True, heading="share of the change")


FIGURES = {"matrix": _matrix, "heads": _heads}
