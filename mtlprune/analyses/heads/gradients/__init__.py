"""How much does each task need each head, and do tasks pull its weights one way? (Michel et al. 2019)"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block

HALVES = ("half 1", "half 2")
"""Halves of the sentences, drawn by the seed: what differs between them is noise. They are no training seeds."""
ALL_TASKS = "all tasks"
"""The map of the sum of a joint run's losses, beside those of its tasks."""


class GradientOptions(Block):
    """Settings of the comparison of importance maps."""

    permutations: int = Field(default=1999, ge=1, description="Number of permutations of heads within layers.")


ANALYSIS = Analysis(
    name="gradients",
    title="Gradients on heads",
    question="How much does each task need each head, and do the gradients of tasks agree?",
    help="""Measure the importance of every head for each task of a run.

    Importance is the mean |∂L/∂ξ| over sentences, where ξ is a factor on the head's output. Two halves of the sentences
    show how much of the importance is noise. In joint runs the analysis also computes the cosine of two tasks'
    gradients on the weights of each head. Nothing is trained.""",
    needs=frozenset({"encoders", "decoders", "processes"}),
    options=GradientOptions,
    columns=None,
)
