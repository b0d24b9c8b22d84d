"""CosReg in training: the closed-form gradient on label rows and nothing else, stopped and resumed, R that falls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import KILLED, Moment, outcome, run
from oracles import mean_cosine_gradient
from torch import Tensor

from mtlprune.config.config import ConfigError, build_config
from mtlprune.corpora.store import load_corpus
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.tasks.base import Task
from mtlprune.tasks.pos import POS
from mtlprune.training.loop import _begin
from mtlprune.training.optimisation import check_cosreg, cosreg, mean_cosine
from mtlprune.training.parallel import ALONE
from mtlprune.training.setup import Beginning


def gradients(settings: dict[str, Any], folder: Path) -> tuple[MultiTaskModel, dict[str, Tensor]]:
    """Of the first mini-batch, with weights that are nowhere 0 and the same dropout every time."""
    config = build_config(settings, "test")
    folder.mkdir()
    trainer = _begin(config, RunFolder(folder), load_corpus(Path(config.data.path)), ALONE)
    torch.manual_seed(3)
    for parameter in trainer.model.tasks.parameters():
        torch.nn.init.normal_(parameter, 0, 0.1)
    trainer.backward(trainer.plan(0)[0][0], 0, 1)
    trainer.writer.close()
    return trainer.model, {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tasks", ["pos", "pos,ner,dep,con,srl"])
def test_its_gradient_is_the_closed_form_on_label_rows_only(small_settings: Any, tmp_path: Path, tasks: str) -> None:
    _, plain = gradients(small_settings(tasks), tmp_path / "plain")
    model, penalised = gradients(small_settings(tasks, cosreg=2.5), tmp_path / "penalised")
    moved = {name for name in plain if not torch.equal(plain[name], penalised[name])}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    expected = set()
    for task in tasks.split(","):
        rows = model.tasks[task].label_rows().rows
        parameter = next(p for p in model.tasks[task].parameters() if p.data_ptr() == rows.data_ptr())
        name = names[id(parameter)]
        expected.add(name)
        added = (penalised[name] - plain[name]).flatten(1)
        torch.testing.assert_close(added, 2.5 * mean_cosine_gradient(rows.detach()), rtol=1e-3, atol=1e-6)
    assert moved == expected and len(expected) == len(tasks.split(","))


@pytest.mark.parametrize("tasks", ["dep", pytest.param("pos,srl", marks=pytest.mark.slow)])
def test_stopped_and_resumed_is_never_stopped(small_settings: Any, tmp_path: Path, tasks: str) -> None:
    settings = small_settings(tasks, epochs=2, cosreg=1.0, mixing="sampled" if "," in tasks else "joint")
    assert run(settings, tmp_path / "whole") == 0
    assert run(settings, tmp_path / "broken", Moment("update", count=5)) == KILLED
    assert run(settings, tmp_path / "broken") == 0
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")


def test_without_it_nothing_changes_and_with_it_cosines_fall(small_settings: Any, tmp_path: Path) -> None:
    found = {}
    for name, train in {"none": {}, "zero": {"cosreg": 0.0}, "ten": {"cosreg": 10.0}}.items():
        assert run(small_settings("pos", epochs=2, **train), tmp_path / name) == 0
        found[name] = MultiTaskModel.load(tmp_path / name)
    none, zero, ten = (model.state_dict() for model in found.values())
    assert all(torch.equal(none[key], zero[key]) for key in none)
    rows = {name: model.tasks["pos"].label_rows().rows.detach() for name, model in found.items()}
    assert mean_cosine(rows["ten"]) < mean_cosine(rows["none"]) - 0.02
    assert not torch.equal(none["tasks.pos.scores.weight"], ten["tasks.pos.scores.weight"])


def test_one_process_adds_it_for_all(small_settings: Any, tmp_path: Path) -> None:
    model, _ = gradients(small_settings("pos,dep", cosreg=2.0), tmp_path / "run")
    config = build_config(small_settings("pos,dep", cosreg=2.0), "test")
    penalties = cosreg(config, model, ["dep"])
    assert len(penalties) == 1 and cosreg(config, model, ["dep"], leads=False) == []
    assert float(penalties[0].detach()) == pytest.approx(
        2 * float(mean_cosine(model.tasks["dep"].label_rows().rows.detach()))
    )


def test_where_it_has_no_effect_it_is_refused(small_settings: Any, tmp_path: Path) -> None:
    settings = small_settings("pos", cosreg=1.0, start="elsewhere", freeze="decoders")
    with pytest.raises(ConfigError, match="cosreg has no effect"):
        build_config(settings, "test")
    with pytest.raises(ConfigError, match="cosreg"):
        build_config(small_settings("pos", cosreg=-1.0), "test")

    class WithoutRows(POS):
        label_rows = Task.label_rows  # type: ignore[assignment]

    model, _ = gradients(small_settings("pos"), tmp_path / "run")
    model.tasks["pos"] = WithoutRows({"tags": ["A"]}, 4, None)
    with pytest.raises(ConfigError, match="the decoder of pos has no matrix"):
        check_cosreg(Beginning(build_config(small_settings("pos", cosreg=1.0), "test"), model, {}, [], []))
    check_cosreg(Beginning(build_config(small_settings("pos"), "test"), model, {}, [], []))
