"""Analysis ``scarcity``: whether joint training costs more points if heads are scarce."""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block


class ScarcityOptions(Block):
    """Options of ``analyze scarcity``: the runs that are paired, and the comparison of their Δ."""

    margin: float = Field(default=1.0, gt=0, description="Smallest fall of Δ, in points, that counts as a change.")
    without: str = Field(default="", description="Task without which the mean is also reported.")
    groups: str = Field(
        default="",
        description="YAML file that names groups of runs and the pairs of groups to compare. It replaces RUNS.",
    )
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of sentences.")


ANALYSIS = Analysis(
    name="scarcity",
    title="Joint minus single-task scores",
    question="Does joint training cost more points where heads are scarce?",
    help="""Compare Δ, the joint minus the single-task score, with few random heads open and with all heads open.

    The heads are closed from the first update. Name single-task and joint runs with each number of heads, and with the
    same heads on both sides (pruning.draw). Runs with other settings may be added, such as longer training or a
    narrower encoder as a control. A file (groups=FILE) names groups that also differ in precision, corpus or
    encoder.""",
    needs=frozenset({"scores"}),
    options=ScarcityOptions,
)
