"""mtlprune analyze dissect: what it writes, the section of the report, and that a mistake is one sentence, code 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mtlprune.analyses.dissection.show.section import section
from mtlprune.reports.sections import Figure, Rows
from mtlprune.runs import RunError

Call = Callable[..., Any]
FIGURES = ("importance", "heads", "subsets", "agreement", "losses")


@pytest.fixture(scope="module")
def single(mtlprune: Call, lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of POS alone."""
    folder = tmp_path_factory.mktemp("single") / "pos"
    assert mtlprune("train", lab.config, "tasks=pos", "train.epochs=1", "--out", folder).code == 0
    return folder


def test_files_and_section(
    mtlprune: Call, lab: Any, trained: Path, single: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "results"
    names = tiny_encoder("bert"), single, trained
    few = "--train-sentences", 12, "--epochs", 2, "--hidden", 8
    answer = mtlprune("analyze", "dissect", *names, "--corpus", lab.corpus, "--out", out, *few)
    assert answer.code == 0, answer.err
    written = {f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == written | {f"dissection.{end}" for end in ("json", "md", "parquet")}
    found = json.loads((out / "dissection.json").read_text())
    assert [encoder["label"] for encoder in found["encoders"]] == ["pretrained", "POS", "MTL-5"]
    assert all(encoder["error"] < 1e-5 for encoder in found["encoders"])
    scored = [[scores["task"] for scores in encoder["scores"]] for encoder in found["encoders"]]
    assert scored[0][:5] == ["pos", "ner", "dep", "con", "srl"] and scored[1][0] == "pos" and scored[0] == scored[2]
    assert [row["task"] for row in found["losses"]] == ["pos"] and len(found["across"]) == 3
    rows = pq.read_table(out / "dissection.parquet").to_pylist()
    shares = [row["value"] for row in rows if row["what"] == "mu" and row["layer"] == 2 and row["encoder"] == "POS"]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    assert "## Which term carries the loss" in (out / "dissection.md").read_text()
    made = section(out)
    assert sum(isinstance(block, Figure) for block in made.blocks) == len(FIGURES)
    tables = [block for block in made.blocks if isinstance(block, Rows)]
    assert len(tables) >= 9 and all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_without_scores_and_with_gates(
    mtlprune: Call, lab: Any, tiny_encoder: Callable[[str], Path], trained: Path, tmp_path: Path
) -> None:
    out, run = tmp_path / "results", tmp_path / "run"
    gated = "pruning=gates", "tasks=pos", "train.epochs=1"
    made = mtlprune("train", lab.config, *gated, "--out", run)
    assert made.code == 0, made.err
    answer = mtlprune(
        "analyze", "dissect", tiny_encoder("bert"), run, "--corpus", lab.corpus, "--out", out, "--tasks", "none"
    )
    assert answer.code == 0, answer.err
    found = json.loads((out / "dissection.json").read_text())
    assert [row["shares_in"] for row in found["gates"]] == ["pretrained"] and found["losses"] == []
    assert not (out / "subsets.png").exists() and (out / "heads.svg").exists()
    assert len(section(out).blocks) > 4


def test_mistakes_are_sentences(mtlprune: Call, lab: Any, tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "results"
    for words, told in (
        ((tiny_encoder("modernbert"), "--tasks", "none"), "no post-LN encoder"),
        ((tiny_encoder("bert"), "--tasks", "pos,chess"), "found chess"),
        ((tiny_encoder("bert"), "--split", "noon"), "found 'noon'"),
    ):
        answer = mtlprune("analyze", "dissect", *words, "--corpus", lab.corpus, "--out", out)
        assert answer.code == 2 and told in answer.err and answer.err.count("\n") == 1
        assert not out.exists()
    with pytest.raises(RunError, match="analyze dissect"):
        section(out)
