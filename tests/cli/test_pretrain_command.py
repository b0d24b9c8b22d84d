"""mtlprune pretrain and its --plot: what they say and leave, and mistakes."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from PIL import Image

from mtlprune.analyses.breaks.measure import find_break


@pytest.fixture(scope="module")
def settings(lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {
        "name": "small",
        "data": {"corpora": [str(lab.corpus)]},
        "model": {"vocabulary": 150, "layers": 1, "heads": 2, "hidden": 8, "positions": 64, "dropout": 0.0},
        "train": {"steps": 8, "batch_sentences": 8, "device": "cpu", "threads": 1, "precision": "fp32"},
        "watch": {"points": 4, "first": 1, "models": False},
    }
    path = tmp_path_factory.mktemp("pretrain") / "small.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(scope="module")
def runs(mtlprune, settings: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = [folder / "base", folder / "minus"]
    answer = mtlprune("pretrain", settings, "--out", made[0])
    assert answer.code == 0, answer.err
    assert "update 8/8: loss" in answer.out and "finished: 8 updates" in answer.out
    penalised = ("syntax.strength=2", "syntax.scale=mean", "syntax.release=4", "name=minus", "cosreg=1")
    answer = mtlprune("pretrain", settings, *penalised, "--out", made[1])
    assert answer.code == 0 and "syntax λ 2 (max, mean) until update 4; CosReg γ 1" in answer.out
    again = mtlprune("pretrain", settings, "--out", made[0])
    assert again.code == 0 and "was finished already" in again.out
    return made


def test_a_figure_of_all_runs_with_their_breaks(mtlprune, runs, tmp_path):
    answer = mtlprune("pretrain", "--plot", *runs, "--out", tmp_path / "p", "--scale", 1)
    assert answer.code == 0, answer.err
    tree = ElementTree.parse(tmp_path / "p" / "pretraining.svg")
    words = " ".join(text for text in tree.getroot().itertext())
    assert "Loss on dev" in words and "minus: λ 2 until update 4" in words and "?" not in words and "BLiMP" not in words
    with Image.open(tmp_path / "p" / "pretraining.png") as picture:
        picture.verify()
    found = json.loads((tmp_path / "p" / "pretraining.json").read_text())
    lines = [json.loads(line) for line in (runs[0] / "curves.jsonl").read_text().splitlines()]
    later = [line for line in lines if line["step"]]
    expected = find_break([x["step"] for x in later], [x["loss"] for x in later], falling=True, axis="log").step
    assert found["runs"][0]["loss"] == {"last": lines[-1]["loss"], "break": expected}
    assert [entry["name"] for entry in found["runs"]] == ["small", "minus"]
    assert "| minus | 2 until 4 |       8 |" in (tmp_path / "p" / "pretraining.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model.tokenizer=/no/such/folder", "model.vocabulary=4000"), "/no/such/folder"),
        (("syntax.strength=1", "syntax.heads=3-1"), "no head 3-1"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(mtlprune, settings, tmp_path, arguments, words):
    answer = mtlprune("pretrain", settings, *arguments, "--out", tmp_path / "run")
    assert answer.code == 2 and words in answer.err and answer.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_plot_refuses_what_is_no_pretraining(mtlprune, runs, lab, tmp_path):
    for given, words in (((lab.corpus,), "expected the folder of a pretraining"), ((runs[0], runs[0]), "named twice")):
        answer = mtlprune("pretrain", "--plot", *given, "--out", tmp_path / "p")
        assert answer.code == 2 and words in answer.err
    (tmp_path / "file").write_text("")
    assert mtlprune("pretrain", "--plot", runs[0], "--out", tmp_path / "file").code == 2
    assert not (tmp_path / "p").exists()
