"""The settings of each decoder and the kind of layer that it predicts, which configurations need to know.

The decoders themselves (mtlprune.tasks) import torch. This module does not, so that processes which resolve sweeps or
tabulate runs need not import torch.
"""

from importlib.metadata import EntryPoint
from typing import Any, Literal, NamedTuple

from pydantic import Field

from mtlprune.io.block import Block
from mtlprune.io.plugins import Registry
from mtlprune.layers import LAYERS, OF_SENTENCES, kind_of

PairScorer = Literal["biaffine", "mlp"]


class DecoderOptions(Block):
    """The settings of a decoder without settings, and the base class of the settings of other decoders."""


class NEROptions(DecoderOptions):
    """Named-entity decoder."""

    size: int = Field(default=150, ge=1, le=100_000)
    """Width of the start and end projections."""
    loss_per: Literal["word", "span"] = "word"
    """The summed loss is divided by the number of words in the batch, as in other decoders (word), or by the number of
    candidate spans, as in He and Choi (2021) (span). With span, the loss is so small that joint training hardly learns
    NER if the five losses are simply added."""


class DEPOptions(DecoderOptions):
    """Dependency decoder."""

    arc_size: int = Field(default=500, ge=1, le=100_000)
    """Width of the arc MLPs."""
    relation_size: int = Field(default=100, ge=1, le=100_000)
    """Width of the relation vectors (the hidden layer of an MLP scorer is twice as wide)."""
    relation_scorer: PairScorer = "biaffine"
    """biaffine is the scorer of He and Choi (2021). mlp consists of two layers over the concatenated vectors of
    dependent and head, and is many times cheaper."""
    dropout: float = Field(default=0.33, ge=0, le=0.99)
    """Dropout in the MLPs, shared across a sentence."""
    score_punctuation: bool = True
    """If true, the main score (LAS) includes punctuation, unlike the score of He and Choi (2021). All variants of the
    score are always reported."""
    projective: bool = False
    """Decode only projective trees with Eisner's algorithm, as in He and Choi (2021), instead of maximum spanning
    trees."""


class CONOptions(DecoderOptions):
    """Constituent decoder."""

    span_size: int = Field(default=500, ge=1, le=100_000)
    """Width of the span MLPs."""
    label_size: int = Field(default=100, ge=1, le=100_000)
    """Width of the label vectors (the hidden layer of an MLP scorer is twice as wide)."""
    label_scorer: PairScorer = "biaffine"
    """biaffine is the scorer of He and Choi (2021). mlp consists of two layers over the concatenated vectors of both
    ends of a span, and is many times cheaper."""
    dropout: float = Field(default=0.33, ge=0, le=0.99)
    """Dropout in the MLPs, shared across a sentence."""


class SRLOptions(DecoderOptions):
    """Semantic-role decoder."""

    size: int = Field(default=150, ge=1, le=100_000)
    """Width of the hidden layers."""
    width_size: int = Field(default=20, ge=1, le=100_000)
    """Width of the embedding of a span's length."""
    max_width: int = Field(default=30, ge=1, le=100_000)
    """Largest number of words of a candidate span."""
    dropout: float = Field(default=0.2, ge=0, le=0.99)
    """Dropout after each hidden layer and on the width embedding."""
    argument_scorer: Literal["biaffine", "mlp"] = "biaffine"
    """mlp is the scorer of He and Choi (2021), which reads the whole vector of a span. biaffine reads only the first
    and the last word, and is many times cheaper."""
    affinity: bool = True
    """Add a bilinear score of span and predicate to every role. He and Choi (2021) do not use this score. Without this
    score, the model learns slowly which predicate a span belongs to."""
    argument_ratio: float = Field(default=0.8, gt=0)
    """Number of spans that are kept for labelling, per word of the sentence."""
    predicate_ratio: float = Field(default=0.4, gt=0)
    """Number of words that are kept as possible predicates, per word of the sentence, for predicates: ranked."""
    predicates: Literal["classified", "ranked"] = "classified"
    """With ranked, as in He and Choi (2021), the best words are kept, and a word that receives an argument is a
    predicate. With classified, a binary classifier decides for each word and each span, labels are trained on gold
    predicates, and gold spans are never pruned in training."""


class SentenceOptions(DecoderOptions):
    """Decoder of whole sentences."""

    pooling: Literal["mean", "first"] = "mean"
    """The vector of a sentence is the mean of its word vectors (mean) or the vector of the first special token (first).
    Sequence classifiers of transformers read the first special token (`mtlprune export --head`)."""
    dropout: float = Field(default=0.1, ge=0, le=0.99)
    """Dropout of the vector of a sentence."""


class Decoder(NamedTuple):
    """The kind of layer that a decoder predicts, and the class of its settings.

    The class of a decoder from an installed package has the same two attributes.
    """

    kind: str
    Options: type[DecoderOptions] = DecoderOptions


def _decoder(point: EntryPoint) -> Any:
    """Load the class at an entry point of an installed package. Raises TypeError if it is no decoder of this name.

    Its base classes are compared by name, because importing our base class would import torch.
    """
    task = point.load()
    bases = [f"{base.__module__}.{base.__qualname__}" for base in getattr(task, "__mro__", ())]
    if "mtlprune.tasks.base.Task" not in bases or task.name != point.name:
        raise TypeError(f"expected a subclass of mtlprune.tasks.base.Task with the name {point.name!r}")
    return task


_OPTIONS = {"pos": DecoderOptions, "ner": NEROptions, "dep": DEPOptions, "con": CONOptions, "srl": SRLOptions}
DECODERS: Registry[Any] = Registry(
    {name: Decoder(kind_of(LAYERS[name]), options) for name, options in _OPTIONS.items()}
    | {"bio": Decoder("spans")}
    | {kind: Decoder(kind, SentenceOptions) for kind in OF_SENTENCES},
    "mtlprune.tasks",
    _decoder,
)
"""Name in configurations → decoder, for built-in decoders and those of installed packages."""
