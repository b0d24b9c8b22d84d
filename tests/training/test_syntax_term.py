"""The penalty on attention along arcs in multi-task training: what it changes, on which heads, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mtlprune.config.config import ConfigError, build_config
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.arcs import uas_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.training.loop import train
from mtlprune.training.setup import prepare


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"syntax": {"strength": 1, "heads": "3-1"}}, "no head 3-1"),
        ({"syntax": {"strength": 1, "heads": "2-9"}}, "layer 2 has 1, 2, 3, 4"),
    ],
)
def test_heads_that_are_not_there_are_refused_before_anything_is_written(settings, tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        train(build_config({**settings, **change}), RunFolder(tmp_path / "run"))
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
