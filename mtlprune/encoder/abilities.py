"""What can be done with the encoders of each family: one table, for ``mtlprune encoders`` and docs/encoder.md."""

from typing import NamedTuple

from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from mtlprune.encoder.families import ENCODER_DECODERS, FAMILIES
from mtlprune.encoder.post_norm import POST_NORM

OTHER_HEADS = {"modernbert"}
"""Types whose token classification in transformers is more than a linear layer."""


class Abilities(NamedTuple):
    """A line of the table; each entry is yes, no, or yes with a condition."""

    family: str
    attention: str
    """Which words a word sees (encoder.attention)."""
    gates: str
    """Gates, observation, probes and ablations: wherever the place of heads is known."""
    removal: str
    """mtlprune export --remove, and load_pruned of what it writes."""
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
    shares_layers = "layer_groups" in family.attention
    clones = "no" if shares_layers or family.positions else "if no keys are shared" if family.grouping else "yes"
    removal = "but for talking heads" if family.mixers else "those closed in all layers" if shares_layers else "yes"
    plain = kind in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES and kind not in OTHER_HEADS
    return Abilities(
        family=kind,
        attention="causal or full" if family.pretrained == "causal" else "full",
        gates="yes",
        removal=removal,
        clones=clones,
        decomposition="yes" if kind in POST_NORM else "no",
        export=("encoder alone" if kind in ENCODER_DECODERS else "yes") + (", with a head" if plain else ""),
        onnx="no" if kind in ENCODER_DECODERS else "yes",
    )


def table() -> list[Abilities]:
    """All families, by name."""
    return [abilities(kind) for kind in sorted(FAMILIES)]
