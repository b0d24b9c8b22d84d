"""Over-smoothing: how alike the token vectors of a sentence are, and what a post-LN layer can do about it.

Shi et al. (2022), "Revisiting Over-smoothing in BERT from the Perspective of Graph" (arXiv 2202.08625). M is the set of
matrices whose rows are all equal; a layer that brings vectors nearer to M smooths. All statistics are of one sentence,
over the tokens that ``mask`` names: padding counts for nothing. Pure functions in the dtype they are given; float64 is
meant. NaN where a statistic is not defined (fewer than two tokens, no variation).

    d_M(H) = ‖(I − 11ᵀ/n) H‖_F         CosSim(H) = 1 / (n (n − 1)) · Σ_{i≠j} cos(h_i, h_j)
    λ(A) = ‖(I − 11ᵀ/n) A‖₂²           v = (1 + s²) (1 + √λ h s) / (σ₁ σ₂)        (Theorem 2)

Letters for shapes: B sentences, T places, H hidden size, n heads, d values a head, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

LIPSCHITZ = {
    "relu": 1.0,
    "gelu": 1.1290,
    "gelu_new": 1.1290,
    "gelu_fast": 1.1290,
    "gelu_pytorch_tanh": 1.1290,
    "silu": 1.0999,
    "swish": 1.0999,
    "tanh": 1.0,
}
"""The largest slope of an activation, rounded up."""


def cosine(vectors: Tensor, mask: Tensor) -> Tensor:
    """CosSim: mean cosine over pairs of different tokens. A vector of zeros has cosine 0 with all.

    Args:
        vectors: (B, T, H).
        mask: (B, T) of bool, which places are tokens.

    Returns:
        (B,)
    """
    units = functional.normalize(_masked(vectors, mask), dim=-1, eps=torch.finfo(vectors.dtype).tiny)
    counts = mask.sum(1).to(vectors)
    pairs = units.sum(1).square().sum(-1) - units.square().sum((1, 2))
    return pairs / torch.where(counts > 1, counts * (counts - 1), torch.nan)


def centred(vectors: Tensor, mask: Tensor) -> Tensor:
    """(I − 11ᵀ/n) H: each sentence's mean removed, zero where there is no token. (B, T, H)"""
    held = _masked(vectors, mask)
    return _masked(vectors - held.sum(1, keepdim=True) / mask.sum(1).clamp(min=1).to(vectors)[:, None, None], mask)


def distance(vectors: Tensor, mask: Tensor) -> Tensor:
    """d_M: how far the token vectors are from all being equal. (B,)"""
    return centred(vectors, mask).square().sum((1, 2)).sqrt()


def relative_distance(vectors: Tensor, mask: Tensor) -> Tensor:
    """d_M / ‖H‖_F, in [0, 1]. (B,)"""
    size = _masked(vectors, mask).square().sum((1, 2)).sqrt()
    return distance(vectors, mask) / torch.where(size > 0, size, torch.nan)


def least_deviation(inputs: Tensor, mask: Tensor, epsilon: float = 0.0) -> Tensor:
    """σ: the smallest standard deviation over the features (biased) that a LayerNorm finds among the tokens.

    Args:
        inputs: (B, T, H), what the LayerNorm reads.
        epsilon: what it adds to the variance.

    Returns:
        (B,)
    """
    deviations = (inputs.var(-1, correction=0) + epsilon).sqrt()
    return deviations.masked_fill(~mask, torch.inf).amin(1)


def mixing(attention: Tensor, mask: Tensor) -> Tensor:
    """λ of each head: the largest eigenvalue of Aᵀ (I − 11ᵀ/n) A. 0: every token gets the same; it can exceed 1.

    Args:
        attention: (B, n, T, T), rows are the attending.
        mask: (B, T).

    Returns:
        (B, n)
    """
    width = int(mask.sum(1).amax())
    if bool(mask[:, width:].any()):
        raise ValueError("mixing needs the tokens of each sentence in front of its padding")
    held = attention[:, :, :width, :width] * (mask[:, None, :width, None] & mask[:, None, None, :width])
    counts = mask.sum(1).clamp(min=1).to(held)[:, None, None, None]
    off = (held - held.sum(2, keepdim=True) / counts) * mask[:, None, :width, None]
    return torch.linalg.eigvalsh(off @ off.transpose(-1, -2))[..., -1].clamp(min=0)


def product_norm(left: Tensor, right: Tensor) -> Tensor:
    """‖left · right‖₂ of thin factors, (..., H, d) and (..., d, H), by way of d × d matrices. (...)"""
    first, second = torch.linalg.qr(left).R, torch.linalg.qr(right.transpose(-1, -2)).R
    return torch.linalg.matrix_norm(first @ second.transpose(-1, -2), ord=2)


class LayerNorms(NamedTuple):
    """What a bound needs to know of one post-LN layer; heads are those the layer has, gates applied."""

    gains: tuple[float, float]
    """Largest absolute gain of the LayerNorm after attention, and of that after the feed-forward part."""
    epsilons: tuple[float, float]
    feed_forward: tuple[float, float]
    """Spectral norms of its two matrices."""
    lipschitz: float
    """Largest slope of the activation."""
    heads: Tensor
    """(n,): |z| ‖W_O W_V‖₂ of each head."""

    @property
    def largest(self) -> float:
        """s: the largest singular value among feed-forward matrices and the maps W_O W_V of heads."""
        return max([*self.feed_forward, *self.heads.tolist()])

    @property
    def open(self) -> int:
        """h: heads that are not shut."""
        return int((self.heads > 0).sum())


class Bound(NamedTuple):
    """The factors of a bound on d_M after / d_M before; ``norm`` and ``attention`` are (B,)."""

    norm: Tensor
    """Of the two LayerNorms: g₁ g₂ / (σ₁ σ₂)."""
    feed_forward: float
    attention: Tensor

    @property
    def value(self) -> Tensor:
        """(B,): their product."""
        return self.norm * self.feed_forward * self.attention


def published_factor(layer: LayerNorms, sigma1: Tensor, sigma2: Tensor, mixings: Tensor) -> Tensor:
    """v of Theorem 2. It leaves out the gains of the LayerNorms and takes the activation for a ReLU.

    Args:
        sigma1, sigma2: (B,), without epsilon.
        mixings: (B, n), λ of each head; the largest of those that are not shut counts.

    Returns:
        (B,)
    """
    s = layer.largest
    largest = mixings.masked_fill(layer.heads.to(mixings) == 0, 0.0)
    strongest = largest.amax(1) if largest.shape[1] else largest.new_zeros(len(largest))
    return (1 + s**2) * (1 + strongest.sqrt() * layer.open * s) / (sigma1 * sigma2)


def rigorous_bound(layer: LayerNorms, sigma1: Tensor, sigma2: Tensor, mixings: Tensor) -> Bound:
    """A bound that holds for real layers: gains, epsilon, the slope of the activation, gates, each head by itself.

    d_M² is a mean of squared distances between pairs of tokens, so every block that treats tokens alike is as Lipschitz
    for d_M as it is for a token; LayerNorm is gain / σ-Lipschitz on the tokens there are, a projection outwards.

    Args:
        sigma1, sigma2: (B,), epsilon included.
        mixings: (B, n), λ of each head.
    """
    norm = layer.gains[0] * layer.gains[1] / (sigma1 * sigma2)
    attention = 1 + (mixings.sqrt() * layer.heads.to(mixings)).sum(1)
    return Bound(norm, 1 + layer.lipschitz * layer.feed_forward[0] * layer.feed_forward[1], attention)


def split(vectors: Tensor, labels: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
    """d_M² = within + between the labels, exactly: one-way analysis of variance.

    Args:
        vectors: (n, H) of one sentence.
        labels: n numbers, any.
    """
    numbers = torch.unique(torch.as_tensor(labels), return_inverse=True)[1]
    member = functional.one_hot(numbers).to(vectors)  # (n, K)
    sizes = member.sum(0)
    means = member.T @ vectors / sizes[:, None]
    within = (vectors - means[numbers]).square().sum()
    between = (sizes[:, None] * (means - vectors.mean(0)).square()).sum()
    return within, between


def shares_of_dimensions(mean_unit: Tensor) -> Tensor:
    """What each dimension gives to the expected cosine of two tokens of a corpus, as a share of it (sums to 1).

    Timkey and van Schijndel (2021), over independent pairs: E[u_i]² / Σ_j E[u_j]², u the token vectors at length 1.

    Args:
        mean_unit: (..., H), the mean over tokens of their vectors at length 1.
    """
    squares = mean_unit.square()
    return squares / squares.sum(-1, keepdim=True)


def _masked(vectors: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask[..., None], vectors, 0.0)
