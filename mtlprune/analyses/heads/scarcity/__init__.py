"""Does the gap between single tasks and joint training widen where heads are scarce?"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block

MEAN = "mean"
"""In the place of a task: the mean of all tasks."""


class ScarcityOptions(Block):
    """Settings of the comparison of gaps."""

    margin: float = Field(
        default=1.0, gt=0, description="Points by which the gap must widen; smaller changes count as none."
    )
    without: str = Field(default="", description="Also report the mean without this task.")
    groups: str = Field(
        default="",
        description="YAML file with titled groups of runs and the pairs of gaps to compare, instead of runs.",
    )
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of sentences.")


ANALYSIS = Analysis(
    name="scarcity",
    title="Gap between joint and single-task training",
    question="Does the gap between single tasks and joint training widen where heads are scarce?",
    help="""Compare the gap (joint minus single tasks) with few random heads open from the first update and with all.

    Name single-task and joint runs of each number of heads, with the same heads (pruning.draw); other settings, such as
    longer training or a narrower encoder as control, may be among them. A file (groups=FILE) names groups that differ
    in more than heads, such as precision, corpus or encoder.""",
    needs=frozenset({"scores"}),
    options=ScarcityOptions,
)
