"""Where do logged curves bend? Breaks in order, and lags between breaks of the same heads (Chen et al. 2024)."""

from typing import Literal

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block

Axis = Literal["step", "log"]
"""How far steps lie apart."""


class BreaksOptions(Block):
    """How slopes are compared."""

    axis: Axis = Field(default="step", description="log for curves logged on a log schedule.")
    permutations: int = Field(default=9999, ge=1, description="Of heads within layers, for lags.")


ANALYSIS = Analysis(
    name="breaks",
    title="Breaks",
    key="breaks",
    question="Where does a logged curve bend?",
    help="""The step of every curve's largest acceleration, the earliest first; lags between breaks of the same heads.

    A run's folder gives its losses, dev scores and gates. Curves of several logs are ordered together.""",
    needs=frozenset({"logs"}),
    options=BreaksOptions,
)
