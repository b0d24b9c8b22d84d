from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def trees_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty training and sixteen development sentences of the grammar; every fifth to learn from lacks its tree."""
    from mtlprune.corpora.grammar import build_grammar
    from mtlprune.corpora.store import save_corpus

    splits: dict[str, Any] = build_grammar(60, 16, 0, seed=3)
    splits["train"] = [s.with_layers(dep=None) if place % 5 == 0 else s for place, s in enumerate(splits["train"])]
    out = tmp_path_factory.mktemp("trees") / "corpus"
    del splits["test"]
    save_corpus(splits, out, name="trees", licence="Apache-2.0", sources={})
    return out


@pytest.fixture(scope="session")
def minimal_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two paradigms of three pairs, in BLiMP's format."""
    import json

    out = tmp_path_factory.mktemp("pairs")
    for name in ("agreement", "order"):
        same = {"UID": name, "linguistics_term": name, "field": "syntax"}
        for noun in ("dog", "teacher", "river"):
            bad = f"The {noun} sleep." if name == "agreement" else f"{noun} the sleeps."
            with (out / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps({"sentence_good": f"The {noun} sleeps.", "sentence_bad": bad, **same}) + "\n")
    return out


@pytest.fixture(scope="session")
def small_pretraining(trees_corpus: Path, minimal_pairs: Path) -> Callable[..., dict[str, Any]]:
    """Settings of a pretraining of seconds, with dropout, both penalties and minimal pairs; blocks go over them."""

    def settings(**blocks: Any) -> dict[str, Any]:
        same = {"precision": "fp32", "device": "cpu", "threads": 1}
        tree: dict[str, Any] = {
            "name": "small",
            "data": {"corpora": [str(trees_corpus)]},
            "model": {"vocabulary": 200, "layers": 2, "heads": 2, "hidden": 16, "positions": 40},
            "syntax": {"strength": 0.5, "scale": "mean", "release": 9},
            "cosreg": 0.5,
            "train": {"steps": 12, "batch_sentences": 16, "rate": 0.01, "checkpoint_minutes": 1e6, **same},
            "watch": {"points": 3, "first": 2, "blimp": str(minimal_pairs), "blimp_pairs": 3},
        }
        for name, value in blocks.items():
            tree[name] = {**tree[name], **value} if isinstance(value, dict) and value else value
        return tree

    return settings
