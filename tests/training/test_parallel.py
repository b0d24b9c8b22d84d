"""Two processes take the step that one takes; what happens to one of them ends the run of all in words."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from interrupted import KILLED, outcome
from process_jobs import (
    Batches,
    error_of,
    poison,
    run_processes,
    train_one,
    trainer,
    update,
    updates,
)
from safetensors.torch import load_file
from small_runs import Settings, alike, corpus_of

import mtlprune.model
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.evaluation import evaluate
from mtlprune.training.parallel import ALONE, ProcessGroup

ALL = "pos,ner,dep,con,srl"
ROWS = [2, 3, 4, 8, 5, 10, 14]  # 3 has no tree; 90 words fall to the first process, 27 to the other, so that
# the mean of two gradients would not do
GATES = {"method": "gates", "penalty": "target", "keep": 4, "rate": 0.05}
MEAN = {"balance": "running_mean"}
WHOLE: list[Batches] = [[(ALL, ROWS)], [(ALL, [1])]]
SAMPLED: list[Batches] = [[("dep", [1, 2, 4, 5, 7])], [("con", [1, 2, 4]), ("srl", [4, 5, 7]), ("con", [8, 10, 11])]]
PARTS: list[Batches] = [[(ALL, ROWS), (ALL, [0, 3])], [("dep", [1, 2, 4]), ("pos", [7])]]
FEW: list[Batches] = [[(ALL, [1])], [(ALL, [0, 3])], [("pos", [2])]]  # 0 has no roles: the first has no part in them
PLANS: dict[str, tuple[list[Batches], dict[str, Any], dict[str, Any]]] = {  # updates, settings of train, of pruning
    "joint": (WHOLE, {}, {}),
    "paper": (WHOLE, {}, {}),
    "cosreg": (WHOLE, {"cosreg": 2.0}, {}),
    "sampled": (SAMPLED, {"mixing": "sampled", "weight_decay": 0.5}, {}),
    "accumulated": (PARTS, {"accumulate": 2, **MEAN}, {}),
    "few": (FEW, MEAN, {}),
    "shared": (WHOLE, {}, GATES),
    "per_task": (PARTS, {}, {**GATES, "sets": "per_task", "overlap": 0.01}),
    "in_loss": (PARTS, MEAN, {"method": "gates", "strength": 0.5, "in_loss": True}),
}


@pytest.fixture(scope="module")
def cases(quiet_settings: Settings) -> dict[str, tuple[dict[str, Any], list[Batches]]]:
    made = {}
    for name, (plan, how, pruning) in PLANS.items():
        settings = quiet_settings(**{"warmup": 0.0, "clip": 1.0, **how}) | {"pruning": pruning}
        if name == "paper":  # losses that are means over other things than words
            settings["decoders"]["srl"]["predicates"] = "ranked"
            settings["decoders"]["ner"]["loss_per"] = "span"
        made[name] = (settings, plan)
    return made


@pytest.fixture(scope="module")
def in_two(cases, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("updates")
    assert run_processes(update, out, cases) == [0, 0]
    return out


@pytest.fixture
def team_of_one():
    """Gates draw their noise as in a group; nothing else is different."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ProcessGroup(grouped=True)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", list(PLANS))
def test_two_processes_take_the_step_of_one(name: str, cases, in_two: Path, tmp_path, request):
    first, second = (load_file(in_two / f"{name}-{rank}.safetensors") for rank in (0, 1))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)  # to the last bit
    settings, plan = cases[name]
    group = request.getfixturevalue("team_of_one") if settings["pruning"] else ALONE
    one = updates(trainer(settings, tmp_path / "one", group), plan)
    assert one.keys() == first.keys()  # who is idle in one process has no gradient in two
    for key, value in one.items():
        if key.startswith("loss"):
            torch.testing.assert_close(first[key], value, rtol=1e-4, atol=1e-6)
    found, wanted = ({key: each[key] for key in one if key.startswith("gradient")} for each in (first, one))
    alike(found, wanted, rtol=2e-3)  # the gradient of a key's bias is nothing but rounding


@pytest.fixture(scope="module")
def gated(small_settings: Settings) -> dict[str, Any]:
    """With every kind of dropout, drawn differently in each process, and noise in gates, drawn alike."""
    settings = small_settings(
        mixing="sampled", accumulate=2, balance="running_mean", epochs=2, batch_sentences=40, log_uas=True
    )
    return {**settings, "pruning": {**GATES, "penalty": "exact"}}


@pytest.mark.slow
def test_killed_and_resumed_is_as_undisturbed(gated, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run_processes(train_one, whole, [gated, gated]) == [0, 0]
    assert run_processes(train_one, broken, [gated, gated], "stops", 2) == [0, 0]
    assert RunFolder(broken).checkpoint_path.exists()
    assert run_processes(train_one, broken, [gated, gated], "killed", 6) == [3, KILLED]
    assert error_of(broken, 0).startswith("LostProcess: process 0 of 2: another process of this run has ended or does")
    assert run_processes(train_one, broken, [gated, gated]) == [0, 0]
    assert outcome(broken) == outcome(whole)
    manifest = RunFolder(whole).read_manifest()
    assert manifest["processes"] == 2 and manifest["finished"]["finished"]
    monkeypatch.setattr(mtlprune.model, "EVALUATION_SENTENCES", 3)
    dev = list(corpus_of(gated)["dev"])
    alone = evaluate(MultiTaskModel.load(whole), dev, torch.float32)
    assert alone.scores == RunFolder(whole).read_scores("dev")
    assert alone.predictions == RunFolder(whole).read_predictions("dev")


def test_a_number_that_is_none_in_one_process_ends_all_in_the_same_words(quiet_settings: Settings, tmp_path):
    assert run_processes(poison, tmp_path / "run", quiet_settings("pos,dep"), [[("pos,dep", [1, 2])]]) == [3, 3]
    first, second = (error_of(tmp_path / "run", rank) for rank in (0, 1))
    assert first == second and "at step 0 (epoch 1), task pos: the loss is nan" in first


@pytest.mark.slow
def test_who_does_not_answer_is_not_waited_for_for_ever(quiet_settings: Settings, tmp_path):
    settings = quiet_settings("pos")
    assert run_processes(train_one, tmp_path / "run", [settings, settings], "asleep", 2) == [3, 3]
    assert error_of(tmp_path / "run", 0).startswith("LostProcess: process 0 of 2: another process")


def test_a_mistake_in_one_process_is_told_to_all_and_leaves_no_folder(quiet_settings: Settings, tmp_path):
    right, wrong = quiet_settings("pos"), quiet_settings("pos")
    wrong["data"] = {"path": str(tmp_path / "nowhere")}
    out = tmp_path / "run"
    assert run_processes(train_one, out, [right, wrong]) == [3, 3]
    assert error_of(out, 0).startswith("ProcessGroupError: process 1 of 2 could not go on: CorpusError: ")
    assert error_of(out, 1).startswith("CorpusError: ")
    assert run_processes(train_one, out, [wrong, wrong]) == [3, 3]
    assert error_of(out, 0).startswith("CorpusError: ")
    assert error_of(out, 1).startswith("ProcessGroupError: process 0 of 2")


@pytest.mark.slow
def test_torchrun(quiet_settings: Settings, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(quiet_settings("pos,dep", epochs=1)))
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "mtlprune", "train"]
    command = [*start, str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 1/1") == 1 and done.stdout.count("best epoch 1") == 1
    assert RunFolder(tmp_path / "run").read_manifest()["finished"]["epoch"] == 1
