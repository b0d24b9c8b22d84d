"""The penalty on attention along arcs: what it changes, and what is refused."""

from typing import Any

import pytest
from small_runs import Settings, corpus_of, trained

from mtlprune.config.config import ConfigError, build_config
from mtlprune.encoder.arcs import uas_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.setup import prepare


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"syntax": {"strength": 1, "heads": "3-1"}}, "no head 3-1"),
        ({"syntax": {"strength": 1, "heads": "2-9"}}, "layer 2 has 1, 2, 3, 4"),
        ({"encoder": {"context": False}}, "has no heads"),
        ({"train": {"freeze": "encoder"}}, "cannot change"),
        ({"tasks": ["pos", "ner"], "pruning": {"method": "gates", "sets": "per_task"}}, "one attention a task"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(syntax, change, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        settings = {**syntax(strength=1), **change}
        prepare(build_config(settings), RunFolder(tmp_path / "run"), corpus_of(settings))
    assert not (tmp_path / "run").exists()
