"""The features of each encoder family, as a table for ``mtlprune encoders`` and docs/reference/encoder.md."""

from typing import NamedTuple

from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from mtlprune.encoder.families import ENCODER_DECODERS, FAMILIES
from mtlprune.encoder.post_norm import POST_NORM

_OTHER_HEADS = {"modernbert"}
"""Model types whose token classification model in transformers has more than a linear layer on the encoder."""


class Abilities(NamedTuple):
    """A row of the table. Entries about a feature are "yes", "no", or a condition or limit of the feature."""

    family: str
    attention: str
    """The words that a word attends to (setting ``encoder.attention``)."""
    gates: str
    """Whether gates and every kind of ablation work, which need only the position of the heads."""
    removal: str
    """Whether ``mtlprune export --remove`` removes heads with gate 0 from the weights without changing the output."""
    reload: str
    """Whether `load_pruned` loads an encoder from which heads were removed."""
    observation: str
    """Whether attention weights can be read, and head outputs that add up to the output of their layer."""
    probes: str
    """Whether ``mtlprune analyze probes`` works. A causal encoder shows only arcs to words on the left."""
    clones: str
    """Whether ``treatment.clone`` and the other treatments of single heads work."""
    decomposition: str
    """Whether ``mtlprune analyze dissection`` and the bounds of smoothing work, which hold for post-LN layers only."""
    export: str
    """Whether ``mtlprune export`` works. "with a head" means that its option ``--head`` works too."""
    onnx: str
    """Whether ``torch.onnx.export`` works for the encoder, with or without removed heads."""


def abilities(kind: str) -> Abilities:
    """Return the row of a model type in ``FAMILIES``."""
    family = FAMILIES[kind]
    shares_layers, causal = "layer_groups" in family.attention, family.pretrained == "causal"
    layers_are_plain = not (shares_layers or family.positions or any(family.norms))
    removal = "queries and keys stay" if any(family.norms) else "those closed in all layers" if shares_layers else "yes"
    plain = kind in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES and kind not in _OTHER_HEADS
    return Abilities(
        family=kind,
        attention="causal or full" if causal else "full",
        gates="yes",
        removal="but for talking heads" if family.mixers else removal,
        reload="yes",
        observation="yes",
        probes="causal: to the left" if causal else "yes",
        clones="no" if not layers_are_plain else "if no keys are shared" if family.grouping else "yes",
        decomposition="yes" if kind in POST_NORM else "no",
        export=("encoder alone" if kind in ENCODER_DECODERS else "yes") + (", with a head" if plain else ""),
        onnx="no" if kind in ENCODER_DECODERS else "yes",
    )


def table() -> list[Abilities]:
    """Return the rows of all families, sorted by name."""
    return [abilities(kind) for kind in sorted(FAMILIES)]
