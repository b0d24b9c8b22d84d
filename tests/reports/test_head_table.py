"""The table of heads, joined by layer and head; tables of overlap hold what the frames hold."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from probe_results import write_probes
from run_folders import claim, scattered

from mtlprune import read_results
from mtlprune.analyses.analysis import HeadColumn, find
from mtlprune.analyses.heads.claims import ANALYSIS
from mtlprune.analyses.heads.claims.maths import claim_columns
from mtlprune.analyses.heads.claims.measure import overlap
from mtlprune.analyses.heads.heads.measure import HeadTable, correlations
from mtlprune.figures.grid import number, probability
from mtlprune.io.files import RunError
from mtlprune.reports.analyses import tables
from mtlprune.runs.results import Result, head_rows, write_result


def columns(*values: np.ndarray) -> list[HeadColumn]:
    return [HeadColumn(str(place), str(place), value) for place, value in enumerate(values)]


def test_a_planted_correlation_is_found_and_depth_alone_is_not():
    generator = np.random.default_rng(0)
    depth = np.arange(6.0)[:, None] * 10
    x, noise, other = generator.normal(size=(3, 6, 12))
    found = correlations(columns(x + depth, -x + 0.3 * noise, other + depth), 999)
    pairs = {(pair["first"], pair["second"]): pair for _, pair in found.iterrows()}
    assert pairs["0", "1"].rho < -0.8 and pairs["0", "1"].p == 0.001 and pairs["0", "1"].q < 0.05
    assert abs(pairs["0", "2"].rho) < 0.4  # over all heads the two correlate almost perfectly


def test_unknown_heads_take_no_part_and_different_encoders_are_not_joined():
    x, y = np.random.default_rng(3).normal(size=(2, 2, 6))
    x[0, 2] = np.nan
    found = correlations(columns(x, y, np.ones((2, 6))), 9)
    assert found["rho"].isna().tolist() == found["q"].isna().tolist() == [False, True, True]
    assert not len(correlations(columns(x), 9))
    table = HeadTable()
    table.add(columns(np.ones((2, 3))), "one")
    with pytest.raises(RunError, match="two is about an encoder of 2 × 4 heads"):
        table.add([HeadColumn("x", "x", np.ones((2, 4)))], "two")


def test_claims_are_counted_by_label():
    gates = [np.array([[1.0, 0.0], [0.4, 0.0]]), np.array([[1.0, 0.0], [0.8, 0.0]]), np.array([[0.0, 1.0], [0.0, 0.2]])]
    claims = [*(claim("POS", k, g) for k, g in enumerate(gates[:2], 1)), claim("DEP", 1, gates[2])]
    found = {column.name: column.values for column in claim_columns(claims)}
    assert found["open POS (of 2)"].tolist() == [[2, 0], [2, 0]]
    assert found["gate POS"][1, 0] == pytest.approx(0.6)
    assert found["tasks that claim"].tolist() == [[1, 1], [1, 1]]
    claims += [claim("POS", 3, np.zeros((2, 2))), claim("POS", 4, np.zeros((2, 2)))]  # half of the seeds are not most
    found = {column.name: column.values for column in claim_columns(claims)}
    assert found["tasks that claim"].tolist() == [[0, 1], [0, 1]]


def test_a_folder_gives_the_columns_of_its_claims_and_probes(tmp_path):
    claims = [claim("POS", 1, np.eye(6, 12)), claim("DEP", 1, np.ones((6, 12)))]
    write_result(tmp_path, overlap(claims, permutations=0))
    names = {"pos": ["NN", "VB", "IN", "DT", "JJ"], "dep": ["nsubj", "obj", "det", "root"]}
    write_probes(tmp_path, [("pretrained", 0)], names)
    table = HeadTable()
    table.read(tmp_path, "pretrained", ("probes", "claims"))
    found = {column.name: column.values for column in table.columns}
    assert np.array_equal(found["gate POS"], np.eye(6, 12)) and not table.notes
    best = found["best labels over control"][np.unravel_index(np.argmax(found["probe gain POS"]), (6, 12))]
    named = [float(one.rpartition(" ")[2]) for one in best.split(", ")]
    assert 0 < len(named) <= 3 and named == sorted(named, reverse=True)  # at most three labels, the best first
    other = HeadTable()
    other.read(tmp_path, "MTL-5", ("probes", "claims"))
    assert {column.source for column in other.columns} == {"claims"} and "no result of MTL-5" in other.notes[0]


@pytest.mark.parametrize("labels", [["MTL-5"], ["POS+DEP", "MTL-5"]])
def test_gradients_of_several_joint_settings_have_a_column_each(labels, tmp_path):
    encoders = [{"encoder": label, "seed": 1, "layers": 2, "heads": 3, "open": 6} for label in ["POS", *labels]]
    about = {"encoders": encoders, "notes": []}
    heads = pd.concat([head_rows({"importance": np.ones((2, 3))}).assign(encoder=e["encoder"]) for e in encoders])
    joint = [head_rows({"cosine": np.full((2, 3), place)}).assign(encoder=e) for place, e in enumerate(labels)]
    frames = {"heads": heads.assign(seed=1, task="pos", mode=""), "joint": pd.concat(joint).assign(seed=1)}
    write_result(tmp_path, Result("gradients", about, frames))
    table = HeadTable()
    table.read(tmp_path, "pretrained", ["gradients"])
    cosines = {one.name: one.values[0, 0] for one in table.columns if one.name.startswith("gradient cosine")}
    one, several = {"gradient cosine": 0}, {"gradient cosine POS+DEP": 0, "gradient cosine MTL-5": 1}
    assert cosines == (one if len(labels) == 1 else several)


def test_tables_hold_what_the_frames_hold():
    generator = np.random.default_rng(0)
    stem = scattered(generator, [2] * 4, 6)
    claims = [
        claim(label, seed, np.maximum(stem, scattered(generator, [1] * 4, 6)) * generator.uniform(0.1, 1, (4, 6)))
        for label in ("POS", "DEP", "SRL", "MTL-5", "MTL-5:POS")
        for seed in (1, 2, 3)
    ]
    result = overlap(claims, permutations=200)
    made = {table.title: table for table in tables(ANALYSIS, result)}
    matrix, pairs = made["Correlation of gates"], result.frames["pairs"]
    assert list(matrix.header) == ["", "POS", "DEP", "SRL", "MTL-5", "MTL-5:POS"]
    cells = {(row[0], name): cell for row in matrix.rows for name, cell in zip(matrix.header[1:], row[1:], strict=True)}
    for pair in pairs.itertuples():
        assert cells[pair.encoder, pair.other] == cells[pair.other, pair.encoder] == number(pair.pearson)
    assert [(row[0], row[3], row[6], row[7]) for row in made["Heads shared by two settings"].rows] == [
        (f"{p.encoder} – {p.other}", number(p.shared, 1), probability(p.p), probability(p.q))
        for p in pairs.itertuples()
    ]
    assert sum(float(row[2]) for row in made["Variance of gates"].rows) == pytest.approx(100, abs=0.3)


@pytest.fixture
def analyses(tmp_path: Path) -> Path:
    """UAS and λ of 2 × 3 heads; the rows of λ in an order of their own."""
    folder = tmp_path / "analyses"
    folder.mkdir()
    uas = head_rows({"uas": np.array([[1.0, 2, 3], [6, 5, np.nan]])}).assign(encoder="pretrained", seed=0)
    about = {"encoders": [{"encoder": "pretrained", "seed": 0, "layers": 2, "heads": 3, "open": 6}], "notes": []}
    write_result(folder, Result("syntax", about, {"heads": uas}))
    mixing = head_rows({"mixing": np.array([[11.0, 12, 13], [21, 22, 23]])}).iloc[[5, 3, 4, 2, 0, 1]]
    frame = mixing.reset_index(drop=True).assign(encoder="pretrained", seed=0)
    write_result(folder, Result("smoothing", about, {"heads": frame}))
    return folder


def test_heads_joins_by_layer_and_head(mtlprune, analyses, tmp_path):
    mtlprune("analyze", "heads", analyses, "--out", tmp_path / "out").done()
    result = read_results(tmp_path / "out")["heads"]
    rows = result.frames["heads"].pivot(index=["layer", "head"], columns="measure", values="value")
    assert len(rows) == 6 and all(value == 10 * layer + head for (layer, head), value in rows["λ"].items())
    assert (rows["UAS"][1, 2], rows["UAS"][2, 1]) == (2, 6) and np.isnan(rows["UAS"][2, 3])
    assert any("claims" in note for note in result.about["notes"])
    assert len(tables(find("heads"), result)[-1].rows) == 6
    mtlprune("analyze", "heads", analyses, "of=POS", "--out", tmp_path / "none").refuses("expected of=pretrained")
