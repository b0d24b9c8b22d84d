"""Runs with fusion of layers: what learns at which rate, loaded with its weights, refused where it does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import prepared, trained

from mtlprune.config.config import ConfigError, build_config
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.start import check_compatible


@pytest.fixture
def fused(small_settings: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def settings(kind: str, tasks: str = "pos", context: bool = True, **train: Any) -> dict[str, Any]:
        made = small_settings(tasks, **train)
        return {**made, "encoder": {**made["encoder"], "fusion": kind, "context": context}}

    return settings


@pytest.mark.parametrize(
    ("kind", "tasks"), [("gate", "pos,dep"), pytest.param("concat", "ner", marks=pytest.mark.slow)]
)
def test_it_learns_and_is_loaded_with_its_weights(fused: Any, tmp_path: Path, kind: str, tasks: str) -> None:
    model = MultiTaskModel.load(trained(fused(kind, tasks, epochs=1), tmp_path / "run").path)
    assert model.encoder.fusion is not None and model.encoder.fusion.kind == kind
    fresh = type(model.encoder.fusion)(kind, model.encoder.fusion.layers, model.encoder.hidden_size).state_dict()
    learnt = model.encoder.fusion.state_dict()
    assert all(not torch.equal(fresh[name], learnt[name]) for name in fresh)


def test_fusion_learns_at_the_decoders_rate_and_nothing_moves_without_it(fused: Any, tmp_path: Path) -> None:
    sizes = []
    for kind in ("none", "gate"):
        run = prepared(fused(kind), tmp_path / kind)
        groups = make_optimizer(run.model, run.config).param_groups
        sizes.append([len(group["params"]) for group in groups])
        if run.model.encoder.fusion is not None:
            rates = {id(p): group["lr"] for group in groups for p in group["params"]}
            assert {rates[id(p)] for p in run.model.encoder.fusion.parameters()} == {run.config.train.decoder_rate}
        assert [id(p) for p in groups[0]["params"]] == [id(p) for p in run.model.encoder.transformer.parameters()]
    assert sizes[1] == [sizes[0][0], sizes[0][1] + 2, sizes[0][2]]


def test_refused_without_layers_and_from_a_run_with_another_fusion(fused: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="context: false has none"):
        build_config(fused("gate", context=False))
    folder = RunFolder(tmp_path / "other")
    folder.path.mkdir()
    folder.write_config(build_config(fused("none")).model_dump(mode="json"))
    folder.write_json("manifest.json", {"finished": {}, "data": {"fingerprint": "f"}})
    with pytest.raises(ConfigError, match=r"encoder\.fusion gate, but .* has none"):
        check_compatible(build_config(fused("gate")), str(folder.path), "train.start", None)
