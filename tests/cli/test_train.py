"""mtlprune train: what it leaves, going on, being interrupted, and one sentence for each mistake."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from mtlprune.cli.display import Interruption
from mtlprune.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Path]:
    """An empty current folder."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def best_weights(folder: Path) -> dict[str, torch.Tensor]:
    run = RunFolder(folder)
    return load_file(run.weights_path(run.read_json("best.json")["joint"]["epoch"]))


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, scores, counts and logged losses are equal to the last bit."""
    left, right = best_weights(one), best_weights(other)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    for file in ("metrics.jsonl", "best.json", "scores/dev.json", "counts/dev.json", "predictions/dev.jsonl"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


def test_a_run_holds_everything(trained):
    files = {path.relative_to(trained).as_posix() for path in trained.rglob("*") if path.is_file()}
    assert {
        "config.yaml", "manifest.json", "vocabulary.json", "metrics.jsonl", "best.json", "scores/dev.json",
        "counts/dev.json", "predictions/dev.jsonl", "encoder/config.json",
    } <= files  # fmt: skip
    assert not {file for file in files if file.endswith((".pt", ".bin", ".pkl", ".part"))}
    assert "checkpoint.safetensors" not in files  # nothing is left to go on with
    manifest = json.loads((trained / "manifest.json").read_text())
    assert manifest["finished"]["step"] == 6
    assert manifest["peak_memory"] > 0
    metrics = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in metrics] == [1, 2]
    assert set(metrics[0]["loss"]) == set(metrics[0]["dev"]) == {"pos", "ner", "dep", "con", "srl"}


def test_the_default_folder_and_going_on_with_a_finished_run(mtlprune, lab, workplace):
    first = mtlprune("train", lab.config, "tasks=pos,ner", "train.epochs=1")
    assert first.code == 0, first.err
    [folder] = (workplace / "runs").iterdir()
    assert folder.name.startswith("tiny-")
    assert "precision fp32 on cpu, threads: 1" in first.out
    [line] = (folder / "metrics.jsonl").read_text().splitlines()
    losses = json.loads(line)["loss"]
    assert f"epoch 1/1: loss pos {losses['pos']:.3f}  ner {losses['ner']:.3f}; dev" in first.out
    assert "strict span F1" in first.out
    assert "\x1b" not in first.out  # quiet where nobody looks: neither bars nor colours
    again = mtlprune("train", lab.config, "tasks=[pos, ner]", "train.epochs=1")
    assert again.code == 0
    assert "was finished already" in again.out
    assert "strict span F1" in again.out
    assert [path.name for path in (workplace / "runs").iterdir()] == [folder.name]


@pytest.mark.slow
def test_interrupted_and_gone_on_equals_undisturbed(mtlprune, lab, trained, tmp_path):
    """A real process, Ctrl-C after its first epoch; then the same command again."""
    command = ["train", str(lab.config), "--out", str(tmp_path / "run")]
    code = "import sys; sys.argv[0] = 'mtlprune'; from mtlprune.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("epoch 1/2"):
            process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, said
    assert "Ctrl-C: stopping after this update" in said
    assert f"the same command continues: mtlprune train {lab.config} --out {tmp_path / 'run'}" in said
    assert (tmp_path / "run/checkpoint.safetensors").is_file()
    answer = mtlprune(*command)
    assert answer.code == 0, answer.err
    assert "going on after epoch 1, update" in answer.out
    assert_same_run(tmp_path / "run", trained)


def test_the_first_signal_asks_and_the_second_aborts():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        with Interruption(Console(quiet=True)) as wanted:
            assert not wanted()
            signal.raise_signal(number)
            assert wanted()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_loss_that_is_no_number_stops_with_step_and_task(mtlprune, lab, tmp_path):
    settings = ("train.encoder_rate=1e30", "train.decoder_rate=1e30", "train.clip=1e30", "tasks=pos", "train.warmup=0")
    answer = mtlprune("train", lab.config, *settings, "--out", tmp_path / "run")
    answer.refuses("at step ", code=3)
    assert "task pos: the " in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "there is neither a file nor a preset 'nowhere.yaml'"),
        (["quikstart"], "did you mean 'quickstart'?"),
        (["{config}", "data.path={tmp}/none"], "expected a corpus made by 'mtlprune data build', found no such folder"),
        (["{config}", "data.dev=validation"], "has no split 'validation'; it has train, dev, test"),
        (["{config}", "train.device=cuda:77"], "the device cuda:77 (train.device, --device) cannot"),
        (["{tmp}/broken.yaml"], "not readable as YAML"),
        (["{config}", "--out", "{tmp}/broken.yaml"], "broken.yaml"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, mtlprune, lab, tmp_path, workplace):
    (tmp_path / "broken.yaml").write_text("name: [")
    answer = mtlprune("train", *(argument.format(tmp=tmp_path, config=lab.config) for argument in arguments))
    answer.refuses(message)
    assert not list(tmp_path.rglob("config.yaml"))
