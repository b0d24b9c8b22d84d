"""The abilities of the encoders of each family: one table, for ``mtlprune encoders`` and docs/reference/encoder.md."""

from typing import NamedTuple

from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from mtlprune.encoder.families import ENCODER_DECODERS, FAMILIES
from mtlprune.encoder.post_norm import POST_NORM

_OTHER_HEADS = {"modernbert"}
"""Types whose token classification in transformers is more than a linear layer."""


class Abilities(NamedTuple):
    """A line of the table; each entry is yes, no, or yes with a condition."""

    family: str
    attention: str
    """The words that a word sees (encoder.attention)."""
    gates: str
    """Gates and every kind of ablation: wherever the place of heads is known."""
    removal: str
    """mtlprune export --remove: what is gated with 0 goes, and the output stays."""
    reload: str
    """load_pruned of what removal wrote."""
    observation: str
    """Attention, and outputs of heads that add up to that of their layer."""
    probes: str
    """mtlprune analyze probes: which arcs attention can show."""
    clones: str
    """treatment.clone and the other treatments of single heads."""
    decomposition: str
    """mtlprune analyze dissection, and bounds of smoothing: exact for post-LN layers only."""
    export: str
    """mtlprune export; with a head: --head too."""
    onnx: str
    """torch.onnx.export of the encoder, heads removed or not."""


def abilities(kind: str) -> Abilities:
    """The line of a model type that is in FAMILIES."""
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
    """All families, by name."""
    return [abilities(kind) for kind in sorted(FAMILIES)]
