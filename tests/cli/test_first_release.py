"""Folders that commit e87b36e wrote: half-finished runs end as they would have ended then, finished ones are read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mtlprune.config.config import build_config, first_digest, load_config
from mtlprune.model import MultiTaskModel
from mtlprune.pretraining.config import PretrainConfig
from mtlprune.runs import RunFolder
from mtlprune.training.setup import processor

THEN = Path(__file__).parents[1] / "first_release"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folders, as the present one: they name each other by relative paths."""
    shutil.copytree(THEN, tmp_path / "then")
    monkeypatch.chdir(tmp_path / "then")
    return tmp_path / "then"


def test_a_half_finished_run_ends_as_it_would_have_ended_then(mtlprune, here):
    half, whole = RunFolder("half-pos"), RunFolder("finished-pos")
    mtlprune("train", "half-pos/config.yaml", "--out", "half-pos").done()
    same_machine = whole.read_manifest()["processor"] == processor()
    same_machine &= whole.read_manifest()["packages"]["torch"] == torch.__version__
    best = half.read_best()
    assert best["joint"]["epoch"] == whole.read_best()["joint"]["epoch"] == 2
    paths = [folder.verify_weights("joint", folder.read_best()["joint"]) for folder in (half, whole)]
    found, expected = (load_file(path) for path in paths)
    for name, tensor in expected.items():  # elsewhere Adam steps by rounding where a gradient is 0 (biases of keys)
        torch.testing.assert_close(
            found[name], tensor, rtol=0 if same_machine else 1e-3, atol=1e-4 * (not same_machine)
        )
    names = ["metrics.jsonl", "gates.jsonl", "counts/dev.json", "predictions/dev.jsonl", "scores/dev.json"]
    for name in names if same_machine else ():
        assert (half.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert len(half.read_metrics()) == 3 and "sha256" in best["joint"]  # the new release knows what it wrote itself
    assert not half.checkpoint_path.exists()


def test_runs_of_then_are_read_by_every_command(mtlprune, here):
    for command in (
        ("train", "finished-pos/config.yaml", "--out", "finished-pos"),
        ("evaluate", "finished-pos", "--split", "test"),
        ("evaluate", "half-pos", "--split", "dev"),
        ("table", "finished-pos", "finished-dep", "--split", "test", "--out", "table.md"),
        ("maps", "half-pos", "finished-dep", "--out", "maps", "--format", "svg"),
        ("claims", "finished-pos", "finished-dep"),
        ("report", "finished-pos", "finished-dep", "--out", "page.html", "--resamples", 20, "--permutations", 20),
        ("prune", "finished-pos", "--out", "pruned", "--no-latency"),
    ):
        mtlprune(*command).done()
    for split in ("dev", "test"):
        now, then = (json.loads((root / f"finished-pos/scores/{split}.json").read_text()) for root in (here, THEN))
        assert now == then
    assert MultiTaskModel.load("pruned").parse("a dog")[0].pos


def test_a_log_that_lost_lines_is_not_gone_on_with(mtlprune, here):
    Path("half-pos/gates.jsonl").write_bytes(b"")
    answer = mtlprune("train", "half-pos/config.yaml", "--out", "half-pos")
    assert answer.code == 2 and "half-pos/gates.jsonl: expected the 1" in answer.err and "lines are lost" in answer.err
    Path("finished-pos/metrics.jsonl").write_bytes(b"")
    answer = mtlprune("train", "finished-pos/config.yaml", "--out", "finished-pos")
    assert answer.code == 2 and "finished-pos/metrics.jsonl: expected the 4" in answer.err


@pytest.mark.parametrize("name", ["vocabulary.json", "encoder/config.json", "encoder/tokenizer.json"])
@pytest.mark.parametrize("state", ["half", "begun"])
def test_emptied_files_are_refused_though_no_hash_is_known(mtlprune, here, name, state):
    if state == "begun":
        Path("half-pos/checkpoint.safetensors").unlink()
    Path("half-pos", name).write_bytes(b"")
    answer = mtlprune("train", "half-pos/config.yaml", "--out", "half-pos")
    assert answer.code == 2 and "half-pos/" + name.partition("/")[0] in answer.err, answer.err


def test_folders_named_by_the_letters_of_then_are_found(mtlprune, here):
    weights = build_config({"data": {"path": "x"}, "train": {"balance": "fixed", "weights": {"pos": 2}}})
    assert first_digest(weights) == "8205d67d"
    assert first_digest(PretrainConfig.model_validate({"data": {"corpora": ["x"]}})) == "00bed514"
    then = load_config("finished-pos/config.yaml")
    Path("runs").mkdir()
    Path("finished-pos").rename(f"runs/pos-{first_digest(then)}")
    answer = mtlprune("train", f"runs/pos-{first_digest(then)}/config.yaml").done()
    assert "was finished already" in answer.out
    assert len(list(Path("runs").iterdir())) == 1
