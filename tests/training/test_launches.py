"""What a GPU would be asked to do: a counter against counts by hand, and ceilings of steps and annotation."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from small_runs import Settings
from torch import nn

from mtlprune.config.config import build_config
from mtlprune.encoder.batch import HOST, moved, placed
from mtlprune.model import MultiTaskModel
from mtlprune.training import launches
from mtlprune.training.launches import BARE, Launches, counted


def asked(work: Callable[[torch.Tensor], object]) -> Launches:
    """Of a tensor on the device."""
    with counted() as found:
        work(torch.arange(12.0, requires_grad=True, device=launches.DEVICE).view(3, 4))
    found.operations.subtract({"arange": 1})
    return found


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


@pytest.mark.parametrize(
    ("work", "operations", "waits"),
    [
        (lambda x: x.t()[1:].reshape(-1).detach(), 1, 0),  # views, and the copy of a transposed one
        (lambda x: (x * 2).sum().item(), 2, 1),
        (lambda x: Twice.apply(x.detach()), 2, 0),  # custom functions are entered
        (lambda x: (x > 3).nonzero(), 2, 1),
        (lambda x: (x > 3).nonzero_static(size=8), 2, 0),
        (lambda x: x[x > 3], 2, 1),
        (lambda x: x[torch.tensor([0, 2])], 2, 1),  # an index that lies on the host is sent first
        (lambda x: x[placed(np.array([0, 2]), x.device)], 2, 0),
        (lambda x: x.detach().tolist(), 0, 1),
        (lambda x: x.detach().cpu() + torch.ones(4), 0, 1),  # the host adds
        (lambda x: moved([x.detach(), x.detach() > 1], HOST), 2, 1),
        (lambda x: (torch.arange(3) + 1).tolist(), 0, 0),
        (lambda x: x.repeat_interleave(torch.ones(3, device=x.device).long(), 0), 4, 1),
    ],
)
def test_operations_and_waits_are_those_counted_by_hand(work: Callable[..., object], operations: int, waits: int):
    found = asked(work)
    assert (found.operations.total(), found.waits.total()) == (operations, waits), found
    assert not found.mixed


def test_operations_on_tensors_of_both_sides_are_seen():
    assert asked(lambda x: x + torch.ones(4)).mixed == {"add": 1}
    assert not asked(lambda x: x + torch.tensor(1.0)).mixed  # a scalar may lie anywhere


CEILINGS = {"STL pos": 10, "STL ner": 40, "STL dep": 95, "STL con": 310, "STL srl": 320, "MTL-5": 740}
"""Operations of a step at 20 words beyond the bare encoder's, whatever the encoder is."""


def test_steps_and_annotation_stay_below_their_ceilings(small_settings: Settings):
    """And mix nowhere what lies on the host with what lies on the device."""
    parts = launches.measure(build_config(small_settings()), 20).parts
    steps = parts["step"]
    bare = steps[BARE].operations.total()
    found = {kind: steps[kind].operations.total() - bare for kind in CEILINGS}
    assert all(0 < found[kind] <= most for kind, most in CEILINGS.items()), found
    waits = {BARE: 0, **dict.fromkeys(("STL pos", "STL ner", "STL dep", "STL con"), 1)}
    waits |= {"STL srl": 2, "MTL-5": 2, "MTL-5, gated": 3}
    assert {kind: one.waits.total() for kind, one in steps.items()} == waits
    waits = {kind: one.waits.total() for kind, one in parts["annotation"].items()}
    assert waits["MTL-5"] == 2 and max(waits.values()) == 2, waits
    assert not [(kind, one.mixed) for part in parts.values() for kind, one in part.items() if one.mixed]


def test_copies_keep_what_they_pack():
    tensors = [torch.tensor([True, False, True]), torch.rand(2, 3), torch.tensor(7), torch.rand(0, 4).double()]
    with counted() as found:
        there = moved([tensor.view(tensor.shape) for tensor in tensors], launches.DEVICE)
    assert found.operations["copy to the device"] <= 1
    for tensor, copy in zip(tensors, there, strict=True):
        assert copy.dtype == tensor.dtype and torch.equal(copy, tensor)


def test_products_and_what_is_kept_of_one_layer():
    layer, x = nn.Linear(7, 3, bias=False), torch.ones(5, 7)
    found = launches.products_and_kept(lambda: layer(x).sum().backward(), cast(MultiTaskModel, layer))
    assert found == (2 * 2 * 5 * 7 * 3, x.nbytes)  # the output, and the gradient of the weights


def test_a_plan_divides_the_sentences_and_adds_the_sum():
    one = Launches(products=40, kept=8)
    asked = launches.Asked({"step": {BARE: Launches(), "MTL-5": one}}, sent=100)
    alone, two, many = (asked.plan(64, gpus, flops=2.0, link=10.0) for gpus in (1, 2, 64))
    assert alone == (40 * 16 / 2, 0, 0, 4 * 100 + 8 * 16)
    assert two == (alone.compute / 2, 10, 100, 400 + 64)  # of two, each sends what it has
    assert many.sent == pytest.approx(2 * 100 * 63 / 64) and many.compute == alone.compute / 64
