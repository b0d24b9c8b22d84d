"""Analysis ``claims``: do tasks keep the same heads open, beyond what layer depth explains? (He and Choi 2021)"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block


class ClaimsOptions(Block):
    """Options of ``mtlprune claims``: how many permutations its tests draw."""

    permutations: int = Field(default=10_000, ge=0, description="Number of permutations of each test.")


ANALYSIS = Analysis(
    name="claims",
    title="Claimed heads: overlap and stability",
    question="Do tasks and seeds claim the same heads?",
    help="Compare which heads runs claim, by stability, shared heads with p-values, variance and stem heads.",
    needs=frozenset({"runs"}),
    options=ClaimsOptions,
    columns=None,
)
