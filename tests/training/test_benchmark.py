"""bench measures what training does, on the same batches; FLOPs by the formula, and three times side by side."""

import copy
import itertools

import pytest
import torch
from small_runs import Settings, with_sentences
from tiny import HEAD_FAMILIES, HIDDEN, INNER, LAYERS, make_config
from transformers import AutoModel, PreTrainedModel

from mtlprune.config.config import ConfigError, build_config
from mtlprune.encoder.removal import remove_heads
from mtlprune.training.benchmark import Measured, make_run, measure
from mtlprune.training.pruning import head_removal
from mtlprune.training.pruning.head_removal import TimedModel


def test_every_kind_is_measured_on_the_same_batches(small_settings: Settings):
    ticks: list[int] = []
    config = build_config(small_settings("pos,srl", batch_sentences=12))
    result = measure(config, 2, 2, memory=False, on_batch=lambda: ticks.append(1))
    assert set(result.steps) == {"bare encoder", "STL pos", "STL srl", "MTL-2 joint", "MTL-2 joint, gated"}
    assert min(result.steps.values()) > 0 and result.memory == 0
    assert 0 < result.sentences <= 24 and len(ticks) == 2 * (2 + 1)
    assert result.dev_sentences == 12


def test_batches_that_lack_a_task_are_not_measured(small_settings: Settings, tmp_path):
    """One sentence a batch, of which one in six has no roles: an SRL step on such a batch would have no loss."""
    settings = small_settings("pos,srl", batch_sentences=1)
    known = make_run(build_config(settings))[0].known["srl"]
    assert measure(build_config(settings), 100, 1, memory=False).sentences == sum(known) < len(known)
    layers = itertools.cycle([{"pos": None}, {"srl": None}])
    apart = with_sentences(settings, tmp_path / "c", lambda found: [s.with_layers(**next(layers)) for s in found])
    with pytest.raises(ConfigError, match="no batch holds the layers of all of pos, srl"):
        measure(build_config(apart), 2, 1, memory=False)


def test_ratios_by_hand():
    result = Measured({}, 8, {"bare encoder": 2.0, "STL pos": 2.5}, 4, 0.5, 1.5)
    assert result.ratios() == {
        "bare encoder": 1.0,
        "STL pos": 1.25,
        "evaluation, all tasks / bare forward": 3.0,
    }


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
    cells = head_removal.measure(
        full, copy.deepcopy(full), removed, gates, batches=(1, 2), lengths=(4, 8), rounds=2, seconds=0
    )
    assert [(cell.batch, cell.length, cell.rounds) for cell in cells] == [(1, 4, 2), (2, 4, 2), (1, 8, 2), (2, 8, 2)]
    assert list(full.state_dict()) == before
    for cell in cells:
        assert 0 < cell.encoder.share < cell.attention.share == pytest.approx(0.5)
        for kind, seconds in cell.encoder.seconds.items():
            assert seconds > 0 and cell.attention.seconds[kind] > 0
        assert set(cell.encoder.seconds) == {"full", "masked", "removed"}
        assert cell.record()["attention"]["reached"] == pytest.approx(cell.attention.gain / cell.attention.share)
