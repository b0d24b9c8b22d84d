"""Probes: what every head knows, without a single trained parameter, and with controls beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block

if TYPE_CHECKING:
    from pandas import DataFrame

SOUND, AS_RELEASED = "sound", "as-released"
MODES = (SOUND, AS_RELEASED)
TRUE_LABELS, SHUFFLED = "none", "shuffled_labels"
"""Labels of the items, true or shuffled: in results also the names of the probe itself and of a control."""
RANDOM, OFFSET, CHANCE = "random_encoder", "offset", "chance"
CONTROLS = {RANDOM: "random encoder", SHUFFLED: "shuffled labels", OFFSET: "best offset", CHANCE: "chance"}
"""Control → what readers call it."""
ATTENTION, CENTROID = ("tree", "frames"), ("tags", "spans", "brackets", "label")
"""The kinds of layers that either probe reads."""
RESULT = ["encoder", "run", "seed", "mode", "task"]
"""Columns that say which heads were probed, how, and on what."""


class ProbeOptions(Block):
    """Settings of probes."""

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
    """The head chosen for each label, and what is left out.

    Args:
        accuracy: the frame of that name, with a row for each encoder, mode, control, label and head.

    Returns:
        the frame ``labels``: RESULT, ``label``, ``layer`` and ``head`` of the one that was chosen, ``items``, ``test``
        (its accuracy), a column for each control (that of its own best head), ``distance`` of the best offset, ``gain``
        over the best control (with four decimals, so that a tie is none), ``few``, and ``apart`` for roots,
        which are found by attention to the first special token, where attention rests anyway; and notes, in sentences.
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
