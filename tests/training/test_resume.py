"""Exact resume: a training is stopped or its process killed, the same run again, and all equals an undisturbed run bit
for bit: weights, moments, logs, and what balance, gates, masks and penalties remember."""

from typing import Any

import pytest
from interrupted import KILLED, outcome, run
from small_runs import check_resumes, trained

ALL = "pos,ner,dep,con,srl"
SAMPLED = {"mixing": "sampled", "accumulate": 2, "batch_sentences": 32, "balance": "running_mean"}
TARGET, EXACT = {"penalty": "target", "rate": 0.1}, {"penalty": "exact", "rate": 0.1, "settle": 0.65}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # tasks, settings of train, of pruning with gates
    "joint": (ALL, {}, {}),
    "sampled": (ALL, SAMPLED | {"batch_sentences": 40, "balance_window": 3, "weight_decay": 0.01}, {}),
    "fusion": ("pos,dep", {}, {}),  # of the kind gate
    "cosreg": ("dep", {"cosreg": 1.0}, {}),
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
QUICK = ("cosreg", "fusion", "evaluate_every", "lambda-in-loss", "topk", "random-noise", "exact-per_task")


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


@pytest.mark.parametrize("undisturbed", ["exact-shared"], indirect=True)
def test_killed_by_the_system_and_gone_on(undisturbed, tmp_path):
    """A real process; what each single moment leaves is tested as power cuts are (test_power_cuts.py)."""
    settings, expected = undisturbed
    often = settings | {"train": settings["train"] | {"checkpoint_minutes": 0.0}}
    assert run(often, tmp_path / "run", kill_after=6) == KILLED
    assert (tmp_path / "run/checkpoint.safetensors").exists() and run(often, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected
