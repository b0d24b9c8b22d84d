"""Closed forms against samples, end-point masses, limits; a module that never rounds and can be fixed."""

import math
from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

from mtlprune.encoder.gates import (
    HIGH,
    LOW,
    TEMPERATURE,
    Gates,
    TopKGates,
    deterministic,
    first_logits,
    probability_open,
    relaxed_subset,
    sample,
    top_mask,
)
from mtlprune.encoder.pieces import EncoderError

DRAWS = 400_000
TEMPERATURES = {"paper": TEMPERATURE, "blog": 1.0}


def cdf(temperature: float, logit: float, value: float) -> float:
    soft = (value - LOW) / (HIGH - LOW)
    return 1 / (1 + math.exp(logit - temperature * math.log(soft / (1 - soft))))


@pytest.mark.parametrize("logit", [-3.0, 0.5, 2.5])
@pytest.mark.parametrize("name", TEMPERATURES)
def test_closed_forms_are_what_samples_show(name: str, logit: float):
    """P(z ≠ 0), P(z = 1) and P(z ≤ value) against shares; without a temperature (blog) too."""
    temperature, at = TEMPERATURES[name], torch.tensor(logit)
    noise = torch.rand(DRAWS, generator=torch.Generator().manual_seed(7))
    values = sample(at.expand(DRAWS), noise, temperature)
    tolerance = 5 * math.sqrt(0.25 / DRAWS)  # five standard errors of a share, at its widest
    assert ((values >= 0) & (values <= 1)).all()
    assert (values != 0).float().mean() == pytest.approx(probability_open(at, temperature).item(), abs=tolerance)
    ones = torch.sigmoid(at - temperature * math.log((1 - LOW) / (HIGH - 1))).item()
    assert (values == 1).float().mean() == pytest.approx(ones, abs=tolerance)
    for between in (0.01, 0.5, 0.99):
        assert (values <= between).float().mean() == pytest.approx(cdf(temperature, logit, between), abs=tolerance)


def test_evaluation_shuts_and_opens_where_the_original_does():
    values = deterministic(torch.tensor([-2.399, -2.397, 0.0, 2.397, 2.399]))
    assert values[0] == 0 and 0 < values[1] < 1e-3 and values[2] == 0.5 and 0.999 < values[3] < 1 and values[4] == 1


def test_limits_give_numbers_and_gradients():
    logits = torch.tensor([-math.inf, -1e30, -200.0, 200.0, 1e30, math.inf], requires_grad=True)
    for noise in (0.0, 0.5, 1.0):
        values = sample(logits, torch.full((6,), noise))
        assert values.tolist() == [0, 0, 0, 1, 1, 1]
        q = probability_open(logits)
        assert (q >= 1e-6 * 0.99).all() and (q <= 1 - 0.99e-6).all()
        (gradient,) = torch.autograd.grad((values + deterministic(logits) + q).sum(), logits)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("heads", [12, 16])
def test_paper_starts_half_open_by_its_seed_and_open_as_pretrained(heads: int):
    """Xavier's uniform distribution over a weight of (1, heads, 1, 1), which has one input and as many outputs."""
    logits, bound = first_logits(200, heads, "paper", seed=3), math.sqrt(6 / (heads + 1))
    assert bound * 0.99 < logits.abs().max() <= bound
    assert abs(logits.mean()) < 0.03 and logits.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert torch.equal(logits, first_logits(200, heads, "paper", seed=3))
    assert not torch.equal(logits, first_logits(200, heads, "paper", seed=4))
    assert torch.equal(Gates(2, heads, "open").eval()(), torch.ones(2, heads))


def sampled(gates: nn.Module) -> Tensor:
    torch.manual_seed(5)
    return gates()


def test_never_rounded_by_casts_nor_by_autocast():
    gates = Gates(4, 6, seed=1)
    logits, parameter, plain, count = gates.logits.detach().clone(), gates.logits, sampled(gates), gates.expected_open()
    host = nn.ModuleDict({"gates": gates, "linear": nn.Linear(2, 2)})
    for cast in (host.half, host.double, host.float, lambda: host.to("cpu", torch.bfloat16)):
        cast()
        assert gates.logits.dtype == torch.float32 and torch.equal(gates.logits, logits)
        assert gates.mask.dtype == torch.float32 and gates.fixed.dtype == torch.bool
    assert host["linear"].weight.dtype == torch.bfloat16 and gates.logits is parameter
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(sampled(gates), plain) and torch.equal(gates.expected_open(), count)


@pytest.mark.parametrize("training", [True, False])
def test_a_fixed_mask_is_what_comes_out_in_both_modes(training: bool):
    gates = Gates(2, 3).train(training)
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]])
    before = gates.logits.detach().clone()
    gates.fix(mask)
    assert torch.equal(gates(), mask.float()) and gates().dtype == torch.float32 and not gates().requires_grad
    assert gates.open_count() == 3 and gates.expected_open() == 3 and torch.equal(gates.logits, before)
    gates().zero_()  # what is handed out is no door to what is inside
    with pytest.raises(EncoderError, match=r"\(2, 3\), found \(3, 2\)"):
        gates.fix(torch.ones(3, 2))
    assert torch.equal(gates(), mask.float())
    gates.fix(mask.bool().logical_not())
    assert torch.equal(gates(), 1.0 - mask)


def test_the_top_heads_with_ties_in_reading_order():
    values = torch.tensor([[1.0, 3.0, 2.0], [2.0, 0.0, 2.0]])
    assert top_mask(values, 3).tolist() == [[0, 1, 1], [1, 0, 0]]
    assert top_mask(torch.zeros(50, 50), 1234).flatten()[:1234].all()


def inclusion(logits: Tensor, keep: int) -> Tensor:
    """P(head is among ``keep`` draws without replacement by softmax(logits)), by enumerating all orders."""
    weights, found = logits.double().flatten().exp(), torch.zeros(logits.numel(), dtype=torch.float64)
    for order in permutations(range(logits.numel()), keep):
        chance, left = 1.0, float(weights.sum())
        for head in order:
            chance *= float(weights[head]) / left
            left -= float(weights[head])
        found[list(order)] += chance
    return found.view_as(logits)


def top_k(logits: list[list[float]], keep: int, temperature: float = 1.0) -> TopKGates:
    values = torch.tensor(logits)
    gates = TopKGates(*values.shape, keep, temperature=temperature)
    gates.logits.data.copy_(values)
    return gates


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_heads_are_drawn_as_often_as_enumeration_says(keep: int):
    gates = top_k([[0.0, 1.0, -1.0], [2.0, 0.5, -0.3]], keep)
    torch.manual_seed(3)
    drawn = torch.stack([gates().detach() for _ in range(3000)])
    assert set(drawn.unique().tolist()) == {0.0, 1.0} and (drawn.sum((1, 2)) == keep).all()
    expected = inclusion(gates.logits.detach(), keep)
    assert float(expected.sum()) == pytest.approx(keep)
    error = (expected * (1 - expected) / len(drawn)).sqrt()
    assert ((drawn.double().mean(0) - expected).abs() < 4.5 * error).all()


def test_the_relaxed_subset_adds_up_and_becomes_the_draw():
    scores = torch.randn(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for keep in (0, 1, 4, 7):
        for temperature in (1000.0, 1.0, 1e-8):
            soft = relaxed_subset(scores, keep, temperature)
            assert float(soft.sum()) == pytest.approx(keep) and soft.min() >= 0
        torch.testing.assert_close(soft.float(), top_mask(scores.view(1, 7), keep)[0])
    logits = scores[:4].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda values: relaxed_subset(values, 2, 0.7), logits)


def test_top_k_gradients_are_those_of_the_relaxed_subset_of_the_same_noise():
    gates, weights = top_k([[0.0, 1.0], [2.0, 0.5]], 2, temperature=0.5), torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    values = sampled(gates)
    (values * weights).sum().backward()
    torch.manual_seed(5)
    noise = -torch.log(-torch.log(torch.rand(2, 2).double()))
    logits = gates.logits.detach().double().requires_grad_()
    soft = relaxed_subset((logits + noise).flatten(), 2, 0.5).view(2, 2)
    (soft * weights).sum().backward()
    torch.testing.assert_close(gates.logits.grad, logits.grad.float())
    assert torch.equal(values, top_mask(logits + noise, 2)) and gates.logits.grad.abs().min() > 0


@pytest.mark.parametrize("keep", [0, 3, 6])
@pytest.mark.parametrize("temperature", [1e-8, 1000.0])
def test_top_k_at_its_limits(keep: int, temperature: float):
    gates = TopKGates(2, 3, keep, "open", temperature=temperature).to(torch.bfloat16)
    assert gates.temperature.dtype == gates.logits.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        values = gates()
    assert values.dtype == torch.float32 and values.sum() == gates.open_count() == gates.expected_open() == keep
    assert values.requires_grad == (keep > 0)
    if keep:
        values.sum().backward()
        assert gates.logits.grad.isfinite().all()
    gates.logits.data = torch.tensor([[0.1, 0.9, 0.2], [0.8, 0.3, 0.7]])
    assert torch.equal(gates.eval()(), top_mask(gates.logits, keep))  # no noise
