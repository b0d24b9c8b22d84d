"""What removal saves: FLOPs counted against the formula by hand, and the three times side by side."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import HEAD_FAMILIES, HIDDEN, INNER, LAYERS, make_config
from transformers import AutoModel, PreTrainedModel

from mtlprune.encoder.removal import remove_heads
from mtlprune.training.latency import LatencyPart, TimedModel, measure

HALF = torch.tensor([[1.0, 0.0, 0.5, 0.0], [0.0, 0.0, 1.0, 1.0]])


def build(family: str) -> PreTrainedModel:
    return AutoModel.from_config(make_config(family)).eval()


@pytest.mark.parametrize("family", ["bert", "distilbert", "mpnet", "albert"])
def test_flops_are_those_of_the_formula(family):
    model, rows, length = build(family), 3, 10
    ids = torch.full((rows, length), 7)
    block = LAYERS * (rows * length * 4 * 2 * HIDDEN**2 + 4 * rows * length**2 * HIDDEN)
    inner = LAYERS * rows * length * 2 * 2 * HIDDEN * INNER
    pooler = rows * 2 * HIDDEN**2 if getattr(model, "pooler", None) is not None else 0
    embedding = rows * length * 2 * (HIDDEN // 2) * HIDDEN if family == "albert" else 0
    assert TimedModel(model).flops(ids) == (block + inner + pooler + embedding, block)


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_the_three_are_measured_in_every_cell(family):
    full = build(family)
    gates = HALF.clone()
    if family == "albert":
        gates[1] = gates[0]
    removed, before = copy.deepcopy(full), list(full.state_dict())
    remove_heads(removed, gates)
    cells = measure(full, copy.deepcopy(full), removed, gates, batches=(1, 2), lengths=(4, 8), rounds=2, seconds=0)
    assert [(cell.batch, cell.length, cell.rounds) for cell in cells] == [(1, 4, 2), (2, 4, 2), (1, 8, 2), (2, 8, 2)]
    assert list(full.state_dict()) == before
    for cell in cells:
        assert 0 < cell.encoder.share < cell.attention.share == pytest.approx(0.5)
        for kind, seconds in cell.encoder.seconds.items():
            assert seconds > cell.attention.seconds[kind] / 10 > 0
        assert set(cell.encoder.seconds) == {"full", "masked", "removed"}
        assert cell.record()["attention"]["reached"] == pytest.approx(cell.attention.gain / cell.attention.share)


def test_half_of_the_ideal_gain():
    part = LatencyPart(0.4)
    for kind, seconds in (("full", 12.0), ("removed", 8.5), ("full", 10.0), ("masked", 11.0), ("removed", 8.0)):
        part.take(kind, seconds)
    assert part.seconds == {"full": 10.0, "masked": 11.0, "removed": 8.0}
    assert part.gain == pytest.approx(0.2) and part.reached == pytest.approx(0.5)
    assert LatencyPart(0.0, {"full": 1.0, "removed": 1.0}).reached is None
