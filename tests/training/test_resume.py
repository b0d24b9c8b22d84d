"""Exact resume: a training is stopped or its process killed, the same run again, and all equals an undisturbed run bit
for bit: weights, moments, logs, and what balance, gates, masks and penalties remember."""

import time
from typing import Any

import pytest
from interrupted import KILLED, Moment, error_of, killed_often, often, outcome, run, start
from small_runs import train_until, trained

from mtlprune.runs import RunFolder

ALL = "pos,ner,dep,con,srl"
SAMPLED = {"mixing": "sampled", "accumulate": 2, "batch_sentences": 32, "balance": "running_mean"}
TARGET, EXACT = {"penalty": "target", "rate": 0.1}, {"penalty": "exact", "rate": 0.1, "settle": 0.65}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # tasks, settings of train, of pruning with gates
    "joint": (ALL, {}, {}),
    "sampled": (ALL, SAMPLED | {"batch_sentences": 40, "balance_window": 3, "weight_decay": 0.01}, {}),
    "cosreg": ("dep", {"cosreg": 1.0}, {}),
    "fusion": ("pos,dep", {}, {}),  # of the kind gate
    # 18 updates, 6 an epoch: evaluations at 4, 8, 12, 16, 18
    "evaluate_every": (
        "pos,dep",
        {"evaluate_every": 4, "batch_sentences": 10, "balance": "running_mean"},
        {"penalty": "lambda", "strength": 0.5, "rate": 0.1},
    ),
    # those below have 12 updates; exact fixes its gates after 8
    "lambda-shared": ("pos,dep", {}, {"penalty": "lambda", "strength": 0.5, "warmup": 0.5, "rate": 0.1}),
    "lambda-in-loss": ("pos,dep", SAMPLED, {"penalty": "lambda", "strength": 0.5, "rate": 0.1, "in_loss": True}),
    "fp16": ("pos,dep", {"precision": "fp16"}, TARGET | {"keep": 4, "init": "open"}),
    "target-shared": ("pos,dep,srl", {}, TARGET | {"keep": 4, "init": "open"}),
    "target-per_task": ("pos,dep", SAMPLED, TARGET | {"keep": 3, "sets": "per_task", "overlap": 0.1}),
    "exact-shared": ("pos", {}, EXACT | {"keep": 4}),
    "lagrangian": ("pos", {}, EXACT | {"penalty": "lagrangian", "keep": 4, "closed": "mean"}),
    "topk": ("pos,dep", {}, {"method": "topk", "keep": 3, "rate": 0.1, "sets": "per_task"}),
    "random-noise": ("pos", {}, {"method": "random", "keep": 3, "noise": True, "settle": 0.65, "closed": "mean"}),
    "exact-per_task": ("pos,con", {"weight_decay": 0.01}, EXACT | {"keep": 3, "sets": "per_task"}),
}
GATED = [name for name, (_, _, pruning) in RUNS.items() if pruning]
MOMENTS = {  # an epoch has four updates where mixing is joint, eight where it is sampled
    "before config.yaml is there": Moment("os.rename", "config.yaml"),
    "between updates": Moment("update", count=8),
    "within the backward pass of an update": Moment("call", "backward", 9),
    "in evaluation": Moment("call", "decoding", 7),
    "before metrics are written": Moment("open", "metrics.jsonl", 2),
    "before best.json is in place": Moment("os.rename", "best.json", 2),
    "before the checkpoint is in place": Moment("os.rename", "checkpoint.safetensors", 2),
    "at the end, before it is noted": Moment("os.rename", "manifest.json", 2),
    "within a checkpoint of the last epoch": Moment("open", ".checkpoint.safetensors.part", -1),
    "just before the gates are fixed": Moment("update", count=7),
    "before the log of gates is written": Moment("open", "gates.jsonl", 2),
}
OF_GATES = list(MOMENTS)[-2:]
KILLED_GATED = ["between updates", "before best.json is in place", "within a checkpoint of the last epoch", *OF_GATES]
FEW = {  # of joint; the others are slow
    *("before config.yaml is there", "before metrics are written", "before the checkpoint is in place"),
    *("at the end, before it is noted", "within a checkpoint of the last epoch"),
}
CASES = [  # joint meets every moment; each other run two of those that concern it, in turn
    *(pytest.param("joint", m, marks=() if m in FEW else pytest.mark.slow) for m in MOMENTS if m not in OF_GATES),
    pytest.param("sampled", "within the backward pass of an update", marks=pytest.mark.slow),  # of two mini-batches
    *(
        pytest.param(name, moments[(place + further) % len(moments)], marks=pytest.mark.slow)
        for names, moments in ((["sampled", "cosreg", "fusion"], KILLED_GATED[:3]), (GATED, KILLED_GATED))
        for place, name in enumerate(names)
        for further in (0, 2)
    ),
]
QUICK = ("cosreg", "fusion", "evaluate_every", "fp16", "lambda-in-loss", "topk", "random-noise", "exact-per_task")


@pytest.fixture(scope="module")
def undisturbed(request, small_settings, tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any]]:
    tasks, how, pruning = RUNS[request.param]
    settings = small_settings(tasks, **how)
    if pruning:
        settings["pruning"] = {"method": "gates", **pruning}
    if request.param == "fusion":
        settings["encoder"]["fusion"] = "gate"
    expected = outcome(trained(settings, tmp_path_factory.mktemp("undisturbed") / "run").path)
    assert {"config.yaml", "metrics.jsonl", "best.json", "scores/dev.json", "counts/dev.json"} <= set(expected)
    assert "checkpoint.safetensors" not in expected and any(name.startswith("weights/") for name in expected)
    if pruning:
        updates, evaluations = (18, 5) if request.param == "evaluate_every" else (12, 3)
        assert expected["manifest.json"]["step"] == updates
        assert len(expected["gates.jsonl"].splitlines()) == evaluations
    return settings, expected


@pytest.mark.parametrize("updates", [pytest.param(4, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize(
    "undisturbed", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in RUNS], indirect=True
)
def test_stopped_and_gone_on(undisturbed, updates, tmp_path):
    settings, expected = undisturbed
    folder = RunFolder(tmp_path / "run")
    train_until(updates, settings, folder)
    assert outcome(trained(settings, folder.path).path) == expected


@pytest.mark.parametrize("undisturbed", ["exact-per_task"], indirect=True)
def test_layers_may_be_computed_again_from_some_update_on(undisturbed, tmp_path):
    settings, expected = undisturbed
    folder = RunFolder(tmp_path / "run")
    train_until(3, settings, folder)
    trained({**settings, "encoder": {**settings["encoder"], "checkpointing": True}}, folder.path)
    assert outcome(folder.path) == expected


@pytest.mark.parametrize(("undisturbed", "name"), CASES, indirect=["undisturbed"])
def test_killed_once(undisturbed, name, tmp_path):
    settings, expected = undisturbed
    moment = MOMENTS[name]
    if moment.count < 0:  # checkpoints after every update, so that one of the last epoch can be hit
        count = 2 * (expected["manifest.json"]["step"] + 1)  # opened when it is made, and when flushed
        assert run(often(settings), tmp_path / "run", moment._replace(count=count)) == KILLED
        assert list((tmp_path / "run").glob(".checkpoint.safetensors.*.part"))
    else:
        assert run(often(settings) if "pruning" in settings else settings, tmp_path / "run", moment) == KILLED
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


@pytest.mark.slow
@pytest.mark.parametrize("undisturbed", ["joint", "sampled"], indirect=True)
def test_killed_again_and_again_at_any_moment(undisturbed, tmp_path):
    settings, expected = undisturbed
    assert killed_often(settings, tmp_path / "run", 5, 0.1) >= 3
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("method", ["importance", "random", "given", "fisher", "stable"])
def test_chosen_heads_stay_chosen(small_settings, method, tmp_path):
    first = trained(small_settings("pos", epochs=1), tmp_path / "first")
    settings = small_settings("pos", epochs=2, start=str(first.path), freeze="decoders")
    source = {} if method == "random" else {"importance_of": str(first.path)}
    halves = {"halves": 6, "threshold": 1.0} if method == "stable" else {}
    settings["pruning"] = {"method": method, "keep": 3, **source, **halves}
    if method == "given":
        settings["pruning"] = {"method": "given", "heads": "1-2,2-1,2-2"}
    whole, folder = trained(settings, tmp_path / "whole"), RunFolder(tmp_path / "run")
    train_until(5, settings, folder)
    assert outcome(trained(settings, folder.path).path) == outcome(whole.path)


def test_a_second_process_is_refused_and_the_first_goes_on(small_settings, tmp_path):
    settings = small_settings("pos", epochs=400)
    first = start(settings, tmp_path / "run")
    try:
        checkpoint, deadline = tmp_path / "run" / "checkpoint.safetensors", time.monotonic() + 60
        while not checkpoint.exists():
            assert first.is_alive() and time.monotonic() < deadline
            time.sleep(0.02)
        assert run(settings, tmp_path / "run") == 3
        message = error_of(tmp_path / "run")
        assert message.startswith("RunError") and f"in use by another process (number {first.pid})" in message
        assert first.is_alive()
    finally:
        first.kill()
        first.join()
    shorter = {**settings, "train": {**settings["train"], "epochs": 2}}
    assert run(shorter, tmp_path / "run") == 3  # not refused as in use: the lock died with its process
    assert "train.epochs (was 400, is 2)" in error_of(tmp_path / "run")
