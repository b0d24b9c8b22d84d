"""A small corpus, a tiny encoder and a trained run, made once a session; do not write into them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus

TASKS = ("pos", "ner", "dep", "con", "srl")


class Lab(NamedTuple):
    """A place to train in."""

    corpus: Path
    config: Path
    """All five tasks on a tiny encoder, two short epochs."""


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    splits = build_grammar(24, 8, 8, 1)
    save_corpus(splits, folder / "corpus", name="grammar", licence="Apache-2.0", sources={})
    tree = {
        "name": "tiny",
        "data": {"path": str(folder / "corpus")},
        "encoder": {"name": str(tiny_encoder("bert"))},
        "decoders": {"dep": {"arc_size": 16, "relation_size": 8}, "con": {"span_size": 16, "label_size": 8}},
        "train": {
            "epochs": 2,
            "batch_sentences": 8,
            "precision": "fp32",
            "device": "cpu",
            "threads": 1,
            "encoder_rate": 1e-3,
            "decoder_rate": 1e-2,
        },
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tree))
    return Lab(folder / "corpus", folder / "tiny.yaml")


@pytest.fixture(scope="session")
def trained(lab: Lab, mtlprune: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of all five tasks, evaluated on test."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert mtlprune("train", lab.config, "--out", folder).code == 0
    assert mtlprune("evaluate", folder, "--split", "test").code == 0
    return folder
