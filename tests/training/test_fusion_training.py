"""Runs with fusion of layers: what learns at which rate, loaded with its weights, refused where it does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mtlprune.config.config import ConfigError, build_config
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.training.loop import train
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.setup import build_model, read_splits
from mtlprune.training.start import check_compatible


def fused(settings: dict[str, Any], kind: str) -> dict[str, Any]:
    return {**settings, "encoder": {**settings["encoder"], "fusion": kind}}


@pytest.mark.parametrize(
    ("kind", "tasks"), [("gate", "pos,dep"), pytest.param("concat", "ner", marks=pytest.mark.slow)]
)
def test_it_learns_and_is_loaded_with_its_weights(small_settings: Any, tmp_path: Path, kind: str, tasks: str) -> None:
    train(build_config(fused(small_settings(tasks, epochs=1), kind)), RunFolder(tmp_path / "run"))
    model = MultiTaskModel.load(tmp_path / "run")
    assert model.encoder.fusion is not None and model.encoder.fusion.kind == kind
    fresh = type(model.encoder.fusion)(kind, model.encoder.fusion.layers, model.encoder.hidden_size).state_dict()
    learnt = model.encoder.fusion.state_dict()
    assert all(not torch.equal(fresh[name], learnt[name]) for name in fresh)


def test_fusion_learns_at_the_decoders_rate_and_nothing_moves_without_it(small_settings: Any) -> None:
    from mtlprune.corpora.store import load_corpus

    sizes = []
    for kind in ("none", "gate"):
        config = build_config(fused(small_settings("pos"), kind), "test")
        train, dev = read_splits(config, load_corpus(Path(config.data.path)))
        model, _ = build_model(config, train, dev)
        groups = make_optimizer(model, config).param_groups
        sizes.append([len(group["params"]) for group in groups])
        if model.encoder.fusion is not None:
            rates = {id(p): group["lr"] for group in groups for p in group["params"]}
            assert {rates[id(p)] for p in model.encoder.fusion.parameters()} == {config.train.decoder_rate}
        assert [id(p) for p in groups[0]["params"]] == [id(p) for p in model.encoder.transformer.parameters()]
    assert sizes[1] == [sizes[0][0], sizes[0][1] + 2, sizes[0][2]]


def test_refused_without_layers_and_from_a_run_with_another_fusion(small_settings: Any, tmp_path: Path) -> None:
    settings = fused(small_settings("pos"), "gate")
    settings["encoder"]["context"] = False
    with pytest.raises(ConfigError, match="context: false has none"):
        build_config(settings, "test")
    folder = RunFolder(tmp_path / "other")
    folder.path.mkdir()
    config = build_config(small_settings("pos"), "test")
    folder.write_config(config.model_dump(mode="json"))
    folder.write_json("manifest.json", {"finished": {}, "data": {"fingerprint": "f"}})
    with pytest.raises(ConfigError, match=r"encoder\.fusion gate, but .* has none"):
        check_compatible(
            build_config(fused(small_settings("pos"), "gate"), "test"), str(folder.path), "train.start", None
        )
