"""Analysis ``roles``: which heads help a task and hinder another, by two-sided gates or by closing each head alone.

Two-sided gates are those of Nam et al. (2025, arXiv 2505.13737).
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from mtlprune.analyses.analysis import Analysis, Column
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.block import Block

STL = "single tasks"
"""Value that stands for an encoder in rows that combine the single-task runs of one seed."""
GAIN = 0.3
"""The least mean gain, in points, that competition for heads predicts if heads that interfere with a task are closed
for this task (results/fight/PLAN.md)."""
ROLES = ("facilitating", "interfering", "irrelevant")


_SINGLE_OPTIONS = ("max_chosen", "confirmed", "scored")
"""Options about closing=single, which gates refuse."""
_GATE_OPTIONS = ("updates", "rate", "strength", "batch", "train_sentences", "selections", "permutations")
"""Options about gates, which closing=single refuses."""


class RoleOptions(Block):
    """Options of ``analyze roles``: the fit of gates, the closing of heads, and the tests of conflicts and gains."""

    closing: Literal["conflicts", "single"] = Field(
        default="conflicts",
        description="With conflicts, the heads that gates name are closed. With single, each head is closed by itself, "
        "without gates. Heads are then chosen on one half of the sentences and confirmed on the other half.",
    )
    updates: int = Field(default=60, ge=1, description="Number of updates of each of the three fits.")
    rate: float = Field(default=0.3, gt=0, description="Learning rate of Adam.")
    strength: float = Field(
        default=0.05, gt=0, description="Strength λ with which gates are pushed open and then closed."
    )
    batch: int = Field(default=32, ge=1, description="Number of sentences in an update.")
    train_sentences: int = Field(
        default=1000, ge=2, description="Number of training sentences to which gates are fitted."
    )
    selections: int = Field(
        default=2, ge=1, description="Number of fits with different batches, all of which must agree on a role."
    )
    closed: Closed = Field(
        default="zero", description="Output that replaces that of a closed head (docs/methods/gates.md)."
    )
    draws: int = Field(
        default=5,
        ge=1,
        description="Number of random sets that are closed for comparison, with as many heads in each layer.",
    )
    max_chosen: int | None = Field(
        default=None,
        ge=1,
        description="Largest number of heads that are chosen for a task with closing=single, those with the largest "
        "gains. By default there is no limit.",
    )
    confirmed: Literal["all", "chosen"] = Field(
        default="all",
        description="Heads that closing=single closes on the second half of the sentences. With chosen, these are only "
        "the heads that were chosen for a task, which takes about half of the time.",
    )
    scored: str | None = Field(
        default=None,
        description="Split on which closing=single measures the gain from closing the confirmed heads together. By "
        "default these are the sentences that confirm heads.",
    )
    permutations: int = Field(default=1999, ge=1, description="Number of permutations of heads within layers.")
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of seeds, sentences and draws.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_options_without_effect(cls, value: Any) -> Any:
        """Refuse options about gates together with closing=single, and the reverse."""
        if isinstance(value, dict):
            single = value.get("closing") == "single"
            reason = "closing=single fits no gates" if single else "only closing=single chooses heads on halves"
            for name in _GATE_OPTIONS if single else _SINGLE_OPTIONS:
                if name in value:
                    raise ValueError(f"{reason}, so {name} has no effect; leave it out")
        return value


ANALYSIS = Analysis(
    name="roles",
    title="Roles of heads",
    question="Does a head that helps one task hinder another?",
    help="""Find heads that help a task of a finished run, and heads that hinder it.

    Soft gates show the role of a head for each task. A head helps a task if its gate stays open when it is pushed
    closed. It hinders the task if its gate stays closed when it is pushed open. Otherwise the head does not matter.
    closing=single closes each head by itself instead. A conflict head helps one task and hinders another. The number of
    conflict heads is compared with heads permuted within layers and with single-task runs. Tasks compete for heads only
    if closing conflict heads for one task improves this task.""",
    needs=frozenset({"encoders", "decoders", "processes"}),
    options=RoleOptions,
    columns=(
        Column("facilitating", "facilitating", "degree to which the head stays open when pushed closed, mean of tasks"),
        Column("interfering", "interfering", "degree to which the head stays closed when pushed open, mean of tasks"),
        Column("gain", "gain of closing it", "points that a task gains, with closing=single; mean of halves and tasks"),
    ),
)
