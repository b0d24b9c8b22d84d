"""Exact resume of runs with gates: their logits, moments and masks, the penalty's memory, and the log of gates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from interrupted import KILLED, Moment, often, outcome, run

from mtlprune.config.config import build_config
from mtlprune.runs import RunFolder
from mtlprune.training.loop import train

RUNS: dict[str, dict[str, Any]] = {  # all have 12 updates; exact fixes its gates after 8
    "lambda-shared": {
        "tasks": "pos,dep",
        "pruning": {"penalty": "lambda", "strength": 0.5, "warmup": 0.5, "rate": 0.1},
    },
    "lambda-in-loss": {
        "tasks": "pos,dep",
        "pruning": {"penalty": "lambda", "strength": 0.5, "rate": 0.1, "in_loss": True},
        "train": {"mixing": "sampled", "accumulate": 2, "batch_sentences": 32, "balance": "running_mean"},
    },
    "target-shared": {
        "tasks": "pos,dep,srl",
        "pruning": {"penalty": "target", "keep": 4, "rate": 0.1, "init": "open"},
    },
    "target-per_task": {
        "tasks": "pos,dep",
        "pruning": {"penalty": "target", "keep": 3, "rate": 0.1, "sets": "per_task", "overlap": 0.1},
        "train": {"mixing": "sampled", "accumulate": 2, "batch_sentences": 32, "balance": "running_mean"},
    },
    "exact-shared": {
        "tasks": "pos",
        "pruning": {"penalty": "exact", "keep": 4, "rate": 0.1, "settle": 0.65},
    },
    "exact-per_task": {
        "tasks": "pos,con",
        "pruning": {"penalty": "exact", "keep": 3, "rate": 0.1, "sets": "per_task", "settle": 0.65},
        "train": {"weight_decay": 0.01},
    },
}
KILLS = {
    "between updates": Moment("update", count=6),
    "just before the gates are fixed": Moment("update", count=7),
    "just after": Moment("update", count=8),
    "before the log of gates is written": Moment("open", "gates.jsonl", 2),
    "before best.json is in place, the log of gates written": Moment("os.rename", "best.json", 2),
    "within a checkpoint of the last epoch": Moment("open", ".checkpoint.safetensors.part", -1),
}


FEW = ("lambda-in-loss", "exact-per_task")  # the others are slow


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in RUNS],
)
def undisturbed(request, small_settings, tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any]]:
    chosen = RUNS[request.param]
    settings = small_settings(chosen["tasks"], **chosen.get("train", {}))
    settings["pruning"] = {"method": "gates", **chosen["pruning"]}
    folder = RunFolder(tmp_path_factory.mktemp("undisturbed") / "run")
    train(build_config(settings), folder)
    expected = outcome(folder.path)
    assert expected["manifest.json"]["step"] == 12
    assert len(expected["gates.jsonl"].splitlines()) == 3
    return settings, expected


def train_until(step: int, settings: dict[str, Any], folder: RunFolder) -> None:
    """The first so many updates; then a checkpoint is written."""
    steps = [0]
    progress = train(
        build_config(settings),
        folder,
        watch=lambda event: steps.append(event.progress.step),
        stop=lambda: steps[-1] == step,
    )
    assert progress.step == step and not progress.finished


@pytest.mark.parametrize("updates", [4, 8])
def test_stopped_and_gone_on(undisturbed, updates, tmp_path):
    settings, expected = undisturbed
    folder = RunFolder(tmp_path / "run")
    train_until(updates, settings, folder)
    assert train(build_config(settings), folder).finished
    assert outcome(folder.path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLS)
def test_killed(undisturbed, name, tmp_path):
    settings, expected = undisturbed
    moment = KILLS[name]
    if moment.count < 0:
        moment = moment._replace(count=2 * (expected["manifest.json"]["step"] + 1))
    assert run(often(settings), tmp_path / "run", moment) == KILLED
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


@pytest.mark.slow
@pytest.mark.parametrize("undisturbed", ["exact-shared"], indirect=True)
def test_a_log_that_is_ahead_of_the_checkpoint_is_cut_back(undisturbed, tmp_path):
    """Killed for real after the second line, with checkpoints at the ends of epochs only."""
    settings, expected = undisturbed
    assert run(settings, tmp_path / "run", Moment("os.rename", "checkpoint.safetensors", 2)) == KILLED
    log = (tmp_path / "run/gates.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in log] == [1, 2]
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("method", ["importance", "random"])
def test_chosen_heads_stay_chosen(small_settings, method, tmp_path):
    first = RunFolder(tmp_path / "first")
    train(build_config(small_settings("pos", epochs=1)), first)
    settings = small_settings("pos", epochs=2, start=str(first.path), freeze="decoders")
    source = {"importance_of": str(first.path)} if method == "importance" else {}
    settings["pruning"] = {"method": method, "keep": 4, **source}
    train(build_config(settings), RunFolder(tmp_path / "whole"))
    folder = RunFolder(tmp_path / "run")
    train_until(5, settings, folder)
    train(build_config(settings), folder)
    assert outcome(folder.path) == outcome(tmp_path / "whole")
