"""Every committed Result can be shown by the package as it is now."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.analysis import find
from mtlprune.runs.results import Result

ROOT = Path(__file__).parents[2]
RESULTS = sorted(path for name in ANALYSES for path in ROOT.glob(f"results/**/{name}.json"))


QUICK = ("syntax/gates", "claims/cross")
PATHS = [pytest.param(path, marks=() if str(path.parent).endswith(QUICK) else pytest.mark.slow) for path in RESULTS]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT).parent))
def test_a_committed_result_can_be_shown(path, mtlprune, tmp_path):
    assert json.loads(path.read_text(encoding="utf-8"))["analysis"] == path.stem
    mtlprune("analyze", "show", path.parent, "--out", tmp_path / "shown").done()
    assert (tmp_path / "shown" / f"{path.stem}.md").is_file()


def test_a_result_is_printed_if_no_folder_is_named(mtlprune, tmp_path):
    folder = tmp_path / "gates"
    shutil.copytree(ROOT / "results" / "syntax" / "gates", folder)
    before = sorted(folder.iterdir())
    printed = mtlprune("analyze", "show", folder).done().out
    assert find("syntax").title in printed and "|" in printed and sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", ANALYSES)
def test_every_column_of_committed_results_has_a_meaning(name):
    frames = find(name).declared.frames
    meanings = {frame: {column: meaning for column, _, meaning in of.rows()} for frame, of in frames.items()}
    assert all(of and all(of.values()) for of in meanings.values())
    for path in (path for path in RESULTS if path.stem == name):
        for frame, stored in json.loads(path.read_text(encoding="utf-8"))["frames"].items():
            assert {*stored["keys"], *stored["values"]} <= meanings[frame].keys(), f"{path}: {frame}"


def test_a_frame_and_a_column_that_are_not_declared_are_refused():
    declared = find("scarcity").declared
    declared.check(Result("scarcity", {}, {"levels": pd.DataFrame({"term": ["18 heads"], "estimate": [1.0]})}))
    for frame, column, message in (
        ("others", "term", "frame others is not"),
        ("levels", "gain", "levels: columns gain are not"),
    ):
        with pytest.raises(ValueError, match=message):
            declared.check(Result("scarcity", {}, {frame: pd.DataFrame({column: [1]})}))
