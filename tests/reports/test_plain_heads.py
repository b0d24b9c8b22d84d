"""Warnings where a single task lies below plain fine-tuning, on committed studies and by the committed page."""

import re
from pathlib import Path

from mtlprune.reports.scores.comparisons import compare
from mtlprune.reports.scores.plain_heads import PLAIN_HEADS, warnings
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study

RESULTS = Path(__file__).parents[2] / "results"


def warned(study: str, pattern: str) -> set[str]:
    runs = [RunFolder(path) for path in read_study(RESULTS / study).paths(pattern)]
    return {re.match(r"Warning: (\w+)", line)[1] for line in warnings(compare(runs, "test"))}


def test_runs_below_plain_fine_tuning_are_warned_of() -> None:
    assert warned("ewt5-minilm/records", "none-pos-[0-9]*,none-ner-[0-9]*,none-mtl5-*") == {"POS", "NER"}
    assert not warned("baselines/records/tuned", "72-own-*")


def test_the_scores_are_those_of_the_page() -> None:
    page = (RESULTS / "baselines/peers.md").read_text(encoding="utf-8")
    [plain] = PLAIN_HEADS
    for task, score in plain.scores.items():
        [row] = re.findall(rf"^\| {task.upper()} \|.*$", page, re.MULTILINE)
        assert row.split("|")[4].split("±")[0].strip() == f"{score:.2f}"
