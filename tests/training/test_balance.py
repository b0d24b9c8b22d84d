"""The weighing of losses against the formulas, by hand."""

from __future__ import annotations

import json

import pytest
import torch

from mtlprune.training.optimisation import Balance


def losses(**values: float) -> dict[str, torch.Tensor]:
    return {task: torch.tensor(value, requires_grad=True) for task, value in values.items()}


def numbers(weighed: dict[str, torch.Tensor]) -> dict[str, float]:
    return {task: float(loss.detach()) for task, loss in weighed.items()}


def test_none_leaves_losses_alone():
    given = losses(pos=2.0, ner=0.5)
    assert Balance("none", {}, 5)(given) == given


def test_fixed_multiplies():
    weighed = Balance("fixed", {"pos": 0.25, "dep": 0.0}, 5)(losses(pos=2.0, ner=0.5, dep=3.0))
    assert numbers(weighed) == {"pos": 0.5, "ner": 0.5, "dep": 0.0}


def test_running_mean_by_hand():
    balance = Balance("running_mean", {}, 2)
    # first losses: the means are the losses themselves, so every weighed loss is their sum
    assert numbers(balance(losses(pos=4.0, ner=1.0))) == {"pos": 5.0, "ner": 5.0}
    # pos: mean(4, 2) = 3; ner: mean(1, 3) = 2; sum 5
    weighed = balance(losses(pos=2.0, ner=3.0))
    assert numbers(weighed)["pos"] == pytest.approx(2 * 5 / 3)
    assert numbers(weighed)["ner"] == pytest.approx(3 * 5 / 2)
    # a window of two: pos is mean(2, 6) = 4; ner is not in the batch, its mean of 2 still counts in the sum
    weighed = balance(losses(pos=6.0))
    assert numbers(weighed)["pos"] == pytest.approx(6 * (4 + 2) / 4) and set(weighed) == {"pos"}
    # a task that comes later
    weighed = balance(losses(dep=8.0))
    assert numbers(weighed)["dep"] == pytest.approx(8 * (4 + 2 + 8) / 8)


def test_running_mean_is_not_differentiated():
    balance = Balance("running_mean", {}, 5)
    given = losses(pos=4.0, ner=1.0)
    sum(balance(given).values()).backward()
    assert float(given["pos"].grad) == 5 / 4 and float(given["ner"].grad) == 5.0


def test_a_loss_of_zero_divides_nothing_by_zero():
    balance = Balance("running_mean", {}, 5)
    weighed = balance(losses(pos=0.0, ner=2.0))
    assert numbers(weighed) == {"pos": 0.0, "ner": 3.0}  # a mean of 0 counts as 1


def test_its_memory_goes_through_a_checkpoint():
    one, other = Balance("running_mean", {}, 3), Balance("running_mean", {}, 3)
    for step in range(5):
        one(losses(pos=1.0 + step, ner=2.0 * step + 0.1))
    other.restore(json.loads(json.dumps(one.state())))
    for step in range(3):
        given = losses(pos=3.0 - step, ner=0.3)
        assert numbers(one(given)) == numbers(other(given))
