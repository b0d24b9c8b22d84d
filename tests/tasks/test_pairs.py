"""Bilinear forms, split layers and dropout masks of the decoders against einsum and plain loops."""

from __future__ import annotations

import pytest
import torch
from by_hand import with_one

from mtlprune.encoder.batch import table
from mtlprune.tasks.base import (
    SharedMLP,
    dropout_mask,
    offsets,
)
from mtlprune.tasks.products import Linear, biaffine_rows, biaffine_table, linear, rounded, table_side


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_biaffine_forms():
    left, weight, right = drawn(9, 4), drawn(5, 5, 7, seed=1), drawn(9, 6, seed=2)
    by_row = torch.einsum("mi,lij,mj->ml", with_one(left), weight, with_one(right))
    torch.testing.assert_close(biaffine_rows(left, weight, right), by_row, rtol=1e-4, atol=1e-5)
    every = torch.einsum("si,lij,tj->slt", with_one(left), weight, with_one(right))
    found = biaffine_table(left, weight, right, [3, 5, 1])
    assert found.shape == (3, 5, 5, 5)
    for place, (begin, size) in enumerate([(0, 3), (3, 5), (8, 1)]):
        part = every[begin : begin + size, :, begin : begin + size]
        torch.testing.assert_close(found[place, :size, :, :size], part, rtol=1e-4, atol=1e-5)


def test_counts_of_rows_are_few_and_little_larger():
    counts = [rounded(rows) for rows in range(1, 10_001)]
    assert all(rows <= count < rows + max(64, rows / 4) for rows, count in enumerate(counts, 1))
    assert len(set(counts)) < 30
    assert [table_side(longest) for longest in (1, 4, 5)] == [4, 4, 8]


def test_rounded_rows_change_neither_result_nor_gradient():
    layer, rows = Linear(8, 5), drawn(70, 8).requires_grad_()
    plain = torch.nn.functional.linear(rows, layer.weight, layer.bias)
    target = drawn(70, 5, seed=1)
    expected = torch.autograd.grad((plain * target).sum(), [rows, layer.weight, layer.bias])
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(rows)
    assert found.shape == (70, 5) and found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), plain, rtol=0.05, atol=0.05)
    gradients = torch.autograd.grad((found * target).sum(), [rows, *layer.parameters()])
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.2)
    assert torch.equal(linear(rows, layer.weight, layer.bias), plain)  # without autocast nothing is rounded


OWNER = torch.tensor([0, 0, 0, 1, 2, 2])
LEFT, RIGHT = torch.tensor([0, 2, 2, 3, 5]), torch.tensor([1, 0, 2, 3, 4])


def test_the_mask_is_shared_by_a_sentence_and_differs_between_sentences():
    torch.manual_seed(0)
    mlp = SharedMLP(8, [20, 30], 0.5)
    rows = drawn(6, 8)
    plain = torch.cat(mlp.eval()(rows, OWNER, 3), dim=1)
    fallen = torch.cat(mlp.train()(rows, OWNER, 3), dim=1)
    kept = fallen != 0
    torch.testing.assert_close(fallen[kept], 2 * plain[kept])
    for first, second in ((0, 1), (1, 2), (4, 5)):
        assert torch.equal(kept[first], kept[second])
    assert not torch.equal(kept[0], kept[3]) and not torch.equal(kept[3], kept[4])
    assert 0.2 < kept.float().mean() < 0.8


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.33, 0.5])
def test_dropout_keeps_the_mean_and_its_rate(rate):
    torch.manual_seed(1)
    mask = dropout_mask((500, 401), rate, torch.zeros(1))
    assert mask.shape == (500, 401) and mask.dtype == torch.float32
    exact = round(rate * 256) / 256
    assert abs(exact - rate) <= 1 / 512
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / (1 - exact)).item()}
    error = (exact * (1 - exact) / mask.numel()) ** 0.5
    assert abs(float((mask == 0).float().mean()) - exact) < 4 * error
    assert abs(float(mask.mean()) - 1) < 4 * error / (1 - exact)
    columns = (mask == 0).float().mean(0)  # no byte of the 64-bit numbers is special
    assert float((columns - exact).abs().max()) < 6 * (exact * (1 - exact) / 500) ** 0.5


def test_rows_are_laid_out_by_sentence():
    flat = drawn(6, 2)
    found = table(flat, [3, 1, 2], 3)
    zero = torch.zeros(2)
    expected = [[flat[0], flat[1], flat[2]], [flat[3], zero, zero], [flat[4], flat[5], zero]]
    assert torch.equal(found, torch.stack([torch.stack(row) for row in expected]))
    assert offsets([3, 1, 2]).tolist() == [0, 3, 4]


def test_parts_of_a_shared_mlp_are_orthogonal_and_without_bias():
    mlp = SharedMLP(8, [4, 8], 0.33)
    for part in mlp.linear.weight.split([4, 8]):
        torch.testing.assert_close(part @ part.T, torch.eye(len(part)), rtol=1e-4, atol=1e-5)
    assert not mlp.linear.bias.any()
