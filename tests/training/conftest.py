from pathlib import Path
from typing import Any

import pytest
from small_runs import Settings
from tiny import make_tiny


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty training and twelve development sentences of the grammar; one in six lacks its roles, one its tree."""
    from mtlprune.corpora.grammar import build_grammar
    from mtlprune.corpora.store import save_corpus

    splits: dict[str, Any] = build_grammar(60, 12, 0, seed=5)
    splits["train"] = [
        s.with_layers(srl=None) if place % 6 == 0 else s.with_layers(con=None) if place % 6 == 3 else s
        for place, s in enumerate(splits["train"])
    ]
    out = tmp_path_factory.mktemp("small") / "corpus"
    del splits["test"]
    save_corpus(splits, out, name="small", licence="Apache-2.0", sources={})
    return out


@pytest.fixture(scope="session")
def small_settings(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a run of seconds, with every kind of dropout on; arguments are those of ``train``."""
    encoder = make_tiny("bert", tmp_path_factory.mktemp("bert"), dropout=0.1)
    same = {"epochs": 3, "batch_sentences": 16, "encoder_rate": 1e-3, "decoder_rate": 3e-3}
    same |= {"device": "cpu", "precision": "fp32", "threads": 1, "checkpoint_minutes": 1e6}
    return lambda tasks="pos,ner,dep,con,srl", **train: {
        "data": {"path": str(small_corpus)},
        "tasks": tasks.split(","),
        "encoder": {"name": str(encoder), "word_dropout": 0.2},
        "decoders": {
            "ner": {"size": 16},
            "dep": {"arc_size": 16, "relation_size": 8},
            "con": {"span_size": 16, "label_size": 8},
            "srl": {"size": 16},
        },
        "train": {**same, **train},
    }


@pytest.fixture(scope="session")
def quiet_settings(small_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    encoder = make_tiny("bert", tmp_path_factory.mktemp("quiet"), dropout=0.0)

    def settings(*tasks: str, **train: Any) -> dict[str, Any]:
        made = small_settings(*tasks, **train)
        made["encoder"] = {"name": str(encoder), "word_dropout": 0.0}
        for task in ("dep", "con", "srl"):
            made["decoders"][task]["dropout"] = 0.0
        return made

    return settings
