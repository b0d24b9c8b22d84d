"""mtlprune claims: what it prints and writes, and that a mistake is one sentence, code 2 and nothing written."""

from pathlib import Path

import numpy as np
import pytest
from gated_runs import scattered, write_run

from mtlprune import read_results

GATES = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]])


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(0)
    stem = scattered(generator, [2] * 4, 6)
    names = {"pos": ["pos"], "dep": ["dep"], "srl": ["srl"], "mtl": ["pos", "ner", "dep", "con", "srl"]}
    return [
        write_run(
            tmp_path / f"{name}-{seed}", tasks, np.maximum(stem, scattered(generator, [1] * 4, 6)), seed=seed
        ).path
        for name, tasks in names.items()
        for seed in (1, 2, 3)
    ]


def test_a_report_on_the_terminal_and_a_result(mtlprune, runs, tmp_path):
    out = tmp_path / "new" / "results"
    answer = mtlprune("claims", *runs, "--out", out, "--permutations", 300, "--seed", 5)
    assert answer.code == 0 and answer.err == ""
    figures = [f"claims-{name}.{kind}" for name in ("correlation", "shared", "heads") for kind in ("png", "svg")]
    shown = {path.name for path in out.iterdir() if path.suffix != ".parquet"}
    assert shown == {"claims.json", "claims.md", "claims.tex", *figures}
    assert (out / "claims.md").read_text() == answer.out
    result = read_results(out)["claims"]
    settings = result.about["settings"]
    assert (settings["permutations"], settings["seed"], result.about["layers"], result.about["heads"]) == (300, 5, 4, 6)
    assert result.frames["labels"]["encoder"].tolist() == ["POS", "DEP", "SRL", "MTL-5"]
    assert (
        result.frames["tests"].set_index("mode").loc["all", "p"] < 0.05 and "they share more than depth" in answer.out
    )
    assert (result.frames["groups"]["group"] == "stem").sum() >= 8
    assert mtlprune("claims", *runs, "--permutations", 300, "--seed", 5).out == answer.out


def test_mistakes_are_sentences_and_nothing_is_written(mtlprune, tmp_path):
    first = write_run(tmp_path / "first", ["pos"], GATES).path
    same_seed = write_run(tmp_path / "same", ["pos"], GATES).path
    file = tmp_path / "file"
    file.write_text("a file")
    for arguments, said in (
        ((first, same_seed, "--out", tmp_path / "out"), "are both runs of POS with seed 1"),
        ((first, "--out", file, "--permutations", 0), "is a file; name a folder"),
    ):
        answer = mtlprune("claims", *arguments)
        answer.refuses(said)
        assert answer.out == ""
    assert mtlprune("claims").code == 2 and mtlprune("claims", first, "--permutations", -1).code == 2
    assert not (tmp_path / "out").exists() and file.read_text() == "a file"
