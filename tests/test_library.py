"""mtlprune as a library: what notebooks show, and docs/start/notebook.ipynb executed."""

import configparser
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import mtlprune
from mtlprune.runs.folder import RunError
from mtlprune.runs.study import read_study

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "ewt5-minilm" / "records"
TOOL = runpy.run_path(str(ROOT / "docs" / "generate.py"))


def words(output: dict[str, Any]) -> tuple[int, list[str]]:
    """How many pictures an output has, and its words and numbers, however they are laid out."""
    text = "".join(output["data"].get("text/html", output["data"]["text/plain"]))
    plain = re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)
    return text.count("<svg"), plain.split()


def test_the_notebook_runs_and_shows_what_is_committed() -> None:
    committed = json.loads((ROOT / "docs/start/notebook.ipynb").read_text(encoding="utf-8"))
    before, now = (
        [[words(output) for output in cell.get("outputs", [])] for cell in notebook["cells"]]
        for notebook in (committed, TOOL["executed"](committed))
    )
    assert before == now and sum(pictures for cell in now for pictures, _ in cell) > 5


def test_every_public_name_is_there_and_no_other() -> None:
    assert {name for name in mtlprune.__all__ if getattr(mtlprune, name) is not None} == set(mtlprune.__all__)
    assert set(dir(mtlprune)) == {*mtlprune.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'tables'"):
        mtlprune.tables  # noqa: B018


def test_a_table_is_shown_and_needs_scores() -> None:
    made = mtlprune.table(f"{RECORDS}:none-pos-?", f"{RECORDS}:none-mtl5-?", resamples=50)
    shown = mtlprune.read_runs(f"{RECORDS}:none-pos-?").query("main and split == 'test'")["value"].mean()
    assert f"{shown:.2f}" in made._repr_html_() and repr(made).startswith("| task")
    with pytest.raises(RunError, match="is not scored on 'blind'"):
        mtlprune.table(f"{RECORDS}:none-pos-?", split="blind")


def test_a_folder_of_packed_runs_is_no_run() -> None:
    with pytest.raises(RunError, match=r"expected one run, found .* packed runs"):
        mtlprune.load(RECORDS)


def test_maps_are_of_the_runs_with_gates() -> None:
    """Of a pattern; a run that is named must have some."""
    made = mtlprune.maps(f"{RECORDS}:[gn]*-pos-*", palette="rgb")
    assert list(made) == ["run-POS-seed1", "run-POS-seed2", "run-POS-seed3", "rgb-POS", "grey-POS"]
    gated, bare = (read_study(RECORDS).paths(name)[0] for name in ("gates-pos-2", "none-pos-1"))
    assert list(mtlprune.maps(mtlprune.RunFolder(gated))) == ["run-POS-seed2", "grey-POS"]
    for run, said in ((bare, "is a run without gates"), (f"{RECORDS}:nine-*", "the study has no cell")):
        with pytest.raises(RunError, match=said):
            mtlprune.maps(run)


def test_there_is_one_version() -> None:
    version = mtlprune.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    assert "version = attr: mtlprune.__version__" in (ROOT / "setup.cfg").read_text()
    [released] = re.findall(r'^date-released: "(.*)"$', citation, re.MULTILINE)
    assert f"\n## {version} ({released})\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_lock_is_of_what_setup_cfg_declares() -> None:
    """uv.lock names each requirement and extra with the bounds that stand in setup.cfg; `uv lock` makes it anew."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    declared = {"": setup["options"]["install_requires"], **setup["options.extras_require"]}
    parsed = [(extra, one) for extra, lines in declared.items() for one in map(Requirement, lines.split())]
    wanted = {(canonicalize_name(one.name), one.specifier, extra) for extra, one in parsed}
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    [ours] = [package for package in lock["package"] if package["name"] == "mtlprune"]
    locked = {
        (
            one["name"],
            SpecifierSet(one["specifier"]),
            (re.findall(r"extra == '([^']+)'", one.get("marker", "")) or [""])[0],
        )
        for one in ours["metadata"]["requires-dist"]
    }
    assert locked == wanted
