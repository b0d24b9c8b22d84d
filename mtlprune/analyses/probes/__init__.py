"""The analysis ``probes``: which labels each attention head identifies, without any trained parameter.

This file holds the record of the analysis, its options, and the names that the measurement (``measure.py``) and the
views (``reading.py``, ``show.py``) share. It does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block

if TYPE_CHECKING:
    from pandas import DataFrame

SOUND, AS_RELEASED = "sound", "as-released"
"""Modes of the probes: with held-out data (centroids from train, heads chosen on dev, accuracy on test), or, as in the
code that He and Choi (2021) released, everything on the test split."""
MODES = (SOUND, AS_RELEASED)
TRUE_LABELS, SHUFFLED = "none", "shuffled_labels"
"""The labelling of the items: true labels, or labels shuffled among the items as a control. The frame ``accuracy``
writes these names into its column ``control``, where ``none`` marks the probe itself."""
RANDOM, OFFSET, CHANCE = "random_encoder", "offset", "chance"
CONTROLS = {RANDOM: "random encoder", SHUFFLED: "shuffled labels", OFFSET: "best offset", CHANCE: "chance"}
"""Name of each control in frames → its name in tables and sentences."""
ATTENTION, CENTROID = ("tree", "frames"), ("tags", "spans", "brackets", "label")
"""The kinds of corpus layers that the attention probe reads, and those that the centroid probe reads."""
RESULT = ["encoder", "run", "seed", "mode", "task"]
"""The columns that identify a probed encoder, the mode, and the task."""


class ProbeOptions(Block):
    """Options of ``analyze probes``."""

    mode: Literal["sound", "as-released", "both"] = Field(
        default="sound",
        description="With sound, centroids come from train and heads are chosen on dev. With as-released, both come "
        "from test.",
    )
    train_sentences: int | None = Field(
        default=None, ge=1, description="Number of random training sentences (all, if not given)."
    )
    layers: str | None = Field(
        default=None, description="Layers that are probed, with commas between (all, if not given)."
    )
    few: int = Field(default=20, ge=1, description="Number of test items below which a label is marked.")
    random_encoder: bool = Field(default=True, description="Also probe each encoder with random weights.")
    against: str | None = Field(
        default=None,
        description="CSV table of published numbers to compare with, or FILE:ENCODER if the table has several "
        "encoders.",
    )


ANALYSIS = Analysis(
    name="probes",
    title="What heads know",
    key="heads-know",
    question="Which labels does each head identify, without any training?",
    help="""Probe all heads of encoders and runs for every layer of a corpus, without training.

    Trees and predicates (DEP, SRL) are probed by the word that each word attends to most. Tags, spans and phrases (POS,
    NER, CON) are probed by the nearest centroid of a head's output. Controls are the same encoder with random weights,
    shuffled labels, the best fixed offset, and chance.
    """,
    needs=frozenset({"encoders", "splits"}),
    options=ProbeOptions,
    columns=None,
)


def labels_of(accuracy: DataFrame, min_items: int, kinds: Mapping[str, str]) -> tuple[DataFrame, list[str]]:
    """Return a table with the chosen head of each label and its controls, and notes on labels without a chosen head.

    Args:
        accuracy: the frame ``accuracy``, with a row for each encoder, mode, control, label and head.
        min_items: labels with fewer test items are marked as ``few``.
        kinds: task → kind of its corpus layer.

    Returns:
        the frame ``labels`` and a list of notes in sentences. The frame has the columns of RESULT, ``label``, ``layer``
        and ``head`` of the chosen head, ``items`` (test items), ``test`` (accuracy of the head), a column for each
        control (the accuracy of the control's best head), ``distance`` of the best offset, ``gain`` (accuracy minus the
        best control, rounded to four decimals so that a tie has a gain of 0), ``few``, and ``apart``. The last column
        marks the roots of trees: a head finds a root by attending to the first special token, to which heads often
        attend without a reason.
    """
    keys = [*RESULT, "label"]
    best = accuracy[accuracy["best"] & accuracy["test"].notna()]
    probe, controls = best[best["control"] == TRUE_LABELS], best[best["control"] != TRUE_LABELS]
    reached = controls.pivot(index=keys, columns="control", values="test").reindex(columns=list(CONTROLS))
    distances = controls.loc[controls["control"] == OFFSET].set_index(keys)["distance"]
    best_heads = probe.drop(columns=["control", "dev", "best", "distance"]).join(reached, on=keys)
    best_heads = best_heads.join(distances, on=keys).assign(few=best_heads["items"] < min_items)
    best_heads["gain"] = (best_heads["test"] - best_heads[list(CONTROLS)].max(axis=1)).round(4)
    roots = best_heads["task"].map(lambda task: kinds.get(task) == "tree") & (best_heads["label"].str.lower() == "root")
    probed = accuracy.loc[accuracy["control"] == TRUE_LABELS, keys].drop_duplicates()
    labels_without_head = probed[
        probed.merge(probe[keys], how="left", indicator=True)["_merge"].to_numpy() == "left_only"
    ]
    why = "there is no item on which a head is chosen, or none on which it is tested"
    notes = [
        f"{task.upper()}: {', '.join(labels.unique())} are left out ({why})."
        for task, labels in labels_without_head.groupby("task", sort=False)["label"]
    ]
    return best_heads.assign(apart=roots).reset_index(drop=True), notes
