"""uas.jsonl: what a head attends to at each evaluation, whatever happened to the process in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from mtlprune.config.config import ConfigError, build_config
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.encoder.arcs import uas_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.training.loop import train

Settings = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def settings(small_settings: Settings) -> dict[str, Any]:
    made = small_settings("pos,dep", log_uas=True, encoder_rate=1e-2)
    made["pruning"] = {"method": "gates", "penalty": "exact", "keep": 3, "rate": 0.3, "sets": "per_task"}
    return made


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("whole") / "run")
    train(build_config(settings), folder)
    return folder


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.uas_path.read_text().splitlines()]


def test_the_line_of_the_best_epoch_is_what_its_weights_give(settings, whole: RunFolder):
    best = whole.read_best()["joint"]["epoch"]
    line = lines(whole)[best - 1]
    model, dev = MultiTaskModel.load(whole.path), list(load_corpus(Path(settings["data"]["path"]))["dev"])
    for task in ("pos", "dep"):
        gates = model.gates[task].evaluated().detach()
        expected = uas_of(model.encoder, dev, gates).uas()
        found = np.array([line["uas"][task][d] for d in ("dep->head", "head<-dep")], dtype=float)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert (np.isnan(found) == (gates.numpy() <= 1e-3)).all() and np.isnan(found[0]).sum() == 5  # 3 of 8 are open


def test_every_evaluation_has_its_line(whole: RunFolder):
    assert [(line["epoch"], line["step"]) for line in lines(whole)] == [(1, 4), (2, 8), (3, 12)]


def test_it_changes_no_result_and_goes_on_where_it_stopped(settings, whole: RunFolder, tmp_path):
    quiet = {**settings, "train": {**settings["train"], "log_uas": False}}
    train(build_config(quiet), RunFolder(tmp_path / "quiet"))
    broken, config = RunFolder(tmp_path / "broken"), build_config(settings)
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen == 6

    train(config, broken, stop=stop)
    with broken.uas_path.open("a") as handle:  # of an evaluation that no checkpoint knows
        handle.write('{"epoch": 2, "st')
    assert train(config, broken).finished
    assert broken.uas_path.read_bytes() == whole.uas_path.read_bytes()
    assert not RunFolder(tmp_path / "quiet").uas_path.exists()
    best = whole.read_best()["joint"]["epoch"]
    weights = [load_file(folder.weights_path(best)) for folder in (whole, broken, RunFolder(tmp_path / "quiet"))]
    assert all(weights[0][key].equal(other[key]) for other in weights[1:] for key in other)


def test_without_gates_there_is_one_table_without_trees_none(small_settings: Settings, tmp_path):
    folder = RunFolder(tmp_path / "run")
    train(build_config(small_settings("pos", log_uas=True, epochs=1)), folder)
    assert list(lines(folder)[0]["uas"]) == ["none"]
    tree = small_settings("pos", log_uas=True)
    old = load_corpus(Path(tree["data"]["path"]))
    splits = {split: [s.with_layers(dep=None) for s in old[split]] for split in ("train", "dev")}
    save_corpus(splits, tmp_path / "c", name="c", licence="Apache-2.0", sources={})
    tree["data"] = {"path": str(tmp_path / "c")}
    with pytest.raises(ConfigError, match=r"train.log_uas: UAS of heads needs .* no sentence of the split dev has one"):
        train(build_config(tree), RunFolder(tmp_path / "other"))
    assert not (tmp_path / "other").exists()
