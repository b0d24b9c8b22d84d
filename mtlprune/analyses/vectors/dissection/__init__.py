"""Exact decomposition of vectors: input + heads + feed-forward parts + correction (Mickus et al. 2022)."""

from itertools import combinations

from pydantic import Field, model_validator

from mtlprune.analyses.analysis import Analysis, Column
from mtlprune.io.block import Block
from mtlprune.layers import LAYERS

TERMS = ("i", "h", "f", "c")
"""Terms of a vector: input, heads, feed-forward parts, and correction (biases and means subtracted by LayerNorms)."""
SUBSETS = tuple("".join(subset) for size in range(len(TERMS) + 1) for subset in combinations(TERMS, size))
"""All 16 subsets of the terms, from the empty subset to the set of all four."""
SENSES, NEAREST = "wsd", "wsd-knn"
"""Tasks that are not layers: choosing a predicate's roleset with a network, and with nearest neighbours."""
MLM, LEARNT_MLM = "mlm", "mlm-learnt"
"""Tasks that are not layers: predicting masked words with a model's prediction head, and with learnt projections."""


class DissectionOptions(Block):
    """Options of ``analyze dissection``: tasks of light decoders, and the training of these decoders."""

    train_sentences: int = Field(
        default=1000, ge=1, description="Number of random training sentences from which light decoders learn."
    )
    tasks: str = Field(
        default=",".join((*LAYERS, SENSES)),
        description="Tasks on which subsets of terms are scored, with commas between. They are layers of the corpus, "
        "wsd (word senses) and mlm (masked words, for masked language models). none scores no task.",
    )
    hidden: int = Field(default=64, ge=1, description="Number of hidden units of light decoders.")
    epochs: int = Field(
        default=8,
        ge=1,
        description="Number of passes of light decoders, and largest number of passes of projections of masked words.",
    )
    decoder_seeds: int = Field(
        default=1, ge=1, le=100, description="Number of seeds of light decoders and projections."
    )

    @property
    def requested_tasks(self) -> tuple[str, ...]:
        """The tasks that the setting ``tasks`` names, without repetitions; empty for "none"."""
        return tuple(dict.fromkeys(name.strip() for name in self.tasks.split(","))) if self.tasks != "none" else ()

    @model_validator(mode="after")
    def _trains_something(self) -> "DissectionOptions":
        """Refuse settings of decoders that have no effect because the requested tasks train no decoder."""
        without: tuple[str, ...] = () if {*self.requested_tasks} - {MLM} else ("train_sentences", "hidden")
        without += () if self.requested_tasks else ("epochs", "decoder_seeds")
        for name in without:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect with tasks={self.tasks}; leave it out")
        return self


ANALYSIS = Analysis(
    name="dissection",
    title="Exact decomposition",
    key="exact-decomposition",
    question="Which parts of a vector come from input, heads, feed-forward layers and biases?",
    help="""Split vectors exactly into parts from the input, from heads, from feed-forward parts and from biases.

    The analysis computes the importance of each part by layer, and of each head in the last layer. It scores each of
    the 16 subsets of parts with a newly trained light decoder. Rolesets replace word senses. With a masked language
    model the analysis also predicts masked words, with the model's prediction head and with a learnt projection. With
    several encoders it shows which part carries the loss of multi-task learning, whether gates keep the heads with the
    largest shares, and whether the joint encoder is a compromise of the single-task encoders. Only Post-LN encoders can
    be read.""",
    options=DissectionOptions,
    columns=(
        Column(
            "importance",
            "share μ",
            "product with the last layer's vector, divided by the squared length of that vector",
        ),
    ),
)
