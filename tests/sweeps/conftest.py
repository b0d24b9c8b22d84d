"""A tiny encoder and corpus, and files of sweeps on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus

BASE = {
    "name": "tiny",
    "tasks": ["pos"],
    "decoders": {"dep": {"arc_size": 16, "relation_size": 8}, "con": {"span_size": 16, "label_size": 8}},
    "train": {
        "epochs": 2,
        "batch_sentences": 8,
        "precision": "fp32",
        "device": "cpu",
        "encoder_rate": 1e-3,
        "decoder_rate": 1e-2,
    },
}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Path:
    """A configuration of seconds; do not write beside it."""
    folder = tmp_path_factory.mktemp("base")
    save_corpus(build_grammar(16, 6, 6, 1), folder / "corpus", name="grammar", licence="Apache-2.0", sources={})
    tree = {**BASE, "data": {"path": str(folder / "corpus")}, "encoder": {"name": str(tiny_encoder("bert"))}}
    (folder / "base.yaml").write_text(yaml.safe_dump(tree))
    return folder / "base.yaml"


@pytest.fixture
def sheet(base: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Write the file of a sweep on the tiny base."""

    def write(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(f"base: {base}\n{text}")
        return path

    return write
