"""A small corpus, a tiny encoder and a trained run, made once a session; do not write into them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiny import make_lab


class Lab(NamedTuple):
    """A place to train in."""

    corpus: Path
    config: Path
    """All five tasks on a tiny encoder, two short epochs."""


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    return Lab(folder / "corpus", make_lab(folder, tiny_encoder("bert"), (24, 8, 8)))


@pytest.fixture(scope="session")
def single(lab: Lab, mtlprune: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of POS alone, of one epoch."""
    folder = tmp_path_factory.mktemp("runs") / "pos"
    assert mtlprune("train", lab.config, "tasks=pos", "train.epochs=1", "--out", folder).code == 0
    return folder


@pytest.fixture(scope="session")
def trained(lab: Lab, mtlprune: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of all five tasks, evaluated on test."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert mtlprune("train", lab.config, "--out", folder).code == 0
    assert mtlprune("evaluate", folder, "--split", "test").code == 0
    return folder
