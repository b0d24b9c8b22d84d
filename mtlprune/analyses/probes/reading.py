"""Reader of probe results, from one folder or several, and tables of labels by task and encoder for the views.

    result = read_probes(["results/probes"])
    panel = panels(result, "sound")[0]
    panel.mean("STL", "NN"), panel.mean("STL", "NN", "gain")

Accuracies are in percent; layers and heads are counted from 1.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from mtlprune.analyses.analysis import read
from mtlprune.analyses.probes import CHANCE, CONTROLS, MODES, OFFSET, RANDOM, RESULT, TRUE_LABELS, labels_of
from mtlprune.io.files import RunError
from mtlprune.layers import LAYERS, in_order, layer_order
from mtlprune.runs.results import Result, joined

PRETRAINED, STL = "pretrained", "STL"
_OF_NO_WEIGHTS = (RANDOM, OFFSET, CHANCE)
"""Controls that do not depend on the training of the encoder, so that all encoders of a corpus and a size share
them."""
_FIRST_OF_OTHERS = 5
"""Rank (of ``kind``) from which encoders were trained only for other tasks; panels leave these encoders out."""
_ROW = [*RESULT, "control", "label", "layer", "head"]
"""The keys of the frame ``accuracy``."""


def read_probes(folders: Iterable[str | Path]) -> Result:
    """Read the probe results of one or more folders as one Result.

    All results must be of the same corpus and of encoders of the same size. Controls that fine-tuning does not change
    are shared by all encoders, and ``about["folders"]`` lists the folders.

    Raises:
        RunError: there are no results, a result is damaged, or the results cannot be compared.
    """
    paths = list(dict.fromkeys(map(Path, folders)))
    if not paths:
        raise RunError("expected a folder with probe results, found none; `mtlprune analyze probes` makes one")
    return joined_results(paths, [read(path, "probes") for path in paths])


def joined_results(paths: Sequence[Path], results: Sequence[Result]) -> Result:
    """Join probe results into one Result, as ``read_probes`` describes. ``paths``: the folder of each result.

    Raises:
        RunError: the results differ in corpus, size of encoder, treatment of special tokens or the option ``few``, or
            hold different numbers of the same run.
    """
    for path, result in zip(paths, results, strict=True):
        for name in ("fingerprint", "specials", "few"):
            if result.about[name] != results[0].about[name]:
                raise RunError(
                    f"{paths[0]} and {path} differ in {name} ({results[0].about[name]} and {result.about[name]}), so "
                    "their numbers cannot be compared; plot them separately"
                )
    if len(sizes := {shape(result) for result in results}) > 1:
        shapes = ", ".join(sorted(f"{layers} × {heads}" for layers, heads in sizes))
        raise RunError(
            f"{', '.join(map(str, paths))}: expected encoders with equally many layers and heads, found {shapes}; "
            "plot them separately, because heads of different encoders do not correspond"
        )
    frames = joined(({}, result.frames) for result in results)
    identifying = [key for key in _ROW if key != "run"]
    probe = frames["accuracy"][frames["accuracy"]["control"] == TRUE_LABELS].drop_duplicates([*identifying, "test"])
    if (twice := probe[probe.duplicated(identifying)]).size:
        row = twice.iloc[0]
        raise RunError(
            f"{' and '.join(map(str, paths))} hold different results of {row['encoder']}, seed {row['seed']}, "
            f"{row['mode']}, {row['task']}; name only one of the folders"
        )
    frames["accuracy"] = frames["accuracy"].drop_duplicates(identifying, ignore_index=True)
    kinds = {task: kind for result in results for task, kind in result.about["kinds"].items()}
    exact, _ = labels_of(frames["accuracy"], results[0].about["few"], kinds)
    frames["labels"], notes = _shared(exact)
    if "published" in frames:
        frames["published"] = frames["published"].drop_duplicates(["task", "label"])
    # If several folders have the same difference, the one with the most seeds is kept.
    if "differences" in frames:
        sorted_ = frames["differences"].sort_values(["seeds", "other_seeds"], ascending=False, kind="stable")
        frames["differences"] = sorted_.drop_duplicates(["encoder", "mode", "task", "label"])
    encoders = {
        (entry["encoder"], entry["seed"]): entry for result in reversed(results) for entry in result.about["encoders"]
    }
    about = {
        **results[0].about,
        "kinds": kinds,
        "encoders": list(reversed(encoders.values())),
        "notes": list(dict.fromkeys([*(note for result in results for note in result.about["notes"]), *notes])),
        "folders": list(map(str, paths)),
    }
    return Result("probes", about, frames)


def shape(result: Result) -> tuple[int, int]:
    """Return the number of layers of the probed encoders, and the number of heads of a layer."""
    first = result.about["encoders"][0]
    return first["layers"], first["heads"]


def _shared(labels: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Fill in controls that are missing for an encoder with the mean of the encoders that have them, and compute the
    gains again.

    Returns:
        the frame ``labels``, and a note that names the shared controls (none if nothing was filled in).
    """
    groups = labels.groupby(["mode", "task", "label"])
    means = {control: groups[control].transform("mean") for control in _OF_NO_WEIGHTS}
    shared = [control for control, mean in means.items() if (labels[control].isna() & mean.notna()).any()]
    labels = labels.assign(**{control: labels[control].fillna(mean) for control, mean in means.items()})
    labels["gain"] = (labels["test"] - labels[list(CONTROLS)].max(axis=1)).round(4)
    control_names = ", ".join(CONTROLS[control] for control in shared)
    return labels, [
        f"Controls that fine-tuning does not change ({control_names}) are the same for all encoders."
    ] if shared else []


# -- labels by task and encoder ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ProbePanel:
    """The chosen heads of one task in one mode, with encoders side by side.

    Attributes:
        task: the task.
        mode: the mode of the probes.
        rows: rows of the frame ``labels``, with a further column ``title``, the name of the encoder in this panel (see
            ``kind``).
        titles: titles of the encoders in the order of display: pretrained, STL, pairs of tasks, joint runs, and other
            encoders.
    """

    task: str
    mode: str
    rows: pd.DataFrame
    titles: tuple[str, ...]

    @property
    def compared(self) -> list[str]:
        """Titles of the encoders that are compared with STL; empty if STL was not probed."""
        return [title for title in self.titles if title != STL] if STL in self.titles else []

    @cached_property
    def items(self) -> dict[str, int]:
        """Label → number of its test items, with the most frequent label first and equally frequent labels by name."""
        counts = self.rows.groupby("label")["items"].max()
        return dict(
            sorted(
                ((str(k), int(n)) for k, n in counts.items()),
                key=lambda label_and_count: (-label_and_count[1], label_and_count[0]),
            )
        )

    @cached_property
    def rare_labels(self) -> frozenset[str]:
        """Labels with too few test items for a reliable accuracy."""
        return frozenset(self.rows.loc[self.rows["few"], "label"])

    @cached_property
    def set_apart(self) -> list[str]:
        """The labels of roots. They are left out of means, because a head finds a root by attending to the first
        special token, to which heads often attend without a reason."""
        return sorted(set(self.rows.loc[self.rows["apart"], "label"]))

    @property
    def labels(self) -> list[str]:
        """All labels except roots, the most frequent first."""
        return [label for label in self.items if label not in self.set_apart]

    @property
    def reliable_labels(self) -> list[str]:
        """All labels except roots and rare labels."""
        return [label for label in self.labels if label not in self.rare_labels]

    @cached_property
    def _cells(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """The rows of all seeds, by (title, label)."""
        cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows.to_dict("records"):
            cells.setdefault((row["title"], row["label"]), []).append(row)
        return cells

    def of(self, title: str, label: str) -> list[dict[str, Any]]:
        """Return the rows of an encoder and label, one for each seed."""
        return self._cells.get((title, label), [])

    def values(self, title: str, label: str, measure: str = "test") -> list[float]:
        """Return the values of a column for an encoder and label, one for each seed; NaN is left out."""
        return [row[measure] for row in self.of(title, label) if not math.isnan(row[measure])]

    def mean(self, title: str, label: str, measure: str = "test") -> float:
        """Return the mean over seeds of a column for an encoder and label; NaN if no seed has a value."""
        return statistics.mean(values) if (values := self.values(title, label, measure)) else math.nan

    def gap(self, title: str, label: str) -> float:
        """Return the mean accuracy of an encoder on a label minus that of STL, in points."""
        return self.mean(title, label) - self.mean(STL, label)

    @cached_property
    def seeds(self) -> dict[str, int]:
        """Title → number of seeds of the encoder."""
        return {str(title): int(count) for title, count in self.rows.groupby("title")["seed"].nunique().items()}


def modes(result: Result) -> list[str]:
    """Return the modes that were measured, with ``sound`` first."""
    return [mode for mode in MODES if (result.frames["labels"]["mode"] == mode).any()]


def panels(result: Result, mode: str) -> list[ProbePanel]:
    """Return a panel for each task of a mode. Encoders that were trained only for other tasks are left out."""
    labels = result.frames["labels"]
    tasks = {task.upper() for task in (*LAYERS, *labels["task"].unique())}
    all_panels = []
    for task in in_order(labels.loc[labels["mode"] == mode, "task"].unique()):
        rows_of_task = labels[(labels["mode"] == mode) & (labels["task"] == task)].sort_values("seed", kind="stable")
        kinds = {encoder: kind(encoder, task, tasks) for encoder in rows_of_task["encoder"].unique()}
        sort_keys = sorted(
            key
            for key in {_sort_key(*rank_and_title) for rank_and_title in kinds.values()}
            if key[0] < _FIRST_OF_OTHERS
        )
        titles = tuple(title for _, _, title in sort_keys)
        rows = rows_of_task.assign(
            title=rows_of_task["encoder"].map({encoder: title for encoder, (_, title) in kinds.items()})
        )
        if titles:
            all_panels.append(ProbePanel(task, mode, rows[rows["title"].isin(titles)], titles))
    return all_panels


def _sort_key(rank: int, title: str) -> tuple[int, int, str]:
    """Return the sort key of an encoder: its rank, then the order of the task in its title, then the title."""
    return rank, layer_order(title.removeprefix("+").removeprefix("STL-").lower())[0], title


def kind(encoder: str, task: str, tasks: Collection[str]) -> tuple[int, str]:
    """Return the rank of an encoder among the columns of a task, and its title there.

    Titles are pretrained, STL, +NER (trained jointly with NER), MTL-5, or STL-DEP (trained only on another task).

    Args:
        encoder: label of the encoder, such as POS+NER.
        task: the task of the panel.
        tasks: all tasks, in capitals.
    """
    name = task.upper()
    if encoder == PRETRAINED:
        return 0, PRETRAINED
    if encoder == name:
        return 1, STL
    plain, _, variant = encoder.partition(" (")
    parts = plain.split("+")
    if len(parts) == 2 and name in parts:
        return 2, "+" + next(part for part in parts if part != name) + (f" ({variant}" if variant else "")
    joint, _, task_name = encoder.partition(":")
    if task_name and task_name != name:
        return _FIRST_OF_OTHERS + 1, encoder
    if joint.startswith("MTL-") or (len(parts) > 2 and name in parts):
        return 3, joint if not task_name else f"{joint}, own gates"
    if encoder in tasks:
        return _FIRST_OF_OTHERS, f"STL-{encoder}"
    return (_FIRST_OF_OTHERS + 1 if len(parts) > 1 and set(parts) <= set(tasks) else 4), encoder


def probe_table(result: Result, mode: str, encoder: str | None = None, seed: int | None = None) -> pd.DataFrame:
    """Return a table of the accuracies of heads, with a row for each head and label.

    Args:
        result: a Result of ``read_probes`` or ``joined_results``.
        mode: mode of the probes.
        encoder: label of the encoder; all encoders if not given.
        seed: training seed; all seeds if not given.

    Returns:
        a table with the columns of RESULT, ``label``, ``layer``, ``head``, ``test`` (accuracy), ``gain`` (accuracy
        minus that of the label's best control, NaN without a control), ``rank`` of the head (1 is the best) among
        ``there`` heads, ``best`` (whether the head was chosen for the label), ``items``, ``few`` and ``apart``. The
        rows are sorted by encoder and head. Of the labels of a head, those with enough items come first. Within each
        of these two groups, labels on which the head exceeds every control come first, then labels for which it was
        chosen, then those with the best ranks.
    """
    keys = [*RESULT, "label"]
    labels, heads = result.frames["labels"], result.frames["accuracy"]
    is_wanted = (heads["mode"] == mode) & (heads["control"] == TRUE_LABELS) & heads["test"].notna()
    for name, value in (("encoder", encoder), ("seed", seed)):
        is_wanted &= True if value is None else heads[name] == value
    control = labels[list(CONTROLS)].max(axis=1)
    label_facts = labels[[*keys, "few", "apart"]].assign(reached=control)
    table = heads[is_wanted].merge(label_facts, on=keys).drop(columns=["control", "dev", "distance"])
    table["gain"] = table["test"] - table["reached"]
    groups = table.groupby(keys)["test"]
    table["rank"], table["there"] = groups.rank(method="min", ascending=False).astype(int), groups.transform("size")
    beyond = table["gain"] > 0
    order = {"place": table["few"] * 4 + ~beyond * 2 + ~table["best"] * 1, "more": -table["gain"].where(beyond, 0)}
    by = [*RESULT[:3], "layer", "head", "place", "rank", "more", "task", "label"]
    return table.assign(**order).sort_values(by, ignore_index=True).drop(columns=["place", "more"])
