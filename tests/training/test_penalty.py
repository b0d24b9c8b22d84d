"""The penalties: formulas, a target that is reached and kept on a simulated task, exact ends."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from mtlprune.encoder.gates import Gates, deterministic, probability_open
from mtlprune.training.pruning.penalty import LagrangianPenalty, LambdaPenalty, Penalty, TargetPenalty

LAYERS, HEADS = 6, 12
ALL = LAYERS * HEADS
STEPS = 400
Init = Literal["open", "paper"]


def draw_utilities(kind: str, seed: int = 0) -> Tensor:
    """By how much a head's gate lowers the loss: what a task's gradient shows of it is noise, mostly."""
    share = torch.rand(LAYERS, HEADS, generator=torch.Generator().manual_seed(seed))
    return {
        "thousandth to tenth": 10 ** (-3 + 2 * share),
        "strong": 0.1 * (0.5 + share),
        "weak": 1e-5 * 10 ** (2 * share),
        "half useless": torch.where(share < 0.5, 0.0, 10 ** (-3 + 4 * (share - 0.5))),
        "some harmful": torch.where(share < 0.25, -(10 ** (-3 + 4 * share)), 10 ** (-3 + 2 * share)),
    }[kind]


@dataclass
class Simulation:
    """Gates, their Adam and a task whose gradients are noisy and fall tenfold during the run."""

    penalty: Penalty
    gates: Gates
    utilities: Tensor

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.gates.parameters(), lr=0.1)
        self.open: list[int] = []

    def run(self, end: int) -> None:
        sets = {"shared": self.gates}
        for step in range(len(self.open), end):
            torch.manual_seed(step)
            noise = torch.randn(2, LAYERS, HEADS)
            gain = self.utilities * (1 + 3 * noise[0]) + 0.3 * self.utilities.abs().mean() * noise[1]
            loss = -(10 ** (-step / STEPS)) * (gain * self.gates()).sum()
            if loss.requires_grad:
                loss.backward()
            term = self.penalty(sets, step)
            if term.requires_grad:
                term.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.penalty.end_update(sets, step)
            self.open.append(self.gates.open_count())


def simulate(penalty: Penalty, utilities: Tensor, init: Init = "open", end: int = STEPS) -> Simulation:
    simulation = Simulation(penalty, Gates(LAYERS, HEADS, init, seed=1), utilities)
    simulation.run(end)
    return simulation


def test_lambda_is_the_mean_over_layers_of_expected_open_heads():
    gates = Gates(3, 4, seed=2)
    total = LambdaPenalty(0.01, total=100)({"shared": gates}, step=0)
    q = probability_open(gates.logits.detach())
    assert total.item() == pytest.approx(0.01 * q.sum(1).mean().item())
    total.backward()
    torch.testing.assert_close(gates.logits.grad, 0.01 / 3 * q * (1 - q))
    gates = Gates(12, 12)
    gates.logits.data.zero_()
    found = {"shared": gates}
    assert LambdaPenalty(1.0, total=1)(found, 0).item() == pytest.approx(8.26, abs=0.01)  # where the original begins
    rising, full = LambdaPenalty(0.5, total=100, warmup=0.2), LambdaPenalty(0.5, total=100)(found, 0).item()
    shares = [rising(found, step).item() / full for step in (0, 9, 19, 20, 99)]
    assert shares == pytest.approx([0.05, 0.5, 1, 1, 1]) and rising.has_settled(0)


@pytest.mark.parametrize(
    ("kind", "init", "keep"),
    [
        ("half useless", "open", 36),
        ("strong", "paper", 36),
        ("thousandth to tenth", "open", 6),
        pytest.param("thousandth to tenth", "open", ALL, marks=pytest.mark.slow),
        pytest.param("weak", "paper", 36, marks=pytest.mark.slow),
        pytest.param("some harmful", "paper", 66, marks=pytest.mark.slow),
    ],
)
def test_the_target_is_reached_and_kept(kind: str, init: Init, keep: int):
    simulation = simulate(TargetPenalty(keep, ALL, STEPS), draw_utilities(kind), init)
    distances = [abs(count - keep) for count in simulation.open[int(0.6 * STEPS) :]]
    assert np.mean(np.array(distances) <= 1) >= 0.9 and max(distances) <= 3 and distances[-1] <= 1
    assert simulation.open[-1] == int((deterministic(simulation.gates.logits) > 1e-3).sum())  # as users read it off
    if kind == "half useless":  # useful heads are kept; by chance: a half
        assert (simulation.gates.evaluated() * simulation.utilities).sum() > 0.8 * simulation.utilities.sum()


def test_the_scale_of_the_loss_does_not_matter():
    """Exactly: powers of two round alike, and Adam forgets scale but for its epsilon."""
    strong = draw_utilities("strong")
    one, other = (simulate(TargetPenalty(36, ALL, STEPS), strong * scale, end=150) for scale in (1.0, 2.0**10))
    values = [simulation.penalty.state()["shared"]["value"] for simulation in (one, other)]
    assert one.open == other.open and values[0] == pytest.approx(values[1])


def test_the_wanted_number_falls_and_stays():
    penalty = TargetPenalty(10, 50, total=100, warmup=0.4)
    assert [penalty.target_count(step) for step in (0, 19, 39, 40, 99)] == pytest.approx([49, 30, 10, 10, 10])
    assert TargetPenalty(10, 50, total=100, warmup=0.0).target_count(0) == 10
    assert [penalty.has_settled(step) for step in (0, 59, 60, 100)] == [False, False, True, True]


def test_multipliers_rise_by_adam_and_their_heads_are_exact_in_the_end():
    """Against torch's own Adam on λ₁ · d + λ₂ · d², maximised."""
    penalty = LagrangianPenalty(36, ALL, STEPS, multiplier_rate=0.5, warmup=0.5, settle=0.8)
    gates = Gates(LAYERS, HEADS)
    multipliers = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([multipliers], lr=0.5, maximize=True)
    for step in range(30):
        gates.logits.data.uniform_(-2, 3 if step < 20 else 0, generator=torch.Generator().manual_seed(step))
        excess = (probability_open(gates.logits).sum() - penalty.target_count(step)) / ALL
        wanted = multipliers @ torch.stack([excess, excess**2]).double()
        found = penalty({"shared": gates}, step)
        assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-4, abs=1e-6)
        adam.zero_grad()
        wanted.backward()
        adam.step()
    found = torch.tensor([penalty.state()["shared"][name] for name in ("first", "second")])
    torch.testing.assert_close(found.double(), multipliers.detach(), rtol=1e-4, atol=1e-5)
    simulation = simulate(LagrangianPenalty(36, ALL, STEPS), draw_utilities("thousandth to tenth"))
    assert simulation.open[280:] == [36] * 120
