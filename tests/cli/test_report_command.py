"""mtlprune report: the file it writes, and mistakes that leave nothing behind."""

import pytest
from report_runs import write_study

from mtlprune.runs import RunFolder

FAST = ("--resamples", 20, "--permutations", 10)


def test_a_trained_run_with_the_gold_of_its_corpus(mtlprune, trained, lab, tmp_path):
    out = tmp_path / "deep" / "page.html"
    answer = mtlprune("report", trained, "--out", out, *FAST)
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"{out}: ") and answer.out.endswith("open it in a browser\n")
    text = out.read_text(encoding="utf-8")
    las = RunFolder(trained).read_scores("test")["dep"]["las"]
    assert f"{las:.2f}" in text and "What was run" in text


def test_gold_that_is_not_there_is_a_caveat(mtlprune, lab, tmp_path):
    runs = [run.path for run in write_study(tmp_path / "runs", seeds=(1,)) if run.path.name.startswith("none")]
    out = tmp_path / "page.html"
    assert mtlprune("report", *runs, "--out", out, *FAST).code == 0
    assert "the gold is not to be had" in out.read_text(encoding="utf-8")
    assert mtlprune("report", *runs, "--out", out, "--data", lab.corpus, *FAST).code == 0
    assert "is not the corpus of" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--probes", "nowhere"], "probes.json is missing"),
        (["--analyses", "."], "holds no results of an analysis"),
        (["--latency", "nowhere"], "`mtlprune prune RUN --out DIR` measures and writes it"),
        (["nowhere"], "is no run folder"),
    ],
)
def test_mistakes_leave_no_page(mtlprune, tmp_path, monkeypatch, more, words):
    runs = [run.path for run in write_study(tmp_path / "runs", seeds=(1,))][:1]
    monkeypatch.chdir(tmp_path)
    answer = mtlprune("report", *runs, *more, *FAST)
    assert answer.code == 2 and words in answer.err and len(answer.err.splitlines()) == 1
    assert not (tmp_path / "report.html").exists()
