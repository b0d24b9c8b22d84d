"""uas.jsonl and TensorBoard; runs that are killed and go on."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupted import KILLED, run
from small_runs import Settings, check_refused, corpus_of, train_until, trained, with_sentences

from mtlprune.config.config import build_config
from mtlprune.encoder.arcs import uas_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.loop import train


@pytest.fixture
def settings(small_settings: Any) -> dict[str, Any]:
    """Three epochs of four updates, checkpoints at their ends, a gate set a task."""
    pytest.importorskip("tensorboard")
    tree = small_settings("pos,dep", tensorboard=True)
    return {**tree, "pruning": {"method": "gates", "sets": "per_task", "rate": 0.1, "strength": 1.0}}


def read(folder: RunFolder) -> Any:
    """All events, what was written in vain left out."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(folder.path / "tensorboard"), size_guidance={"images": 0, "scalars": 0})
    return events.Reload()


def check(folder: RunFolder) -> None:
    """Every number and picture is there once: as in metrics.jsonl and gates.jsonl; losses of updates by their means."""
    events, metrics, main = read(folder), folder.read_metrics(), {"pos": "accuracy", "dep": "las"}
    told = [((event.step, tag), event.value) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]
    found = dict(told)
    expected = {(line["step"], "dev/joint"): line["joint"] for line in metrics}
    for task, score in main.items():
        expected |= {(line["step"], f"dev/{task}"): line["dev"][task][score] for line in metrics}
        for kind in ("open", "expected"):
            expected |= {(line["step"], f"gates/{kind}/{task}"): line[kind][task] for line in folder.read_gates()}
        steps = [image.step for image in events.Images(f"gates/map/{task}")]
        assert steps == [line["step"] for line in folder.read_gates()]
    losses = {key: found.pop(key) for key, _ in told if key[1].startswith("loss/")}
    assert len(found) + len(losses) == len(told) and found == pytest.approx(expected, rel=1e-5)
    assert losses.keys() == {(step, f"loss/{task}") for step in range(1, 13) for task in main}
    for line in metrics:
        last = range(line["step"] - 3, line["step"] + 1)
        means = {task: np.mean([losses[step, f"loss/{task}"] for step in last]) for task in main}
        assert means == pytest.approx(line["loss"], rel=1e-5)


def break_off_after(step: int, settings: dict[str, Any], folder: RunFolder) -> None:
    """By an error, after an update that no checkpoint holds."""

    def watch(event: Any) -> None:
        if event.progress.step > step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(build_config(settings), folder, watch=watch)


@pytest.mark.parametrize("how", ["broken off", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_run_that_goes_on_has_no_step_twice(settings: dict[str, Any], how: str, tmp_path: Path):
    """What was written of updates that are done again counts no more; nothing is missing, not even after SIGKILL."""
    folder = RunFolder(tmp_path / "run")
    if how == "killed":
        assert run(settings, folder.path, kill_after=6) == KILLED
    else:
        break_off_after(2, settings, folder)
    trained(settings, folder.path)
    assert len(list((folder.path / "tensorboard").iterdir())) == 2
    check(folder)


def test_it_may_be_turned_on_later_and_changes_no_result(small_settings: Any, tmp_path: Path):
    plain, watched = trained(small_settings("pos", epochs=2), tmp_path / "plain"), RunFolder(tmp_path / "watched")
    train_until(3, small_settings("pos", epochs=2), watched)
    trained(small_settings("pos", epochs=2, tensorboard=True), watched.path)
    assert [event.step for event in read(watched).Scalars("loss/pos")] == [4, 5, 6, 7, 8]
    assert watched.metrics_path.read_bytes() == plain.metrics_path.read_bytes()
    assert not (plain.path / "tensorboard").exists()


def test_without_the_package_it_is_a_sentence_before_training(settings, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_refused(settings, tmp_path, r'pip install -e "\.\[tensorboard\]"')


@pytest.fixture(scope="module")
def watched(small_settings: Settings) -> dict[str, Any]:
    made = small_settings("pos,dep", log_uas=True, encoder_rate=1e-2)
    made["pruning"] = {"method": "gates", "penalty": "exact", "keep": 3, "rate": 0.3, "sets": "per_task"}
    return made


@pytest.fixture(scope="module")
def whole(watched, tmp_path_factory) -> RunFolder:
    return trained(watched, tmp_path_factory.mktemp("whole") / "run")


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.uas_path.read_text().splitlines()]


def test_the_loss_of_fixed_training_sentences_is_that_of_the_weights_and_changes_nothing(
    small_settings: Settings, tmp_path
):
    plain, logged = (
        trained(small_settings("pos,dep,srl", precision="fp32", log_train_loss=count), tmp_path / str(count))
        for count in (0, 20)
    )
    lines_of = plain.read_metrics(), logged.read_metrics()
    without = [[{**line, "train_loss": None} for line in lines] for lines in lines_of]
    assert without[0] == without[1]
    model = MultiTaskModel.load(logged.path)
    sentences = list(corpus_of(small_settings("pos"))["train"])[:20]
    pieces = model.encoder.tokenize_sentences(sentences)
    targets = {
        name: [task.target(s) if s.get(name) is not None else None for s in sentences]
        for name, task in model.tasks.items()
    }
    with torch.no_grad():
        expected = {name: loss.item() for name, loss in model.losses(model.collate(pieces, targets)).items()}
    best = logged.read_best()["joint"]["epoch"]
    assert lines_of[1][best - 1]["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_every_evaluation_has_its_line_and_that_of_the_best_is_what_its_weights_give(watched, whole: RunFolder):
    assert [(line["epoch"], line["step"]) for line in lines(whole)] == [(1, 4), (2, 8), (3, 12)]
    line = lines(whole)[whole.read_best()["joint"]["epoch"] - 1]
    model, dev = MultiTaskModel.load(whole.path), list(corpus_of(watched)["dev"])
    for task in ("pos", "dep"):
        gates = model.gates[task].evaluated().detach()
        expected = uas_of(model.encoder, dev, gates).uas()
        found = np.array([line["uas"][task][d] for d in ("dep->head", "head<-dep")], dtype=float)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert (np.isnan(found) == (gates.numpy() <= 1e-3)).all() and np.isnan(found[0]).sum() == 5  # 3 of 8 are open


def test_without_gates_there_is_one_table_without_trees_none(small_settings: Settings, tmp_path):
    tree = small_settings("pos", log_uas=True, epochs=1)
    assert list(lines(trained(tree, tmp_path / "run"))[0]["uas"]) == ["none"]
    tree = with_sentences(tree, tmp_path / "c", lambda sentences: [s.with_layers(dep=None) for s in sentences])
    check_refused(tree, tmp_path / "other", "log_uas: UAS of heads needs .* no sentence of the split dev has one")
