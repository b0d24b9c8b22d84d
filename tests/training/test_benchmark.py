"""bench measures what training does, on the same batches."""

import itertools

import pytest
from small_runs import Settings, with_sentences

from mtlprune.config.config import ConfigError, build_config
from mtlprune.training.benchmark import make_run, measure


def test_every_kind_is_measured_on_the_same_batches(small_settings: Settings):
    ticks: list[int] = []
    config = build_config(small_settings("pos,srl", batch_sentences=12))
    result = measure(config, 2, 2, memory=False, on_batch=lambda: ticks.append(1))
    assert set(result.steps) == {"plain fine-tuning", "STL pos", "STL srl", "MTL-2 joint", "MTL-2 joint, gated"}
    assert min(result.steps.values()) > 0 and result.memory == 0
    bare, ratios = result.steps["plain fine-tuning"], result.ratios()
    assert all(ratios[name] == seconds / bare for name, seconds in result.steps.items())
    assert 0 < result.sentences <= 24 and len(ticks) == 2 * (2 + 1)
    assert result.dev_sentences == 12


def test_batches_that_lack_a_task_are_not_measured(small_settings: Settings, tmp_path):
    """One sentence a batch, of which one in six has no roles: an SRL step on such a batch would have no loss."""
    settings = small_settings("pos,srl", batch_sentences=1)
    known = make_run(build_config(settings))[0].is_annotated["srl"]
    assert measure(build_config(settings), 100, 1, memory=False).sentences == sum(known) < len(known)
    layers = itertools.cycle([{"pos": None}, {"srl": None}])
    apart = with_sentences(settings, tmp_path / "c", lambda found: [s.with_layers(**next(layers)) for s in found])
    with pytest.raises(ConfigError, match="no batch holds the layers of all of pos, srl"):
        measure(build_config(apart), 2, 1, memory=False)
