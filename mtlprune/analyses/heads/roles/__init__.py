"""Roles of heads by two-sided gates (Nam et al. 2025, arXiv 2505.13737), and heads that tasks of one run fight over."""

from typing import Any, Literal

from pydantic import Field, model_validator

from mtlprune.analyses.analysis import Analysis, Column
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.block import Block

STL = "single tasks"
"""In the place of an encoder: the single-task runs of one seed together."""
MEAN = "mean"
"""In the place of a task: the mean over tasks with conflict heads."""
GAIN = 0.3
"""Points that tasks gain at least, in the mean, where heads that interfere with them are closed, if tasks fight over
heads (results/fight/PLAN.md)."""
ROLES = ("facilitating", "interfering", "irrelevant")


GATES = ("updates", "rate", "strength", "batch", "train_sentences", "selections", "permutations")
"""Settings of gates, which closing each head alone does without."""


class RoleOptions(Block):
    """Settings of the fit of two-sided gates and of the null that conflicts are compared with."""

    closing: Literal["conflicts", "single"] = Field(
        default="conflicts",
        description="conflicts: heads that gates name; single: each head alone, without gates, chosen on one half of "
        "the sentences and confirmed on the other.",
    )
    updates: int = Field(default=60, ge=1, description="Number of updates of each of the three fits.")
    rate: float = Field(default=0.3, gt=0, description="Learning rate of Adam.")
    strength: float = Field(default=0.05, gt=0, description="λ: how hard gates are pushed open, then closed.")
    batch: int = Field(default=32, ge=1, description="Sentences of an update.")
    train_sentences: int = Field(
        default=1000, ge=2, description="Number of training sentences to which gates are fitted."
    )
    selections: int = Field(
        default=2, ge=1, description="Number of fits with other batches, all of which must agree on a role."
    )
    closed: Closed = Field(default="zero", description="What a closed head contributes (docs/methods/gates.md).")
    draws: int = Field(default=5, ge=1, description="Random closings of as many heads of the same layers.")
    permutations: int = Field(default=1999, ge=1, description="Number of permutations of heads within layers.")
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of seeds, sentences and draws.")

    @model_validator(mode="before")
    @classmethod
    def _used(cls, value: Any) -> Any:
        """Refuse a setting of gates where there are none."""
        if isinstance(value, dict) and value.get("closing") == "single":
            for name in GATES:
                if name in value:
                    raise ValueError(f"closing=single fits no gates, so {name} would change nothing; leave it out")
        return value


ANALYSIS = Analysis(
    name="roles",
    title="Roles of heads",
    question="Does a head that helps one task hinder another?",
    help="""Find heads that help a task of a finished run, and heads that hinder it.

    Soft gates show the role of a head for each task: it helps (its gate stays open when pushed closed), it hinders (its
    gate closes when pushed open), or it does not matter. closing=single closes each head alone instead. A conflict head
    helps one task and hinders another. Its number is compared with heads permuted within layers and with single-task
    runs. Heads compete only if closing a task's conflict heads for this task alone improves it.""",
    needs=frozenset({"encoders", "decoders", "processes"}),
    options=RoleOptions,
    columns=(
        Column("facilitating", "facilitating", "how far it stays open when pushed closed, mean of tasks"),
        Column("interfering", "interfering", "how far it stays closed when pushed open, mean of tasks"),
        Column("gain", "gain of closing it", "points of a task, with closing=single; mean of halves and tasks"),
    ),
)
