"""What analyses found of one encoder, as arrays; and an encoder without some of its heads."""

import copy

import numpy as np
from torch import Tensor

from mtlprune.analyses.reading import Found
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.removal import remove_heads


def grids(found: Found) -> dict[str, np.ndarray]:
    """The frame ``heads``: measure → (L, A)."""
    return {
        name: rows.pivot(index="layer", columns="head", values="value").to_numpy()
        for name, rows in found.frames["heads"].groupby("measure")
    }


def column(found: Found, frame: str, measure: str) -> np.ndarray:
    """The values of one measure of a frame, in its order."""
    held = found.frames[frame]
    return held.loc[held["measure"] == measure, "value"].to_numpy()


def without_heads(encoder: Encoder, gates: Tensor) -> Encoder:
    """A copy in which heads with gates at 0 are removed, and others have their gates folded in."""
    cut = copy.deepcopy(encoder)
    cut.__dict__.pop("places", None)
    cut.head_map = remove_heads(cut.transformer, gates, encoder.places.kept)
    return cut
