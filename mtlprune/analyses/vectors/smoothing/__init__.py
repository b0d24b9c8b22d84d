"""Over-smoothing: do token vectors become alike, and which heads cause this? (Shi et al. 2022)"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis, Column
from mtlprune.io.block import Block


class SmoothingOptions(Block):
    """Options of ``analyze smoothing``: how many sentences head closing uses, and how many permutations tests draw."""

    closing: int = Field(default=64, ge=0, description="Number of sentences in which each head is closed in turn.")
    permutations: int = Field(
        default=199, ge=1, description="Number of permutations of labels within sentences, for each task."
    )


ANALYSIS = Analysis(
    name="smoothing",
    title="Over-smoothing",
    key="over-smoothing",
    question="Do token vectors become alike, and through which heads?",
    help="""Measure how similar tokens are in each layer, which bounds limit their similarity, and how heads change it.

    The analysis computes CosSim and d_M of layers and of fused vectors, and compares the ratio of d_M from layer to
    layer with two bounds on it. It compares the share of spread between gold labels with chance. It measures λ,
    amplification and the effect of closing each head, and, if --claims names runs with gates, compares heads that tasks
    claim with others of the same layers.""",
    needs=frozenset({"encoders", "corpora", "claims"}),
    options=SmoothingOptions,
    columns=(
        Column("mixing", "λ", "degree to which the head's attention mixes tokens"),
        Column("amplification", "amplification", "√λ ‖W_O W_V‖"),
        Column("effect", "closing: d_M after layer", "log d_M after the layer, head open minus closed"),
        Column("effect_last", "closing: d_M at end", "log d_M after the last layer, head open minus closed"),
    ),
)
