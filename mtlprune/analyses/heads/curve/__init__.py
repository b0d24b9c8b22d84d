"""Analysis ``curve``: how few heads a task of a finished run needs, and which sets of heads are sufficient for it."""

from typing import Literal

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.block import Block


class CurveOptions(Block):
    """Options of ``analyze curve``: the orders in which heads are opened, and the controls of a set of heads."""

    selector: Literal["fisher", "importance", "both"] = Field(
        default="both",
        description="Selectors that rank heads. Sets are built with fisher, or with importance if it is the only "
        "selector.",
    )
    every: int = Field(default=6, ge=1, description="Step between the numbers of open heads that are scored.")
    closed: Closed = Field(
        default="zero",
        description="Output that replaces that of a closed head. Constants are computed on training sentences.",
    )
    margin: float = Field(
        default=1.0,
        gt=0,
        description="Largest loss in points, compared with all heads, with which a set of heads counts as sufficient.",
    )
    draws: int = Field(
        default=5, ge=1, description="Number of random orders, each of which permutes a ranking within layers."
    )
    tests: int = Field(
        default=19,
        ge=1,
        description="Number of random sets and random heads with which a set and its members are compared. p < 0.05 "
        "needs at least 19.",
    )
    train_sentences: int = Field(
        default=512, ge=2, description="Number of training sentences on which heads are ranked."
    )
    resamples: int = Field(default=2000, ge=1, description="Number of resamples of seeds and sentences.")

    @property
    def selectors(self) -> tuple[str, ...]:
        """Names of the selectors that rank heads; the first one builds the sets."""
        return ("fisher", "importance") if self.selector == "both" else (self.selector,)


ANALYSIS = Analysis(
    name="curve",
    title="How few heads a task needs",
    question="How few heads does a task need, and how many separate sets of heads are sufficient?",
    help="""Score each task of finished runs with only the k best heads open.

    Fisher information, importance and, with --claims, gates rank the heads. Random and reverse orders are the controls.
    The analysis then finds the smallest set of heads that is as good as all heads within a margin. It tests whether the
    task needs the set and each of its members, and counts the sufficient sets without a common head. Nothing
    is trained. Every point is an evaluation of the split, which --sentences 500 makes shorter.""",
    needs=frozenset({"encoders", "decoders", "processes", "claims"}),
    options=CurveOptions,
)
