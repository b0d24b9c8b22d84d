"""Checkpoints and all else that a run wrote, known by SHA-256; what does not fit is named, and never gone on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import Moment, error_of, often, run
from safetensors.torch import load_file
from torch import nn

from mtlprune.config.config import build_config
from mtlprune.errors import MtlpruneError
from mtlprune.files import file_sha256
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunError, RunFolder
from mtlprune.training.checkpoint import Progress, load_checkpoint, save_checkpoint, seed_step
from mtlprune.training.loop import train

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
    progress = Progress(
        epoch=2, update=3, step=17, best={"joint": {"epoch": 1, "score": 51.5}}, balance={"pos": [0.5, 0.25]},
        losses={"pos": [3.5, 4]}, log_size=321, seconds=12.25,
    )  # fmt: skip
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
def whole(small_settings: Settings, tmp_path_factory) -> tuple[dict[str, Any], Path, dict[str, int]]:
    """A finished run, and the sizes of all its files with a checkpoint among them."""
    settings = small_settings("pos,dep", epochs=2)
    folder = tmp_path_factory.mktemp("whole")
    assert run(settings, folder / "stopped", Moment("os.remove", "checkpoint.safetensors")) == -9
    assert run(settings, folder / "run") == 0
    return settings, folder / "run", sizes_of(folder / "stopped") | sizes_of(folder / "run")


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
    same_results(tmp_path / "run", expected)


def test_a_full_disk_leaves_the_earlier_checkpoint(whole, tmp_path):
    settings, expected, sizes = whole
    assert run(often(settings), tmp_path / "run", Moment("update", count=3)) == -9
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    assert run(often(settings), tmp_path / "run", largest_file=sizes["checkpoint.safetensors"] // 2) == 3
    assert "what was there before is untouched" in error_of(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before
    assert run(settings, tmp_path / "run") == 0
    same_results(tmp_path / "run", expected)


def same_results(folder: Path, expected: Path) -> None:
    for name in ("metrics.jsonl", "best.json", "scores/dev.json", "predictions/dev.jsonl", "counts/dev.json"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
    weights = [{p.name: p.read_bytes() for p in (f / "weights").iterdir()} for f in (folder, expected)]
    assert weights[0] == weights[1]
    assert not list(folder.rglob("*.part"))


def changed(path: Path) -> None:
    """One bit of a file, in its middle; text stays what it is, but for one letter."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def runs(small_settings, tmp_path_factory):
    """A finished run, one that is half finished, and one that has begun without a checkpoint; and their settings."""
    settings = small_settings("pos", epochs=2)
    folder = tmp_path_factory.mktemp("runs")
    train(build_config(settings), RunFolder(folder / "finished"))
    train(build_config(settings), RunFolder(folder / "half"), stop=lambda: True)
    shutil.copytree(folder / "half", folder / "begun")
    (folder / "begun" / "checkpoint.safetensors").unlink()
    return settings, folder


def test_a_run_knows_what_it_wrote(runs):
    settings, folder = runs
    run = RunFolder(folder / "finished")
    manifest, best = run.read_manifest(), run.read_best()
    names = {"vocabulary.json", *(f"encoder/{path.name}" for path in run.encoder_path.iterdir())}
    assert names == set(manifest["files"]) and {"encoder/config.json", "encoder/tokenizer.json"} < names
    assert all(file_sha256(run.path / name) == sha256 for name, sha256 in manifest["files"].items())
    weights = file_sha256(run.weights_path(best["joint"]["epoch"]))
    assert best["joint"]["sha256"] == manifest["finished"]["best"]["joint"]["sha256"] == weights
    source = Path(settings["encoder"]["name"]) / "model.safetensors"
    assert manifest["begun_from"] == {"encoder.name": {"file": str(source), "sha256": file_sha256(source)}}
    assert run.verify() and MultiTaskModel.load(run.path)


def name_of(run: RunFolder, what: str) -> Path:
    return run.weights_path(run.read_best()["joint"]["epoch"]) if what == "weights" else run.path / what


@pytest.mark.parametrize("what", ["weights", "vocabulary.json", "encoder/config.json", "encoder/tokenizer.json"])
@pytest.mark.parametrize("gone", [False, True], ids=["changed", "gone"])
def test_a_changed_file_is_not_loaded(runs, what, gone, tmp_path):
    run = RunFolder(shutil.copytree(runs[1] / "finished", tmp_path / "run"))
    path = name_of(run, what)
    sha256 = file_sha256(path)
    path.unlink() if gone else changed(path)
    with pytest.raises(MtlpruneError) as told:
        MultiTaskModel.load(run.path)
    assert str(path) in str(told.value)
    assert gone or (sha256 in str(told.value) and file_sha256(path) in str(told.value))


@pytest.mark.parametrize("state", ["half", "begun"])
@pytest.mark.parametrize("what", ["vocabulary.json", "encoder/config.json", "encoder"])
def test_a_changed_file_is_not_gone_on_with(runs, state, what, tmp_path):
    settings, folder = runs
    run = RunFolder(shutil.copytree(folder / state, tmp_path / "run"))
    path = run.path / what
    shutil.rmtree(path) if path.is_dir() else changed(path)
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(MtlpruneError, match=str(path)):
        train(build_config(settings), run)
    assert before == {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != ".lock"}


def test_lost_or_changed_log_lines_are_written_anew(small_settings, runs, tmp_path):
    settings = small_settings("pos", epochs=2)
    calls = iter(range(1000))
    run = RunFolder(tmp_path / "run")
    train(build_config(settings), run, stop=lambda: next(calls) == 5)  # in the second epoch
    kept = run.metrics_path.read_bytes()
    for damage in (b"", kept[:-3], b"x" * len(kept)):
        again = RunFolder(shutil.copytree(run.path, tmp_path / f"again-{len(damage)}-{damage[:1]!r}"))
        again.metrics_path.write_bytes(damage)
        train(build_config(settings), again)
        assert again.metrics_path.read_bytes() == (runs[1] / "finished/metrics.jsonl").read_bytes()


def test_a_run_that_begins_again_begins_from_the_same(small_settings, runs, tmp_path):
    first = RunFolder(shutil.copytree(runs[1] / "finished", tmp_path / "first"))
    settings = small_settings("pos", epochs=1, start=str(first.path), seed=2)
    run = RunFolder(tmp_path / "run")
    train(build_config(settings), run, stop=lambda: True)
    weights = name_of(first, "weights")
    assert run.read_manifest()["begun_from"]["train.start"] == {"file": str(weights), "sha256": file_sha256(weights)}
    half = RunFolder(shutil.copytree(run.path, tmp_path / "half"))
    run.checkpoint_path.unlink()
    other = RunFolder(tmp_path / "other")
    train(build_config(small_settings("pos", epochs=1, seed=3)), other)
    shutil.rmtree(first.path)
    train(build_config(settings), half)  # has a checkpoint, and asks nobody
    other.path.rename(first.path)
    with pytest.raises(MtlpruneError, match=r"begin again from what train.start names, which was changed"):
        train(build_config(settings), run)


@pytest.mark.parametrize("part", ["model.", "optimizer."])
def test_a_changed_bit_of_a_checkpoint_is_seen(runs, part, tmp_path):
    run = RunFolder(shutil.copytree(runs[1] / "half", tmp_path / "run"))
    content = bytearray(run.checkpoint_path.read_bytes())
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = next(name for name in header if name.startswith(part) and not name.endswith(".step"))
    content[8 + size + header[name]["data_offsets"][0]] ^= 1  # the lowest bit of a float32: finite, and other
    run.checkpoint_path.write_bytes(content)
    with pytest.raises(RunError, match="changed or damaged") as error:
        train(build_config(runs[0]), run)
    assert str(run.checkpoint_path) in str(error.value)
