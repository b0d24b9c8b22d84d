"""mtlprune train of a pretraining, and mtlprune report of such runs: what they say and leave, and mistakes."""

import json
from pathlib import Path

import pytest

from mtlprune.statistics.curves import find_break


@pytest.fixture(scope="module")
def runs(mtlprune, pretraining, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    pretrained = [folder / "base", folder / "minus"]
    answer = mtlprune("train", pretraining, "--out", pretrained[0]).done()
    assert "update 8/8: loss" in answer.out and "finished: 8 updates" in answer.out
    penalised = ("syntax.strength=2", "syntax.scale=mean", "syntax.release=4", "name=minus")
    answer = mtlprune("train", pretraining, *penalised, "--out", pretrained[1]).done()
    assert "syntax λ 2 (max, mean) until update 4" in answer.out
    answer = mtlprune("train", pretraining, "--out", pretrained[0]).done()
    assert "was finished already" in answer.out
    return pretrained


def test_a_figure_of_all_runs_with_their_breaks(mtlprune, runs, tmp_path):
    mtlprune("report", *runs, "--out", tmp_path / "p").done()
    words = (tmp_path / "p" / "pretraining.svg").read_text()
    assert "Loss on dev" in words and "minus: λ 2 until update 4" in words and "BLiMP" not in words
    assert (tmp_path / "p" / "pretraining.png").is_file()
    summary = json.loads((tmp_path / "p" / "pretraining.json").read_text())
    lines = [json.loads(line) for line in (runs[0] / "curves.jsonl").read_text().splitlines()]
    later = [line for line in lines if line["step"]]
    expected = find_break([x["step"] for x in later], [x["loss"] for x in later], falling=True, axis="log")
    assert summary["runs"][0]["loss"] == {"last": lines[-1]["loss"], "break": expected}
    assert [entry["name"] for entry in summary["runs"]] == ["small", "minus"]
    assert "| minus | 2 until 4 |       8 |" in (tmp_path / "p" / "pretraining.md").read_text()
    mtlprune("report", runs[0], runs[0], "--out", tmp_path / "twice").refuses("named twice")
    assert not (tmp_path / "twice").exists()
