"""mtlprune train: what it leaves, resuming, interruption, pruning, several seeds, pretraining and its figure."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import mtlprune as library
from mtlprune.cli.display import interruption
from mtlprune.corpora.formats.jsonl import read_jsonl
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.statistics.curves import find_break

ROOT = Path(__file__).resolve().parents[2]


def test_the_default_folder_and_going_on_with_a_finished_run(mtlprune, lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = mtlprune("train", lab.config, "tasks=pos,ner", "train.epochs=1").done()
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("tiny-")
    assert "precision fp32 on cpu, threads: 1" in first.out
    losses = RunFolder(folder).read_metrics()[0]["loss"]
    assert f"epoch 1/1: loss pos {losses['pos']:.3f}  ner {losses['ner']:.3f}; dev" in first.out
    assert "strict span F1" in first.out and "\x1b" not in first.out  # neither bars nor colours where nobody looks
    answer = mtlprune("train", lab.config, "tasks=[pos, ner]", "train.epochs=1").done()
    assert "had already finished" in answer.out and "strict span F1" in answer.out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]


@pytest.mark.slow
def test_tasks_are_the_layers_that_the_corpus_has(mtlprune, lab, tmp_path):
    (file := tmp_path / "few.conll").write_text("Ann N B-PER\nsings V O\n\n" * 4)
    columns = "--columns", "word,pos,ner", "--split", "50/50/0"
    mtlprune("data", "build", "columns", file, *columns, "--out", tmp_path / "few").done()
    end = f"data.path={tmp_path / 'few'}", "train.epochs=1", "--out", tmp_path / "run"
    mtlprune("train", lab.config, "tasks=pos,dep", *end).refuses("no sentence has the layer dep; train without")
    assert "has no dep, con, srl, so the run trains pos, ner" in mtlprune("train", lab.config, *end).done().out
    assert RunFolder(tmp_path / "run").read_config()["tasks"] == ["pos", "ner"]


def test_interrupted_and_gone_on_equals_undisturbed(mtlprune, lab, trained, tmp_path):
    """A real process, Ctrl-C after its first epoch; then the same command again."""
    command = ["train", str(lab.config), "--out", str(tmp_path / "run")]
    words = [sys.executable, "-u", "-m", "mtlprune", *command]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if line.startswith("epoch 1/2"):
            process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, output
    assert "Ctrl-C: stopping after this update" in output
    assert f"run the same command again to continue: mtlprune train {lab.config} --out {tmp_path / 'run'}" in output
    assert (tmp_path / "run/checkpoint.safetensors").is_file()
    answer = mtlprune(*command).done()
    assert "continuing after epoch 1, update" in answer.out
    for file in ("metrics.jsonl", "best.json", "scores/dev.json", "counts/dev.json", "predictions/dev.jsonl"):
        assert (tmp_path / "run" / file).read_bytes() == (trained / file).read_bytes(), file


def test_the_first_signal_asks_and_the_second_aborts():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        with interruption(Console(quiet=True)) as wanted:
            assert not wanted()
            signal.raise_signal(number)
            assert wanted()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_loss_that_is_no_number_stops_with_step_and_task(mtlprune, lab, tmp_path):
    settings = ("train.encoder_rate=1e18", "train.decoder_rate=1e18", "train.clip=1e18", "tasks=pos", "train.warmup=0")
    answer = mtlprune("train", lab.config, *settings, "--out", tmp_path / "run")
    answer.refuses("at step ", code=3)
    assert "task pos: the " in answer.err


RANKED = "pruning.keep=2 pruning.importance_of={trained}"


@pytest.fixture(scope="module")
def gated(train: Callable[..., Path]) -> Path:
    gates = ("pruning=gates", "pruning.sets=per_task", "pruning.penalty=exact", "pruning.keep=3", "pruning.rate=0.1")
    return train("gated-pos-dep", "tasks=pos,dep", *gates)


@pytest.mark.parametrize(
    ("overrides", "output"),
    [
        (
            "gates pruning.penalty=target pruning.keep=4 pruning.rate=0.1",
            "0.1 is small for 6 updates, so the gates may",
        ),
        (f"importance {RANKED} train.start={{trained}}", "starts from the best epoch of {trained}"),
        (f"stable {RANKED}", "at most 0.6 false claims"),
        (f"stable {RANKED} pruning.selector=topk", "heads are chosen by the loss of {trained}"),
        ("random pruning.keep=2 pruning.draw=7", "random heads of pruning.draw 7: 1-"),
    ],
)
def test_check_says_what_pruning_will_do(overrides, output, mtlprune, lab, trained):
    words = f"pruning.method={overrides}".format(trained=trained).split()
    answer = mtlprune("train", lab.config, "--dry-run", *words).done()
    assert output.format(trained=trained) in answer.out and answer.out.endswith("ready\n")


def test_check_refuses_a_folder_that_training_refuses(mtlprune, lab, trained, tmp_path):
    command = "train", lab.config, "--dry-run", "--out"
    mtlprune(*command, trained, "train.seed=77").refuses("found other settings: train.seed")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").touch()
    mtlprune(*command, tmp_path / "foreign").refuses("expected a run folder or an empty folder, found notes.txt")
    answer = mtlprune(*command, tmp_path / "new", "--seeds", "3,4").done()
    assert "2 runs that differ in their seeds" in answer.out and not (tmp_path / "new").exists()


def test_evaluate_and_predict_use_the_gates(mtlprune, gated, tmp_path):
    """With its masks a run evaluates as training scored it; without them the same weights predict otherwise."""
    before = (gated / "predictions/dev.jsonl").read_bytes(), (gated / "scores/dev.json").read_bytes()
    mtlprune("evaluate", gated, "--split", "dev").done()
    assert ((gated / "predictions/dev.jsonl").read_bytes(), (gated / "scores/dev.json").read_bytes()) == before
    sentences = load_corpus(Path(RunFolder(gated).read_config()["data"]["path"]))["dev"]
    text = tmp_path / "text.txt"
    text.write_text("".join(" ".join(sentence.words) + "\n" for sentence in sentences))
    mtlprune("predict", gated, text, "--out", tmp_path / "one.jsonl").done()
    predicted, expected = list(read_jsonl(tmp_path / "one.jsonl", print)), RunFolder(gated).read_predictions("dev")
    assert [(s.pos, s.dep) for s in predicted] == [(s.pos, s.dep) for s in expected]
    opened = library.load(gated)
    for gates in opened.gates.values():
        assert gates.open_count() == 3
        gates.fix(torch.ones(2, 4))
    assert [(s.pos, s.dep) for s in opened.annotate(sentences)] != [(s.pos, s.dep) for s in predicted]


SETTINGS = ("tasks=pos", "pruning.method=gates", "train.epochs=1")


def follow(answer: Any, mtlprune: Callable[..., Any]) -> list[str]:
    [*_, last] = answer.done().out.splitlines()
    if not last.startswith("next: mtlprune "):
        return []
    words = shlex.split(last)[2:]
    return [shlex.join(words), *follow(mtlprune(*words), mtlprune)]


def test_what_comes_next_is_a_command_that_works(mtlprune, lab, single, pruned, pretraining, tmp_path, monkeypatch):
    """Without folders that are named; without a test split; of runs without some heads; of a pretraining."""
    monkeypatch.chdir(tmp_path)
    words = ("train", lab.config, "tasks=pos", "train.epochs=1")
    evaluated, tabled = follow(mtlprune(*words, "--seeds", "1,2"), mtlprune)
    assert evaluated.count("runs/tiny-") == tabled.count("runs/tiny-") == 2
    corpus = load_corpus(lab.corpus)
    splits = {split: list(corpus[split]) for split in ("train", "dev")}
    save_corpus(splits, Path("no test"), name="x", licence="none", sources={})
    answer = mtlprune(*words, "data.path=no test", "--out", "run 1")
    assert follow(answer, mtlprune) == ["table 'run 1' --split dev"]
    assert follow(mtlprune("evaluate", single, pruned, "--split", "dev"), mtlprune)
    assert follow(mtlprune("train", pretraining, "--out", "base"), mtlprune) == ["report base --out base-curves"]
    assert len(list(Path("base-curves").iterdir())) == 4


def test_seeds_are_runs_and_a_data_frame(mtlprune, lab, tmp_path, single):
    out = tmp_path / "runs"
    answer = mtlprune("train", lab.config, *SETTINGS, "--seeds", "1,2", "--out", out).done()
    assert follow(answer, mtlprune) == [f"evaluate {out} --split test", f"table {out} --split test"]
    alone = tmp_path / "alone"
    mtlprune("train", lab.config, *SETTINGS, "train.seed=2", "--out", alone).done()
    for file in ("metrics.jsonl", "gates.jsonl"):
        assert (alone / file).read_bytes() == (out / "seed-2" / file).read_bytes()
    answer = mtlprune("train", lab.config, *SETTINGS, "--seeds", "1,2", "--out", out).done()
    assert answer.out.count("had already finished") == 2
    (out / "notes").mkdir()
    frame = library.read_runs(out / "*", alone)
    assert library.read_runs(out).equals(frame[frame["run"] != str(alone)])
    tables = [mtlprune("table", *runs, "--split", "dev") for runs in ([out], [out / "seed-1", out / "seed-2"])]
    assert tables[0].done().out == tables[1].out
    main = frame.query("main and split == 'dev'")
    assert main["run"].tolist() == [f"{out}/seed-1", f"{out}/seed-2", str(alone)]
    assert main["train.seed"].tolist() == [1, 2, 2] and set(main["tasks"]) == {"pos"}
    scores = [RunFolder(run).read_scores("dev")["pos"]["accuracy"] for run in main["run"]]
    assert main["value"].tolist() == scores and set(main["score"]) == {"accuracy"}
    with pytest.raises(RunError, match="no run is found at"):
        library.read_runs(out / "notes*")
    with pytest.raises(RunError, match="expected the gates of epoch 1"):
        RunFolder(single).best_gates()


@pytest.fixture(scope="module")
def pretrained(mtlprune, pretraining, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    runs = [folder / "base", folder / "minus"]
    answer = mtlprune("train", pretraining, "--out", runs[0]).done()
    assert "update 8/8: loss" in answer.out and "finished: 8 updates" in answer.out
    penalised = ("syntax.strength=2", "syntax.scale=mean", "syntax.release=4", "name=minus", "cosreg=1")
    answer = mtlprune("train", pretraining, *penalised, "--out", runs[1]).done()
    assert "syntax λ 2 (max, mean) until update 4; CosReg γ 1" in answer.out
    answer = mtlprune("train", pretraining, "--out", runs[0]).done()
    assert "had already finished" in answer.out
    return runs


def test_a_figure_of_all_runs_with_their_breaks(mtlprune, pretraining, pretrained, tmp_path):
    mtlprune("report", *pretrained, "--out", tmp_path / "p").done()
    words = (tmp_path / "p" / "pretraining.svg").read_text()
    assert "Loss on dev" in words and "minus: λ 2 until update 4" in words and "Minimal pairs" not in words
    assert (tmp_path / "p" / "pretraining.png").is_file()
    summary = json.loads((tmp_path / "p" / "pretraining.json").read_text())
    lines = [json.loads(line) for line in (pretrained[0] / "curves.jsonl").read_text().splitlines()]
    later = [line for line in lines if line["step"]]
    expected = find_break([x["step"] for x in later], [x["loss"] for x in later], falling=True)
    assert summary["runs"][0]["loss"] == {"last": lines[-1]["loss"], "break": expected}
    assert [entry["name"] for entry in summary["runs"]] == ["small", "minus"]
    assert "| minus | 2 until 4 |       8 |" in (tmp_path / "p" / "pretraining.md").read_text()
    mtlprune("runs", "pack", *pretrained, "--out", tmp_path / "study").done()
    mtlprune("report", tmp_path / "study", "--out", tmp_path / "packed").done()
    assert (tmp_path / "packed" / "pretraining.md").read_text() == (tmp_path / "p" / "pretraining.md").read_text()
    answer = mtlprune("train", pretraining, f"watch.pairs={tmp_path / 'nowhere'}", "--dry-run")
    answer.refuses("expected the files of BLiMP")
    mtlprune("report", pretrained[0], pretrained[0], "--out", tmp_path / "twice").refuses("named twice")
    assert not (tmp_path / "twice").exists()
