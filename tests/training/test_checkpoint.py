"""Checkpoints: all that is needed and nothing random; files that do not fit, and disks that are full, in words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import Moment, error_of, often, outcome, run
from safetensors.torch import load_file
from torch import nn

from mtlprune.training.checkpoint import Progress, load_checkpoint, save_checkpoint, seed_step

Settings = Callable[..., dict[str, Any]]


def net(seed: int) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    return model, torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1, fused=True)


def step(model: nn.Module, optimizer: torch.optim.AdamW, times: int, parts: slice = slice(None)) -> None:
    for _ in range(times):
        output = torch.ones(5, 3)
        for layer in list(model.children())[parts]:
            output = layer(output)
        output.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_everything_comes_back_and_training_goes_on_the_same(tmp_path):
    model, optimizer = net(1)
    step(model, optimizer, 3, slice(0, 2))  # the last layer has no moments yet
    best = {"joint": {"epoch": 1, "score": 51.5}}
    remembered = {"balance": {"pos": [0.5, 0.25]}, "losses": {"pos": [3.5, 4]}}
    progress = Progress(2, 3, 17, best, **remembered, log_size=321, seconds=12.25)
    save_checkpoint(tmp_path / "c.safetensors", model, optimizer, progress)
    other, other_optimizer = net(2)
    assert load_checkpoint(tmp_path / "c.safetensors", other, other_optimizer) == progress
    assert len(other_optimizer.state) == len(optimizer.state) == 2
    for one, two in ((model, optimizer), (other, other_optimizer)):
        step(one, two, 3)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_dropout_follows_from_seed_and_step_alone():
    def draw(seed: int, step: int) -> list[float]:
        torch.rand(step + 3)
        seed_step(seed, step)
        return torch.rand(4).tolist()

    assert draw(1, 5) == draw(1, 5)
    draws = [draw(seed, step) for seed in (1, 2) for step in (0, 1, 2)]
    assert all(draws[i] != draws[j] for i in range(6) for j in range(i))


def sizes_of(folder: Path) -> dict[str, int]:
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    any_epoch = next(size for name, size in sizes.items() if name.startswith("weights/"))
    return sizes | {"weights/epoch-001.safetensors": any_epoch}  # the best may be another, of the same size


@pytest.fixture(scope="module")
def whole(small_settings: Settings, tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """What a run leaves, and the sizes of all its files with a checkpoint among them."""
    settings = small_settings("pos,dep", epochs=2)
    folder = tmp_path_factory.mktemp("whole")
    assert run(settings, folder / "stopped", Moment("os.remove", "checkpoint.safetensors")) == -9
    assert run(settings, folder / "run") == 0
    return settings, outcome(folder / "run"), sizes_of(folder / "stopped") | sizes_of(folder / "run")


@pytest.mark.parametrize(
    "file", ["checkpoint.safetensors", pytest.param("encoder/tokenizer.json", marks=pytest.mark.slow)]
)
def test_a_full_disk_loses_nothing_that_was_complete(whole, file, tmp_path):
    """The limit on the size of a file refuses as a full disk does, at the first file that is larger."""
    settings, expected, sizes = whole
    limit = sizes[file] - 100
    assert run(settings, tmp_path / "run", largest_file=limit) == 3, "was not refused"
    message = error_of(tmp_path / "run")
    assert message.startswith("RunError: ") and Path(file).name in message and "could not be written" in message
    assert not (tmp_path / "run" / file).exists()
    for path in (tmp_path / "run").rglob("*.safetensors"):
        load_file(path)  # what stands there is whole
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


def test_a_full_disk_leaves_the_earlier_checkpoint(whole, tmp_path):
    settings, expected, sizes = whole
    assert run(often(settings), tmp_path / "run", Moment("update", count=3)) == -9
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    assert run(often(settings), tmp_path / "run", largest_file=sizes["checkpoint.safetensors"] // 2) == 3
    assert "what was there before is untouched" in error_of(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected
