"""Does a treatment close the gap between single tasks and joint training, and does it matter which heads it treats?"""

from pathlib import Path

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block


class TreatmentsOptions(Block):
    """Settings of the comparison of scores."""

    margin: float = Field(
        default=0.3, gt=0, description="Points of the mean score below which a difference counts as none."
    )
    primary: str = Field(
        default="clone,dispatch", description="Treatments whose random controls are the primary comparison (Holm)."
    )
    costs: Path | None = Field(
        default=None,
        description="JSON whose `ratios` give, for the name of a setting's runs, the cost of an update over the joint "
        "one.",
    )
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of seeds and sentences.")


ANALYSIS = Analysis(
    name="treatments",
    title="Treatments",
    question="Does a treatment close the gap between single tasks and joint training?",
    help="""Compare treated joint runs with joint runs, single tasks and controls, by the mean of all tasks' scores.

    Name single-task runs, the joint runs of the same settings, and everything to be compared with them.""",
    needs=frozenset({"scores"}),
    options=TreatmentsOptions,
)
