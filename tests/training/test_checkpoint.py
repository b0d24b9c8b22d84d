"""Dropout that a checkpoint need not remember, and disks that are full."""

import re
from typing import Any

import pytest
import torch
from interrupted import KILLED, error_of, often, outcome, run
from safetensors.torch import load_file
from small_runs import Settings

from mtlprune.training.checkpoint import seed_step


def test_dropout_follows_from_seed_and_step_alone():
    def draw(seed: int, step: int) -> list[float]:
        torch.rand(step + 3)
        seed_step(seed, step)
        return torch.rand(4).tolist()

    assert draw(1, 5) == draw(1, 5)
    draws = [draw(seed, step) for seed in (1, 2) for step in (0, 1, 2)]
    assert all(draws[i] != draws[j] for i in range(6) for j in range(i))


@pytest.fixture(scope="module")
def whole(small_settings: Settings, tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any], int]:
    """What a run leaves, and the size of its checkpoints."""
    settings = small_settings("pos,dep", epochs=2)
    folder = tmp_path_factory.mktemp("whole")
    assert run(settings, folder / "run", kill_after=6) == KILLED
    size = (folder / "run" / "checkpoint.safetensors").stat().st_size
    assert run(settings, folder / "run") == 0
    return settings, outcome(folder / "run"), size


@pytest.mark.parametrize(
    ("updates", "share", "file"),
    [
        (0, 0.9, "checkpoint.safetensors"),
        (3, 0.5, "checkpoint.safetensors"),
        (0, 0.0, ""),  # not even its lock
    ],
)
def test_a_full_disk_loses_nothing_that_was_complete(whole, updates, share, file, tmp_path):
    """The limit on the size of a file refuses as a full disk does, at the first file that is larger."""
    settings, expected, size = whole
    if updates:
        assert run(often(settings), tmp_path / "run", kill_after=updates) == KILLED
    before = {path: path.read_bytes() for path in tmp_path.rglob("checkpoint.safetensors")}
    assert run(often(settings), tmp_path / "run", largest_file=int(share * size)) == 3, "was not refused"
    message = error_of(tmp_path / "run")
    assert message.startswith("RunError: ") and file in message and re.search("(could|can) ?not be written", message)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("checkpoint.safetensors")}
    for path in (tmp_path / "run").rglob("*.safetensors"):
        load_file(path)  # what stands there is whole
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected
