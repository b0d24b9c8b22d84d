"""CosReg and the penalty on attention along arcs: what they change, on which weights, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import mean_cosine_gradient
from small_runs import corpus_of, trained
from torch import Tensor

from mtlprune.config.config import ConfigError, build_config
from mtlprune.encoder.arcs import uas_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.tasks.base import Task
from mtlprune.tasks.linear import POS
from mtlprune.training.loop import _begin
from mtlprune.training.optimisation import check_cosreg, cosreg, mean_cosine
from mtlprune.training.parallel import ALONE
from mtlprune.training.setup import Beginning, prepare


def gradients(settings: dict[str, Any], folder: Path) -> tuple[MultiTaskModel, dict[str, Tensor]]:
    """Of the first mini-batch, with weights that are nowhere 0 and the same dropout every time."""
    folder.mkdir()
    trainer = _begin(build_config(settings), RunFolder(folder), corpus_of(settings), ALONE)
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


def test_without_it_nothing_changes_and_with_it_cosines_fall(small_settings: Any, tmp_path: Path) -> None:
    found = []
    for place, added in enumerate(({}, {"cosreg": 0.0}, {"cosreg": 10.0})):
        run = trained(small_settings("pos", epochs=2, **added), tmp_path / f"{place}")
        found.append(MultiTaskModel.load(run.path))
    none, zero = (model.state_dict() for model in found[:2])
    assert all(torch.equal(none[key], zero[key]) for key in none)
    cosines = [mean_cosine(model.tasks["pos"].label_rows().rows.detach()) for model in found]
    assert cosines[2] < cosines[0] - 0.02


def test_one_process_adds_it_for_all(small_settings: Any, tmp_path: Path) -> None:
    settings = small_settings("pos,dep", cosreg=2.0)
    model, config = gradients(settings, tmp_path / "run")[0], build_config(settings)
    [penalty] = cosreg(config, model, ["dep"])
    assert cosreg(config, model, ["dep"], leads=False) == []
    assert penalty.item() == pytest.approx(2 * mean_cosine(model.tasks["dep"].label_rows().rows.detach()).item())


def test_where_it_has_no_effect_it_is_refused(small_settings: Any, tmp_path: Path) -> None:
    settings = small_settings("pos", cosreg=1.0, start="elsewhere", freeze="decoders")
    with pytest.raises(ConfigError, match="cosreg has no effect"):
        build_config(settings)
    with pytest.raises(ConfigError, match="cosreg"):
        build_config(small_settings("pos", cosreg=-1.0))

    class WithoutRows(POS):
        label_rows = Task.label_rows  # type: ignore[assignment]

    model, _ = gradients(small_settings("pos"), tmp_path / "run")
    model.tasks["pos"] = WithoutRows({"tags": ["A"]}, 4, None)
    with pytest.raises(ConfigError, match="the decoder of pos has no matrix"):
        check_cosreg(Beginning(build_config(small_settings("pos", cosreg=1.0)), model, {}, [], []))
    check_cosreg(Beginning(build_config(small_settings("pos")), model, {}, [], []))


@pytest.fixture(scope="module")
def syntax(small_settings) -> Callable[..., dict[str, Any]]:
    """Settings with a penalty on attention along arcs."""

    def settings(**given: Any) -> dict[str, Any]:
        tree = small_settings("pos", epochs=2)
        tree["encoder"]["word_dropout"] = 0.0
        return {**tree, "syntax": given}

    return settings


def test_protection_raises_and_suppression_lowers_attention_along_arcs(syntax, tmp_path):
    found = {}
    for strength in (5.0, -5.0):
        settings = syntax(strength=strength, scale="mean")
        run = trained(settings, tmp_path / f"{strength}")
        losses = [line["loss"] for line in run.read_metrics()]
        assert set(losses[0]) == {"pos", "syntax"} and (losses[-1]["syntax"] - losses[0]["syntax"]) * strength < 0
        encoder = MultiTaskModel.load(run.path).encoder
        found[strength] = uas_of(encoder, list(corpus_of(settings)["dev"])).best(weight=True).value
    assert found[-5.0] > found[5.0]


def test_named_heads_are_priced_alone_and_a_release_ends_it(syntax, tmp_path):
    run = trained(syntax(strength=1.0, scale="mean", heads="2-1", release=3), tmp_path / "one")
    whole = trained(syntax(strength=1.0, scale="mean", release=3), tmp_path / "all")
    one, every = (folder.read_metrics()[0]["loss"]["syntax"] for folder in (run, whole))
    assert 0 < one < every
    assert "syntax" not in run.read_metrics()[-1]["loss"]  # an epoch has four updates


@pytest.mark.parametrize(("heads", "words"), [("3-1", "no head 3-1"), ("2-9", "layer 2 has 1, 2, 3, 4")])
def test_heads_that_are_not_there_are_refused_before_anything_is_written(syntax, tmp_path, heads, words):
    with pytest.raises(ConfigError, match=words):
        trained(syntax(strength=1, heads=heads), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder": {"context": False}}, "has no heads"),
        ({"train": {"freeze": "encoder"}}, "cannot change"),
        ({"tasks": ["pos", "ner"], "pruning": {"method": "gates", "sets": "per_task"}}, "one attention a task"),
    ],
)
def test_settings_that_do_not_go_together(syntax, change, words):
    with pytest.raises(ConfigError, match=words):
        build_config({**syntax(strength=1), **change})


def test_several_processes_are_refused_before_anything_is_written(syntax, tmp_path):
    settings = syntax(strength=1)
    with pytest.raises(ConfigError, match="2 processes"):
        prepare(build_config(settings), RunFolder(tmp_path / "run"), corpus_of(settings), processes=2)
    assert not (tmp_path / "run").exists()
