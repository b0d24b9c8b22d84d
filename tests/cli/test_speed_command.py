"""mtlprune analyze speed: both sizes are timed, the ideal is an enumeration's, and the table of scores has a column."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from mtlprune.analyses.analysis import read
from mtlprune.analyses.heads.speed.measure import _flops
from mtlprune.analyses.heads.speed.show import rated


@pytest.fixture(scope="module")
def measured(mtlprune, masked, lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("speed")
    words = (masked, "sizes=[1,4]", "batches=2", "rounds=2", "--split", "test", "--corpus", lab.corpus)
    mtlprune("analyze", "speed", *words, "--out", folder).done()
    return folder


def test_both_sizes_are_timed(measured):
    times = rated(read(measured, "speed"))
    assert times["batch"].tolist() == [1, 4] and (times[["full", "masked", "removed"]] > 0).all(axis=None)
    assert times["ideal"].between(0.05, 0.6).all()
    reached = (1 - times["removed"] / times["full"]) / times["ideal"]
    pd.testing.assert_series_equal(times["reached"], reached, check_names=False)
    assert "of the full model's time" in "".join((measured / "speed.md").read_text())


def test_operations_are_those_of_an_enumeration():
    layer = torch.nn.Linear(6, 5)
    assert _flops(lambda: layer(torch.zeros(7, 6))) == 2 * 7 * 6 * 5


def test_the_table_has_a_column(mtlprune, measured, masked, single):
    text = mtlprune("table", masked, single, "--split", "dev", "--speed", measured).done().out
    speed = rated(read(measured, "speed")).set_index("batch").loc[4, "speed"]
    assert "| speed" in text and f"{speed:.2f}" in text and "Speed is the number of sentences per second" in text
    answer = mtlprune("table", masked, "--split", "dev", "--speed", measured, "--format", "json").done()
    assert all(cell["speed"] == pytest.approx(speed) for cell in json.loads(answer.out)["cells"])


def test_runs_with_one_name_in_two_folders_are_refused(mtlprune, measured, masked, single, tmp_path):
    other = shutil.copytree(single, tmp_path / "other" / Path(masked).name)
    answer = mtlprune("table", masked, other, "--split", "dev", "--speed", measured)
    answer.refuses(f"found several with the name {Path(masked).name}")


def test_runs_without_closed_heads_are_refused(mtlprune, single, lab, tmp_path):
    answer = mtlprune("analyze", "speed", single, "--corpus", lab.corpus, "--out", tmp_path / "none")
    answer.refuses("expected a run whose gates closed some heads")
    mtlprune("table", single, "--split", "dev", "--speed", tmp_path).refuses("speed.json is missing")
