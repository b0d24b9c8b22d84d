"""mtlprune bench: prints what it measured, and writes the same figures; a row for each analysis, and their totals."""

import json
import time
from typing import Any

import pytest

from mtlprune.cli.bench import ANALYSES_MEASURED, AnalysisCost, alone, total


def test_an_analysis_reads_what_was_asked_for(lab, tiny_encoder):
    begun = time.perf_counter()
    cost = alone("smoothing", str(tiny_encoder("bert")), str(lab.corpus), 5, None, begun)
    assert not cost.refused and cost.sentences == 5
    assert 0 < cost.wall <= time.perf_counter() - begun and cost.processor > 0 and 1e8 < cost.memory < 1e10


def test_a_lens_that_does_not_take_an_encoder_says_why(lab, tiny_encoder):
    cost = alone("dissection", str(tiny_encoder("modernbert")), str(lab.corpus), 5, None, time.perf_counter())
    assert "modernbert" in cost.refused and "\n" not in cost.refused and cost.sentences == 0


@pytest.mark.slow
def test_a_row_for_each_analysis_and_a_total(mtlprune, lab, tmp_path, monkeypatch):
    """Of two analyses, since each is measured in a process of its own."""
    out, some = tmp_path / "analyses.json", ANALYSES_MEASURED[::2]
    monkeypatch.setattr("mtlprune.cli.bench.ANALYSES_MEASURED", some)
    answer = mtlprune("bench", lab.config, "--analyses", "--sentences", 6, "--out", out)
    assert answer.code == 0, answer.err
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert tuple(figures["analyses"]) == some and figures["total"]["sentences"] == 6
    for analysis, cost in figures["analyses"].items():
        assert not cost["refused"] and cost["threads"] == 1  # as the configuration says
        assert cost["wall"] > 0 and cost["processor"] > 0 and 1e8 < cost["memory"] < 1e10
        row = next(line for line in answer.out.splitlines() if f" {analysis} " in line)
        assert f"{cost['wall']:.1f}" in row and f"{cost['memory'] / 1e9:.2f}" in row
    assert figures["total"]["wall"] == pytest.approx(sum(cost["wall"] for cost in figures["analyses"].values()))
    assert figures["total"]["memory"] == max(cost["memory"] for cost in figures["analyses"].values())


def test_what_was_refused_is_not_added_up():
    costs = {
        "smoothing": AnalysisCost(2.0, 3.0, 5, 1, 10),
        "dissection": AnalysisCost(7.0, 7.0, 7, 1, 0, "not post-LN"),
    }
    assert total(costs) == AnalysisCost(2.0, 3.0, 5, 1, 10)


@pytest.mark.parametrize("what", ["corpus", "sentences", "both"])
def test_mistakes_are_one_sentence(what, mtlprune, lab, tmp_path):
    out = tmp_path / "analyses.json"
    more, words = {
        "corpus": ([f"data.path={tmp_path / 'none'}"], str(tmp_path / "none")),
        "sentences": (["--sentences", 9], "expected 9 sentences in dev, found 8"),
        "both": (["--probes"], "one at a time"),
    }[what]
    answer = mtlprune("bench", lab.config, *more, "--analyses", "--out", out)
    answer.refuses(words)
    assert not out.exists()


@pytest.mark.slow
def test_it_prints_and_writes_ratios(mtlprune, lab, tmp_path):
    out = tmp_path / "bench.json"
    answer = mtlprune("bench", lab.config, "tasks=pos,dep", "--batches", 2, "--rounds", 1, "--out", out)
    assert answer.code == 0, answer.err
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert set(figures["steps"]) == {"bare encoder", "STL pos", "STL dep", "MTL-2 joint", "MTL-2 joint, gated"}
    for kind, ratio in figures["ratios"].items():
        if kind in figures["steps"]:
            row = next(line for line in answer.out.splitlines() if kind in line)
            assert f"{ratio:.3f}" in row and f"{figures['steps'][kind]:.2f}" in row
    assert "sampled epoch, estimated from steps" in answer.out
    assert 1e8 < figures["memory"] < 1e10  # a fresh process with torch in it
    assert f"{figures['memory'] / 1e9:.2f} GB" in answer.out


def test_random_encoders_of_several_shapes(mtlprune, lab, tmp_path, monkeypatch):
    out, asked = tmp_path / "shapes.json", []
    monkeypatch.setattr("mtlprune.training.benchmark.SHAPES", {"low": (1, 8, 2), "high": (3, 16, 4)})

    def peak(config: Any, batches: int) -> int:
        asked.append((config.encoder.random, config.encoder.checkpointing, config.encoder.name, batches))
        return len(asked) * 10**9

    monkeypatch.setattr("mtlprune.training.benchmark.peak_memory", peak)
    answer = mtlprune("bench", lab.config, "tasks=pos", "--shapes", "--batches", 1, "--rounds", 1, "--out", out)
    assert answer.code == 0, answer.err
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert list(figures) == ["low", "high"] and len({name for _, _, name, _ in asked}) == 2
    assert [(random, kept) for random, kept, _, _ in asked] == [(True, False), (True, True)] * 2
    assert figures["high"]["memory"] == 3e9 and figures["high"]["memory with checkpointing"] == 4e9
    assert "3.00" in answer.out and "high shape" in answer.out


def test_launches_are_counted_without_a_corpus(mtlprune, lab, tmp_path):
    out = tmp_path / "launches.json"
    none = f"data.path={tmp_path / 'none'}"
    answer = mtlprune("bench", lab.config, "tasks=pos", none, "train.precision=fp32", "--launches", "--out", out)
    assert answer.code == 0, answer.err
    tree = json.loads(out.read_text(encoding="utf-8"))
    step = tree["words"]["20"]["step"]["STL pos"]
    row = next(line for line in answer.out.splitlines() if "step, STL pos" in line)
    assert {str(sum(step["operations"].values())), str(sum(step["waits"].values()))} <= set(row.split())
    assert f"{tree['sent'] / 1e6:.1f} MB" in answer.out
