"""mtlprune analyze dissect: what it writes, the section of the report, and that a mistake is one sentence, code 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtlprune import read_results
from mtlprune.analyses.analysis import Request, find, read
from mtlprune.analyses.reading import Found, read_request, survey
from mtlprune.blocks import Block
from mtlprune.encoder.pieces import EncoderError
from mtlprune.reports.analyses import figures, section, tables
from mtlprune.reports.sections import Figure, Rows
from mtlprune.results import ResultError

Call = Callable[..., Any]
FIGURES = ("importance", "heads", "subsets", "agreement", "losses")
COMMITTED = Path(__file__).parents[2] / "results/dissection"


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
    result = read_results(out)["dissection"]
    written = {f"dissection-{name}.{ending}" for name in FIGURES for ending in ("png", "svg")}
    written |= {f"dissection-{name}.parquet" for name in result.frames}
    assert {path.name for path in out.iterdir()} == written | {"dissection.json", "dissection.md"}
    assert result.names == ["pretrained", "POS", "MTL-5"]
    assert (result.wide("encoders")["error"] < 1e-5).all()
    scored = {name: rows["task"].unique().tolist() for name, rows in result.named("tasks").groupby("name")}
    assert scored["pretrained"][:5] == ["pos", "ner", "dep", "con", "srl"] and scored["POS"][0] == "pos"
    assert scored["pretrained"] == scored["MTL-5"]
    losses, across = result.named("losses"), result.named("across")
    assert set(losses["task"]) == {"pos"} and set(losses["name"]) == {"POS"} and set(losses["other"]) == {"MTL-5"}
    assert len(across.groupby(["name", "other"], observed=True)) == 3
    sums = result.wide("layers").groupby(["name", "layer"], observed=True)["importance"].sum()
    assert np.allclose(sums, 1, atol=1e-4)
    made = section(find("dissection"), result)
    assert sum(isinstance(block, Figure) for block in made.blocks) == len(FIGURES)
    shown = [block for block in made.blocks if isinstance(block, Rows)]
    assert len(shown) >= 9 and all(len(row) == len(table.columns) for table in shown for row in table.rows)


def test_without_scores_and_with_gates(
    mtlprune: Call, lab: Any, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    out, run = tmp_path / "results", tmp_path / "run"
    gated = "pruning=gates", "tasks=pos", "train.epochs=1"
    made = mtlprune("train", lab.config, *gated, "--out", run)
    assert made.code == 0, made.err
    answer = mtlprune(
        "analyze", "dissect", tiny_encoder("bert"), run, "--corpus", lab.corpus, "--out", out, "--tasks", "none"
    )
    assert answer.code == 0, answer.err
    result = read(out, "dissection")
    assert set(result.named("gates")["other"]) == {"pretrained"} and not {"losses", "scores"} & set(result.frames)
    assert not (out / "dissection-subsets.png").exists() and (out / "dissection-heads.svg").exists()
    assert len(section(find("dissection"), result).blocks) > 4


@pytest.mark.parametrize(("folder", "drawn", "told"), [("tasks", 5, 12), ("gates", 2, 6)])
def test_results_of_earlier_versions_are_shown(folder: str, drawn: int, told: int) -> None:
    analysis, result = find("dissection"), read(COMMITTED / folder, "dissection")
    assert len(figures(analysis, result)) == drawn and len(tables(analysis, result)) == told
    words = "\n".join(analysis.show.findings(result))
    assert "NER minus MTL-5 is +2.7 [−1.2, +6.8] points" in words or "15 of 36 open heads" in words


def test_an_encoder_that_is_left_out_is_named(lab: Any, single: Path, tiny_encoder: Callable[[str], Path]) -> None:
    request = Request([str(tiny_encoder("bert")), str(single)], lab.corpus, Block())
    reading = read_request(request)
    result = survey("any", reading, request, lambda subject: "too small" if subject.label == "POS" else Found({}))
    assert result.names == ["pretrained"] and result.about["notes"] == [f"Left out: {single}: too small."]
    with pytest.raises(EncoderError, match=r"too small; .*too small"):
        survey("any", reading, request, lambda subject: "too small")


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
    with pytest.raises(ResultError, match="analyze dissect "):
        read(out, "dissection")
