"""mtlprune analyze degeneration: what it writes, the section of the report; a mistake is one sentence, code 2."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gated_runs import write_run
from tiny import HEADS, LAYERS

from mtlprune.analyses.degeneration.show.section import section
from mtlprune.corpora.store import load_corpus
from mtlprune.reports.sections import Figure, Rows
from mtlprune.runs import RunError

Call = Callable[..., Any]
FEW = ("--sentences", 8, "--rows", 40, "--permutations", 49)


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Callable[[str], Path]) -> Path:
    return tiny_encoder("bert")


@pytest.fixture(scope="module")
def single(mtlprune: Call, lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one task beside the joint one."""
    folder = tmp_path_factory.mktemp("single") / "dep"
    assert mtlprune("train", lab.config, "tasks=dep", "train.epochs=1", "--out", folder).code == 0
    return folder


@pytest.fixture
def claims(tmp_path: Path, encoder: Path) -> list[str]:
    gates = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]])[:LAYERS, :HEADS]
    runs = [
        write_run(tmp_path / task, [task], gates * (task != "pos"), encoder=str(encoder)).path
        for task in ("pos", "ner", "dep", "srl")
    ]
    return [word for run in runs for word in ("--claims", str(run))]


def test_files_section_pairs_and_claims(
    mtlprune: Call, lab: Any, trained: Path, single: Path, encoder: Path, claims: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "results"
    arguments = (encoder, trained, single, "--corpus", lab.corpus, "--out", out, *FEW, *claims)
    answer = mtlprune("analyze", "degeneration", *arguments)
    assert answer.code == 0, answer.err
    figures = {f"{n}.{e}" for n in ("spectrum", "projection", "isotropy", "heads", "labels") for e in ("png", "svg")}
    here = {path.name for path in out.iterdir()} - {"lost.png", "lost.svg"}
    assert here == figures | {"degeneration.json", "degeneration.md", "heads.parquet", "labels.parquet"}
    tree = json.loads((out / "degeneration.json").read_text())
    assert [one["label"] for one in tree["encoders"]] == ["pretrained", "MTL-5", "DEP"]
    assert [(one["task"], one["label"]) for one in tree["decoders"]] == [
        *((task, "MTL-5") for task in ("pos", "ner", "dep", "con", "srl")),
        ("dep", "DEP"),
    ]
    assert [(pair["task"], pair["joint"], pair["single"]) for pair in tree["pairs"]] == [("dep", "MTL-5", "DEP")]
    assert tree["claims"]["groups"]["stem"] >= 1 and len(tree["claims"]["encoders"]) == 3
    assert "to_untuned" in tree["encoders"][1]["cone"] and "to_untuned" not in tree["encoders"][0]["cone"]
    assert "## Label weights of the decoders" in (out / "degeneration.md").read_text() and "Rare labels: " in answer.out
    made = section(out)
    assert made.key == "degeneration" and sum(isinstance(block, Figure) for block in made.blocks) >= 5
    tables = [block for block in made.blocks if isinstance(block, Rows)]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows) and len(tables) >= 6

    train = list(load_corpus(lab.corpus)["train"])
    counts = Counter(relation for sentence in train for relation in sentence.dep.relations)
    rows = pq.read_table(out / "labels.parquet").to_pylist()
    found = {row["name"]: row["frequency"] for row in rows if row["task"] == "dep" and row["encoder"] == "DEP"}
    assert found == {label: float(number) for label, number in counts.items()}
    heads = pq.read_table(out / "heads.parquet").to_pylist()
    assert len(heads) == 3 * LAYERS * HEADS and {"cosine", "isoscore", "cone", "gate"} <= set(heads[0])


def test_encoders_alone_and_without_claims(mtlprune: Call, lab: Any, encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    answer = mtlprune("analyze", "degeneration", encoder, "--corpus", lab.corpus, "--out", out, *FEW)
    assert answer.code == 0 and "--claims" in answer.out
    tree = json.loads((out / "degeneration.json").read_text())
    assert tree["claims"] is None and tree["decoders"] == [] and "only encoders" in tree["notes"][0]
    assert not (out / "labels.parquet").exists() and section(out).blocks


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
        answer = mtlprune("analyze", "degeneration", *words, "--corpus", lab.corpus, "--out", out)
        assert answer.code == 2 and told in answer.err and answer.err.count("\n") <= 2, answer.err
        assert not out.exists()


def test_a_section_needs_results(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="mtlprune analyze degeneration"):
        section(tmp_path)
    (tmp_path / "degeneration.json").write_text("{}")
    with pytest.raises(RunError, match="expected corpus"):
        section(tmp_path)
    (tmp_path / "degeneration.json").write_text("{")
    with pytest.raises(RunError, match="not readable"):
        section(tmp_path)
