"""Where the common direction of hidden states comes from: by term, by head, and from the last LayerNorm.

The mean vector m of a layer is the mean of i + h + f + c (Mickus et al. 2022, :mod:`.dissection`), so its parts are the
means of the terms; μ(m, part) = m · part / ‖m‖² says how much of m's length a part gives. Shares sum to 1 and may be
negative.

Letters for shapes: N tokens of a batch, L layers, A heads a layer, H hidden size. Means are over words, each the mean
of its sub-words; [CLS] and [SEP] left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.degeneration.negative_direction import DirectionError, Hyperplane, layernorm_hyperplane
from mtlprune.analyses.dissection import maths as dissection
from mtlprune.analyses.dissection.trace import refusal, trace
from mtlprune.analyses.reading import Reading
from mtlprune.analyses.subjects import Subject

Floats = NDArray[np.float64]


@dataclass(eq=False)
class Cone:
    """The mean vector taken apart.

    Attributes:
        terms: (L + 1, 4), μ(m, mean of i, h, f, c) of each layer's own mean m, the embeddings' first; rows sum to 1.
        heads: (L, A), μ(m, mean of a head's slot) for the last layer's m; sums to the last ``terms`` of h. 0 for heads
            that are shut or gone.
        means: (L + 1, H), m.
        planes: the hyperplane of each layer's last LayerNorm; None where a gain is 0.
        spreads: how far off that hyperplane a vector of the layer lies at most (relative; rounding only).
        angles: median degrees between v and the layer's vectors: 90 where v does not matter, 180 where all lie in −v.
    """

    terms: Floats
    heads: Floats
    means: Tensor
    planes: list[Hyperplane | None]
    spreads: list[float]
    angles: list[float]

    @property
    def direction(self) -> Tensor | None:
        """(H,): v of the last LayerNorm, if any."""
        return self.planes[-1].direction if self.planes and self.planes[-1] is not None else None


def take_apart(
    subject: Subject, reading: Reading, mean: Tensor, device: str = "cpu", tick: Callable[[], object] = lambda: None
) -> Cone | str:
    """One pass over the sentences.

    Args:
        mean: (H,), of the last layer's word vectors over the same sentences.

    Returns:
        The cone, or why there is none, as a clause.
    """
    why = refusal(subject.encoder)
    if why is not None:
        return f"{why}; so where its mean vector comes from is not said"
    places, width = subject.encoder.places, subject.encoder.hidden_size
    sums = torch.zeros(places.layers + 1, 4, width, dtype=torch.float64)
    heads = torch.zeros(places.layers, places.heads, dtype=torch.float64)
    spreads, angles = np.zeros(places.layers), [list[Tensor]() for _ in range(places.layers)]
    planes: list[Hyperplane | None] = []
    words = 0
    for _, batch in reading.batches(subject, device):
        found, hidden, tokens = trace(subject.encoder, batch, subject.gates)
        pieces = torch.searchsorted(tokens, batch.piece_slot)
        weight = (1.0 / batch.piece_counts.double())[batch.piece_word]  # (pieces,)
        planes = planes or [_plane(layer.norms[1]) for layer in found.layers]
        for place, stack in enumerate(dissection.terms(found)):
            sums[place] += torch.einsum("knh,n->kh", stack[:, pieces].double(), weight).cpu()
        for row, (layer, share) in enumerate(zip(found.layers, _head_shares(found, mean, hidden[-1]), strict=True)):
            heads[row, list(layer.numbers)] += weight.cpu() @ share[pieces].double().cpu()
        for place, plane in enumerate(planes):
            if plane is not None:
                rows = hidden[place + 1][pieces].cpu()
                spreads[place] = max(spreads[place], plane.spread(rows))
                angles[place].append(plane.angles(rows))
        words += sum(batch.sizes)
        tick()
    means = sums.sum(1) / words  # (L + 1, H)
    terms = torch.einsum("lkh,lh->lk", sums / words, means) / means.square().sum(1, keepdim=True)
    middle = [float(torch.cat(parts).median()) if parts else float("nan") for parts in angles]
    return Cone(terms.numpy(), (heads / words).numpy(), means, planes, spreads.tolist(), middle)


def _plane(norm: dissection.Norm) -> Hyperplane | None:
    try:
        return layernorm_hyperplane(norm.gain, norm.bias)
    except DirectionError:
        return None


def _head_shares(found: dissection.Trace, mean: Tensor, like: Tensor) -> list[Tensor]:
    """For each layer (N, n): m · slot / ‖m‖² of each token's slots in the last layer."""
    whole = mean.to(like).expand_as(like)
    return dissection.head_importance(found, whole)
