"""Equal training loss: does joint training optimise more slowly, or does it generalise worse?"""

from typing import Literal

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block

UPDATES, LOSS = "equal updates", "equal training loss"
"""Values of the column ``mode``: the quantity in which the joint and single-task runs of a difference agree."""

SLOWER, WORSE = 0.15, 0.4
"""Joint training only optimises more slowly if at most the first share of its cost remains at equal training loss, and
generalises worse if at least the second remains (results/why/PLAN.md, experiment 2)."""


class EqualLossOptions(Block):
    """Options of ``analyze equal_loss``."""

    curve: Literal["cubic", "linear"] = Field(
        default="cubic",
        description="Interpolation between single-task runs, over the logarithm of the training loss: monotone cubic "
        "or linear.",
    )
    without: str = Field(default="", description="Task without which the mean and its share are also reported.")
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of sentences.")


ANALYSIS = Analysis(
    name="equal_loss",
    title="Equal training loss",
    question="Does joint training optimise more slowly, or does it generalise worse?",
    help="""Compare joint runs with single-task runs of the same training loss, and of the same number of updates.

    Name single-task runs with several numbers of updates, each with a complete schedule, and joint runs. All runs need
    train.log_train_loss. The distance of a joint run from the single tasks' curve of score against training loss is the
    part of its cost that a higher training loss does not explain.""",
    needs=frozenset({"scores"}),
    options=EqualLossOptions,
)
