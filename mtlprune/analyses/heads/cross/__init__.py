"""Analysis ``cross``: how much it costs every task if the heads that one task claims are closed."""

from pydantic import Field, model_validator

from mtlprune.analyses.analysis import Analysis
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.block import Block

ALL_TASKS = "mean of tasks"
"""Value that stands for a label in rows with the mean over all labels."""
PREDICTED_TASKS, OTHER_TASKS = "mean of predicted tasks", "mean of other tasks"
"""Values that stand for a label in rows with the mean over the tasks of the option ``specific``, or over the others."""


class CrossOptions(Block):
    """Options of ``analyze cross``: the closing of heads, its random control, and the comparison of scores."""

    closed: Closed = Field(
        default="zero",
        description="Output that replaces that of a closed head. Constants are computed on training sentences.",
    )
    factor: float | None = Field(
        default=None,
        ge=0,
        description="Factor by which the output of a head is multiplied, instead of closing the head. A factor above 1 "
        "amplifies the head.",
    )
    draws: int = Field(
        default=5,
        ge=2,
        description="Number of random sets that are closed for comparison, with as many heads in each layer.",
    )
    exclusive: bool = Field(
        default=True,
        description="Whether to also close, separately, the claimed heads that no other single task claims, and those "
        "that another single task also claims. The analysis then takes up to three times as long.",
    )
    claimed_only: bool = Field(
        default=False,
        description="Whether to also score the runs of a single task with no head open but those that the task claims, "
        "with no head open but random ones, and with no head open at all.",
    )
    margin: float = Field(default=1.0, gt=0, description="Difference in points below which two scores count as equal.")
    specific: str = Field(
        default="",
        description="Tasks whose claims are predicted to be specific, such as pos,dep. The analysis adds the mean over "
        "these tasks and the mean over the others.",
    )
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of seeds and sentences.")

    @model_validator(mode="after")
    def _refuse_options_of_closed_heads(self) -> "CrossOptions":
        """Refuse options about closed heads together with a factor."""
        if self.factor is not None and self.closed != "zero":
            raise ValueError(f"with a factor no head is closed, so closed={self.closed} has no effect; leave it out")
        if self.factor is not None and self.claimed_only:
            raise ValueError("with a factor no head is closed; leave out claimed_only or factor")
        if self.factor is not None and self.specific:
            raise ValueError("specificity compares losses by closed heads; leave out specific or factor")
        return self


ANALYSIS = Analysis(
    name="cross",
    title="Closing one task's heads in every task's runs",
    question="Does a task need the heads that another task claims?",
    help="""Close the heads that each task claims (--claims) in finished runs of every task, and score the runs.

    The analysis also closes the heads that only one task claims, and the heads that several tasks claim. Each set is
    compared with as many random heads of the same layers. With claimed_only=true it also closes all heads but those
    that a task claims. Nothing is trained.""",
    needs=frozenset({"encoders", "decoders", "processes", "claims"}),
    options=CrossOptions,
)
