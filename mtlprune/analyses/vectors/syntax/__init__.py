"""Syntactic attention: which heads attend along dependency arcs? (Chen et al. 2024)"""

from pathlib import Path

from pydantic import Field

from mtlprune.analyses.analysis import Analysis, Column
from mtlprune.io.block import Block


class SyntaxOptions(Block):
    """Options of ``analyze syntax``: minimal pairs of BLiMP, which are scored in addition to trees."""

    blimp: Path | None = Field(
        default=None, description="Folder that data_scripts/blimp.py made, whose minimal pairs are also scored."
    )
    pairs: int | None = Field(
        default=None, ge=1, description="Number of pairs of each paradigm of BLiMP (all, if not given)."
    )


ANALYSIS = Analysis(
    name="syntax",
    title="Syntactic attention",
    question="Which heads attend along dependency arcs?",
    help="""Measure the UAS of every head, relation and direction, compared with the best fixed offset.

    The corpus must have trees. Heads are chosen on all sentences, as published, and also on one half of the sentences
    and scored on the other. The analysis also measures dimensions of sentences, and minimal pairs with blimp=DIR.""",
    options=SyntaxOptions,
    columns=(
        Column("uas", "UAS", "percentage of words whose head is found, in the better direction"),
        Column("uas dep->head", "UAS dep->head", "UAS of the word to which the dependent attends most", tested=False),
        Column("uas head<-dep", "UAS head<-dep", "UAS of the word that attends most to the dependent", tested=False),
        Column("weight", "weight on arcs", "mean attention weight on gold arcs, in percent"),
        Column("twonn", "TwoNN", "intrinsic dimension of the head's mean output of a sentence"),
    ),
)
