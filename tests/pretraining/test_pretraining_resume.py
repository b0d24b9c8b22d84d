"""Exact resume: a process is killed, the same pretraining run again, and all equals an undisturbed run bit for bit."""

from functools import partial

import pytest
from interrupted import KILLED, Moment, killed_often, often, outcome
from interrupted import run as run_any

run = partial(run_any, pretraining=True)

MOMENTS = {
    "before config.yaml is there": Moment("os.rename", "config.yaml"),
    "before any state was saved": Moment("own call", "update", 3),
    "within the loss of an update": Moment("own call", "loss", 8),
    "while minimal pairs are judged": Moment("own call", "judge", 3),
    "before a model folder is in place": Moment("os.rename", "step-5"),
    "with a model folder written, its line not": Moment("own call", "measure", 4),
    "with its line written, no state": Moment("own call", "append_line", 4),
    "before the state is in place": Moment("os.rename", "checkpoint.safetensors", 6),
    "at the end, before it is noted": Moment("os.rename", "manifest.json", 2),
    "at the end, before the state is removed": Moment("os.remove", "checkpoint.safetensors"),
}

FEW = ("with its line written, no state", "before the state is in place")
CASES = [pytest.param(name, id=name, marks=() if name in FEW else pytest.mark.slow) for name in MOMENTS]


@pytest.fixture(scope="module")
def undisturbed(small_pretraining, tmp_path_factory):
    settings = small_pretraining(model={"attention_dropout": 0.1})
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(settings, folder) == 0
    expected = outcome(folder)
    assert "checkpoint.safetensors" not in expected and "checkpoints/step-12/model.safetensors" in expected
    return settings, expected


@pytest.mark.parametrize("name", CASES)
def test_killed_once(undisturbed, name, tmp_path):
    settings, expected = undisturbed
    assert run(often(settings), tmp_path / "run", MOMENTS[name]) == KILLED
    assert run(often(settings), tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


@pytest.mark.slow
def test_killed_again_and_again_at_any_moment(undisturbed, tmp_path):
    settings, expected = undisturbed
    assert killed_often(settings, tmp_path / "run", 4, 0.05, pretraining=True) >= 2
    assert run(often(settings), tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected
