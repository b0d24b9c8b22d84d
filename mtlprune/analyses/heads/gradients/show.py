"""Sentences, tables, figures and columns of heads of a Result of ``analyze gradients``."""

import pandas as pd

from mtlprune.analyses.analysis import HeadColumn
from mtlprune.analyses.heads.gradients import ALL_TASKS
from mtlprune.figures.charts import AnyChart, head_map
from mtlprune.figures.grid import number
from mtlprune.runs.results import Result
from mtlprune.statistics.standard_errors import LEVEL


def about(result: Result) -> str:
    """Describe the data and their halves, and define the importance of a head."""
    return (
        f"{result.origin} The importance of a head is the mean over sentences of |∂L/∂ξ|, where ξ is a factor of the "
        "head's output (Michel, Levy and Neubig 2019). Relative importance is divided by the l2 norm of its layer, "
        "because the method ranks heads by this quotient. Halves are halves of the sentences and not seeds of "
        "training, so their disagreement is only noise of the data."
    )


def findings(result: Result) -> list[str]:
    """Report how far maps of importance agree, how noisy they are, and how far the gradients of joint runs agree."""
    halves = _pairs(result, "halves")["spearman"]
    sentences = [
        _agreement_text(result),
        f"Two halves of the sentences rank the heads of a layer with Spearman {_range(halves)} over "
        f"{len(halves)} maps.",
    ]
    for name, rows in result.with_names("joint").groupby("name", observed=True):
        mean = rows.groupby("measure")["value"].mean()
        itself = f"; the cosine is {mean['halves']:.2f} for one task on different sentences" if "halves" in mean else ""
        sentences.append(
            f"In {name}, the gradients of two tasks on a head have a cosine of {mean['cosine']:+.2f} (mean over heads "
            f"and pairs{itself}). {100 * mean['opposed']:.0f} % of the pairs oppose each other."
        )
    return list(filter(None, sentences))


def _agreement_text(result: Result) -> str:
    """Report the correlation of importance between single tasks, tasks of a joint run, and runs of one task.

    The sentence is "" if there is only one map.
    """
    maps = _pairs(result, "maps")
    joint = {
        entry["encoder"] for entry in result.about["encoders"] if len(entry["tasks"]) > 1 or ":" in entry["encoder"]
    }
    trained_alone = ~maps["encoder"].isin(joint) & ~maps["other"].isin(joint)
    within = (maps["encoder"] == maps["other"]) & (maps["seed"] == maps["other_seed"])
    same_task = maps["task"] == maps["other_task"]
    kinds = {
        "two single tasks": trained_alone & ~same_task,
        "two tasks of one joint run": within & ~same_task,
        "one task in two runs": same_task,
    }
    answers = []
    for kind, where in kinds.items():
        if len(rows := maps[where]):
            significant_count = int((rows["p"] < LEVEL).sum())
            answers.append(
                f"{number(rows['spearman'].mean())} for {kind} ({significant_count} of {len(rows)} pairs have p < "
                f"{LEVEL})"
            )
    if not answers:
        return ""
    return (
        f"The mean Spearman correlation of importance over the heads of a layer, on the same sentences, is "
        f"{', '.join(answers)}. p is two-sided, permutes heads within layers and is not corrected."
    )


def _range(values: pd.Series) -> str:
    low, high = number(values.min()), number(values.max())
    return low if low == high else f"{low} to {high}"


def _pairs(result: Result, mode: str) -> pd.DataFrame:
    """Return the pairs of maps of this mode, with the names of the two maps in the columns ``first`` and ``second``."""
    pairs = result.with_names("pairs").query("mode == @mode")
    name_of_run = {
        (row["encoder"], row["seed"]): name for row, name in zip(result.about["encoders"], result.names, strict=True)
    }
    return pairs.assign(
        first=[_map_name(name, task) for name, task in zip(pairs["name"], pairs["task"], strict=True)],
        second=[_map_name(name_of_run[row.other, row.other_seed], row.other_task) for row in pairs.itertuples()],
    )


def _map_name(name: str, task: str) -> str:
    """Return the name of a task's map in a run, such as "POS" in the run POS, "DEP in MTL-5" or "MTL-5, all tasks"."""
    if task == ALL_TASKS:
        return f"{name}, {task}"
    return name if task.upper() == name.partition(",")[0].partition(" (")[0] else f"{task.upper()} in {name}"


def head_columns(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """Return the columns of gradients in the table of heads, and notes in sentences.

    The columns are the importance for each task of each label, from the first seed only, and for joint runs the
    agreement of the tasks' gradients, with the label in the title if there are joint runs of several labels. They are
    the same for every encoder ``of``.
    """
    columns: list[HeadColumn] = []
    labels_used: set[str] = set()
    notes = []
    joint_labels = {entry["encoder"] for entry in result.about["encoders"] if result.grids(entry, "joint")}
    for encoder, name in zip(result.about["encoders"], result.names, strict=True):
        if encoder["encoder"] in labels_used:
            notes.append(f"Gradients of {name} have no column, because it is another seed.")
            continue
        labels_used.add(encoder["encoder"])
        heads = result.frames["heads"].query("mode == '' and measure == 'importance'")
        for task in heads.loc[heads["encoder"] == encoder["encoder"], "task"].unique():
            part = Result("gradients", result.about, {"heads": heads[heads["task"] == task]})
            grid = part.grids(encoder)["importance"]
            title = f"importance {_map_name(encoder['encoder'], task)}"
            columns.append(HeadColumn(title, "gradients", grid, task != ALL_TASKS, "mean of |∂L/∂ξ| over sentences"))
        for measure, grid in result.grids(encoder, "joint").items():
            title, meaning = _JOINT_COLUMNS[measure]
            title += f" {encoder['encoder']}" * (len(joint_labels) > 1)
            columns.append(
                HeadColumn(title, "gradients", grid, measure != "halves", f"{encoder['encoder']}: {meaning}")
            )
    return columns, notes


_JOINT_COLUMNS = {  # measure of the frame "joint" → title and meaning of its column
    "cosine": ("gradient cosine", "cosine of two tasks' gradients, mean over pairs of tasks"),
    "opposed": ("tasks opposed", "share of pairs of tasks whose gradients oppose each other"),
    "halves": ("gradient halves", "cosine of a task's gradients on two halves of the sentences, mean over tasks"),
}


def _across(result: Result) -> pd.DataFrame:
    """Return the mean correlation of each pair of maps over seeds, and the number of correlations with p < LEVEL."""
    pairs = _pairs(result, "maps")
    names_of_pair = [
        {_map_name(row.encoder, row.task), _map_name(row.other, row.other_task)} for row in pairs.itertuples()
    ]
    pairs = pairs.assign(
        maps=[" and ".join(sorted(names)) if len(names) > 1 else f"{min(names)}, two seeds" for names in names_of_pair],
        sure=pairs["p"] < LEVEL,
    )
    means = pairs.groupby("maps", sort=False).agg(n=("p", "size"), mean=("spearman", "mean"), sure=("sure", "sum"))
    return means.reset_index()


def _pulls(result: Result) -> pd.DataFrame | None:
    """Return the cosine of each pair of tasks as a mean over heads, with its mean and range over seeds."""
    if (cosines := result.frames.get("cosines")) is None:
        return None
    cosines = cosines.assign(
        pair=[
            f"{first.upper()} and {second.upper()}"
            for first, second in zip(cosines["task"], cosines["other"], strict=True)
        ]
    )
    means = cosines.groupby(["encoder", "seed", "pair"], sort=False)["value"].mean()  # over heads
    return means.groupby(["encoder", "pair"], sort=False).agg(["mean", "min", "max", "size"]).reset_index()


TABLES = {"alike": lambda result: _pairs(result, "halves"), "across": _across, "pulls": _pulls}


def _maps(result: Result) -> AnyChart | None:
    heads = result.with_names("heads")
    heads = heads[(heads["measure"] == "relative") & (heads["mode"] == "")]
    if not len(heads):
        return None
    names = [_map_name(name, task) for name, task in zip(heads["name"], heads["task"], strict=True)]
    frame = heads.assign(name=pd.Categorical(names, list(dict.fromkeys(names)), ordered=True))
    frame = frame.rename(columns={"value": "relative importance"})
    return head_map(frame, "relative importance", columns=3, axes=True, heading="importance over its layer's norm")


def _joint(result: Result) -> AnyChart:
    cosines = result.with_names("joint")
    cosines = cosines[cosines["measure"] == "cosine"].rename(columns={"value": "cosine"})
    return head_map(cosines, "cosine", diverging=True, columns=3, axes=True, heading="mean cosine over pairs of tasks")


FIGURES = {"maps": _maps, "cosine": _joint}
