"""A power cut at any moment: a run goes on to the end, and all in it is as in a run that nothing happened to."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interrupted import outcome, start
from power_cuts import Image, Recorder, distinct, images, lay_out

from mtlprune.config.config import Config, build_config
from mtlprune.errors import MtlpruneError
from mtlprune.pretraining.config import PretrainConfig
from mtlprune.pretraining.loop import pretrain
from mtlprune.runs import RunError, RunFolder
from mtlprune.training.evaluation import evaluate_run
from mtlprune.training.loop import train
from mtlprune.training.pruning import surgery

GIVEN = Path(__file__).parents[1] / "first_release"


def settings() -> dict[str, Any]:
    """Every kind of file: weights, checkpoints after every update, gates, UAS, results."""
    return {
        "data": {"path": str(GIVEN / "corpus")},
        "tasks": ["pos", "dep"],
        "encoder": {"name": str(GIVEN / "encoder")},
        "decoders": {"dep": {"arc_size": 4, "relation_size": 4}},
        "pruning": {"method": "gates", "rate": 0.3},
        "train": {
            "epochs": 4,
            "batch_sentences": 8,
            "device": "cpu",
            "precision": "fp32",
            "threads": 1,
            "encoder_rate": 1e-2,
            "decoder_rate": 1e-2,
            "checkpoint_minutes": 0.0,
            "log_uas": True,
        },
    }


def record(root: Path, config: Config) -> tuple[Recorder, dict[str, Any]]:
    """A run that is stopped once and goes on, recorded; and what it leaves."""
    root.mkdir()
    with Recorder(root) as recorded:
        updates = iter(range(3, 0, -1))
        assert not train(config, RunFolder(root / "run"), stop=lambda: next(updates) == 1).finished
        assert train(config, RunFolder(root / "run")).finished
    return recorded, outcome(root / "run")


def losses(found: list[Image], expected: dict[str, Any], config: Config, folder: Path) -> list[str]:
    """What went wrong when each image was gone on with."""
    wrong = []
    for number, image in enumerate(found):
        root = folder / str(number)
        lay_out(image, root)
        try:
            train(config, RunFolder(root / "run"))
            left = outcome(root / "run")
            if left != expected:
                wrong.append(f"{number}: {[n for n in {*left, *expected} if left.get(n) != expected.get(n)]}")
        except MtlpruneError as error:
            wrong.append(f"{number}: {error}")
        shutil.rmtree(root)
    return wrong


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorder, dict[str, Any]]:
    return record(tmp_path_factory.mktemp("cuts") / "root", build_config(settings()))


def test_a_run_survives_some_power_cuts(recorded, tmp_path):
    recorder, expected = recorded
    found = distinct(images(recorder, 2))
    assert len(recorder.states) >= 200 and len(found) >= 100
    assert losses(found[:: len(found) // 6], expected, build_config(settings()), tmp_path) == []


@pytest.mark.slow
def test_a_run_survives_every_power_cut(recorded, tmp_path):
    recorder, expected = recorded
    assert losses(distinct(images(recorder, 6)), expected, build_config(settings()), tmp_path) == []


def test_without_syncs_runs_are_lost(recorded, tmp_path):
    """The control: such images can tell."""
    recorder, expected = recorded
    found = distinct(images(recorder, 0, deaf=True))[::20]
    assert len(losses(found, expected, build_config(settings()), tmp_path)) >= len(found) // 2


class Work(NamedTuple):
    """What a command writes below a folder, told to go on where it was cut short, and what it leaves when it ends."""

    prepare: Callable[[Path], None]
    do: Callable[[Path], None]
    left: Callable[[Path], dict[str, Any]]


def pretrains(root: Path) -> None:
    config = PretrainConfig.model_validate(
        {
            "data": {"corpora": ["corpus"], "train_sentences": 8, "dev_sentences": 4},
            "model": {"vocabulary": 100, "layers": 1, "heads": 2, "hidden": 8, "positions": 64},
            "train": {"steps": 4, "batch_sentences": 4, "device": "cpu", "threads": 1, "precision": "fp32"}
            | {"checkpoint_minutes": 0.0},
            "watch": {"points": 3, "first": 1},
        }
    )
    pretrain(config, RunFolder(root / "run"))


def prunes(root: Path) -> None:
    asked = surgery.request("finished-pos", None, 3)
    with surgery.appearing(root / "run") as folder:
        made = surgery.prune(asked, folder, root / "run")
        surgery.score(folder, made.model, asked.corpus)


def evaluates(root: Path) -> None:
    folder = RunFolder(root / "run")
    if "test" in folder.splits():  # scores stand for all three
        assert list(folder.read_counts("test")["ids"]) == [sentence.id for sentence in folder.read_predictions("test")]
    evaluate_run(folder, "test")


def given(root: Path) -> None:
    shutil.copytree("finished-pos", root / "run")
    for path in root.glob("run/*/test.*"):
        path.unlink()


WORKS = {
    "pretrain": Work(lambda root: None, pretrains, lambda root: outcome(root / "run")),
    "prune": Work(lambda root: None, prunes, lambda root: outcome(root / "run")),
    "evaluate": Work(given, evaluates, lambda root: outcome(root / "run")),
}


def recorded_work(work: Work, root: Path) -> tuple[Recorder, dict[str, Any]]:
    root.mkdir()
    work.prepare(root)
    with Recorder(root) as recorder:
        work.do(root)
    return recorder, work.left(root)


def lost_work(work: Work, found: list[Image], expected: dict[str, Any], root: Path) -> list[str]:
    """What went wrong when each image was laid out under the same name and gone on with; refusals of what is whole
    already are well."""
    wrong = []
    for number, image in enumerate(found):
        shutil.rmtree(root)
        lay_out(image, root)
        try:
            if work.do is prunes and (root / "run").exists():
                with pytest.raises(RunError, match="is not empty"):
                    work.do(root)
            else:
                work.do(root)
            left = work.left(root)
        except Exception as error:
            wrong.append(f"{number}: {error!r}")
            continue
        if left != expected:
            wrong.append(f"{number}: {[n for n in {*left, *expected} if left.get(n) != expected.get(n)]}")
    return wrong


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("samples", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_other_commands_survive_power_cuts(name, samples, tmp_path, monkeypatch):
    monkeypatch.chdir(GIVEN)
    root = tmp_path / "root"
    recorder, expected = recorded_work(WORKS[name], root)
    found = distinct(images(recorder, samples))
    assert len(found) >= 10
    assert lost_work(WORKS[name], found if samples else found[:: len(found) // 4], expected, root) == []


@pytest.mark.parametrize("name", WORKS)
def test_without_syncs_other_commands_lose(name, tmp_path, monkeypatch):
    monkeypatch.chdir(GIVEN)
    root = tmp_path / "root"
    recorder, expected = recorded_work(WORKS[name], root)
    found = distinct(images(recorder, 0, deaf=True))
    assert lost_work(WORKS[name], found[-2:], expected, root)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file with an ext4 file system, mounted beside."""
    backing, place = tmp_path / "ext4", tmp_path / "disk"
    place.mkdir()
    with backing.open("wb") as file:
        file.truncate(48 << 20)
    commands = (["mkfs.ext4", "-q", "-F", backing], ["mount", "-o", "loop,commit=1", backing, place])
    for command in commands:
        if os.getuid() or not shutil.which(str(command[0])) or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only one who may mount file systems, and has mkfs.ext4, can make a disk")
    yield backing
    subprocess.run(["umount", place], check=True)


def test_a_run_survives_on_a_real_disk(disk, tmp_path):
    """The file below a mounted ext4 is copied while a run writes, as a power cut would leave it, and gone on with."""
    tree = settings()
    place, config = tmp_path / "disk", build_config(tree)
    train(config, RunFolder(tmp_path / "whole"))
    process, copies = start(tree, place / "run"), []
    while process.is_alive() and len(copies) < 60:
        time.sleep(0.05)
        copies.append(tmp_path / f"copy-{len(copies)}")
        subprocess.run(["cp", "--sparse=always", disk, copies[-1]], check=True)
    process.join(120)
    assert process.exitcode == 0 and outcome(place / "run") == outcome(tmp_path / "whole")
    later, cut = 0, tmp_path / "cut"
    cut.mkdir()
    for copy in copies[:: max(1, len(copies) // 8)]:
        subprocess.run(["mount", "-o", "loop", copy, cut], check=True)  # replays the journal
        try:
            later += (cut / "run" / "checkpoint.safetensors").exists()
            train(config, RunFolder(cut / "run"))
            assert outcome(cut / "run") == outcome(tmp_path / "whole")
        finally:
            subprocess.run(["umount", cut], check=True)
    assert later, "no copy was made in the middle of the run"
