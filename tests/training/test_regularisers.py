"""CosReg and the penalty on attention along arcs: what they change, on which weights, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import mean_cosine_gradient
from safetensors.torch import load_file
from torch import Tensor

from mtlprune.config.config import ConfigError, build_config
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.arcs import uas_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.tasks.base import Task
from mtlprune.tasks.linear import POS
from mtlprune.training.loop import _begin, train
from mtlprune.training.optimisation import check_cosreg, cosreg, mean_cosine
from mtlprune.training.parallel import ALONE
from mtlprune.training.setup import Beginning, prepare


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


def test_without_it_nothing_changes_and_with_it_cosines_fall(small_settings: Any, tmp_path: Path) -> None:
    found = {}
    for name, added in {"none": {}, "zero": {"cosreg": 0.0}, "ten": {"cosreg": 10.0}}.items():
        done(small_settings("pos", epochs=2, **added), tmp_path / name)
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


def done(settings: dict[str, Any], folder: Path, **syntax: Any) -> RunFolder:
    run = RunFolder(folder)
    assert train(build_config({**settings, "syntax": syntax} if syntax else settings), run).finished
    return run


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(next(iter(sorted((run.path / "weights").glob("epoch-*.safetensors")))))


@pytest.fixture(scope="module")
def settings(small_settings) -> dict[str, Any]:
    tree = small_settings("pos", epochs=2)
    tree["encoder"] = {**tree["encoder"], "word_dropout": 0.0}
    return tree


def test_protection_raises_and_suppression_lowers_attention_along_arcs(settings, tmp_path):
    corpus = load_corpus(Path(settings["data"]["path"]))
    found = {}
    for name, strength in (("minus", 5.0), ("plus", -5.0)):
        run = done(settings, tmp_path / name, strength=strength, scale="mean")
        losses = [line["loss"] for line in run.read_metrics()]
        assert set(losses[0]) == {"pos", "syntax"} and (losses[-1]["syntax"] - losses[0]["syntax"]) * strength < 0
        encoder = MultiTaskModel.load(run.path).encoder
        found[name] = uas_of(encoder, list(corpus["dev"])).best(weight=True).value
    assert found["plus"] > found["minus"]


def test_named_heads_are_priced_alone_and_a_release_ends_it(settings, tmp_path):
    run = done(settings, tmp_path / "one", strength=1.0, scale="mean", heads="2-1", release=3)
    whole = done(settings, tmp_path / "all", strength=1.0, scale="mean", release=3)
    one, every = (folder.read_metrics()[0]["loss"]["syntax"] for folder in (run, whole))
    assert 0 < one < every
    assert "syntax" not in run.read_metrics()[-1]["loss"]  # an epoch has four updates


@pytest.mark.parametrize(("heads", "words"), [("3-1", "no head 3-1"), ("2-9", "layer 2 has 1, 2, 3, 4")])
def test_heads_that_are_not_there_are_refused_before_anything_is_written(settings, tmp_path, heads, words):
    with pytest.raises(ConfigError, match=words):
        train(build_config({**settings, "syntax": {"strength": 1, "heads": heads}}), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder": {"context": False}}, "has no heads"),
        ({"train": {"freeze": "encoder"}}, "cannot change"),
        ({"tasks": ["pos", "ner"], "pruning": {"method": "gates", "sets": "per_task"}}, "one attention a task"),
    ],
)
def test_settings_that_do_not_go_together(settings, change, words):
    with pytest.raises(ConfigError, match=words):
        build_config({**settings, "syntax": {"strength": 1}, **change})


def test_several_processes_are_refused_before_anything_is_written(settings, tmp_path):
    config = build_config({**settings, "syntax": {"strength": 1}})
    with pytest.raises(ConfigError, match="2 processes"):
        prepare(config, RunFolder(tmp_path / "run"), load_corpus(Path(config.data.path)), processes=2)
    assert not (tmp_path / "run").exists()
