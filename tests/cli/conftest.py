"""A small corpus, a tiny encoder and a trained run, made once a session; do not write into them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from forked import ForkedWorker
from tiny import make_lab


class Lab(NamedTuple):
    corpus: Path
    config: Path
    """All five tasks on a tiny encoder, two short epochs."""


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    return Lab(folder / "corpus", make_lab(folder, tiny_encoder("bert"), (24, 8, 8)))


@pytest.fixture(scope="session")
def apart() -> Callable[..., tuple[int, str, str, set[str]]]:
    """Run ``mtlprune ...`` in a process of its own: exit code, output, errors, and the modules that it loaded."""
    code = "import sys; sys.argv[0] = 'mtlprune'\nfrom mtlprune.cli import main\ntry:\n    main()\n"
    code += "finally:\n    print('loaded:', *sys.modules)"

    def run(*command: object) -> tuple[int, str, str, set[str]]:
        words = [sys.executable, "-c", code, *map(str, command)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        text, _, loaded = done.stdout.partition("loaded:")
        return done.returncode, text, done.stderr, set(loaded.split())

    return run


@pytest.fixture(scope="session")
def train(lab: Lab, mtlprune: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str, *settings: str) -> Path:
        if not (folder / name).exists():
            mtlprune("train", lab.config, *settings, "--out", folder / name).done()
        return folder / name

    return run


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Start processes of sweeps that need not load torch; tests/sweeps starts them as a user's sweep does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtlprune.sweeps.pool.Popen", ForkedWorker)
        yield


@pytest.fixture(scope="session")
def encoder(tiny_encoder: Callable[[str], Path]) -> Path:
    return tiny_encoder("bert")


@pytest.fixture(scope="session")
def single(train: Callable[..., Path]) -> Path:
    return train("pos", "tasks=pos", "train.epochs=1")


@pytest.fixture(scope="session")
def trained(train: Callable[..., Path], mtlprune: Callable[..., Any]) -> Path:
    """A finished run of all five tasks, evaluated on test."""
    mtlprune("evaluate", train("tiny"), "--split", "test").done()
    return train("tiny")


@pytest.fixture(scope="session")
def masked(train: Callable[..., Path]) -> Path:
    """A finished run of POS and DEP with a fixed mask: three heads of eight are open, some in both layers."""
    return train("masked", "tasks=pos,dep", "pruning.method=random", "pruning.keep=3", "train.epochs=1")


@pytest.fixture(scope="session")
def own_gates(train: Callable[..., Path]) -> Path:
    """Two tasks with a gate set each, linear decoders, words by their first sub-word."""
    linear = ("encoder.pooling=first", "decoders.ner.type=bio")
    return train("own", "tasks=pos,ner", "pruning=gates", "pruning.sets=per_task", "pruning.rate=0.3", *linear)


@pytest.fixture(scope="session")
def pruned(mtlprune: Callable[..., Any], masked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `mtlprune export --remove` makes of it."""
    folder = tmp_path_factory.mktemp("pruned") / "run"
    answer = mtlprune("export", masked, "--remove", "--out", folder).done()
    assert "heads: 3 of 8 are kept; 0 gates below 1" in answer.out
    assert "parameters of encoder: 26,880 before" in answer.out
    return folder


@pytest.fixture(scope="session")
def pretraining(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {
        "name": "small",
        "data": {"corpora": [str(lab.corpus)]},
        "model": {"vocabulary": 150, "layers": 1, "heads": 2, "hidden": 8, "positions": 64, "dropout": 0.0},
        "train": {"steps": 8, "batch_sentences": 8, "device": "cpu", "threads": 1, "precision": "fp32"},
        "watch": {"points": 4, "first": 1, "models": False},
    }
    path = tmp_path_factory.mktemp("pretrain") / "small.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path
