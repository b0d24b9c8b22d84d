"""Folders that commit e87b36e wrote are read, and end as then; several writers of one target at the same moment."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from safetensors.torch import load_file

from mtlprune.io.files import one_writer, replacing_folder
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence
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


@pytest.mark.parametrize("name", ["vocabulary.json", "encoder/config.json", "encoder/tokenizer.json"])
def test_emptied_files_are_refused_though_no_hash_is_known(mtlprune, here, name):
    Path("half-pos", name).write_bytes(b"")
    for state in ("half", "begun"):
        if state == "begun":
            Path("half-pos/checkpoint.safetensors").unlink()
        answer = mtlprune("train", "half-pos/config.yaml", "--out", "half-pos")
        assert answer.code == 2 and "half-pos/" + name.partition("/")[0] in answer.err, answer.err


def _command(words: list[str], folder: Path, together: Any) -> None:
    from mtlprune.cli import main

    os.chdir(folder)
    sys.argv = ["mtlprune", *words]
    together.wait(60)
    main()


@pytest.mark.slow
def test_maps_are_those_of_one_command(here):
    maps = ["maps", "finished-pos", "finished-dep", "--out", "maps", "--format", "svg", "--palette"]
    together = forked.FORKS.Barrier(2)
    processes = [forked.start(_command, [*maps, colours], here, together) for colours in ("rgb", "colourblind")]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    listed = json.loads((here / "maps/maps.json").read_text())
    assert {name for entry in listed["maps"] for name in entry["files"]} == {p.name for p in here.glob("maps/*.svg")}


def at_the_same_time(write: Callable[[int], None]) -> None:
    """Call it of six threads, ten times each."""
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, [*range(6)] * 10))


def test_results_are_those_of_one_writer(tmp_path):
    folder = RunFolder(tmp_path)

    def write(number: int) -> None:
        predicted = [Sentence(str(number), ("x",), pos=("A",))]
        folder.write_results("test", {"pos": {"accuracy": number}}, [str(number)], {}, predicted)
        with one_writer(folder.path):
            score = str(folder.read_scores("test")["pos"]["accuracy"])
            assert folder.read_counts("test")["ids"] == [score] == [s.id for s in folder.read_predictions("test")]

    at_the_same_time(write)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts", "predictions", "scores"]


def test_a_folder_is_that_of_one_writer(tmp_path):
    def write(number: int) -> None:
        with replacing_folder(tmp_path / "new") as beside:
            for name in "abc":
                (beside / name).write_text(str(number))

    at_the_same_time(write)
    with pytest.raises(ZeroDivisionError), replacing_folder(tmp_path / "new"):
        raise ZeroDivisionError
    assert len({(tmp_path / "new" / name).read_text() for name in "abc"}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
