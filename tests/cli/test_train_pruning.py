"""Pruning on the command line: what check foretells, train shows and evaluate uses; one sentence for each mistake."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gated_runs import forget_hashes
from safetensors.torch import load_file, save_file

from mtlprune.corpora.store import load_corpus
from mtlprune.runs import RunFolder

TARGET = ("pruning.method=gates", "pruning.penalty=target", "pruning.keep=4")


def changed(source: Path, out: Path, file: str, change: Callable[[Any], None]) -> Path:
    """A copy of a run with one file changed."""
    shutil.copytree(source, out)
    path = out / file
    tree = (yaml.safe_load if file.endswith("yaml") else json.loads)(path.read_text())
    change(tree)
    path.write_text(yaml.safe_dump(tree) if file.endswith("yaml") else json.dumps(tree))
    return out


@pytest.fixture(scope="module")
def gated(train: Callable[..., Path]) -> Path:
    """A finished run of two tasks with a gate set each, some heads closed."""
    gates = ("pruning=gates", "pruning.sets=per_task", "pruning.penalty=exact", "pruning.keep=3", "pruning.rate=0.1")
    return train("gated-pos-dep", "tasks=pos,dep", *gates)


@pytest.fixture(scope="module")
def others(trained: Path, gated: Path, lab: Any, tiny_encoder: Any, tmp_path_factory: Any) -> dict[str, Path]:
    """Runs and encoders that do not fit ``lab.config``."""
    root = tmp_path_factory.mktemp("others")
    made = {
        "unfinished": changed(trained, root / "unfinished", "manifest.json", lambda tree: tree.pop("finished")),
        "weightless": Path(shutil.copytree(trained, root / "weightless", ignore=lambda *_: ["weights"])),
        "roberta": changed(
            trained, root / "roberta", "config.yaml", lambda t: t["encoder"].update(name=str(tiny_encoder("roberta")))
        ),
        "first": changed(
            trained, root / "first", "config.yaml", lambda tree: tree["encoder"].update(pooling="first")
        ),
        "wide": changed(
            trained, root / "wide", "config.yaml", lambda tree: tree["decoders"]["dep"].update(arc_size=99)
        ),
        "few_labels": changed(trained, root / "labels", "vocabulary.json", lambda tree: tree["pos"]["tags"].pop()),
        "unknown_family": changed(
            tiny_encoder("bert"), root / "family", "config.json", lambda tree: tree.update(model_type="megatron-bert")
        ),
        "trained": trained,
        "gated": gated,
        "nowhere": root / "nowhere",
    }  # fmt: skip
    return made


IMPORTANCE = ("pruning.method=importance", "pruning.keep=2")
STABLE = ("pruning.method=stable", "pruning.keep=2")
MISTAKES = {
    "K for random": (["pruning.method=random", "pruning.keep=9"], "at most the encoder's 8 heads (2 layers × 4)"),
    "settled before the warm-up ends": (
        [*TARGET, "pruning.warmup=0.5", "pruning.settle=0.3"],
        "expected at least the warm-up's 0.5, found 0.3",
    ),
    "a penalty in the loss that steers": (
        [*TARGET, "pruning.in_loss=true"],
        "in_loss has no effect with method: gates, penalty: target",
    ),
    "top-K without K": (["pruning=topk"], "keep: expected how many heads to keep (needed with method: topk)"),
    "no heads": (["encoder.context=false", "pruning=gates"], "an encoder without context"),
    "an unknown family": (
        ["encoder.name={unknown_family}", "encoder.random=true", "pruning=gates"],
        "'megatron-bert'",
    ),
    "decoders frozen without a start": (["train.freeze=decoders"], "give train.start, a finished run"),
    "start unfinished": (["train.start={unfinished}"], "train.start: expected a finished run"),
    "start without weights": (["train.start={weightless}"], "train.start: the weights of"),
    "start of another encoder": (["train.start={roberta}"], "train.start: expected a run with encoder.name"),
    "start with other decoders": (
        ["train.start={wide}"],
        "the decoder of dep has other settings in {wide}: arc_size 99 there, 16 here",
    ),
    "start on other labels": (["train.start={few_labels}"], "has tags of pos that {few_labels} never learnt: "),
    "importance of nothing": (IMPORTANCE, "importance_of: expected a run folder whose loss ranks the heads"),
    "claims of which half may be false": (
        ["pruning.method=stable", "pruning.keep=4", "pruning.importance_of={trained}"],
        "up to 2.5 claims are expected to be false, which is half of 4 or more; keep at most 3 heads",
    ),
    "halves of one sentence": (
        [*STABLE, "pruning.importance_of={trained}", "pruning.importance_sentences=1"],
        "expected two training sentences or more to halve",
    ),
    "an odd number of halves": ([*STABLE, "pruning.halves=7", "pruning.importance_of={trained}"], "multiple of 2"),
    "like a run without gates": (
        ["pruning.method=random", "pruning.layers_like={trained}"],
        "is a run without gates",
    ),
    "K twice": (
        ["pruning.method=random", "pruning.keep=2", "pruning.layers_like={gated}"],
        "keep and layers_like both say how many heads",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "name"),
    [*(("check", name) for name in MISTAKES), ("train", "K for random"), ("train", "start unfinished")],
)
def test_mistakes_are_one_sentence(command, name, mtlprune, lab, others, tmp_path):
    arguments, message = MISTAKES[name]
    out = tmp_path / "run"
    overrides = [argument.format(**others) for argument in arguments]
    answer = mtlprune(command, lab.config, *overrides, *(["--out", out] if command == "train" else []))
    answer.refuses(message.format(**others))
    assert "ready" not in answer.out and not out.exists()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["train.start={out}"], "train.start"),
        (["pruning.method=importance", "pruning.keep=2", "pruning.importance_of={out}"], "pruning.importance_of"),
        (["pruning.method=random", "pruning.layers_like={out}"], "pruning.layers_like"),
    ],
)
def test_a_run_cannot_make_use_of_itself(settings, key, mtlprune, lab, tmp_path):
    out = tmp_path / "run"
    answer = mtlprune("train", lab.config, *(setting.format(out=out) for setting in settings), "--out", out)
    answer.refuses(f"{key}: expected another run than the one to be trained")
    assert not out.exists()


def test_a_finished_run_is_not_trained_on_from_itself(mtlprune, lab, trained):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    answer = mtlprune("train", lab.config, f"train.start={trained}", "--out", trained)
    answer.refuses(f"train.start (was None, is '{trained}'). Choose another --out")
    after = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    assert {p: t for p, t in after.items() if p.is_file() and p.name != ".lock"} == {
        p: t for p, t in before.items() if p.is_file() and p.name != ".lock"
    }


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([*TARGET, "pruning.rate=0.1"], "0.1 is small for 6 updates; the gates may not come to 4 heads in time"),
        ([*IMPORTANCE, "pruning.importance_of={trained}", "train.start={trained}"], "starts from {trained}, its best"),
        ([*STABLE, "pruning.importance_of={trained}"], "at most 0.6 false claims are expected"),
    ],
)
def test_check_says_what_pruning_will_do(overrides, said, mtlprune, lab, trained):
    answer = mtlprune("check", lab.config, *(override.format(trained=trained) for override in overrides))
    assert answer.code == 0, answer.err
    assert said.format(trained=trained) in answer.out and answer.out.endswith("ready\n")


def test_evaluate_and_predict_use_the_gates(mtlprune, gated, tmp_path):
    """Without its masks the same weights predict otherwise; with them evaluate repeats what training scored."""
    before = (gated / "predictions/dev.jsonl").read_bytes(), (gated / "scores/dev.json").read_bytes()
    answer = mtlprune("evaluate", gated, "--split", "dev")
    assert answer.code == 0, answer.err
    assert ((gated / "predictions/dev.jsonl").read_bytes(), (gated / "scores/dev.json").read_bytes()) == before
    sentences = load_corpus(Path(RunFolder(gated).read_config()["data"]["path"]))["dev"]
    text = tmp_path / "text.txt"
    text.write_text("".join(" ".join(sentence.words) + "\n" for sentence in sentences))
    with_gates = mtlprune("predict", gated, text, "--out", tmp_path / "one.jsonl")
    assert with_gates.code == 0, with_gates.err
    found = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in before[0].decode().splitlines()]
    assert [(s["pos"], s["dep"]) for s in found] == [(s["pos"], s["dep"]) for s in expected]
    opened = Path(shutil.copytree(gated, tmp_path / "opened"))
    for path in (opened / "weights").iterdir():
        tensors = load_file(path)
        for name in tensors:
            if name.endswith(".mask"):
                assert int(tensors[name].sum()) in (3, 8)
                tensors[name] = tensors[name] * 0 + 1
        save_file(tensors, path)
    forget_hashes(opened)
    assert mtlprune("predict", opened, text, "--out", tmp_path / "two.jsonl").code == 0
    assert (tmp_path / "two.jsonl").read_bytes() != (tmp_path / "one.jsonl").read_bytes()


def test_a_run_that_starts_from_another_uses_its_best_epoch_and_says_so(mtlprune, lab, trained, tmp_path):
    out = tmp_path / "run"
    settings = [f"train.start={trained}", "train.freeze=decoders", "pruning=gates", "train.epochs=1", "tasks=pos,con"]
    answer = mtlprune("train", lab.config, *settings, "--out", out)
    assert answer.code == 0, answer.err
    assert (
        f"run {out}: pos, con; starts from {trained}, its best epoch; frozen: decoders; pruning: gates, " in answer.out
    )
    old, new = (
        load_file(RunFolder(f).weights_path(RunFolder(f).read_best()["joint"]["epoch"])) for f in (trained, out)
    )
    for name, tensor in new.items():
        if name.startswith("tasks."):
            assert np.array_equal(tensor.numpy(), old[name].numpy()), name
