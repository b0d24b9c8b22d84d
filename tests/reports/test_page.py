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
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markup import Markup
from probe_results import write_probes
from report_runs import EVIL, gold_sentences, write_study, write_study_run
from run_folders import change_config, change_json, claim

from mtlprune.analyses.heads.claims.measure import overlap
from mtlprune.reports.page import Choices, Sources, report
from mtlprune.reports.page.claims import Selection
from mtlprune.reports.page.claims import part as claims_part
from mtlprune.reports.page.render import Part, rendered
from mtlprune.runs.claims import group, load_claims
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.results import Result, head_rows, write_result
from mtlprune.sentence import Sentence

QUICK, BARE = Choices(resamples=200, permutations=50), Choices(resamples=0, permutations=0)


def gold(run: str, fingerprint: str, split: str) -> Sequence[Sentence]:
    assert fingerprint == "f" * 64 and split == "test"
    return gold_sentences()


def no_gold(run: str, fingerprint: str, split: str) -> Sequence[Sentence]:
    raise RunError(f"the gold of {run} cannot be read")


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
    begin = text.index('id="data">') + len('id="data">')
    return json.loads(text[begin : text.index("</script>", begin)])


SECTIONS = ["scores", "claims", "know", "runs", "caveats", "terms"]


def test_questions_stand_in_their_order_without_a_script(whole, study):
    page = Markup(re.sub(r"<script.*?</script>", "", whole, flags=re.DOTALL))
    assert [attributes["id"] for tag, attributes in page.tags if tag == "section"] == SECTIONS
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links >= {f"#{key}" for key in (*SECTIONS, "next")}
    identifiers = {attributes.get("id") for _, attributes in page.tags}
    assert {link[1:] for link in links if link.startswith("#")} <= identifiers
    assert all(folder.path.name in page.sections["runs"] for folder in study)
    mean = sum(folder.read_scores("test")["pos"]["accuracy"] for folder in study[:3]) / 3
    assert f"{mean:.2f}" in page.sections["scores"] and "p (Holm)" in page.sections["scores"]
    assert "Stem heads" in page.sections["claims"] and "Correlation of gates" in page.sections["claims"]
    assert any("Claimed by most seeds: " in (attributes.get("aria-label") or "") for _, attributes in page.tags)


def test_the_first_screen_answers_and_names_what_is_not_asked(whole, study):
    first = Markup(whole).sections[""]
    assert "36 runs · seeds 1, 2, 3 · test · 500 training sentences" in first and "MTL-5 − STL, points" in first
    assert first.count("Not asked by these runs") == 1  # why: no treatment, no closed heads
    [repeated] = [line for line in first.splitlines() if "mtlprune compare data/x" in line]
    assert " data.train_sentences=500 " in repeated and " train.epochs=3 " in repeated and "pruning" not in repeated
    assert " --tasks pos,ner,dep,con,srl --seeds 1,2,3 --out compared" in repeated and "encoder.name" not in repeated
    cells = [attributes for tag, attributes in Markup(whole).tags if tag == "td" and "title" in attributes]
    claimed = [one.claimed_by_most for one in group(load_claims([run.path for run in gated(study)])) if not one.joint]
    assert len(cells) == np.any(claimed, axis=0).sum()
    outlined = sum("outlined" in (attributes.get("class") or "") for attributes in cells)
    assert outlined == (np.sum(claimed, axis=0) >= 3).sum()


def gated(study: list[RunFolder]) -> list[RunFolder]:
    return [run for run in study if run.has("gates.jsonl")]


def two_tasks(root: Path, seeds: Sequence[int], tasks: Sequence[str] = ("ner", "dep")) -> list[RunFolder]:
    kinds = [([task], 0.9) for task in tasks] + [(list(tasks), 0.6)]
    return [
        write_study_run(root / f"{'-'.join(names)}-{seed}-{pruned}", names, seed, pruned, skill, gold_sentences())
        for names, skill in kinds
        for seed in seeds
        for pruned in (False, True)
    ]


def test_two_tasks_and_one_seed_have_a_first_screen(tmp_path):
    first = Markup(report(Sources(two_tasks(tmp_path, [1])), QUICK, gold)).sections[""]
    for words in ("NER+DEP − STL, points", "by both tasks", "heads of both tasks are outlined", "One seed cannot say"):
        assert words in first
    assert "nother seed may choose other heads" in first and "one seed cannot" in first.lower()


def test_tasks_that_are_no_better_than_the_baseline_are_named_first(tmp_path):
    runs = two_tasks(tmp_path, [1])
    joint = next(run.read_scores("test")["dep"] for run in runs if run.path.name == "ner-dep-1-False")["las"]
    for dep, words in ((joint, "NER (STL, NER+DEP), DEP (NER+DEP). "), (joint - 0.1, "NER (STL, NER+DEP). ")):
        scores = {"ner": 100.0, "dep": dep}
        sources = Sources(runs, majority=lambda run, split, scores=scores: scores)
        assert f"in train: {words}" in Markup(report(sources, QUICK, gold)).sections[""]
    assert "majority" not in Markup(report(Sources(runs), QUICK, gold)).sections[""]


def test_such_tasks_are_named_for_every_corpus(tmp_path):
    runs = two_tasks(tmp_path / "first", [1]) + (others := two_tasks(tmp_path / "second", [1]))
    for run in others:
        manifest = run.read_manifest()
        run.write_json(
            "manifest.json", manifest | {"data": {**manifest["data"], "name": "other", "fingerprint": "0" * 64}}
        )
    sources = Sources(
        runs, majority=lambda run, split: {"ner": 100.0 * (run.read_manifest()["data"].get("name") == "other")}
    )
    page = Markup(report(sources, QUICK, lambda *_: gold_sentences()))
    assert "NER (STL, NER+DEP in other, test). " in page.sections[""]


def test_labels_are_those_of_the_sentences_that_were_scored(tmp_path):
    """Training may score only the first sentences of a split."""
    sets = [["ner"], ["dep"], ["ner", "dep"]]
    runs = [write_study_run(tmp_path / "-".join(one), one, 1, False, 0.8, gold_sentences()[:30]) for one in sets]
    sections = Markup(report(Sources(runs), QUICK, gold)).sections
    assert "Labels lost and gained" in sections["scores"] and "There are no labels" not in sections["caveats"]


def test_runs_scored_on_another_split_are_named_with_the_command_that_scores_them(tmp_path):
    runs = two_tasks(tmp_path, [1])
    dev = RunFolder(tmp_path / "dev")
    shutil.copytree(runs[0].path, dev.path)
    for folder in sorted((dev.path / "scores").parent.rglob("*test*"), reverse=True):
        folder.rename(folder.with_name(folder.name.replace("test", "dev")))
    manifest = dev.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("/test.json", "/dev.json"))
    scores = Markup(report(Sources([*runs, dev]), QUICK, no_gold)).sections["scores"]
    assert f"mtlprune evaluate {dev.path.name} --split test" in scores.replace("…/", "")


def test_the_caveat_on_heads_that_chance_explains_names_the_labels():
    claims = [claim("POS", 1, [[1, 0, 0]]), claim("POS", 2, [[0, 1, 0]])]
    made = claims_part([Selection("heads", tuple(claims), overlap(claims, permutations=0))], [])
    assert made is not None
    [caveat] = [line for line in made.caveats if "no single head is open" in line]
    assert caveat.startswith("For POS (smallest q ")


def test_gates_that_tie_where_wanted_heads_end_are_no_finding(tmp_path):
    runs = two_tasks(tmp_path, [1, 2])
    for run in runs:
        if run.has("gates.jsonl"):
            lines = [json.loads(line) for line in run.gates_path.read_text().splitlines()]
            half = {name: np.full(np.shape(gates), 0.5).tolist() for name, gates in lines[0]["gates"].items()}
            before = lines[0] | {"step": 0, "epoch": 0, "gates": half}
            run.gates_path.write_text("".join(json.dumps(line) + "\n" for line in (before, *lines)))
    page = Markup(report(Sources(runs), QUICK, gold))
    assert (
        "Gates do not distinguish heads" in page.sections[""] and "Gates do not distinguish heads" in page.sections[""]
    )
    assert "NER, seed 1: 12 of 12 tie" in page.sections["caveats"] and "an arbitrary order" in page.sections["claims"]
    gated = [run.path for run in runs if run.has("gates.jsonl")]
    write_result(tmp_path / "analyses", overlap(load_claims(gated), permutations=0))
    page = Markup(report(Sources(runs, analyses=[tmp_path / "analyses"]), QUICK, gold))
    assert "NER, seed 1: 12 of 12 tie" in page.sections["caveats"]  # a stored Result has no earlier gates


def test_it_needs_nothing_from_elsewhere(whole):
    for tag, attributes in Markup(whole).tags:
        assert tag not in {"iframe", "object", "embed", "base", "form"}
        for key in attributes.keys() & {"src", "href", "action", "srcset", "data", "xlink:href"}:
            assert (attributes[key] or "").startswith(("#", "data:")), (tag, attributes[key])
    assert "default-src 'none'" in html.unescape(whole)


def test_it_does_not_say_where_its_sources_lay(tmp_path, study):
    runs, root, pages = "a b/'c' & \"d\"", tmp_path / "home", []
    for home in (root, tmp_path / "another home"):
        for run in study[:1] + study[15:16]:
            copy = RunFolder(Path(shutil.copytree(run.path, home / runs / run.path.name)))
            change_config(copy, data={"train": str(tmp_path / "own" / "train.jsonl")})
        folders = [RunFolder(folder) for folder in sorted((home / runs).iterdir())]
        (folders[0].path / "metrics.jsonl").unlink()
        sources = Sources(folders, notes=[f"{folders[0].path / 'log'} and {tmp_path / 'x' / 'log'} are missing."])
        pages.append(report(sources, BARE, no_gold))
    assert pages[0] == pages[1]
    assert not any(str(part) in pages[0] for part in tmp_path.parents if len(part.parts) > 1)
    page = Markup(pages[0])
    assert f"{folders[0].path.name} has no metrics.jsonl" in page.sections["caveats"]
    assert f"{folders[0].path.name}/log and …/log are missing." in page.sections["caveats"]


def test_what_is_missing_is_said(tmp_path, study):
    runs = [run for run in study if run.path.name.endswith("-1") and run.path.name.startswith("none")]
    unscored = tmp_path / "unscored"
    shutil.copytree(runs[0].path, unscored)
    shutil.rmtree(unscored / "scores")
    change_json(unscored / "manifest.json", files={})
    notes = ["2 of 9 cells are not finished."]
    said = Markup(report(Sources([*runs, RunFolder(unscored)], notes=notes), QUICK, no_gold))
    caveats = said.sections["caveats"]
    assert "unscored is not scored on dev" in caveats
    assert "cannot be read" in caveats and notes[0] in caveats and "For settings with one run" in caveats
    assert "claims" not in said.sections


def test_runs_pruned_in_different_ways_are_never_mixed(tmp_path, study):
    other = RunFolder(tmp_path / "longer")
    shutil.copytree(next(run.path for run in study if run.path.name == "gates-pos-1"), other.path)
    change_config(other, train={"epochs": 30})
    gated = [run for run in study if run.path.name.startswith("gates-pos")]
    text = report(Sources([*gated, other]), BARE, gold)
    sets = data_of(text)["gates"]["sets"]
    assert [(one["title"], [len(label["z"]) for label in one["labels"]]) for one in sets] == [
        ("6 heads by gates, train.epochs=3", [3]),
        ("6 heads by gates, train.epochs=30", [1]),
    ]


def test_sections_of_analyses(tmp_path, study):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        label = f"heads of {folder.name} {EVIL}"
        numbers = {"open": 90.0, "closed": 80.0, "random": 85.0, "estimate": -5.0, "low": -7.0, "high": -3.0, "p": 0.01}
        cell = {"encoder": "POS", "task": "pos", "other": label, "mode": "claimed", **numbers}
        claimed = head_rows({"claimed": np.eye(3)}).assign(other=label)
        about = {"encoders": [], "notes": [EVIL], "corpus": "elsewhere", "fingerprint": "0" * 64, "split": "dev"}
        about |= {"sentences": 9, "too_long": 0, "seed": 0, "settings": {"draws": 5, "resamples": 9, "margin": 1.0}}
        frames = {"cells": pd.DataFrame([{**cell, "n": 2, "p_margin": 0.5, "p_holm": 0.01}]), "claimed": claimed}
        write_result(folder, Result("cross", about, frames))
    text = report(Sources(study[:1], analyses=folders), Choices(resamples=0), gold)
    sections = Markup(text).sections
    assert "heads of one" in sections["why"] and "heads of two" in sections["why"] and EVIL not in text
    assert "read another corpus (elsewhere) than the one" in sections["caveats"]


def test_a_page_of_selections_alone_asks_for_no_seeds(tmp_path):
    run = write_study_run(tmp_path / "fisher-pos-1", ["pos"], 1, True, 0.9, gold_sentences())
    change_config(run, train={"start": "elsewhere/none-pos-1", "freeze": ["encoder", "decoders"]})
    page = Markup(report(Sources([run]), QUICK, gold))
    assert "seed cannot" not in page.sections[""] and "claims" in page.sections


def test_claims_in_a_folder_stand_once(tmp_path, study):
    write_result(tmp_path, overlap(load_claims([folder.path for folder in gated(study)]), 50))
    text = report(Sources(study, analyses=[tmp_path]), BARE, gold)
    titles = [one["title"] for one in data_of(text)["gates"]["sets"]]
    assert len(titles) == 1
    fewer = data_of(report(Sources(study[:-1], analyses=[tmp_path]), BARE, gold))  # other runs: both
    assert {one["title"] for one in fewer["gates"]["sets"]} > set(titles)


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


FLOATS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)  # trainings make these 0


@settings(max_examples=30, deadline=None)
@given(st.recursive(st.none() | PRINTABLE | st.integers() | FLOATS, st.lists))
def test_data_comes_back_and_cannot_end_its_element(tree):
    content = {"tree": tree, "undefined": math.nan}
    part = Part("x", "x", {"blocks": []}, "other", data=content, template="analysis")
    made = rendered("t", None, [part], [Path("run")])
    inner = made.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(inner)
    assert json.loads(inner)["x"] == {"tree": tree, "undefined": None}
