"""Exact resume: a training is stopped or its process killed, the same run again, and all equals an undisturbed run bit
for bit: weights, moments, logs, and what balance, gates, masks and penalties remember."""

import re
from typing import Any

import pytest
import torch
from interrupted import KILLED, error_of, killed_often, often, outcome, run
from safetensors.torch import load_file
from small_runs import check_resumes, trained

from mtlprune.training.checkpoint import seed_step

ALL = "pos,ner,dep,con,srl"
SAMPLED = {"mixing": "sampled", "accumulate": 2, "batch_sentences": 32, "balance": "running_mean"}
TARGET, EXACT = {"penalty": "target", "rate": 0.1}, {"penalty": "exact", "rate": 0.1, "settle": 0.65}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # tasks, settings of train, of pruning with gates
    "joint": (ALL, {}, {}),
    "sampled": (ALL, SAMPLED | {"batch_sentences": 40, "balance_window": 3, "weight_decay": 0.01}, {}),
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
    "target-shared": ("pos,dep,srl", {}, TARGET | {"keep": 4, "init": "open"}),
    "target-per_task": ("pos,dep", SAMPLED, TARGET | {"keep": 3, "sets": "per_task", "overlap": 0.1}),
    "exact-shared": ("pos", {}, EXACT | {"keep": 4}),
    "lagrangian": ("pos", {}, EXACT | {"penalty": "lagrangian", "keep": 4, "closed": "mean"}),
    "topk": ("pos,dep", {}, {"method": "topk", "keep": 3, "rate": 0.1, "sets": "per_task"}),
    "random-noise": ("pos", {}, {"method": "random", "keep": 3, "noise": True, "settle": 0.65, "closed": "mean"}),
    "exact-per_task": ("pos,con", {"weight_decay": 0.01}, EXACT | {"keep": 3, "sets": "per_task"}),
}
QUICK = ("fusion", "evaluate_every", "lambda-in-loss", "topk", "random-noise", "exact-per_task")


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
    assert expected["manifest.json"]["step"] >= 12
    return settings, expected


@pytest.mark.parametrize("updates", [pytest.param(4, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize(
    "undisturbed", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in RUNS], indirect=True
)
def test_stopped_and_gone_on(undisturbed, updates, tmp_path):
    settings, expected = undisturbed
    check_resumes(settings, updates, tmp_path, expected)


@pytest.mark.parametrize("undisturbed", ["exact-per_task"], indirect=True)
def test_layers_may_be_computed_again_from_some_update_on(undisturbed, tmp_path):
    settings, expected = undisturbed
    check_resumes(settings, 3, tmp_path, expected, encoder=settings["encoder"] | {"checkpointing": True})


@pytest.mark.parametrize(
    "undisturbed",
    ["exact-shared", *(pytest.param(name, marks=pytest.mark.slow) for name in ("joint", "sampled"))],
    indirect=True,
)
def test_killed_again_and_again_at_any_moment(undisturbed, tmp_path):
    """What each single moment leaves is tested as power cuts are (test_power_cuts.py)."""
    settings, expected = undisturbed
    assert killed_often(settings, tmp_path / "run", 5, 0.1) >= 3
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("undisturbed", ["exact-shared"], indirect=True)
@pytest.mark.parametrize(("updates", "share"), [(0, 1.5), (3, 1.5), (0, 0.0)])
def test_a_full_disk_loses_nothing_that_was_complete(undisturbed, updates, share, tmp_path):
    """The limit on the size of a file, as a share of the weights', refuses as a full disk does: a checkpoint, which
    holds Adam's moments too, another in its place, or even the lock."""
    settings, expected = undisturbed
    weights = next(tensors for name, tensors in expected.items() if name.startswith("weights/"))
    limit = int(share * sum(map(len, weights.values())))
    if updates:
        assert run(often(settings), tmp_path / "run", kill_after=updates) == KILLED
    before = {path: path.read_bytes() for path in tmp_path.rglob("checkpoint.safetensors")}
    assert run(often(settings), tmp_path / "run", largest_file=limit) == 3, "was not refused"
    assert re.match(
        f"RunError: .*/run{'/checkpoint.safetensors could' if limit else '.* can'}", error_of(tmp_path / "run")
    )
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("checkpoint.safetensors")}
    for path in (tmp_path / "run").rglob("*.safetensors"):
        load_file(path)  # what stands there is whole
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


def test_dropout_follows_from_seed_and_step_alone():
    def draw(seed: int, step: int) -> list[float]:
        torch.rand(step + 3)
        seed_step(seed, step)
        return torch.rand(4).tolist()

    assert draw(1, 5) == draw(1, 5)
    draws = [draw(seed, step) for seed in (1, 2) for step in (0, 1, 2)]
    assert all(draws[i] != draws[j] for i in range(6) for j in range(i))
