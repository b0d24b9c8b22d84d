"""CosReg and the penalty on attention along arcs: what they change, on which weights, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import mean_cosine_gradient
from small_runs import Settings, corpus_of, gradients, trained, trainer
from torch import Tensor

from mtlprune.config.config import ConfigError, build_config
from mtlprune.encoder.arcs import uas_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.setup import prepare


def found(settings: dict[str, Any], folder: Path) -> tuple[MultiTaskModel, dict[str, Tensor]]:
    """A model and its gradients, with weights of decoders that are nowhere 0."""
    made = trainer(settings, folder)
    torch.manual_seed(3)
    for parameter in made.model.tasks.parameters():
        torch.nn.init.normal_(parameter, 0, 0.1)
    return made.model, gradients(made, MiniBatch(made.config.tasks, [1, 2, 4, 5]))


@pytest.mark.parametrize("tasks", ["pos", "pos,ner,dep,con,srl"])
def test_its_gradient_is_the_closed_form_on_label_rows_only(small_settings: Settings, tmp_path: Path, tasks: str):
    still = {"clip": 1e9, "encoder_rate": 1e-12, "decoder_rate": 1e-12}
    _, plain = found(small_settings(tasks, **still), tmp_path / "plain")
    model, penalised = found(small_settings(tasks, **still, cosreg=2.5), tmp_path / "penalised")
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    expected = {}
    for task in tasks.split(","):
        rows = model.tasks[task].label_rows().rows.detach()
        expected[names[rows.data_ptr()]] = 2.5 * mean_cosine_gradient(rows)
    assert len(expected) == len(tasks.split(","))
    assert {name for name in plain if not torch.equal(plain[name], penalised[name])} == expected.keys()
    for name, added in expected.items():
        torch.testing.assert_close((penalised[name] - plain[name]).flatten(1), added, rtol=1e-3, atol=1e-6)


@pytest.fixture(scope="module")
def syntax(small_settings: Settings) -> Settings:
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"syntax": {"strength": 1, "heads": "3-1"}}, "no head 3-1"),
        ({"syntax": {"strength": 1, "heads": "2-9"}}, "layer 2 has 1, 2, 3, 4"),
        ({"encoder": {"context": False}}, "has no heads"),
        ({"train": {"freeze": "encoder"}}, "cannot change"),
        ({"tasks": ["pos", "ner"], "pruning": {"method": "gates", "sets": "per_task"}}, "one attention a task"),
        ({"train": {"cosreg": 1.0, "start": "elsewhere", "freeze": "decoders"}}, "cosreg has no effect"),
        ({"train": {"cosreg": -1.0}}, "cosreg"),
        ({}, "2 processes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(syntax, change, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        settings = {**syntax(strength=1), **change}
        prepare(build_config(settings), RunFolder(tmp_path / "run"), corpus_of(settings), processes=1 if change else 2)
    assert not (tmp_path / "run").exists()
