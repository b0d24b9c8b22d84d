"""All that is known of each head side by side, and which of it goes together within layers."""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.block import Block


class HeadsOptions(Block):
    """The encoder that is read, and settings of the comparison of columns."""

    of: str = Field(default="pretrained", description="Label of the encoder that is read in results of analyses.")
    closed: Closed | None = Field(default=None, description="What a closed head contributes if runs have no gates.")
    permutations: int = Field(default=9999, ge=1, description="Number of permutations of heads within layers.")


ANALYSIS = Analysis(
    name="heads",
    title="Every head",
    key="head-table",
    question="All heads in one table, with every measure of each.",
    help="""Join claims and gates of runs with the measures of analyses into one table, with one row for each head.

    Name runs with gates and folders of probes and other analyses. Columns are correlated within layers (Spearman, heads
    permuted within layers, corrected). With closed=zero, mean, resample or optimal, also name finished runs without
    gates. The table then has a column that shows how much each task's loss rises with each head closed alone. `mtlprune
    analyze head RUN head=3-7` shows one head with its attention.""",
    needs=frozenset({"results"}),
    options=HeadsOptions,
)
