"""Analysis ``gradients``: how much each task needs each head, and whether tasks' gradients agree.

The importance of heads follows Michel, Levy and Neubig (2019).
"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block

HALVES = ("half 1", "half 2")
"""Modes of maps on random halves of the sentences. Differences between the halves are noise of the data only."""
ALL_TASKS = "all tasks"
"""Value that stands for a task in the map of the sum of a joint run's losses."""


class GradientOptions(Block):
    """Options of ``analyze gradients``: the size of the tests that compare maps of importance."""

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
