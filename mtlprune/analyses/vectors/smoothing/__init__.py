"""Over-smoothing: do token vectors grow alike, and which heads make them so? (Shi et al. 2022)"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis, Column
from mtlprune.io.block import Block


class SmoothingOptions(Block):
    """The numbers of sentences in which heads are closed, and of permutations."""

    closing: int = Field(default=64, ge=0, description="Sentences in which each head is closed in turn.")
    permutations: int = Field(
        default=199, ge=1, description="Number of permutations of labels within sentences, for each task."
    )


ANALYSIS = Analysis(
    name="smoothing",
    title="Over-smoothing",
    key="over-smoothing",
    question="Do token vectors grow alike, and through what?",
    help="""Similarity of tokens by layer, what bounds it, how much of it is within labels, and what heads do to it.

    CosSim and d_M of layers and of fused vectors, the ratio of d_M from layer to layer beside two bounds on it; the
    share of spread between gold labels beside chance; λ, amplification and the measured effect of closing each
    head, between heads that tasks claim and others of the same layers where --claims names runs with gates.""",
    needs=frozenset({"encoders", "corpora", "claims"}),
    options=SmoothingOptions,
    columns=(
        Column("mixing", "λ", "how much the head's attention mixes tokens"),
        Column("amplification", "amplification", "√λ ‖W_O W_V‖"),
        Column("effect", "closing: d_M after layer", "log d_M after the layer, head open minus closed"),
        Column("effect_last", "closing: d_M at end", "log d_M after the last layer, head open minus closed"),
    ),
)
