"""Exact resume: a process is killed, the same training run again, and all equals an undisturbed run bit for bit."""

from __future__ import annotations

import time
from typing import Any

import pytest
from interrupted import KILLED, Moment, error_of, killed_often, often, outcome, run, start

MIXINGS: dict[str, dict[str, Any]] = {
    "joint": {},
    "sampled": {
        "mixing": "sampled",
        "accumulate": 2,
        "balance": "running_mean",
        "balance_window": 3,
        "weight_decay": 0.01,
        "batch_sentences": 40,
    },
}
MOMENTS = {  # an epoch has four updates where mixing is joint, eight where it is sampled
    "at the very beginning": Moment("os.rename", "vocabulary.json"),
    "before config.yaml is there": Moment("os.rename", "config.yaml"),
    "before any checkpoint": Moment("update", count=2),
    "between updates": Moment("update", count=8),
    "within the backward pass of an update": Moment("call", "backward", 9),
    "while the optimizer steps": Moment("call", "step", 7),
    "in evaluation": Moment("call", "decode", 7),
    "before weights are in place": Moment("os.rename", "epoch-001.safetensors"),
    "before metrics are written": Moment("open", "metrics.jsonl", 2),
    "with metrics written, results not": Moment("open", ".dev.jsonl.part", 1),
    "before best.json is in place": Moment("os.rename", "best.json", 2),
    "before the checkpoint is in place": Moment("os.rename", "checkpoint.safetensors", 2),
    "at the end, before it is noted": Moment("os.rename", "manifest.json", 2),
    "at the end, before the checkpoint is removed": Moment("os.remove", "checkpoint.safetensors"),
    "within a checkpoint of the last epoch": Moment("open", ".checkpoint.safetensors.part", -1),
}

FEW = (  # the others are slow
    ("joint", "before config.yaml is there"),
    ("joint", "before metrics are written"),
    ("joint", "before the checkpoint is in place"),
    ("joint", "at the end, before it is noted"),
    ("joint", "within a checkpoint of the last epoch"),
)
CASES = [
    pytest.param(mixing, name, id=f"{mixing}-{name}", marks=() if (mixing, name) in FEW else pytest.mark.slow)
    for mixing in MIXINGS
    for name in MOMENTS
]


@pytest.fixture(scope="module", params=list(MIXINGS))
def undisturbed(request, small_settings, tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any]]:
    settings = small_settings(**MIXINGS[request.param])
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(settings, folder) == 0
    expected = outcome(folder)
    assert {"config.yaml", "metrics.jsonl", "best.json", "scores/dev.json", "counts/dev.json"} <= set(expected)
    assert "checkpoint.safetensors" not in expected
    assert any(name.startswith("weights/") for name in expected)
    return settings, expected


@pytest.mark.parametrize(("undisturbed", "name"), CASES, indirect=["undisturbed"])
def test_killed_once(undisturbed, name, tmp_path):
    settings, expected = undisturbed
    moment = MOMENTS[name]
    if moment.count < 0:  # checkpoints after every update, so that one of the last epoch can be hit
        count = 2 * (expected["manifest.json"]["step"] + 1)  # opened when it is made, and when flushed
        assert run(often(settings), tmp_path / "run", moment._replace(count=count)) == KILLED
        assert list((tmp_path / "run").glob(".checkpoint.safetensors.*.part"))
    else:
        assert run(settings, tmp_path / "run", moment) == KILLED
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


@pytest.mark.slow
def test_killed_again_and_again_at_any_moment(undisturbed, tmp_path):
    settings, expected = undisturbed
    assert killed_often(settings, tmp_path / "run", 5, 0.1) >= 3
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


def test_a_second_process_is_refused_and_the_first_goes_on(small_settings, tmp_path):
    settings = small_settings("pos", epochs=400)
    first = start(settings, tmp_path / "run")
    try:
        checkpoint, deadline = tmp_path / "run" / "checkpoint.safetensors", time.monotonic() + 60
        while not checkpoint.exists():
            assert first.is_alive() and time.monotonic() < deadline
            time.sleep(0.02)
        assert run(settings, tmp_path / "run") == 3
        message = error_of(tmp_path / "run")
        assert message.startswith("RunError") and f"in use by another process (number {first.pid})" in message
        assert first.is_alive()
    finally:
        first.kill()
        first.join()
    shorter = {**settings, "train": {**settings["train"], "epochs": 2}}
    assert run(shorter, tmp_path / "run") == 3  # not refused as in use: the lock died with its process
    assert "train.epochs (was 400, is 2)" in error_of(tmp_path / "run")
