"""Commands of analyses with a record: what they write, the section of the report; a mistake is one sentence, code 2."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_runs import write_run
from tiny import HEADS, LAYERS

import mtlprune as package
from mtlprune.analyses.analysis import find, read
from mtlprune.corpora.store import load_corpus
from mtlprune.reports.analyses import section
from mtlprune.reports.sections import Figure, Rows
from mtlprune.results import Result
from mtlprune.runs import RunError

Call = Callable[..., Any]
FEW = {
    "smoothing": ("--sentences", 6, "--closing", 3, "--permutations", 9),
    "degeneration": ("--sentences", 8, "--rows", 40, "--permutations", 49),
}
FIGURES = {
    "smoothing": ("layers", "sigma", "labels", "heads"),
    "degeneration": ("spectrum", "projection", "isotropy", "heads", "labels", "lost"),
}
COMMITTED = Path(__file__).parents[2] / "results"
analyses = pytest.mark.parametrize("name", FEW)


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
    more = np.array([[0, 1.0, 0, 0], [0, 0, 0, 0]])
    runs = [
        write_run(tmp_path / task, [task], np.maximum(gates * (task != "pos"), more), encoder=str(encoder)).path
        for task in ("pos", "ner", "dep", "srl")
    ]
    return [word for run in runs for word in ("--claims", str(run))]


def files_and_section(name: str, out: Path, without: tuple[str, ...] = (), tables: int = 5) -> Result:
    """The Result, beside which everything lies that belongs to it; its section has all of it."""
    result = package.read_results(out)[name]
    drawn = [figure for figure in FIGURES[name] if figure not in without]
    wanted = {f"{name}-{figure}.{ending}" for figure in drawn for ending in ("png", "svg")}
    wanted |= {f"{name}-{frame}.parquet" for frame in result.frames}
    assert {path.name for path in out.iterdir()} == wanted | {f"{name}.json", f"{name}.md"}
    made = section(find(name), result)
    assert made.key == find(name).key and sum(isinstance(block, Figure) for block in made.blocks) == len(drawn)
    held = [block for block in made.blocks if isinstance(block, Rows)]
    assert all(len(row) == len(table.columns) for table in held for row in table.rows) and len(held) >= tables
    return result


def test_smoothing(mtlprune: Call, lab: Any, encoder: Path, claims: list[str], tmp_path: Path) -> None:
    out = tmp_path / "results"
    answer = mtlprune("analyze", "smoothing", encoder, "--corpus", lab.corpus, "--out", out, *FEW["smoothing"], *claims)
    assert answer.code == 0, answer.err
    result = files_and_section("smoothing", out)
    assert result.about["sentences"] == 6 and result.about["claims"]["groups"]["stem"] >= 1
    assert result.frames["tests"]["q"].notna().sum() <= 24
    assert "the rigorous bound holds everywhere" in answer.out and "q <" in answer.out
    assert "## The bound and its factors" in (out / "smoothing.md").read_text()


def test_degeneration(
    mtlprune: Call, lab: Any, trained: Path, single: Path, encoder: Path, claims: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "results"
    arguments = (encoder, trained, single, "--corpus", lab.corpus, "--out", out, *FEW["degeneration"], *claims)
    answer = mtlprune("analyze", "degeneration", *arguments)
    assert answer.code == 0, answer.err
    result = files_and_section("degeneration", out, ("lost",))  # no label has 20 gold items
    assert [one["encoder"] for one in result.about["encoders"]] == ["pretrained", "MTL-5", "DEP"]
    decoders = result.frames["decoders"][["task", "encoder"]].drop_duplicates().to_numpy().tolist()
    assert decoders == [*([task, "MTL-5"] for task in ("pos", "ner", "dep", "con", "srl")), ["dep", "DEP"]]
    pairs = result.frames["pairs"]
    assert set(zip(pairs["task"], pairs["encoder"], pairs["other"], strict=True)) == {("dep", "MTL-5", "DEP")}
    assert result.about["claims"]["groups"]["stem"] >= 1 and set(result.frames["tests"]["encoder"]) == set(result.names)
    last = result.wide("layers").query(f"layer == {LAYERS}").set_index("name")
    assert last["mean_to_untuned"].notna().tolist() == [False, True, True]
    heads = result.wide("heads")
    assert (
        len(heads) == 3 * LAYERS * HEADS and np.isclose(last["share_heads"], heads.groupby("name")["cone"].sum()).all()
    )
    assert "## Label weights of the decoders" in (out / "degeneration.md").read_text() and "Rare labels: " in answer.out

    train = list(load_corpus(lab.corpus)["train"])
    counts = Counter(relation for sentence in train for relation in sentence.dep.relations)
    rows = result.frames["labels"].query("task == 'dep' and encoder == 'DEP'")
    assert dict(zip(rows["label"], rows["frequency"], strict=True)) == dict(counts)


@analyses
def test_without_claims_a_sentence_says_so(mtlprune: Call, lab: Any, encoder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "results"
    answer = mtlprune("analyze", name, encoder, "--corpus", lab.corpus, "--out", out, *FEW[name])
    assert answer.code == 0 and "--claims" in answer.out
    assert json.loads((out / f"{name}.json").read_text())["claims"] is None
    if name == "degeneration":
        assert "only encoders" in files_and_section(name, out, ("labels", "lost"), 3).about["notes"][0]


@analyses
def test_mistakes_are_sentences_and_nothing_is_written(
    mtlprune: Call, lab: Any, encoder: Path, claims: list[str], tmp_path: Path, tiny_encoder: Callable, name: str
) -> None:
    out = tmp_path / "results"
    gateless = write_run(tmp_path / "plain", ["pos"], np.ones((LAYERS, HEADS)), encoder=str(encoder)).path
    (gateless / "gates.jsonl").unlink()
    for words, told in (
        ((encoder, "--claims", gateless), "is a run without gates"),
        ((tiny_encoder("roberta"), *claims), "heads of different encoders do not correspond"),
        ((encoder, "--split", "nowhere"), "expected a split of"),
        ((tmp_path / "no-encoder",), "no-encoder"),
    ):
        answer = mtlprune("analyze", name, *words, *FEW[name], "--corpus", lab.corpus, "--out", out)
        assert answer.code == 2 and told in answer.err and answer.err.count("\n") <= 2, answer.err
        assert not out.exists()


@analyses
def test_what_is_missing_or_damaged_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match=f"mtlprune analyze {name}"):
        read(tmp_path, name)
    for content, told in (("{}", "encoders"), ("{", "not readable")):
        (tmp_path / f"{name}.json").write_text(content)
        with pytest.raises(RunError, match=told):
            read(tmp_path, name)


@analyses
def test_committed_results_are_drawn_without_measuring(mtlprune: Call, tmp_path: Path, name: str) -> None:
    words = ("--format", "pdf,svg", "--width", 16, "--font-size", 8, "--no-title", "--out", tmp_path)
    answer = mtlprune("analyze", "show", COMMITTED / name, *words)
    assert answer.code == 0, answer.err
    names = {f"{name}-{figure}.{kind}" for figure in FIGURES[name] for kind in ("pdf", "svg")}
    assert {path.name for path in tmp_path.iterdir()} == names | {f"{name}.md"}


def test_mistakes_in_drawing(mtlprune: Call, tmp_path: Path) -> None:
    for mistake in (("--format", "gif"), ("--width", "2")):
        answer = mtlprune("analyze", "show", COMMITTED / "smoothing", *mistake, "--out", tmp_path / "new")
        assert answer.code == 2 and answer.err.count("\n") <= 2 and not (tmp_path / "new").exists()
