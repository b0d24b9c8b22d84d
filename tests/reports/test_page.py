"""The report page as text: what stands in it without a script, what it warns of, and that words stay words."""

import html
import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_runs import claim
from hypothesis import given, settings
from hypothesis import strategies as st
from markup import Markup
from probe_results import write_probes
from report_runs import EVIL, gold_sentences, write_study, write_study_run

from mtlprune.analyses.claims.measure import overlap
from mtlprune.reports.page import Choices, Sources, report
from mtlprune.reports.page.render import Part, rendered
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.results import Result, write_result
from mtlprune.sentence import Sentence

QUICK = Choices(resamples=200, permutations=50)


def gold(run: str, fingerprint: str, split: str) -> Sequence[Sentence]:
    assert fingerprint == "f" * 64 and split == "test"
    return gold_sentences()


def no_gold(run: str, fingerprint: str, split: str) -> Sequence[Sentence]:
    raise RunError(f"the gold of {run} is not to be had")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoders = [("pretrained", 0), ("POS", 1), ("MTL-5", 1)]
    labels = {"pos": ("NN", "VB", EVIL), "ner": ("PER", "LOC")}
    return write_probes(tmp_path_factory.mktemp("probes") / "p", encoders, labels, shape=(3, 4))


@pytest.fixture(scope="module")
def whole(study: list[RunFolder], probes: Path) -> str:
    return report(Sources(study, probes=[probes]), QUICK, gold)


def data_of(text: str) -> dict[str, Any]:
    """What the script reads."""
    begin = text.index('id="data">') + len('id="data">')
    return json.loads(text[begin : text.index("</script>", begin)])


def test_every_part_is_there_without_a_script(whole, study):
    page = Markup(re.sub(r"<script.*?</script>", "", whole, flags=re.DOTALL))
    keys = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert keys == ["in-short", "runs", "scores", "labels", "gates", "overlap", "heads-know", "curves", "caveats"]
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links >= {f"#{key}" for key in keys if key != "in-short"}
    assert all(folder.path.name in page.sections["runs"] for folder in study)
    mean = sum(folder.read_scores("test")["pos"]["accuracy"] for folder in study[:3]) / 3
    assert f"{mean:.2f}" in page.sections["scores"] and "p (Holm)" in page.sections["scores"]
    assert "Stem heads" in page.sections["overlap"] and "Correlation of gates" in page.sections["overlap"]
    assert any("Claimed by most seeds: " in (attributes.get("aria-label") or "") for _, attributes in page.tags)


def test_it_needs_nothing_from_elsewhere(whole):
    for tag, attributes in Markup(whole).tags:
        assert tag not in {"iframe", "object", "embed", "base", "form", "img"}
        for key in attributes.keys() & {"src", "href", "action", "srcset", "data", "xlink:href"}:
            assert (attributes[key] or "").startswith(("#", "data:")), (tag, attributes[key])
    assert "default-src 'none'" in html.unescape(whole)


def test_it_does_not_say_where_its_sources_lay(tmp_path, study):
    runs, root, pages = "a b/'c' & \"d\"", tmp_path / "home", []
    for home in (root, tmp_path / "another home"):
        for run in study[:1] + study[15:16]:
            copy = RunFolder(Path(shutil.copytree(run.path, home / runs / run.path.name)))
            tree = copy.read_config()
            copy.write_config(tree | {"data": tree["data"] | {"train": str(tmp_path / "own" / "train.jsonl")}})
        folders = [RunFolder(folder) for folder in sorted((home / runs).iterdir())]
        (folders[0].path / "metrics.jsonl").unlink()
        sources = Sources(folders, notes=[f"{folders[0].path / 'log'} and {tmp_path / 'x' / 'log'} are missing."])
        pages.append(report(sources, Choices(resamples=0, permutations=0), no_gold))
    assert pages[0] == pages[1]
    assert not any(str(part) in pages[0] for part in tmp_path.parents if len(part.parts) > 1)
    page = Markup(pages[0])
    assert f"{folders[0].path.name} has no metrics.jsonl" in page.sections["caveats"]
    assert f"{folders[0].path.name}/log and …/log are missing." in page.sections["caveats"]


def test_data_for_the_script_and_a_run_named_twice_is_one(whole, study, probes):
    data = data_of(whole)
    (one,) = data["gates"]["sets"]
    gated = next(run for run in study if run.path.name == "gates-pos-2")
    assert one["labels"][0]["label"] == "POS"
    assert one["labels"][0]["z"][1] == gated.gates()["shared"].ravel().tolist()
    assert all(0 < p <= 1 for label in one["labels"] for p in (*label["p"], *label["q"]))
    assert len(data["heads-know"]["subjects"][0]["cards"]) == 12
    twice = report(Sources([*study[:2], *study[:2]], probes=[probes]), Choices(resamples=100), gold)
    assert twice == report(Sources(study[:2], probes=[probes]), Choices(resamples=100), gold)


def test_what_is_missing_is_said(tmp_path, study):
    runs = [run for run in study if run.path.name.endswith("-1") and run.path.name.startswith("none")]
    unscored = tmp_path / "unscored"
    shutil.copytree(runs[0].path, unscored)
    shutil.rmtree(unscored / "scores")
    notes = ["2 of 9 cells are not finished."]
    said = Markup(report(Sources([*runs, RunFolder(unscored)], notes=notes), QUICK, no_gold))
    caveats = said.sections["caveats"]
    assert "unscored is not scored on dev" in caveats
    assert "is not to be had" in caveats and notes[0] in caveats and "Settings with one run" in caveats
    assert "gates" not in said.sections and "overlap" not in said.sections


def test_runs_pruned_in_different_ways_are_never_mixed(tmp_path, study):
    other = RunFolder(tmp_path / "longer")
    shutil.copytree(next(run.path for run in study if run.path.name == "gates-pos-1"), other.path)
    tree = other.read_config()
    other.write_config(tree | {"train": tree["train"] | {"epochs": 30}})
    gated = [run for run in study if run.path.name.startswith("gates-pos")]
    text = report(Sources([*gated, other]), Choices(resamples=0, permutations=0), gold)
    sets = data_of(text)["gates"]["sets"]
    assert [(one["title"], [len(label["seeds"]) for label in one["labels"]]) for one in sets] == [
        ("6 heads by gates, train.epochs=3", [3]),
        ("6 heads by gates, train.epochs=30", [1]),
    ]


def test_sections_of_analyses(tmp_path, study):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        claims = [claim(f"task of {folder.name} {EVIL}", seed, np.eye(3) * seed / 2) for seed in (1, 2)]
        result = overlap(claims, permutations=0)
        about = {**result.about, "notes": [EVIL], "corpus": "elsewhere", "fingerprint": "0" * 64}
        write_result(folder, Result("claims", about, result.frames))
    text = report(Sources(study[:1], analyses=folders), Choices(resamples=0), gold)
    sections = Markup(text).sections
    assert "task of one" in sections["claims"] and "task of two" in sections["claims-2"] and EVIL not in text
    assert "made of another corpus than the runs were trained on (elsewhere)" in sections["caveats"]


def test_a_page_of_selections_alone_asks_for_no_seeds(tmp_path):
    run = write_study_run(tmp_path / "fisher-pos-1", ["pos"], 1, True, 0.9, gold_sentences())
    tree = run.read_config()
    run.write_config(
        tree | {"train": tree["train"] | {"start": "elsewhere/none-pos-1", "freeze": ["encoder", "decoders"]}}
    )
    page = Markup(report(Sources([run]), QUICK, gold))
    assert "repeat runs" not in page.sections["in-short"] and "gates" in page.sections


def test_claims_in_a_folder_stand_once_and_in_short(tmp_path, study):
    claims = overlap(load_claims([folder.path for folder in study if folder.gates_path.is_file()]), 50)
    write_result(tmp_path, claims)
    page = Markup(report(Sources(study, analyses=[tmp_path]), QUICK, gold))
    assert page.sections.keys() >= {"claims"} and "overlap" not in page.sections
    assert "Heads claimed:" in page.sections["in-short"]
    fewer = Markup(report(Sources(study[:-1], analyses=[tmp_path]), QUICK, gold))  # other runs: both
    assert fewer.sections.keys() >= {"claims", "overlap"}


def test_figures_have_words_and_heads_of_tables_a_scope(whole):
    for tag, attributes in Markup(whole).tags:
        if tag == "svg":
            assert attributes["role"] == "img" and len(attributes["aria-label"] or "") > 10
        if tag == "th":
            assert attributes["scope"] in {"row", "col"}
        if attributes.get("role") == "region":
            assert attributes["tabindex"] == "0" and attributes["aria-label"]
    identifiers = [attributes["id"] for _, attributes in Markup(whole).tags if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")))


@settings(max_examples=30, deadline=None)
@given(st.recursive(st.none() | PRINTABLE | st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_data_comes_back_and_cannot_end_its_element(tree):
    part = Part("x", "x", {"blocks": []}, data={"tree": tree, "undefined": math.nan}, template="analysis")
    made = rendered("t", [part], [Path("run")])
    inner = made.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(inner)
    assert json.loads(inner)["x"] == {"tree": tree, "undefined": None}
