"""A power cut at any moment: a run goes on to the end, and all in it is as in a run that nothing happened to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from interrupted import outcome
from power_cuts import Image, Recorder, distinct, images, lay_out

from mtlprune.config import Config, build_config
from mtlprune.errors import MtlpruneError
from mtlprune.runs import RunFolder
from mtlprune.training.loop import train

GIVEN = Path(__file__).parents[1] / "first_release"


def settings() -> dict[str, Any]:
    """Every kind of file: weights, checkpoints after every update, gates, UAS, results."""
    return {
        "data": {"path": str(GIVEN / "corpus")},
        "tasks": ["pos", "dep"],
        "encoder": {"name": str(GIVEN / "encoder")},
        "decoders": {"dep": {"arc_size": 4, "relation_size": 4}},
        "pruning": {"method": "gates", "rate": 0.3},
        "train": {
            "epochs": 4,
            "batch_sentences": 8,
            "device": "cpu",
            "precision": "fp32",
            "threads": 1,
            "encoder_rate": 1e-2,
            "decoder_rate": 1e-2,
            "checkpoint_minutes": 0.0,
            "log_uas": True,
        },
    }


def record(root: Path, config: Config) -> tuple[Recorder, dict[str, Any]]:
    """A run that is stopped once and goes on, recorded; and what it leaves."""
    root.mkdir()
    with Recorder(root) as recorded:
        updates = iter(range(3, 0, -1))
        assert not train(config, RunFolder(root / "run"), stop=lambda: next(updates) == 1).finished
        assert train(config, RunFolder(root / "run")).finished
    return recorded, outcome(root / "run")


def losses(found: list[Image], expected: dict[str, Any], config: Config, folder: Path) -> list[str]:
    """What went wrong when each image was gone on with."""
    wrong = []
    for number, image in enumerate(found):
        root = folder / str(number)
        lay_out(image, root)
        try:
            train(config, RunFolder(root / "run"))
            left = outcome(root / "run")
            if left != expected:
                wrong.append(f"{number}: {[n for n in {*left, *expected} if left.get(n) != expected.get(n)]}")
        except MtlpruneError as error:
            wrong.append(f"{number}: {error}")
        shutil.rmtree(root)
    return wrong


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorder, dict[str, Any]]:
    return record(tmp_path_factory.mktemp("cuts") / "root", build_config(settings()))


def test_a_run_survives_some_power_cuts(recorded, tmp_path):
    recorder, expected = recorded
    found = distinct(images(recorder, 2))
    assert len(recorder.states) >= 200 and len(found) >= 100
    assert losses(found[:: len(found) // 6], expected, build_config(settings()), tmp_path) == []


@pytest.mark.slow
def test_a_run_survives_every_power_cut(recorded, tmp_path):
    recorder, expected = recorded
    assert losses(distinct(images(recorder, 6)), expected, build_config(settings()), tmp_path) == []


def test_without_syncs_runs_are_lost(recorded, tmp_path):
    """The control: such images can tell."""
    recorder, expected = recorded
    found = distinct(images(recorder, 0, deaf=True))[::20]
    assert len(losses(found, expected, build_config(settings()), tmp_path)) >= len(found) // 2
