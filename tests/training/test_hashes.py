"""What a run wrote is known by SHA-256: a changed file is named, and neither loaded nor gone on with."""

import json
import shutil
from pathlib import Path

import pytest
from small_runs import corpus_of, prepared, train_until, trained

from mtlprune.config.config import build_config
from mtlprune.errors import MtlpruneError
from mtlprune.files import file_sha256
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunError, RunFolder
from mtlprune.training.loop import train
from mtlprune.training.setup import prepare


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
    trained(settings, folder / "finished")
    train_until(1, settings, RunFolder(folder / "half"))
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


def test_lost_or_changed_log_lines_are_written_anew(runs, tmp_path):
    settings, folder = runs
    run = RunFolder(tmp_path / "run")
    train_until(5, settings, run)  # in the second epoch
    kept = run.metrics_path.read_bytes()
    for place, damage in enumerate((b"", kept[:-3], b"x" * len(kept))):
        again = RunFolder(shutil.copytree(run.path, tmp_path / f"again-{place}"))
        again.metrics_path.write_bytes(damage)
        trained(settings, again.path)
        assert again.metrics_path.read_bytes() == (folder / "finished/metrics.jsonl").read_bytes()


def test_a_run_that_begins_again_begins_from_the_same(small_settings, runs, tmp_path):
    first = RunFolder(shutil.copytree(runs[1] / "finished", tmp_path / "first"))
    settings = small_settings("pos", epochs=1, start=str(first.path), seed=2)
    run = RunFolder(tmp_path / "run")
    train_until(1, settings, run)
    weights = name_of(first, "weights")
    assert run.read_manifest()["begun_from"]["train.start"] == {"file": str(weights), "sha256": file_sha256(weights)}
    half = RunFolder(shutil.copytree(run.path, tmp_path / "half"))
    run.checkpoint_path.unlink()
    other = trained(small_settings("pos", epochs=1, seed=3), tmp_path / "other")
    shutil.rmtree(first.path)
    trained(settings, half.path)  # has a checkpoint, and asks nobody
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
    new = prepare(build_config(settings), RunFolder(tmp_path / "new"), corpus_of(settings), writes=False)
    assert new.model.encoder.commit == "b" * 40
