"""Overlap of claims: do tasks keep the same heads open, beyond what the depth of layers explains? (He and Choi 2021)"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block


class ClaimsOptions(Block):
    """The size of permutation tests."""

    permutations: int = Field(default=10_000, ge=0, description="How many, for each null.")


ANALYSIS = Analysis(
    name="claims",
    title="Claimed heads: overlap and stability",
    question="Do tasks claim the same heads, and would other seeds?",
    help="Compare which heads runs claim: stability, shared heads and their p-values, variance, stem heads.",
    needs=frozenset({"runs"}),
    options=ClaimsOptions,
    columns=None,
)
