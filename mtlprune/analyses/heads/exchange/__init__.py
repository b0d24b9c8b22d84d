"""Analysis ``exchange``: through which heads a change of one layer of annotation reaches a task's decision.

The outputs of heads are exchanged between two sentences that differ in this layer only (interchange intervention).
"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis, Column
from mtlprune.io.block import Block

STEM = "three or more"
"""Value that stands for a label in rows about the heads that at least three single tasks claim."""

MIN_PAIRS = 6
"""The fewest pairs with which a sign test can reach p < 0.05: five pairs that agree have a two-sided p of 2/2⁵."""


class ExchangeOptions(Block):
    """Options of ``analyze exchange``: the pairs of sentences, and the random heads of the control."""

    pairs: int = Field(
        default=200, ge=MIN_PAIRS, description="Number of pairs of sentences that differ in one layer, for each layer."
    )
    natural: str = Field(
        default="",
        description="Split of --corpus whose sentences are paired with copies in which a name (NER) or a modifier "
        "(SRL) is swapped for a span with another label (generated sentences, if not given).",
    )
    draws: int = Field(default=20, ge=2, description="Number of random sets with as many heads in each layer.")
    single: bool = Field(default=True, description="Also exchange each single head, which takes most of the time.")
    resamples: int = Field(default=10_000, ge=1, description="Number of resamples of pairs.")


ANALYSIS = Analysis(
    name="exchange",
    title="Exchange of heads' outputs between paired sentences",
    question="Through which heads does a change of a task's decision pass?",
    help="""Measure through which heads a change of a task's decision passes, with pairs of sentences.

    The two sentences of a pair differ in one layer of annotation only. The outputs of the heads that each task claims
    (--claims), or of one head, are taken from one sentence and put into the other. The result is the share of the
    change of the task's decision that passes through these heads, compared with as many random heads of the same
    layers. Nothing is trained. Sentences are generated, and the corpus only identifies the data of the runs. With
    natural=SPLIT, sentences come from the corpus.""",
    needs=frozenset({"encoders", "generated", "decoders", "processes", "claims"}),
    options=ExchangeOptions,
    columns=(
        Column(
            "share",
            "share of change",
            "mean over tasks of the share of a decision's change that passes through the head",
        ),
    ),
)
