"""Reports of probes: reading and refusing, the numbers in tables, places of labels, the same bytes every time."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mtlprune.analyses.probes.show.columns import ProbePanel, accuracy, gain, kind, panels
from mtlprune.analyses.probes.show.differences import differences
from mtlprune.analyses.probes.show.intervals import read_intervals
from mtlprune.analyses.probes.show.maps import ABSENT, atlas, heat_map
from mtlprune.analyses.probes.show.results import Key, LabelResult, ProbeResults
from mtlprune.analyses.probes.show.scatter import scatter
from mtlprune.analyses.probes.show.tables import latex, markdown, tables
from probe_results import FEW, LABELS, read_rows, row, write_probes, write_rows

from mtlprune.analyses.probes.show.paper import beside_paper, named_encoder, read_published
from mtlprune.analyses.probes.show.reading import read_probes
from mtlprune.files import RunError
from mtlprune.reports.axes import spread
from mtlprune.reports.drawing import Box, Dot, Drawing, Text
from mtlprune.reports.grid import Strong

ENCODERS = (("pretrained", 0), ("DEP", 1), ("DEP", 2), ("POS", 1), ("POS+DEP", 1), ("MTL-5", 1), ("MTL-5", 2))
SMALL = {"pos": LABELS["pos"], "dep": LABELS["dep"]}
SHAPE = (3, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_probes(tmp_path_factory.mktemp("probes") / "a", ENCODERS, SMALL, SHAPE)


@pytest.fixture(scope="module")
def found(folder: Path) -> ProbeResults:
    return read_probes([folder])


def panel_of(found: ProbeResults, task: str, mode: str = "sound") -> ProbePanel:
    return next(panel for panel in panels(found, mode) if panel.task == task)


def drawings(found: ProbeResults) -> dict[str, Drawing]:
    made = {}
    for panel in panels(found, "sound"):
        column = panel.column("pretrained")
        assert column is not None
        made[f"{panel.task} gain"] = scatter(panel, column, False, "x")
        made[f"{panel.task} raw"] = scatter(panel, column, True, "x")
        made[f"{panel.task} differences"] = differences(panel, "x")
        made[f"{panel.task} atlas"] = atlas(panel, column, False, "x")
    return made


# -- reading ---------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(folder: Path, found: ProbeResults) -> None:
    rows = read_rows(folder)
    assert (found.shape, found.corpus, found.few, found.encoder) == (SHAPE, "ewt5", FEW, "pretrained-0")
    for key, label in ((Key("pretrained", 0, "sound", "dep"), "nsubj"), (Key("DEP", 2, "as-released", "dep"), "obj")):
        mine = [r for r in rows if (r["encoder"], r["seed"], r["mode"], r["task"], r["label"]) == (*key, label)]
        plain = [r for r in mine if r["control"] == "none"]
        best = next(r for r in plain if r["best"])
        result = found.labels[key][label]
        assert (result.layer, result.head, result.accuracy) == (best["layer"], best["head"], best["test"])
        assert all(result.heads[r["layer"] - 1, r["head"] - 1] == r["test"] for r in plain)
        own = {r["control"]: r["test"] for r in mine if r["control"] != "none"}
        assert own.items() <= result.controls.items()
        assert result.gain == pytest.approx(result.accuracy - max(result.controls.values()), abs=1e-4)
    items = [result.items for result in found.labels["pretrained", 0, "sound", "pos"].values()]  # type: ignore[index]
    assert items == sorted(items, reverse=True)


def test_controls_without_weights_are_shared_and_shuffled_labels_are_not(found: ProbeResults) -> None:
    own, other = (
        found.labels[Key(name, seed, "sound", "dep")]["obj"] for name, seed in (("pretrained", 0), ("DEP", 1))
    )
    assert set(own.controls) == set(other.controls) == {"random_encoder", "shuffled_labels", "offset", "chance"}
    for name in ("random_encoder", "offset", "chance"):
        assert own.controls[name] == other.controls[name]
    assert own.controls["shuffled_labels"] != other.controls["shuffled_labels"]
    assert any("shared by all encoders" in note for note in found.notes)


def test_heads_that_are_gone_have_no_number_and_are_never_best(tmp_path: Path) -> None:
    tests = {(1, 1): 40.0, (1, 2): None, (2, 1): 60.0, (2, 2): 50.0}
    rows = [row(layer=x, head=y, test=t, dev=t, best=(x, y) == (2, 1)) for (x, y), t in tests.items()]
    write_rows(tmp_path, [r for r in rows if r["test"] is not None] + [row(label="JJ", layer=1, head=2, test=1.0)])
    (tmp_path / "probes.json").write_text(json.dumps({"few": 5}))
    found = read_probes([tmp_path])
    result = found.labels[Key("pretrained", 0, "sound", "pos")]["NN"]
    assert np.isnan(result.heads[0, 1]) and result.heads[1, 0] == 60 and math.isnan(result.gain)
    panel = panel_of(found, "pos")
    drawn = heat_map(panel, panel.columns[0], "NN", True, "x")
    yellow = [shape for shape in drawn.shapes if isinstance(shape, Box) and shape.fill == ABSENT and shape.tooltip]
    assert [shape.tooltip.partition(":")[0] for shape in yellow] == ["layer 1, head 2"]


def test_two_folders_are_one_result_unless_they_contradict(folder: Path, tmp_path: Path) -> None:
    one = write_probes(tmp_path / "one", ENCODERS[:1], SMALL, SHAPE)
    two = write_probes(tmp_path / "two", ENCODERS[1:], SMALL, SHAPE)
    assert read_probes([one, two, one]).labels.keys() == read_probes([folder]).labels.keys()
    rows = read_rows(one)
    rows[0]["test"] += 0.5
    write_rows(two, rows)
    with pytest.raises(RunError, match="different results of pretrained"):
        read_probes([one, two])


def test_what_cannot_be_right_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    usual = [row(layer=x, head=y, best=(x, y) == (1, 1)) for x in (1, 2) for y in (1, 2)]

    def refused(rows: Sequence[dict], said: str, **summary: object) -> None:
        write_rows(tmp_path, rows)
        (tmp_path / "probes.json").write_text(json.dumps({"few": 5} | summary))
        with pytest.raises(RunError, match=said):
            read_probes([tmp_path])

    refused([*usual, usual[0]], "every head once")
    refused([usual[0], *({**r, "best": True} for r in usual[1:])], "one head marked as best, found several")
    refused([{**r, "mode": "loud"} for r in usual], "found the mode 'loud'")
    refused([{**r, "control": "prayer"} for r in usual], "'prayer'; expected one of")
    refused([{**r, "test": 101.0} for r in usual], "percent from 0 to 100, found 101")
    refused([{**r, "layer": 0} for r in usual], "counted from 1")
    refused([{k: v for k, v in r.items() if k != "dev"} for r in usual], "expected the column dev")
    refused([{**r, "label": None} for r in usual], "column label is empty")
    refused([{**r, "seed": "one"} for r in usual], "not readable as probe results")
    refused(usual, "expected corpus, fingerprint, specials and few", few="many")
    with pytest.raises(RunError, match="differ in few"):
        write_rows(tmp_path, usual)
        (tmp_path / "probes.json").write_text(json.dumps({"few": FEW + 1, "fingerprint": "f" * 64, "specials": "kept"}))
        read_probes([folder, tmp_path])
    with pytest.raises(RunError, match="equally many layers and heads, found 2 × 2, 3 × 4"):
        write_rows(tmp_path, [{**r, "seed": 9} for r in usual])
        (tmp_path / "probes.json").write_text(json.dumps({"few": FEW, "fingerprint": "f" * 64, "specials": "kept"}))
        read_probes([folder, tmp_path])
    (tmp_path / "probes.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(RunError, match=r"probes.parquet: unexpected content"):
        read_probes([tmp_path])
    for nothing in (tmp_path / "nowhere", folder / "probes.json"):
        with pytest.raises(RunError, match=r"no probe results|is a file"):
            read_probes([nothing])


# -- columns and tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "title"),
    [
        ("pretrained", "pretrained"),
        ("DEP", "STL"),
        ("POS+DEP", "+POS"),
        ("DEP+SRL", "+SRL"),
        ("MTL-5", "MTL-5"),
        ("MTL-5:DEP", "MTL-5, own gates"),
        ("NER+DEP+SRL", "NER+DEP+SRL"),
    ],
)
def test_columns_are_called_as_the_paper_calls_them(encoder: str, title: str) -> None:
    assert kind(encoder, "dep")[1] == title and kind(encoder, "dep")[0] < 5


def test_encoders_of_other_tasks_come_last_and_only_when_wanted(found: ProbeResults) -> None:
    few = panel_of(found, "dep")
    assert [column.title for column in few.columns] == ["pretrained", "STL", "+POS", "MTL-5"]
    many = next(panel for panel in panels(found, "sound", others=True) if panel.task == "dep")
    assert [column.title for column in many.columns][-1] == "STL-POS"
    assert kind("MTL-5:POS", "dep")[0] >= 5 and kind("POS+NER", "dep")[0] >= 5


def test_tables_hold_means_deviations_and_signed_differences(found: ProbeResults) -> None:
    panel = panel_of(found, "dep")
    made = {table.key: table for table in tables([panel], found.few, None)}
    alone, joint = panel.column("STL"), panel.column("MTL-5")
    assert alone is not None and joint is not None
    row = next(row for row in made["dep-changes"].rows if row[0] == "nsubj")
    mine, theirs = joint.values("nsubj", accuracy), alone.values("nsubj", accuracy)
    assert row[2] == f"{statistics.mean(theirs):.2f} ± {statistics.stdev(theirs):.2f}"
    change = statistics.mean(mine) - statistics.mean(theirs)
    assert row[-1].replace("−", "-") == f"{change:+.2f}"
    bold = [cell for cell in row if type(cell) is not str]
    numbers = {cell: float(cell.split(" ")[0]) for cell in row[2:] if not cell.startswith(("+", "−"))}
    assert len(bold) == 1 and numbers[bold[0]] == max(numbers.values())
    few = next(row for row in made["dep-changes"].rows if row[0].startswith("csubj"))
    assert few[0] == "csubj°"
    assert made["dep-changes"].rows[-1][0] == "root (apart)" and "root" not in panel.labels
    controls = next(row for row in made["dep-pretrained-controls"].rows if row[0] == "obj")
    header = list(made["dep-pretrained-controls"].header)
    assert header[4:8] == ["random encoder", "shuffled labels", "best offset", "chance"]
    reached = float(controls[3]) - max(map(float, controls[4:8]))
    assert float(controls[-1].replace("−", "-")) == pytest.approx(reached, abs=0.011)


def test_the_summary_counts_labels_with_enough_items_and_shows_the_other_mode(found: ProbeResults) -> None:
    panel, other = panel_of(found, "dep"), panel_of(found, "dep", "as-released")
    row = tables([panel], found.few, None, [other])[0].rows[0]
    column = panel.column("pretrained")
    assert column is not None and "root" not in panel.sure()
    values = [column.mean(label, accuracy) for label in panel.sure()]
    gains = [column.mean(label, gain) for label in panel.sure()]
    assert row[3:5] == [str(len(values)), f"{statistics.mean(values):.2f}"]
    assert row[7] == f"{sum(value > 0 for value in gains)} of {len(gains)}"
    assert float(row[8]) != float(row[4])
    assert all(found.labels[Key("pretrained", 0, "sound", "dep")][label].items >= FEW for label in panel.sure())


def test_markdown_and_latex_say_the_same_and_escape_what_they_must(found: ProbeResults) -> None:
    made = tables(list(panels(found, "sound")), found.few, None)
    page, paper = markdown(made, "T", ["s"], ["n"]), latex(made, "T", ["s"], ["n"])
    assert page.count("**") == 2 * paper.count(r"\textbf{")
    assert r"PRP\$ &" in paper and "| PRP$ " in page and r"$^\circ$" in paper
    assert paper.count("\\toprule") == len(made) == page.count("\n## ")
    assert not set("±°−Δ") & set("".join(line for line in paper.splitlines() if not line.startswith("%"))) - {"Δ"}


# -- intervals -------------------------------------------------------------------------------------------------------


def difference(label: str, low: float, high: float, **changes: object) -> dict[str, object]:
    usual = {"encoder": "MTL-5", "minus": "DEP", "mode": "sound", "task": "dep", "label": label, "seeds": [2, 2]}
    return {**usual, "low": low, "high": high, **changes}


def test_intervals_mark_differences_of_these_seeds_only(found: ProbeResults, tmp_path: Path) -> None:
    panel = panel_of(found, "dep")
    entries = [difference("obj", -9.0, -1.0), difference("obl", -3.0, 2.0), difference("amod", 1.0, 2.0, seeds=[1, 2])]
    (tmp_path / "probes.json").write_text(json.dumps({"few": FEW, "differences": entries}))
    intervals = read_intervals([tmp_path])
    made = {table.key: table for table in tables([panel], FEW, intervals)}
    rows = {row[0]: row for row in made["dep-changes"].rows}
    assert [rows[label][-1].endswith("*") for label in ("obj", "obl", "amod", "nsubj")] == [True, False, False, False]
    rows = {row[0]: row for row in made["dep-intervals"].rows}
    assert rows["obj"][-1].endswith(" [−9.00, −1.00]") and rows["obl"][-1].endswith(" [−3.00, 2.00]")
    assert rows["amod"][-1] == rows["nsubj"][-1] == "–"
    assert isinstance(rows["obj"][-1], Strong) and not isinstance(rows["obl"][-1], Strong)
    for broken in ([{"low": 1}], [difference("obj", "x", 1)], "all", [difference("obj", 1, 2, seeds=3)]):  # type: ignore[arg-type]
        (tmp_path / "probes.json").write_text(json.dumps({"few": FEW, "differences": broken}))
        with pytest.raises(RunError, match=r"difference 1: .*; expected mode, task"):
            read_intervals([tmp_path])
    (tmp_path / "probes.json").write_text(json.dumps({"few": FEW}))
    assert read_intervals([tmp_path]) is None


# -- the paper -------------------------------------------------------------------------------------------------------


def test_the_published_constants_are_whole() -> None:
    published = read_published()
    sizes = {"pos": 49, "ner": 18, "dep": 44, "con": 23, "srl": 55}
    assert {key[1] for key in published.tables} == {"BERT", "RoBERTa", "ELECTRA", "DeBERTa"}
    means = {}
    for (task, encoder), table in published.tables.items():
        assert len(table.values) == sizes[task] and len(table.columns) == 7
        assert all(0 <= value.mean <= 100 for cells in table.values.values() for value in cells.values())
        means[task, encoder] = statistics.mean(cells["STL"].mean for cells in table.values.values())
        assert all(set(columns) <= set(table.columns) for columns in table.defects.values())
        assert set(table.defects) <= set(published.defects)
        damaged = task in ("pos", "ner", "con") and encoder != "BERT"
        assert ("3" in table.defects) == damaged
    assert round(means["pos", "BERT"], 2) == 90.49 and round(means["srl", "DeBERTa"], 2) == 83.60
    assert published.tables["dep", "BERT"].defects == {"2": ["pretrained"]}
    assert published.tables["srl", "BERT"].layers["ARGM-TMP"] == 10 and "48a6280" in published.origin


def test_beside_the_paper_defects_are_marked_and_labels_matched(found: ProbeResults) -> None:
    table = beside_paper(panel_of(found, "dep"), "BERT")
    assert table is not None
    assert table.header[2] == "pretrained, paper†" and "STL, paper" in table.header
    cells = next(row for row in table.rows if row[0] == "nsubj")
    assert cells[2] == "76.36" and cells[4] == "76.92 ± 3.26"
    assert "fine-tuned STL-DEP model of run 0" in table.caption and "Only ours: " in table.caption
    damaged = beside_paper(panel_of(found, "pos"), "RoBERTa")
    assert damaged is not None and all(f"{t}, paper†" in damaged.header for t in ("pretrained", "STL", "MTL-5"))
    assert named_encoder("paper") == "BERT" and named_encoder("paper:electra") == "ELECTRA"
    for wrong in ("paper:minilm", "book", ""):
        with pytest.raises(RunError, match="--against: expected paper"):
            named_encoder(wrong)


# -- drawings --------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 400), max_size=30))
def test_labels_are_spread_apart_within_bounds_and_in_order(wishes: list[float]) -> None:
    wanted = sorted(wishes)
    places = spread(wanted, 12, 0, 400)
    assert all(b - a >= 12 - 1e-6 for a, b in pairwise(places))
    assert all(-1e-6 <= place <= 400 + 1e-6 for place in places)
    if all(b - a >= 12 for a, b in pairwise(wanted)):
        assert places == pytest.approx(wanted)  # nothing moves without need


def test_labels_move_as_little_as_they_can() -> None:
    assert spread([100, 100], 10, 0, 200) == [95, 105]
    assert spread([0, 0, 50], 10, 0, 200) == [0, 10, 50]
    assert spread([198, 199], 10, 0, 200) == [190, 200]
    with pytest.raises(ValueError, match="30 labels"):
        spread([1.0] * 30, 12, 0, 100)


def test_dots_stand_at_their_layer_and_height(found: ProbeResults) -> None:
    panel = panel_of(found, "dep")
    column = panel.column("pretrained")
    assert column is not None
    drawn = scatter(panel, column, False, "x")
    dots = {s.tooltip.partition(": layer ")[0]: s for s in drawn.shapes if isinstance(s, Dot)}
    results = found.labels[Key("pretrained", 0, "sound", "dep")]
    assert set(panel.labels) == set(results) - {"root"}
    off = set(panel.labels) - dots.keys()  # few items stretch no axis: those beyond it are named instead
    words = " ".join(s.words for s in drawn.shapes if isinstance(s, Text))
    assert off <= panel.few and all(f"{label} {results[label].gain:+.0f}" in words for label in off)
    by_layer: dict[int, set[float]] = {}
    for label, dot in dots.items():
        by_layer.setdefault(results[label].layer, set()).add(dot.x)
        assert dot.hollow == (results[label].items < FEW)
    assert all(len(xs) == 1 for xs in by_layer.values())
    xs = [next(iter(by_layer[layer])) for layer in sorted(by_layer)]
    assert xs == sorted(xs)
    ordered = sorted(dots, key=lambda label: results[label].gain)
    assert [dots[label].y for label in ordered] == sorted((dot.y for dot in dots.values()), reverse=True)


def test_the_chosen_head_is_framed_and_cells_have_the_colour_of_their_gain(found: ProbeResults) -> None:
    panel = panel_of(found, "dep")
    column = panel.column("pretrained")
    assert column is not None
    drawn = heat_map(panel, column, "obj", False, "x")
    result = found.labels[Key("pretrained", 0, "sound", "dep")]["obj"]
    cells = {s.tooltip.partition(":")[0]: s for s in drawn.shapes if isinstance(s, Box) and s.tooltip}
    best = cells[f"layer {result.layer}, head {result.head}"]
    frame = [s for s in drawn.shapes[-4:] if isinstance(s, Box)]
    assert min(s.x for s in frame) == best.x - 1 and max(s.y + s.height for s in frame) == best.y + best.height + 1
    for (layer, head), value in np.ndenumerate(result.heads - result.control):
        red, _, blue = cells[f"layer {layer + 1}, head {head + 1}"].fill
        assert (blue > red) == (value > 0.3) or abs(value) < 0.5


def test_a_tie_with_a_control_is_no_gain() -> None:
    """1 of 27 items, against 1 of 27 labels by chance: stored in two roundings of the same number."""
    tie = LabelResult(27, 1, 1, 100 / 27, np.zeros((1, 1)), {"chance": 3.7037}, False)
    assert tie.gain == 0 and tie.accuracy > tie.control
