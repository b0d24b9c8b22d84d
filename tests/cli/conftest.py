"""A small corpus, a tiny encoder and a trained run, made once a session; do not write into them."""

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


@pytest.fixture(scope="session")
def masked(lab: Lab, mtlprune: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of POS and DEP with a fixed mask: three heads of eight are open, some in both layers."""
    folder = tmp_path_factory.mktemp("runs") / "masked"
    settings = ("tasks=pos,dep", "pruning.method=random", "pruning.keep=3", "train.epochs=1")
    answer = mtlprune("train", lab.config, *settings, "--out", folder)
    assert answer.code == 0, answer.err
    return folder


@pytest.fixture(scope="session")
def pruned(mtlprune: Callable[..., Any], masked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `mtlprune prune` makes of it."""
    folder = tmp_path_factory.mktemp("pruned") / "run"
    answer = mtlprune("prune", masked, "--out", folder, "--no-latency")
    assert answer.code == 0, answer.err
    assert "heads: 3 of 8 are kept; 0 gates below 1" in answer.out
    assert "parameters of encoder: 26,880 before" in answer.out
    return folder
