"""mtlprune heads: the join by layer and head, and what is refused."""

import csv
from pathlib import Path

import numpy as np
import pytest
from gated_runs import write_run

from mtlprune.reports.grid import Grid
from mtlprune.reports.heads import read_heads, section
from mtlprune.results import Result, head_rows, write_result


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


def test_the_verb_joins_by_layer_and_head(mtlprune, analyses, tmp_path):
    answer = mtlprune("heads", "--analyses", analyses, "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    with (tmp_path / "out" / "heads.csv").open() as handle:
        rows = {(row["layer"], row["head"]): row for row in csv.DictReader(handle)}
    assert len(rows) == 6
    assert all(float(row["λ"]) == 10 * int(layer) + int(head) for (layer, head), row in rows.items())
    assert (rows["1", "2"]["UAS"], rows["2", "1"]["UAS"], rows["2", "3"]["UAS"]) == ("2", "6", "")
    content = read_heads(tmp_path / "out")
    assert any("claims (RUNS)" in note for note in content["notes"])
    assert content["columns"][1]["meaning"] == "how much the head's attention mixes tokens"
    blocks = section(tmp_path / "out").blocks
    assert any(isinstance(block, Grid) and len(block.rows) == 6 for block in blocks)


def test_the_verb_refuses_in_sentences(mtlprune, analyses, tmp_path):
    gated = write_run(tmp_path / "gated", ["pos"], np.ones((2, 3)))
    (gated.path / "gates.jsonl").rename(tmp_path / "away")
    out = tmp_path / "none"
    for arguments, said in (
        (("--out", out), "nothing to join"),
        (("--analyses", tmp_path, "--out", out), "holds none of"),
        (("--analyses", analyses, "--of", "POS", "--out", out), "expected --of pretrained"),
        ((tmp_path / "gated", "--out", out), "a run without gates"),
    ):
        answer = mtlprune("heads", *arguments)
        assert (answer.code, said in answer.err) == (2, True), answer.err
    assert not out.exists()
