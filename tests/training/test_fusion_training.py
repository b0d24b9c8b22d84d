"""Runs with fusion of layers: what learns at which rate, loaded with its weights, refused where it does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Settings, prepared, trained

from mtlprune.config.config import ConfigError, build_config
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.start import check_compatible


@pytest.fixture
def fused(small_settings: Settings) -> Settings:
    """Settings with a fusion; the rest are those of the encoder."""

    def settings(kind: str, tasks: str = "pos", **encoder: Any) -> dict[str, Any]:
        made = small_settings(tasks, epochs=1)
        return {**made, "encoder": {**made["encoder"], "fusion": kind, **encoder}}

    return settings


@pytest.mark.parametrize(
    ("kind", "tasks"), [("gate", "pos,dep"), pytest.param("concat", "ner", marks=pytest.mark.slow)]
)
def test_it_learns_at_the_decoders_rate_and_is_loaded(fused: Settings, tmp_path: Path, kind: str, tasks: str) -> None:
    run = prepared(fused(kind, tasks), tmp_path / "new")
    fusion = run.model.encoder.fusion
    groups = make_optimizer(run.model, run.config).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert {rates[id(p)] for p in fusion.parameters()} == {run.config.train.decoder_rate}
    assert [id(p) for p in groups[0]["params"]] == [id(p) for p in run.model.encoder.transformer.parameters()]
    learnt = MultiTaskModel.load(trained(fused(kind, tasks), tmp_path / "run").path).encoder.fusion
    assert learnt.kind == kind
    assert all(not torch.equal(tensor, learnt.state_dict()[name]) for name, tensor in fusion.state_dict().items())


def test_refused_without_layers_and_from_a_run_with_another_fusion(fused: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="context: false has none"):
        build_config(fused("gate", context=False))
    folder = RunFolder(tmp_path / "other")
    folder.path.mkdir()
    folder.write_config(build_config(fused("none")).model_dump(mode="json"))
    folder.write_json("manifest.json", {"finished": {}, "data": {"fingerprint": "f"}})
    with pytest.raises(ConfigError, match=r"encoder\.fusion gate, but .* has none"):
        check_compatible(build_config(fused("gate")), str(folder.path), "train.start", None)
