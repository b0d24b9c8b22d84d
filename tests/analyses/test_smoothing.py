"""Over-smoothing: exact identities, known values of λ, and the bound on hundreds of random layers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from transformers.activations import ACT2FN

from mtlprune.analyses.smoothing.maths import (
    cosine,
    distance,
    least_deviation,
    mixing,
    published_factor,
    relative_distance,
    rigorous_bound,
    shares_of_dimensions,
)
from mtlprune.encoder.post_norm import LIPSCHITZ, LayerNorms, product_norm

SEEDS = st.integers(0, 10**6)


def rows(seed: int, n: int = 7, width: int = 5) -> Tensor:
    return torch.randn(1, n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def all_of(vectors: Tensor) -> Tensor:
    return torch.ones(vectors.shape[:2], dtype=torch.bool)


def d_m(vectors: Tensor) -> float:
    return float(distance(vectors, all_of(vectors)))


def cos(vectors: Tensor) -> float:
    return float(cosine(vectors, all_of(vectors)))


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-10, abs=1e-12)


@given(SEEDS)
def test_distance_is_a_mean_over_pairs_and_cosine_counts_pairs(seed):
    h = rows(seed)
    pairs = torch.cdist(h[0], h[0]).square().sum() / 2
    assert d_m(h) ** 2 == near(float(pairs) / 7)
    one_by_one = [functional.cosine_similarity(h[0, i], h[0, j], dim=0) for i in range(7) for j in range(7) if i != j]
    assert cos(h) == near(float(torch.stack(one_by_one).mean()))
    unit = functional.normalize(h, dim=-1)
    assert d_m(3 * unit) ** 2 == near(9 * 6 * (1 - cos(h)))
    penalty = (float(unit.sum(1).square().sum()) - 7) / 49  # CosReg of Gao et al. (2019)
    assert penalty == near(cos(h) * 6 / 7)


def test_one_token_or_no_spread_is_not_defined():
    assert math.isnan(cos(rows(1, 1)))
    assert math.isnan(float(relative_distance(torch.zeros(1, 3, 5), torch.ones(1, 3, dtype=torch.bool))))


@given(SEEDS)
def test_padding_changes_nothing(seed):
    h, a = rows(seed), torch.softmax(rows(seed, 7, 7), -1)[:, None]
    padded = torch.cat([h, 100 * rows(seed + 1, 4)], 1)
    mask = torch.cat([all_of(h), torch.zeros(1, 4, dtype=torch.bool)], 1)
    filled = torch.full((1, 1, 11, 11), 0.3, dtype=torch.float64)
    filled[..., :7, :7] = a
    for measure in (cosine, distance, relative_distance, least_deviation):
        torch.testing.assert_close(measure(padded, mask), measure(h, all_of(h)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mixing(filled, mask), mixing(a, all_of(h)), rtol=1e-12, atol=1e-12)


def lam(attention: Tensor) -> float:
    return float(mixing(attention.double()[None, None], torch.ones(1, len(attention), dtype=torch.bool))[0, 0])


@given(SEEDS)
def test_mixing_is_a_squared_singular_value_and_eigenvalue(seed):
    a = torch.softmax(2 * rows(seed, 6, 6)[0], -1)
    centre = torch.eye(6, dtype=torch.float64) - 1 / 6
    assert lam(a) == near(float(torch.linalg.matrix_norm(centre @ a, ord=2)) ** 2)
    assert lam(a) == near(float(torch.linalg.eigvalsh(a.T @ centre @ a)[-1]))


def test_mixing_without_heads_and_with_tokens_after_padding():
    assert mixing(torch.zeros(2, 0, 4, 4), torch.ones(2, 4, dtype=torch.bool)).shape == (2, 0)
    with pytest.raises(ValueError, match="in front of its padding"):
        mixing(torch.ones(1, 1, 3, 3), torch.tensor([[False, True, True]]))


@given(SEEDS)
def test_the_norm_of_a_product_of_thin_factors(seed):
    left, right = rows(seed, 9, 3), rows(seed + 1, 3, 8)
    assert float(product_norm(left, right)) == near(float(torch.linalg.matrix_norm(left[0] @ right[0], ord=2)))


@pytest.mark.parametrize("name", LIPSCHITZ)
def test_slopes_of_activations_are_bounded_and_not_far_off(name):
    x = torch.linspace(-8, 8, 400_001, dtype=torch.float64, requires_grad=True)
    slope = float(torch.autograd.grad(ACT2FN[name](x).sum(), x)[0].abs().max())
    assert slope <= LIPSCHITZ[name] <= slope + 2e-3


def test_the_published_factor_by_hand_and_without_heads():
    one = torch.ones(2, dtype=torch.float64)
    layer = LayerNorms((2.0, 1.0), (0.0, 0.0), (3.0, 0.5), 1.129, torch.tensor([1.0, 0.0, 2.0]).double())
    mixings = torch.tensor([[0.25, 9.0, 0.04], [0.0, 1.0, 0.0]]).double()  # the closed head's λ counts for nothing
    torch.testing.assert_close(
        published_factor(layer, 2 * one, 0.5 * one, mixings), torch.tensor([10 * (1 + 0.5 * 2 * 3), 10.0]).double()
    )
    empty = layer._replace(heads=torch.zeros(0).double())
    none = torch.zeros(2, 0, dtype=torch.float64)
    torch.testing.assert_close(published_factor(empty, one, one, none), 10 * one)
    torch.testing.assert_close(rigorous_bound(empty, one, one, none).value, one * 2 * (1 + 1.129 * 1.5))


@given(SEEDS)
def test_shares_of_dimensions_are_of_the_expected_cosine(seed):
    unit = functional.normalize(rows(seed, 40, 6)[0] + 1, dim=-1)
    mean = unit.mean(0)
    assert float(shares_of_dimensions(mean).sum()) == near(1)
    every_pair = float((unit @ unit.T).mean())
    without = unit.clone()
    without[:, 2] = 0
    assert float(shares_of_dimensions(mean)[2]) == near(1 - float((without @ without.T).mean()) / every_pair)
