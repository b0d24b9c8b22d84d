"""Clone heads: each task has a copy of its own of some heads; mtlprune/encoder/clones.py computes them."""

from __future__ import annotations

from typing import cast

from transformers import PreTrainedModel

from mtlprune.blocks import CloneConfig
from mtlprune.encoder.clones import Clones
from mtlprune.encoder.pieces import EncoderError
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.training.treatments.base import Treatment
from mtlprune.training.treatments.heads import Sets


class Clone(Treatment):
    """W_h + Δ_h^t for task t, Δ beginning at 0: before the first update it is joint training. Δ learns at the encoder's
    rate, and so do the shared heads."""

    Options = CloneConfig

    @classmethod
    def check_model(cls, model: MultiTaskModel) -> None:
        super().check_model(model)
        if model.encoder.places.family.positions:
            kind = model.encoder.config.model_type
            raise EncoderError(
                f"treatment.clone: heads of this encoder ({kind}) cannot be treated one by one, because their weights "
                "read positions too"
            )

    @classmethod
    def shape(cls, model: MultiTaskModel, heads: Sets, options: CloneConfig) -> None:
        encoder, names = model.encoder, model.treated["clone"]["heads"][SHARED]
        transformer = cast(PreTrainedModel, encoder.transformer)
        encoder.clones = Clones(transformer, encoder.places, names, list(model.tasks), options.rank)
