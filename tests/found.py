"""What analyses found of one encoder, as arrays; gates, an encoder without some of its heads."""

import copy

import numpy as np
import torch
from torch import Tensor

from mtlprune.analyses.reading import Found
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.removal import remove_heads
from mtlprune.results import Result

GATES = torch.tensor([[1.0, 0.0, 0.5, 0.25], [0.0, 0.75, 1.0, 0.1]])
"""Of a tiny encoder; two heads are closed."""


def grids(found: Found | Result) -> dict[str, np.ndarray]:
    """The frame ``heads``: measure → (L, A)."""
    return {
        name: rows.pivot(index="layer", columns="head", values="value").to_numpy()
        for name, rows in found.frames["heads"].groupby("measure")
    }


def column(found: Found | Result, frame: str, measure: str) -> np.ndarray:
    """The values of one measure of a frame, in its order."""
    held = found.frames[frame]
    return held.loc[held["measure"] == measure, "value"].to_numpy()


def without_heads(encoder: Encoder, gates: Tensor) -> Encoder:
    """A copy in which heads with gates at 0 are removed, and others have their gates folded in."""
    cut = copy.deepcopy(encoder)
    cut.__dict__.pop("places", None)
    cut.head_map = remove_heads(cut.transformer, gates, encoder.places.kept)
    return cut
