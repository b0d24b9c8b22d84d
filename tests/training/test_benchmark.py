"""bench measures what training does, on the same batches."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from small_runs import Settings, with_sentences

from mtlprune.config.config import ConfigError, build_config
from mtlprune.training.benchmark import Times, make_run, measure


def test_every_kind_is_measured_on_the_same_batches(small_settings: Settings):
    ticks: list[int] = []
    config = build_config(small_settings("pos,srl", batch_sentences=12))
    result = measure(config, 2, 2, memory=False, on_batch=lambda: ticks.append(1))
    kinds = {
        "plain fine-tuning",
        "plain fine-tuning, random batches",
        "STL pos",
        "STL srl",
        "MTL-2 joint",
        "MTL-2 joint, gated",
    }
    assert set(result.steps.clock) == set(result.steps.processor) == kinds and result.memory == 0
    assert all((times > 0).all() and times.shape == (2, 2) for times in result.steps.clock.values())
    assert result.ratios_to_random().keys() == kinds
    assert result.ratios().keys() == kinds | {"MTL-2 joint: gated / ungated", "evaluation, all tasks"}
    assert 0 < result.steps.sentences <= 24 and len(ticks) == 2 * (2 + 1)
    assert result.evaluation.sentences == 12


def test_a_ratio_is_of_medians_and_of_processor_seconds_and_unsteady_where_rounds_differ():
    plain, other = np.array([[1.0, 3.0]] * 3), np.array([[2.0, 6.0], [2.2, 6.4], [1.9, 9.5]])
    times = Times({"a": other * 7, "plain": plain}, {"a": other, "plain": plain}, 2, on_cpu=True)
    assert times.seconds("a") == (7 * (2.0 + 6.4), 2.0 + 6.4)
    ratio = times.ratio("a", "plain")
    assert ratio == (8.4 / 4, 8.0 / 4, 11.4 / 4) and not ratio.is_steady  # the last round took a third longer
    assert replace(times, on_cpu=False).ratio("a", "plain").value == 7 * ratio.value
    assert times.ratio("plain", "plain") == (1, 1, 1) and times.ratio("plain", "plain").is_steady


def test_batches_that_lack_a_task_are_not_measured(small_settings: Settings, tmp_path):
    """One sentence a batch, of which one in six has no roles: an SRL step on such a batch would have no loss."""
    settings = small_settings("pos,srl", batch_sentences=1)
    known = make_run(build_config(settings))[0].is_annotated["srl"]
    assert measure(build_config(settings), 100, 1, memory=False).steps.sentences == sum(known) < len(known)
    layers = itertools.cycle([{"pos": None}, {"srl": None}])
    apart = with_sentences(settings, tmp_path / "c", lambda found: [s.with_layers(**next(layers)) for s in found])
    with pytest.raises(ConfigError, match="expected a batch with the layers of all of pos, srl"):
        measure(build_config(apart), 2, 1, memory=False)
