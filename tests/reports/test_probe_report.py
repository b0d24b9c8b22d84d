"""Reports of probes: reading and refusing, the numbers in tables, what figures show."""

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from probe_results import FEW, LABELS, read_rows, row, write_probes, write_rows

from mtlprune.analyses.probes import labels_of
from mtlprune.analyses.probes.published import read_published
from mtlprune.analyses.probes.reading import ProbePanel, kind, panels, probe_table, read_probes, shape
from mtlprune.analyses.probes.show import FIGURES, best_layers_figure, differences_figure, layers_figure, tables
from mtlprune.figures.grid import Grid, Strong
from mtlprune.io.files import RunError
from mtlprune.layers import LAYERS
from mtlprune.runs.results import Result

ENCODERS = (("pretrained", 0), ("DEP", 1), ("DEP", 2), ("POS", 1), ("POS+DEP", 1), ("MTL-5", 1), ("MTL-5", 2))
SMALL = {"pos": LABELS["pos"], "dep": LABELS["dep"]}
SHAPE = (3, 4)
TASKS = [task.upper() for task in LAYERS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_probes(tmp_path_factory.mktemp("probes") / "a", ENCODERS, SMALL, SHAPE)


@pytest.fixture(scope="module")
def found(folder: Path) -> Result:
    return read_probes([folder])


def panel_of(found: Result, task: str, mode: str = "sound") -> ProbePanel:
    return next(panel for panel in panels(found, mode) if panel.task == task)


def tables_of(found: Result) -> dict[str, Grid]:
    return {table.key: table for table in tables(found)}


def shown(spec: dict[str, Any], named: str) -> list[dict[str, Any]]:
    held = [one.get("data", {}) for one in (spec, *(spec.get("layer") or spec["spec"]["layer"]))]
    rows = [one.get("values") or spec["datasets"].get(one.get("name")) for one in held]
    return next(values for values in rows if values and named in values[0])


def test_what_was_written_is_read(folder, found):
    rows = read_rows(folder)
    assert (shape(found), found.about["corpus"], found.about["few"]) == (SHAPE, "ewt5", FEW)
    for encoder, seed, mode, label in (("pretrained", 0, "sound", "nsubj"), ("DEP", 2, "as-released", "obj")):
        key = (encoder, seed, mode, "dep", label)
        mine = [r for r in rows if (r["encoder"], r["seed"], r["mode"], r["task"], r["label"]) == key]
        best = next(r for r in mine if r["control"] == "none" and r["best"])
        panel = panel_of(found, "dep", mode)
        result = next(one for one in panel.of("STL" if encoder == "DEP" else encoder, label) if one["seed"] == seed)
        assert (result["layer"], result["head"]) == (best["layer"], best["head"])
        assert result["test"] == pytest.approx(best["test"], abs=1e-4)
        heads = probe_table(found, mode, encoder, seed).query("task == 'dep' and label == @label")
        assert heads["best"].sum() == 1 and {(r.layer, r.head): r.test for r in heads.itertuples()} == {
            (r["layer"], r["head"]): r["test"] for r in mine if r["control"] == "none"
        }
        for control in (r for r in mine if r["control"] != "none"):
            assert result[control["control"]] == pytest.approx(control["test"], abs=1e-4)


def test_controls_are_shared_and_counted(found):
    panel = panel_of(found, "dep")
    (own,), (other, _) = panel.of("pretrained", "obj"), panel.of("STL", "obj")
    for name in ("random_encoder", "offset", "chance"):
        assert own[name] == other[name]
    assert own["shuffled_labels"] != other["shuffled_labels"]
    assert any("the same for all encoders" in note for note in found.about["notes"])


def test_heads_that_are_gone_have_no_number_and_are_never_best(tmp_path):
    tests = {(1, 1): 40.0, (1, 2): None, (2, 1): 60.0, (2, 2): 50.0}
    rows = [row(layer=x, head=y, test=t, dev=t, best=(x, y) == (2, 1)) for (x, y), t in tests.items()]
    rows = [r for r in rows if r["test"] is not None] + [row(label="JJ", layer=1, head=2, test=1.0)]
    write_rows(tmp_path, rows, few=5)
    found = read_probes([tmp_path])
    (panel,) = panels(found, "sound")
    assert panel.labels == ["NN"] and math.isnan(panel.mean("pretrained", "NN", "gain"))
    assert any("JJ are left out" in note for note in found.about["notes"])
    spec = FIGURES(found)["heads-pos"].make(found)
    cells = {(one["layer"], one["head"]): (one["gain"], one["best"]) for one in shown(spec, "gain")}
    assert cells == {(1, 1): (40, False), (1, 2): (None, False), (2, 1): (60, True), (2, 2): (50, False)}


def test_two_folders_are_one_result_unless_they_contradict(folder, tmp_path):
    one = write_probes(tmp_path / "one", ENCODERS[:1], SMALL, SHAPE)
    two = write_probes(tmp_path / "two", ENCODERS[1:], SMALL, SHAPE)
    keys = ["encoder", "seed", "mode", "task", "label"]
    both, whole = (read_probes(names).frames["labels"][[*keys, "gain"]] for names in ([one, two, one], [folder]))
    pd.testing.assert_frame_equal(*(part.sort_values(keys, ignore_index=True) for part in (both, whole)))
    rows = read_rows(one)
    rows[0]["test"] += 0.5
    write_rows(two, rows)
    with pytest.raises(RunError, match="different results of pretrained"):
        read_probes([one, two])


def test_folders_that_do_not_belong_together_are_refused(folder, tmp_path):
    usual = [row(layer=x, head=y, best=(x, y) == (1, 1)) for x in (1, 2) for y in (1, 2)]
    for rows, few, said in (
        (usual, FEW + 1, "differ in few"),
        ([{**r, "seed": 9} for r in usual], FEW, "equally many layers and heads, found 2 × 2, 3 × 4"),
    ):
        write_rows(tmp_path, rows, few=few)
        with pytest.raises(RunError, match=said):
            read_probes([folder, tmp_path])
    with pytest.raises(RunError, match=r"probes.json is missing"):
        read_probes([tmp_path / "nowhere"])


def test_tables_hold_means_deviations_and_signed_differences(found):
    panel, made = panel_of(found, "dep"), tables_of(found)
    row = next(row for row in made["dep-changes"].rows if row[0] == "nsubj")
    mine, theirs = panel.values("MTL-5", "nsubj"), panel.values("STL", "nsubj")
    assert row[2] == f"{statistics.mean(theirs):.2f} ± {statistics.stdev(theirs):.2f}"
    assert row[-1].replace("−", "-") == f"{statistics.mean(mine) - statistics.mean(theirs):+.2f}"
    assert "csubj°" in [row[0] for row in made["dep-changes"].rows]  # of few items
    assert made["dep-changes"].rows[-1][0] == "root (apart)" and "root" not in panel.labels
    controls = next(row for row in made["dep-pretrained-controls"].rows if row[0] == "obj")
    reached = float(controls[3]) - max(map(float, controls[4:8]))
    assert float(controls[-1].replace("−", "-")) == pytest.approx(reached, abs=0.011)


def test_labels_of_other_layers_and_ties_with_a_control():
    """A second tree has a root that stands apart; a layer of tags with a label of this name has not."""
    rows = [row(task=task, label="root", best=True, distance=math.nan) for task in ("ud2", "xpos")]
    made, _ = labels_of(pd.DataFrame(rows), 20, {"ud2": "tree", "xpos": "tags"})
    assert dict(zip(made["task"], made["apart"], strict=True)) == {"ud2": True, "xpos": False}
    assert kind("XPOS", "ud2", [*TASKS, "XPOS", "UD2"]) == (5, "STL-XPOS")
    rows = [row(items=27, test=100 / 27, best=True), row(control="chance", layer=0, head=0, test=3.7037, best=True)]
    made, _ = labels_of(pd.DataFrame(rows).assign(distance=np.nan), 20, {"pos": "tags"})
    assert made["gain"].tolist() == [0.0]


def test_intervals_mark_differences_of_these_seeds_only(tmp_path):
    def difference(label: str, low: float, high: float, **changes: object) -> dict[str, object]:
        usual = {"encoder": "MTL-5", "other": "DEP", "mode": "sound", "task": "dep", "label": label}
        return {**usual, "low": low, "high": high, "seeds": 2, "other_seeds": 2, **changes}

    entries = [difference("obj", -9.0, -1.0), difference("obl", -3.0, 2.0), difference("amod", 1.0, 2.0, seeds=1)]
    write_probes(tmp_path, ENCODERS, {"dep": LABELS["dep"]}, SHAPE, ("sound",), differences=entries)
    made = tables_of(read_probes([tmp_path]))
    rows = {row[0]: row for row in made["dep-changes"].rows}
    assert rows["obj"][-1].endswith(" [−9.00, −1.00]") and rows["obl"][-1].endswith(" [−3.00, 2.00]")
    assert "[" not in rows["amod"][-1] + rows["nsubj"][-1]
    assert isinstance(rows["obj"][-1], Strong) and not isinstance(rows["obl"][-1], Strong)


PUBLISHED = str(Path(__file__).parents[2] / "experiments/he-choi-2021/probes.csv")


def test_beside_the_paper_defects_are_marked_and_labels_matched(found):
    def beside(against: str, task: str) -> Grid:
        about, rows = read_published(against)
        result = Result("probes", {**found.about, "published": about}, {**found.frames, "published": rows})
        return tables_of(result)[f"{task}-paper"]

    table = beside(PUBLISHED, "dep")
    assert table.header[2] == "pretrained, paper" and "STL, paper" in table.header
    cells = next(row for row in table.rows if row[0] == "nsubj")
    assert cells[2] == "76.36†" and cells[4] == "76.92 ± 3.26"
    assert "Only ours: " in table.caption and "† (DEP of BERT, pretrained): " in table.caption
    damaged = beside(f"{PUBLISHED}:roberta", "pos")
    columns = [place for place, title in enumerate(damaged.header) if title.endswith(" paper")]
    assert len(columns) >= 3 and all(row[place].endswith("†") for row in damaged.rows for place in columns)
    for wrong in ("paper", f"{PUBLISHED}:minilm", __file__):
        with pytest.raises(RunError, match="expected"):
            read_published(wrong)


def test_dots_are_best_heads_and_differences_to_stl(found):
    panel = panel_of(found, "dep")
    drawn = {one["label"]: one for one in shown(layers_figure(found, panel, "pretrained"), "ink")}
    assert drawn.keys() == set(panel.labels)
    for label, one in drawn.items():
        gain = panel.mean("pretrained", label, "gain")
        assert one["value"] - one["reference"] == pytest.approx(gain, abs=1e-2)
        assert one["few"] == (label in panel.rare_labels)


def test_ticks_are_best_heads_by_layer_and_differences_to_stl(found):
    panel = panel_of(found, "dep")
    spec = best_layers_figure(found, panel)
    assert len(spec["vconcat"]) == 2  # pretrained and STL
    first = shown({**spec["vconcat"][0], "datasets": spec.get("datasets", {})}, "start")
    layers = {label: panel.mean("pretrained", label, "layer") for label in panel.labels}
    order = sorted({one["x"] for one in first})
    ranks = {layer: rank for rank, layer in enumerate(sorted(set(layers.values())))}
    assert {one["label"]: order.index(one["x"]) for one in first} == {k: ranks[v] for k, v in layers.items()}
    marks: dict[float, dict[str, Any]] = {}
    for one in shown(differences_figure(found, panel), "start"):
        marks.setdefault(one["x"], {}).setdefault(one["label"], one)
    for x, title in zip(sorted(marks), panel.compared, strict=True):
        gaps = [panel.gap(title, label) for label in panel.reliable_labels]
        assert [marks[x][label]["value"] for label in panel.reliable_labels] == pytest.approx(gaps, abs=1e-2)
        lengths = [marks[x][label]["end"] - marks[x][label]["start"] for label in panel.reliable_labels]
        assert lengths == sorted(lengths, reverse=True)  # labels are in the order of their frequency


def test_names_stand_apart_in_the_order_of_their_ticks(found):
    names = [one for one in shown(differences_figure(found, panel_of(found, "pos")), "beside")]
    for x in {one["x"] for one in names}:
        some = sorted((one for one in names if one["x"] == x), key=lambda one: one["at"])
        for low, high in itertools.pairwise(some):
            assert high["at"] - low["at"] > 0.1 and high["value"] >= low["value"]
