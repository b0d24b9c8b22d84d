"""Analysis ``speed``: how long a run takes with its closed heads masked, and with these heads removed."""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis
from mtlprune.io.block import Block


class SpeedOptions(Block):
    """Options of ``analyze speed``: the sizes and numbers of batches, and the number of repetitions."""

    sizes: list[int] = Field(default=[1, 32], min_length=1, description="Numbers of sentences in a batch.")
    batches: int = Field(
        default=12, ge=1, description="Number of batches of each size, from the longest sentences to the shortest."
    )
    rounds: int = Field(
        default=5, ge=1, description="Number of repetitions, of which the fastest of each batch counts."
    )


ANALYSIS = Analysis(
    name="speed",
    title="What removing closed heads saves",
    question="How much faster is a run without its closed heads?",
    help="""Time finished runs with gates in three forms, with all heads open, closed heads masked, and closed heads
    removed.

    Closed heads are removed from the weights. The three forms are interleaved, batch by batch. On a CPU the time is the
    processor time of one thread, in 32-bit numbers. `mtlprune table RUNS --speed DIR` adds a column to the table of
    scores.""",
    needs=frozenset({"encoders", "decoders"}),
    options=SpeedOptions,
)
