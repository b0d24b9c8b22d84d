"""Analysis ``treatments``: whether treatments close the gap between single-task and joint training.

Controls with other heads test whether it matters which heads are treated.
"""

from pathlib import Path

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block


class TreatmentsOptions(Block):
    """Options of ``analyze treatments``: the comparison of scores, and the costs of settings."""

    margin: float = Field(
        default=0.3, gt=0, description="Difference of mean scores, in points, below which two settings count as equal."
    )
    primary: str = Field(
        default="clone,dispatch",
        description="Treatments whose comparison with random controls is primary and corrected by Holm.",
    )
    costs: Path | None = Field(
        default=None,
        description="JSON file whose `ratios` give the cost of an update of a setting, by the name of its runs, as a "
        "multiple of that of a joint update.",
    )
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of seeds and sentences.")


ANALYSIS = Analysis(
    name="treatments",
    title="Treatments",
    question="Does a treatment close the gap between single tasks and joint training?",
    help="""Compare treated joint runs with joint runs, single tasks and controls, by the mean of all tasks' scores.

    Name single-task runs, the joint runs of the same settings, and the treated runs and controls to compare with
    them.""",
    needs=frozenset({"scores"}),
    options=TreatmentsOptions,
)
