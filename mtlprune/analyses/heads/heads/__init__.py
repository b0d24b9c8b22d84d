"""Analysis ``heads``: one table of everything known about each head, and correlations of its columns within layers."""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.block import Block


class HeadsOptions(Block):
    """Options of ``analyze heads``: the encoder that is read, and the comparison of columns."""

    of: str = Field(default="pretrained", description="Label of the encoder whose results of analyses are read.")
    closed: Closed | None = Field(
        default=None, description="Output that replaces that of a closed head, for runs without gates."
    )
    permutations: int = Field(default=9999, ge=1, description="Number of permutations of heads within layers.")


ANALYSIS = Analysis(
    name="heads",
    title="Every head",
    key="head-table",
    question="Which values do all measures take for each head?",
    help="""Join claims and gates of runs with the measures of analyses into one table, with one row for each head.

    Name runs with gates and folders of probes and other analyses. Columns are correlated within layers by Spearman's
    correlation. Its p permutes heads within layers and is corrected. With closed=zero, mean, resample or optimal, also
    name finished runs without gates. The table then has a column that shows how much each task's loss rises with each
    head closed by itself. `mtlprune analyze head RUN head=3-7` shows one head with its attention.""",
    needs=frozenset({"results"}),
    options=HeadsOptions,
)
