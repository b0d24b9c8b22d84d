"""What a run wrote is known by SHA-256: a changed file is named, and neither loaded nor gone on with."""

import hashlib
import itertools
import shutil
from pathlib import Path

import pytest
from small_runs import prepared, train_until, trained

import mtlprune
from mtlprune.config.config import build_config
from mtlprune.errors import MtlpruneError
from mtlprune.io.files import file_sha256
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.loop import train


@pytest.fixture(scope="module")
def runs(small_settings, tmp_path_factory):
    """A finished run, one that is half finished, and one that has begun without a checkpoint; and their settings."""
    settings = small_settings("pos", epochs=2)
    folder = tmp_path_factory.mktemp("runs")
    trained(settings, folder / "finished")
    train_until(1, settings, RunFolder(folder / "half"))
    shutil.copytree(folder / "half", folder / "begun")
    (folder / "begun" / "checkpoint.safetensors").unlink()
    return settings, folder


def test_a_run_knows_what_it_wrote(runs):
    settings, folder = runs
    run = RunFolder(folder / "finished")
    manifest, best = run.read_manifest(), run.read_best()
    names = {"vocabulary.json", *(f"encoder/{path.name}" for path in run.encoder_path.iterdir()), "best.json"}
    names |= {"config.yaml", "metrics.jsonl", "scores/dev.json", "counts/dev.json", "predictions/dev.jsonl"}
    assert names == set(manifest["files"]) and {"encoder/config.json", "encoder/tokenizer.json"} < names
    assert all(file_sha256(run.path / name) == sha256 for name, sha256 in manifest["files"].items())
    weights = file_sha256(run.weights_path(best["joint"]["epoch"]))
    assert best["joint"]["sha256"] == manifest["finished"]["best"]["joint"]["sha256"] == weights
    source = Path(settings["encoder"]["name"]) / "model.safetensors"
    assert manifest["begun_from"] == {"encoder.name": {"file": str(source), "sha256": file_sha256(source)}}
    run.verify()
    assert MultiTaskModel.load(run.path)


FILES = ("vocabulary.json", "encoder/config.json", "encoder/tokenizer.json")


@pytest.mark.parametrize(
    ("state", "what"), [*itertools.product(["half", "begun"], FILES), ("half", "checkpoint.safetensors")]
)
def test_a_run_does_not_go_on_with_a_changed_file(runs, state, what, tmp_path):
    """One bit in its middle is another: text stays what it is, but for one letter, and numbers are numbers."""
    run = RunFolder(shutil.copytree(runs[1] / state, tmp_path / "run"))
    path = run.path / what
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(MtlpruneError, match=str(path)):
        train(build_config(runs[0]), run)
    assert before == {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != ".lock"}


def test_a_run_that_begins_again_begins_from_the_same(small_settings, runs, tmp_path):
    first = RunFolder(shutil.copytree(runs[1] / "finished", tmp_path / "first"))
    settings = small_settings("pos", epochs=1, start=str(first.path), seed=2)
    run = RunFolder(tmp_path / "run")
    train_until(1, settings, run)
    weights = first.weights_path(first.read_best()["joint"]["epoch"])
    assert run.read_manifest()["begun_from"]["train.start"] == {"file": str(weights), "sha256": file_sha256(weights)}
    half = RunFolder(shutil.copytree(run.path, tmp_path / "half"))
    run.checkpoint_path.unlink()
    other = trained(small_settings("pos", epochs=1, seed=3), tmp_path / "other")
    shutil.rmtree(first.path)
    trained(settings, half.path)  # has a checkpoint, and asks nobody
    other.path.rename(first.path)
    with pytest.raises(MtlpruneError, match=r"begin again from what train.start names, which was changed"):
        train(build_config(settings), run)


def test_a_run_that_begins_again_takes_the_commit_it_began_with(small_settings, monkeypatch, tmp_path):
    """A cache as the hub's library leaves it; meanwhile the main branch moves on."""
    settings = small_settings("pos")
    hub = tmp_path / "hub" / "models--someone--tiny"
    for commit in ("a" * 40, "b" * 40):
        shutil.copytree(settings["encoder"]["name"], hub / "snapshots" / commit)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub.parent))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    settings["encoder"] = {"name": "someone/tiny"}
    (tmp_path / "run").mkdir()
    assert prepared(settings, tmp_path / "run").model.encoder.commit == "a" * 40
    assert RunFolder(tmp_path / "run").read_manifest()["encoder"] == {"revision": "a" * 40}
    (hub / "refs" / "main").write_text("b" * 40)
    assert prepared(settings, tmp_path / "run").model.encoder.commit == "a" * 40
    (tmp_path / "new").mkdir()
    assert prepared(settings, tmp_path / "new").model.encoder.commit == "b" * 40


def test_a_run_records_the_code_that_made_it(small_settings, tmp_path):
    """Also where there is no repository: the modules, in the order of their names, and nothing beside them."""
    root, digest = Path(mtlprune.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    (tmp_path / "run").mkdir()
    prepared(small_settings("pos"), tmp_path / "run")
    assert RunFolder(tmp_path / "run").read_manifest()["code"] == digest.hexdigest()
