"""mtlprune analyze smoothing: what it writes, the section of the report, and that a mistake is one sentence, code 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_runs import write_run
from tiny import HEADS, LAYERS

import mtlprune as package
from mtlprune.analyses.analysis import find, read
from mtlprune.reports.analyses import section
from mtlprune.reports.sections import Figure, Rows
from mtlprune.runs import RunError

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Callable[[str], Path]) -> Path:
    return tiny_encoder("bert")


@pytest.fixture
def claims(tmp_path: Path, encoder: Path) -> list[str]:
    gates = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
    gates = gates[:LAYERS, :HEADS]
    more = np.array([[0, 1.0, 0, 0], [0, 0, 0, 0]])
    runs = [
        write_run(tmp_path / task, [task], np.maximum(gates * (task != "pos"), more), encoder=str(encoder)).path
        for task in ("pos", "ner", "dep", "srl")
    ]
    return [word for run in runs for word in ("--claims", str(run))]


FEW = ("--sentences", 6, "--closing", 3, "--permutations", 9)


def test_files_section_and_claims(mtlprune: Call, lab: Any, encoder: Path, claims: list[str], tmp_path: Path) -> None:
    out = tmp_path / "results"
    answer = mtlprune("analyze", "smoothing", encoder, "--corpus", lab.corpus, "--out", out, *FEW, *claims)
    assert answer.code == 0, answer.err
    names = ("layers", "sigma", "labels", "heads")
    figures = {f"smoothing-{name}.{ending}" for name in names for ending in ("png", "svg")}
    result = package.read_results(out)["smoothing"]
    tables = {f"smoothing-{name}.parquet" for name in result.frames}
    assert {path.name for path in out.iterdir()} == figures | tables | {"smoothing.json", "smoothing.md"}
    tree = json.loads((out / "smoothing.json").read_text())
    assert (
        tree["sentences"] == 6
        and tree["claims"]["groups"]["stem"] >= 1
        and result.frames["tests"]["q"].notna().sum() <= 24
    )
    assert "the rigorous bound holds everywhere" in answer.out and "q <" in answer.out
    assert "## The bound and its factors" in (out / "smoothing.md").read_text()
    made = section(find("smoothing"), result)
    assert made.key == "over-smoothing" and sum(isinstance(block, Figure) for block in made.blocks) == 4
    tables = [block for block in made.blocks if isinstance(block, Rows)]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows) and len(tables) >= 5


def test_without_claims_a_sentence_says_so(mtlprune: Call, lab: Any, encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    answer = mtlprune("analyze", "smoothing", encoder, "--corpus", lab.corpus, "--out", out, *FEW)
    assert answer.code == 0 and "--claims" in answer.out
    assert json.loads((out / "smoothing.json").read_text())["claims"] is None


def test_mistakes_are_sentences_and_nothing_is_written(
    mtlprune: Call, lab: Any, encoder: Path, claims: list[str], tmp_path: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    out = tmp_path / "results"
    gateless = write_run(tmp_path / "plain", ["pos"], np.ones((LAYERS, HEADS)), encoder=str(encoder)).path
    (gateless / "gates.jsonl").unlink()
    for words, told in (
        ((encoder, *FEW, "--claims", gateless), "is a run without gates"),
        ((tiny_encoder("roberta"), *FEW, *claims), "heads of different encoders do not correspond"),
        ((encoder, *FEW, "--split", "nowhere"), "expected a split of"),
        ((tmp_path / "no-encoder", *FEW), "no-encoder"),
    ):
        answer = mtlprune("analyze", "smoothing", *words, "--corpus", lab.corpus, "--out", out)
        assert answer.code == 2 and told in answer.err and answer.err.count("\n") <= 2, answer.err
        assert not out.exists()


def test_what_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="mtlprune analyze smoothing"):
        read(tmp_path, "smoothing")
    (tmp_path / "smoothing.json").write_text("{}")
    with pytest.raises(RunError, match="encoders"):
        read(tmp_path, "smoothing")


def test_committed_results_are_drawn_without_measuring(mtlprune: Call, tmp_path: Path) -> None:
    committed = Path(__file__).parents[2] / "results/smoothing"
    words = ("--format", "pdf,svg", "--width", 16, "--font-size", 8, "--no-title", "--out", tmp_path)
    answer = mtlprune("analyze", "show", committed, *words)
    assert answer.code == 0, answer.err
    names = {f"smoothing-{name}.{kind}" for name in ("layers", "sigma", "labels", "heads") for kind in ("pdf", "svg")}
    assert {path.name for path in tmp_path.iterdir()} == names | {"smoothing.md"}
    for mistake in (("--format", "gif"), ("--width", "2")):
        answer = mtlprune("analyze", "show", committed, *mistake, "--out", tmp_path / "new")
        assert answer.code == 2 and answer.err.count("\n") <= 2 and not (tmp_path / "new").exists()
