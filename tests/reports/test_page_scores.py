"""The first statement of the page: whose runs, how long trained, and never more sure than the seeds allow."""

import re
from pathlib import Path

import pytest
from counted_runs import write_run

from mtlprune.reports.page.scores import Scored, part
from mtlprune.reports.scores.comparisons import compare
from mtlprune.reports.scores.tests import with_tests
from mtlprune.runs import RunFolder

SKILLS = {"pos": 0.9, "ner": 0.7, "dep": 0.8}


def study(tmp_path: Path, seeds: int) -> list[RunFolder]:
    """Three tasks alone and together (far worse), and together with five times the updates (far better)."""
    runs = []
    for seed in range(1, seeds + 1):
        runs += [write_run(tmp_path / f"{task}-{seed}", {task: skill}, seed=seed) for task, skill in SKILLS.items()]
        for name, change, updates in (("joint", -0.3, 252), ("sampled", 0.08, 1260)):
            skills = {task: skill + change for task, skill in SKILLS.items()}
            run = write_run(tmp_path / f"{name}-{seed}", skills, seed=seed, **{"train.mixing": name})
            runs.append(run)
            run.write_config({**run.read_config(), "name": name})
            run.write_json("manifest.json", {**run.read_manifest(), "finished": {"epoch": 3, "step": updates}})
        for run in runs[-5:-2]:
            run.write_json("manifest.json", {**run.read_manifest(), "finished": {"epoch": 3, "step": 252}})
    return runs


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_first_statement(seeds, tmp_path):
    comparison = with_tests(compare(study(tmp_path, seeds), "test"), 1000)
    first, second = part([Scored("x", False, comparison)], []).found
    intervals = re.findall(r" ([+−][\d.]+) \[([+−][\d.]+), ([+−][\d.]+)\]", first)
    for told, task in zip(intervals, SKILLS, strict=True):
        difference = next(test for (_, name), test in comparison.tests.items() if name == task).difference
        wide = seeds > 1  # of seeds and sentences
        low, high = (difference.wide_low, difference.wide_high) if wide else (difference.low, difference.high)
        expected = (difference.delta, low, high)
        assert [float(word.replace("−", "-")) for word in told] == pytest.approx(expected, abs=0.051)
    first = re.sub(r" [+−][\d.]+ \[.*?\]", "", first)
    who = "seeds 1, 2, 3" if seeds == 3 else "seed 1"
    joint = f"MTL-3 (joint) ({who}, 252 updates, joint mixing) beside STL ({who}, 252 updates): of 3 tasks "
    assert first.startswith(joint)
    assert second.startswith(f"MTL-3 (sampled) ({who}, 1,260 updates, sampled mixing) beside STL ")
    assert "seen more training" in second and "seen more training" not in first
    if seeds == 1:
        told = "over sentences only, of these runs, worse on 3 (POS, NER, DEP) and better on none"
        assert first == joint + f"{told}; with one seed each, nothing is known of other seeds."
        assert "significantly" not in first + second
    else:
        assert first == joint + "significantly worse on 3 (POS, NER, DEP) and better on none."


def test_rows_with_more_training_are_marked_on_the_page(tmp_path):
    comparison = with_tests(compare(study(tmp_path, 1), "test"), 200)
    body = part([Scored("x", False, comparison)], []).body
    assert "<strong>" in body and body.count("‡") >= 6
    assert not any("‡" in bold.split("</strong>")[0] for bold in body.split("<strong>")[1:])
