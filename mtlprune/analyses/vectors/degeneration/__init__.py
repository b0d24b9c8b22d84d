"""Degeneration: do vectors fall into a cone, and do rare labels suffer from it? (Gao et al. 2019)"""

from pydantic import Field

from mtlprune.analyses.analysis import Analysis, Column
from mtlprune.io.block import Block


class DegenerationOptions(Block):
    """Options of ``analyze degeneration``: sample of words, corpora that count pieces, static vectors, permutations."""

    rows: int = Field(
        default=2000, ge=2, description="Number of words whose angles are measured (the same words for all encoders)."
    )
    counted: str = Field(
        default="",
        description="Corpora in whose training sentences pieces are counted, with commas between (that of --corpus, if "
        "not given).",
    )
    vectors: str = Field(
        default="",
        description="Files of static vectors to compare with, in the text format of word2vec, with commas between.",
    )
    permutations: int = Field(
        default=10_000, ge=1, description="Number of permutations of labels, and of heads within layers."
    )


ANALYSIS = Analysis(
    name="degeneration",
    title="Degeneration",
    question="Do vectors fall into a cone, and do rare labels suffer from it?",
    help="""Measure cones, spectra and isotropy of embeddings, hidden states, heads and label weights.

    The measures are mean cosine (R), angles, spectrum, effective rank and IsoScore. Embeddings are compared with the
    frequency of their pieces. With masked language models the analysis adds the loss on rare pieces and how far
    embeddings moved from their initial values. It shows where the mean vector comes from, by term and by head, whether
    rare labels lie in the cone, and whether labels that moved further lose more F1 in joint training.""",
    needs=frozenset({"encoders", "claims"}),
    options=DegenerationOptions,
    columns=(
        Column("cosine", "cosine of outputs", "mean cosine of two different outputs of the head"),
        Column("isoscore", "IsoScore", "IsoScore of the head's outputs"),
        Column("dimension", "TwoNN of outputs", "intrinsic dimension of the head's outputs"),
        Column("cone", "cone share", "share of the last layer's mean vector that the head gives"),
    ),
)
